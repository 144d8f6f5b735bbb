"""Atomically replaced files: what is on the disk, in which order, and what a fault leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from distro_node.node.storage.atomic_write import replacing, write_atomically, write_output
from distro_node.node.util.regular_files import NotRegularFile


def test_the_file_is_synced_before_it_gets_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"old")
    synced = []
    genuine = os.fsync

    def fsync(descriptor: int) -> None:
        genuine(descriptor)
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), place.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(place, b"new")
    assert synced == [(str(tmp_path / ".file.new"), b"old"), (str(tmp_path), b"new")]
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("fault", ["fsync", "replace", "write", "cancelled"])
def test_a_fault_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    def write() -> None:
        with replacing(place) as aside:
            aside.write_bytes(b"new")
            if fault == "write":
                full()
            if fault == "cancelled":
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        match fault:
            case "fsync":
                patch.setattr(os, "fsync", full)
            case "replace":
                patch.setattr(Path, "replace", full)
        with pytest.raises(KeyboardInterrupt if fault == "cancelled" else OSError):
            write()
    assert place.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [place]


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".file.new").write_bytes(b"half of a much longer file")
    write_atomically(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_what_a_user_names_is_replaced_only_if_it_is_a_file(tmp_path: Path) -> None:
    """`--output /dev/null` of root replaced the device by a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("pipe", "folder", "device"):
        before = (tmp_path / name).lstat().st_mode
        with pytest.raises(NotRegularFile, match="not a file"):
            write_output(tmp_path / name, b"new")
        assert (tmp_path / name).lstat().st_mode == before
    for name in ("new", "n" * 255, "broken"):
        if name == "broken":
            (tmp_path / name).symlink_to("nowhere")
        for data in (b"one", b"two"):
            write_output(tmp_path / name, data)
            assert (tmp_path / name).read_bytes() == data
    assert len(list(tmp_path.iterdir())) == 6
