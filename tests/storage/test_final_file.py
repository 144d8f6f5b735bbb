"""The file with the final record: correct, missing, or recognised as damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.storage.final_file import read_final, write_final
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.messages import RecordId

KNOWN = Checkpoint(1234, RecordId(content_id(b"record")))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "final"
    assert read_final(path) is None
    for checkpoint in (Checkpoint(0, KNOWN.record), KNOWN):
        write_final(path, checkpoint)
        assert read_final(path) == checkpoint
    assert [entry.name for entry in tmp_path.iterdir()] == ["final"]


def test_every_damage_is_found(tmp_path: Path) -> None:
    path = tmp_path / "final"
    write_final(path, KNOWN)
    good = path.read_bytes()
    damaged = [good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :] for place in range(61)]
    damaged += [
        b"",
        good[:-2],
        good + b"x",
        good * 2,
        bytes(1000),
        b"\xff\xfe",
        good[1:],
        b"0" + good,
    ]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(UserError, match="damaged") as caught:
            read_final(path)
        assert caught.value.code is ExitCode.FINAL


def test_a_directory_in_its_place_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="damaged"):
        read_final(tmp_path)
