"""The data directory: modes, the lock, free space, and specific errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.storage.data_dir import DataDir, open_identity
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.swarm_id import swarm_text

HOLD = """
import sys
from pathlib import Path
from distro_node.node.storage.data_dir import DataDir
with DataDir(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    data.create()
    return data


def test_only_the_owner_may_read(data: DataDir) -> None:
    for place in (data.root, data.blobs, data.swarms, data.logs):
        assert place.stat().st_mode & 0o777 == 0o700
    data.create()


def test_the_names_of_its_parts_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, list[str]]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((place, sorted(os.listdir(place))))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    DataDir(tmp_path / "data").create()
    assert synced == [(str(tmp_path / "data"), ["blobs", "logs", "swarms"])]


def test_a_directory_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    DataDir(tmp_path).create()
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_paths_are_those_that_were_agreed(data: DataDir) -> None:
    swarm = SwarmId(bytes(32))
    names = {path.name for path in vars(data).values() if path != data.root}
    files = {"identity.key", "starts", "relayed", "daemon.lock", "daemon.sock"}
    assert names == files | {"blobs", "swarms", "logs", "create"}
    files = data.swarm(swarm)
    assert files.root == data.root / "swarms" / swarm_text(swarm)
    names = {path.name for path in vars(files).values() if path != files.root}
    assert names == {
        "manifest",
        "ledger",
        "verified",
        "indexes",
        "votes",
        "final",
        "momentum",
        "private",
        "sign-votes",
        "history.jsonl",
        "snapshots.json",
        "trainer-caches",
    }


def test_known_swarms_are_those_with_a_manifest(data: DataDir) -> None:
    swarm = SwarmId(bytes(32))
    for name in (swarm_text(swarm), "something-else"):
        (data.swarms / name).mkdir()
        (data.swarms / name / "manifest").touch()
    (data.swarms / swarm_text(SwarmId(bytes(31) + b"1"))).mkdir()
    assert data.known_swarms() == [swarm]


def test_the_scratch_folder_of_a_killed_process_is_removed(data: DataDir) -> None:
    """`create` puts a model and data into it: gigabytes under a hidden name."""
    data.create()
    killed = data.scratch()
    left = killed.__enter__()
    (left / "a blob").touch()
    with data.lock():
        assert not left.exists()
        with data.scratch() as folder:
            (folder / "a blob").touch()
        assert not folder.exists()
    killed.__exit__(None, None, None)


def test_one_process_at_a_time(data: DataDir) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, data.root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError) as caught, data.lock():
            pass
        assert caught.value.code == ExitCode.DATA_DIR_LOCKED
        assert f"process {holder.pid}" in caught.value.problem
        holder.kill()
        holder.wait()
        # A killed process holds no lock.
        with data.lock():
            assert data.lock_file.read_text() == f"{os.getpid()}\n"
    with data.lock():
        pass


def test_a_lock_file_that_cannot_be_opened(data: DataDir) -> None:
    data.lock_file.mkdir()
    with pytest.raises(UserError) as caught, data.lock():
        pass
    assert caught.value.code == ExitCode.DATA_DIR


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file", "is a file"),
        ("file/below", "Not a directory"),
        ("loop", "a link that leads nowhere"),
        ("gone", "a link that leads nowhere"),
    ],
)
def test_a_file_or_a_broken_link_is_no_directory(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(UserError) as caught:
        DataDir(tmp_path / name).create()
    assert caught.value.code == ExitCode.DATA_DIR
    assert str(tmp_path / name) in caught.value.problem
    assert words in caught.value.problem


def test_a_directory_one_may_not_write_to(tmp_path: Path, monkeypatch) -> None:
    # Root may write anywhere, so the answer of the operating system is replaced.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError) as caught:
        DataDir(tmp_path).create()
    assert caught.value.code == ExitCode.DATA_DIR
    assert "Permission denied" in caught.value.problem


@pytest.mark.parametrize("part", ["root", "blobs"])
def test_a_directory_of_another_user_is_refused(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Its owner could put another key into it."""
    place = getattr(data, part)
    stat = os.stat

    def owned(path: os.PathLike[str], **options: Any) -> object:
        found = stat(path, **options)
        return SimpleNamespace(
            st_uid=54321 if Path(path) == place else os.geteuid(), st_mode=found.st_mode
        )

    monkeypatch.setattr(os, "stat", owned)
    with pytest.raises(UserError) as caught:
        data.create()
    assert caught.value.code == ExitCode.DATA_DIR
    assert f"{place} belongs to the user 54321" in caught.value.problem


def test_a_volume_of_roots_is_accepted(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Volumes of containers belong to root, and are group-writable."""
    real = os.stat
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setattr(
        os, "stat", lambda path, **o: SimpleNamespace(st_uid=0, st_mode=real(path, **o).st_mode)
    )
    data.create()


def test_room_is_asked_for_beforehand(data: DataDir, monkeypatch) -> None:
    data.require_free(1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000_000))
    with pytest.raises(
        UserError, match=r"the model need 2.5 GB in .*, but only 10 MB are free"
    ) as full:
        data.require_free(2_500_000_000, "the model")
    assert full.value.code == ExitCode.DISK_FULL
    with pytest.raises(UserError) as caught:
        data.create()
    assert caught.value.code == ExitCode.DISK_FULL


def test_an_identity_is_made_once(data: DataDir) -> None:
    with pytest.raises(UserError) as caught:
        open_identity(data, None, create=False)
    assert caught.value.code == ExitCode.KEYSTORE
    first = open_identity(data, "secret")
    assert open_identity(data, "secret", create=False).peer == first.peer
    for wrong in (None, "guess"):
        with pytest.raises(UserError) as caught:
            open_identity(data, wrong)
        assert caught.value.code == ExitCode.WRONG_PASSPHRASE
    data.identity.write_text("{}")
    with pytest.raises(UserError) as caught:
        open_identity(data, None)
    assert caught.value.code == ExitCode.KEYSTORE
