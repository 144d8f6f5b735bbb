"""The count of relayed bytes survives restarts, and no disk fault ends a node."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.node.storage.relayed_bytes import RelayedBytes, read_relayed


def test_it_goes_on_where_the_last_start_ended(tmp_path: Path) -> None:
    path = tmp_path / "relayed"
    first = RelayedBytes(path)
    assert first.total == 0
    first.note(700)
    first.note(1_000)
    first.keep()
    again = RelayedBytes(path)
    assert again.total == 1_000
    again.note(24)
    assert again.total == 1_024
    # Not stored yet.
    assert read_relayed(path) == 1_000
    again.keep()
    assert read_relayed(path) == 1_024
    path.unlink()
    # No change, so nothing is written.
    again.keep()
    assert not path.exists()


@pytest.mark.parametrize(
    "found", [b"", b"x", b"-5", b"9" * 19, b"9" * 5000, b"\xff\xfe", b"1 2", "²".encode()]
)
def test_what_makes_no_sense_counts_from_zero(
    tmp_path: Path, found: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "relayed"
    path.write_bytes(found)
    count = RelayedBytes(path)
    assert count.total == 0
    assert "relayed bytes in" in caplog.text
    count.note(5)
    count.keep()
    assert read_relayed(path) == 5


def test_a_folder_in_its_place_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "relayed"
    path.mkdir()
    count = RelayedBytes(path)
    count.note(5)
    count.keep()
    assert "cannot be written" in caplog.text
    assert count.total == 5


def test_without_a_place_it_is_of_this_start() -> None:
    count = RelayedBytes()
    count.note(5)
    count.keep()
    assert count.total == 5
    count.note(1 << 63)
    assert count.total < 1 << 63
