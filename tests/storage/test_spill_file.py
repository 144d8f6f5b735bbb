"""The spill file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from distro_node.node.storage.spill_file import SpillFile


def test_entries_come_back_and_leave_nothing_to_be_seen(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path)
    entries = [b"", b"one", bytes(5000)]
    places = [spill.put(entry) for entry in entries]
    assert [spill.get(place) for place in places] == entries
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("written", [None, 3])
def test_what_a_full_disk_does_not_take_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int | None
) -> None:
    spill = SpillFile(tmp_path)
    first = spill.put(b"first")
    whole_write = os.pwrite

    def full(file: int, data: bytes, place: int) -> int:
        if written is None:
            raise OSError(28, "No space left on device")
        return whole_write(file, data[:written], place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        kept: Sequence[int] = [spill.put(b"second"), spill.put(b"third")]
    last = spill.put(b"last")
    assert [spill.get(place) for place in (first, *kept, last)] == [
        b"first",
        b"second",
        b"third",
        b"last",
    ]
