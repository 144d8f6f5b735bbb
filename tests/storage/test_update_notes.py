"""The notes of updates that a restarted node may have to remove."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.crypto.hashing import content_id, content_text
from distro_node.node.storage.update_notes import UpdateNotes
from distro_node.protocol.wire.manifest import SwarmId

SWARM = SwarmId(bytes(32))
ONE, TWO = content_id(b"one"), content_id(b"two")


def notes_file(tmp_path: Path) -> Path:
    (path,) = tmp_path.iterdir()
    return path


def test_notes_outlive_the_process(tmp_path: Path) -> None:
    notes = UpdateNotes(tmp_path, SWARM)
    notes.note(3, ONE)
    notes.note(4, TWO)
    assert UpdateNotes(tmp_path, SWARM).noted == {(3, ONE), (4, TWO)}
    assert UpdateNotes(tmp_path, SwarmId(bytes(31) + b"1")).noted == set()


@pytest.mark.parametrize(
    "damage",
    [
        b"12 bqr",
        b"\xff\xfe",
        b"-3 " + content_text(ONE).encode(),
        b"9" * 5000 + b" " + content_text(ONE).encode(),
        b"3 4 5",
    ],
)
def test_damaged_lines_are_skipped(tmp_path: Path, damage: bytes) -> None:
    UpdateNotes(tmp_path, SWARM).note(3, ONE)
    with notes_file(tmp_path).open("ab") as file:
        file.write(b"\n" + damage)
    UpdateNotes(tmp_path, SWARM).note(4, TWO)
    assert UpdateNotes(tmp_path, SWARM).noted == {(3, ONE), (4, TWO)}


def test_the_file_stays_short(tmp_path: Path) -> None:
    notes = UpdateNotes(tmp_path, SWARM)
    for round_ in range(3000):
        notes.note(round_, ONE)
        notes.note(round_, ONE)
        notes.forget(round_ - 1)
        assert notes.noted == {(round_, ONE)}
    assert notes_file(tmp_path).stat().st_size < 30_000
    assert UpdateNotes(tmp_path, SWARM).noted >= notes.noted
