"""The blob store: what it returns is what was requested, and a failed write leaves nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.node.storage.blob_files import DiskFull
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.wire.blobs import MAX_BLOB_BYTES
from hypothesis import given, settings
from hypothesis import strategies as st

# Private here: `_read`: the moment between two reads, in which another process repairs a file.


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@settings(max_examples=30)
@given(st.binary(max_size=5000))
def test_what_is_put_can_be_got(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    store = BlobStore(tmp_path_factory.mktemp("blobs"))
    cid = store.put(data)
    assert cid == content_id(data)
    assert store.get(cid) == data
    assert store.has(cid)
    assert store.size(cid) == len(data)
    assert list(store.ids()) == [cid]
    assert store.path(cid).read_bytes() == data
    assert store.remove(cid)
    assert not store.remove(cid)
    assert (store.get(cid), store.has(cid), store.size(cid), list(store.ids())) == (
        None,
        False,
        None,
        [],
    )


def test_putting_twice_keeps_one_file_untouched(store: BlobStore) -> None:
    cid = store.put(b"once")
    inode = store.path(cid).stat().st_ino
    assert store.put(memoryview(b"once")) == cid
    assert store.path(cid).stat().st_ino == inode


def test_blobs_of_another_store_are_taken(store: BlobStore, tmp_path: Path) -> None:
    other = BlobStore(tmp_path / "other")
    both, own, new = (store.put(b"both"), store.put(b"own"), other.put(b"new"))
    other.put(b"both")
    store.path(both).write_bytes(b"rot!")
    store.take(other)
    assert [store.get(cid) for cid in (both, own, new)] == [b"both", b"own", b"new"]
    assert list(other.ids()) == []


def test_a_corrupt_file_is_removed_and_not_returned(store: BlobStore) -> None:
    cid = store.put(b"good")
    store.path(cid).write_bytes(b"evil")
    assert store.get(cid) is None
    assert not store.has(cid)
    assert list(store.root.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_blob_that_the_disk_cannot_read_is_dropped(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """So that it is fetched again; but not one that cannot be opened for lack of descriptors."""
    cid = store.put(b"blob")
    real = Path.open

    def unreadable(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == store.path(cid):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", unreadable)
        if number == errno.EIO:
            assert store.get(cid) is None
        else:
            with pytest.raises(OSError, match=str(number)):
                store.get(cid)
    assert store.has(cid) == (number != errno.EIO)


def test_putting_again_mends_a_corrupt_file(store: BlobStore) -> None:
    cid = store.put(b"good")
    store.path(cid).write_bytes(b"evil")
    store.put(b"good")
    assert store.get(cid) == b"good"


def test_a_sound_copy_put_while_a_corrupt_one_is_judged_survives(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cid = store.put(b"good")
    store.path(cid).write_bytes(b"evil")
    original, other = store._read, BlobStore(store.root)

    def read_then_mend(path: Path) -> bytes | None:
        data = original(path)
        monkeypatch.setattr(store, "_read", original)
        other.put(b"good")
        return data

    monkeypatch.setattr(store, "_read", read_then_mend)
    assert store.get(cid) == b"good"
    assert store.get(cid) == b"good"


def test_the_largest_blob_and_one_byte_more(store: BlobStore) -> None:
    data = bytes(MAX_BLOB_BYTES)
    assert store.get(store.put(data)) == data
    with pytest.raises(ValueError, match="at most"):
        store.put(data + b"\0")
    large = content_id(data + b"\0")
    store.path(large).write_bytes(data + b"\0")
    assert store.get(large) is None
    assert not store.has(large)


def test_a_small_blob_takes_little_memory_to_read(store: BlobStore) -> None:
    """A record of a few hundred bytes once took as much as the largest blob."""
    cid = store.put(b"small")
    tracemalloc.start()
    try:
        assert store.get(cid) == b"small"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The buffer under the file is a mebibyte with some file systems.
    assert peak < MAX_BLOB_BYTES // 8


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_nothing_behind(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(code, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match="no room for 3 bytes"):
            store.put(b"abc")
    assert list(store.root.iterdir()) == []
    store.put(b"abc")


def test_another_disk_error_is_no_full_disk_and_leaves_nothing(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="broken") as caught:
        store.put(b"abc")
    assert not isinstance(caught.value, DiskFull)
    assert list(store.root.iterdir()) == []


def test_only_old_leftovers_are_removed_and_strangers_ignored(store: BlobStore) -> None:
    cid = store.put(b"kept")
    old, fresh = store.root / ".temporary-1-aa", store.root / ".temporary-2-bb"
    for path in (old, fresh, store.root / "notes.txt"):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    again = BlobStore(store.root)
    assert not old.exists()
    assert fresh.exists()
    assert list(again.ids()) == [cid]


# Run in a fresh interpreter: a forked one would inherit this one's threads.
_HAMMER = """
import sys
import tracemalloc
from pathlib import Path
from typing import Any
from distro_node.node.storage.blob_store import BlobStore

root, number = Path(sys.argv[1]), int(sys.argv[2])
store = BlobStore(root)
for i in range(40):
    data = bytes([i % 8]) * 10_000
    cid = store.put(data)
    if (i + number) % 5 == 0:
        store.remove(cid)
    if (i + number) % 7 == 0:
        store.path(cid).write_bytes(b"rot")
    assert store.get(cid) in (data, None)
"""


def test_several_processes_share_a_directory(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen([sys.executable, "-c", _HAMMER, str(tmp_path), str(number)])
        for number in range(3)
    ]
    assert [worker.wait(timeout=60) for worker in workers] == [0, 0, 0]
    store = BlobStore(tmp_path)
    for cid in list(store.ids()):
        data = store.get(cid)
        assert data is None or content_id(data) == cid
    assert not list(tmp_path.glob(".temporary-*"))


def test_an_id_that_was_never_put(store: BlobStore) -> None:
    assert store.get(ContentId(bytes(32))) is None
