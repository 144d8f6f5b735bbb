"""Disks that lose unsynced data: a real folder per process, and a record of what survives a power cut.

The node's own code works on real files in memory (a tmpfs). Its `fsync` calls are recorded. When a
machine goes dark, the next process finds what was synced, and chance decides about the rest: a new name
or not, the old file or the new one, a part of an append, zeros in its place. When only the process was
killed, the kernel has everything. A disk may be full for a while: then a write leaves a part behind, or
nothing, and fails.
"""

from __future__ import annotations

import errno
import io
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

_real_open = io.open
_real_fsync = os.fsync


class Disk:
    """One machine's disk. `root` is another folder after each start."""

    def __init__(self, base: Path, index: int, seed: int) -> None:
        self.full = False
        self.dead = False
        """Whether changes to `root` no longer count."""
        self.refused = 0
        """Number of writes that found it full."""
        self.fuse: Callable[[str], None] = lambda moment: None
        """Called before and after each sync, to inject accidents."""
        self._base = base
        self._index = index
        self._starts = 0
        self._chance = random.Random(f"disk {index} {seed}")
        # By inode: the durable content of files and folders.
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, int]] = {}
        self.root = self._next_root()
        self.root.mkdir()

    def durable(self, path: Path) -> bytes:
        """Return a file's durable content; empty if the file itself may be lost."""
        try:
            inode, folder = path.stat().st_ino, path.parent.stat().st_ino
        except FileNotFoundError:
            return b""
        if self._folders.get(folder, {}).get(path.name) != inode:
            return b""
        return self._files.get(inode, b"")

    def die(self, *, dark: bool) -> None:
        """End the process, or the whole machine if `dark`: what survives becomes the next folder.

        Later actions of the dying process affect the old folder only.
        """
        self.dead = True
        old, new = self.root, self._next_root()
        self._copy(old, new, dark=dark)
        self.root = new

    def revive(self) -> None:
        """Begin a new process."""
        self.dead = False

    # Actions of the process

    def synced(self, descriptor: int) -> None:
        """Note that a file or a folder was synced."""
        if self.dead:
            return
        self.fuse("before")
        if self.dead:
            return
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(descriptor) as entries:
                self._folders[status.st_ino] = {e.name: e.inode() for e in entries}
        else:
            self._files[status.st_ino] = _content(f"/proc/self/fd/{descriptor}")
        self.fuse("after")

    def room(self, size: int) -> int:
        """Return how many bytes of a write fit. Raises `OSError` if none do."""
        if not self.full or self.dead or not size:
            return size
        self.refused += 1
        some = self._chance.randrange(size) if self._chance.random() < 0.3 else 0
        if not some:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return some

    # A power cut

    def _next_root(self) -> Path:
        self._starts += 1
        return self._base / f"{self._index}-{self._starts}"

    def _copy(self, old: Path, new: Path, *, dark: bool) -> None:
        new.mkdir()
        known = self._folders.get(old.stat().st_ino, {})
        now = {entry.name: entry for entry in os.scandir(old)}
        listing: dict[str, int] = {}
        # Nothing may depend on the order in which the system lists names.
        for name in sorted(known.keys() | now.keys()):
            entry = now.get(name)
            if entry is not None and entry.is_dir(follow_symlinks=False):
                # Folders are made once, at the first start.
                self._copy(old / name, new / name, dark=dark)
                continue
            there = entry.inode() if entry is not None else None
            if dark and there != known.get(name) and self._chance.random() < 0.5:
                there = known.get(name)
            if there is None:
                continue
            whole = _content(old / name) if entry is not None and there == entry.inode() else None
            if dark:
                whole = self._left_of(self._files.get(there, b""), whole)
            elif whole is None:
                continue
            (new / name).write_bytes(whole)
            listing[name] = inode = (new / name).stat().st_ino
            self._files[inode] = whole
        # What a process found at its start has been on the disk.
        self._folders[new.stat().st_ino] = listing

    def _left_of(self, certain: bytes, now: bytes | None) -> bytes:
        """Return what survives of a file that holds `now`, of which `certain` was synced."""
        if now is None or now == certain:
            return certain
        if not now.startswith(certain):
            return self._chance.choice((certain, now))
        added = now[len(certain) :]
        torn = added[: self._chance.randrange(len(added) + 1)]
        kind = self._chance.randrange(3)
        if kind == 0:
            return certain + torn
        # Its length was on the disk before its content.
        return certain + torn + bytes(len(added) - len(torn)) if kind == 1 else now


class Disks:
    """All disks of a run, and the layer between them and the processes."""

    def __init__(self, base: Path, seed: int) -> None:
        self._base = base
        self._seed = seed
        self._disks: list[Disk] = []

    def add(self, index: int) -> Disk:
        """Return a new disk."""
        disk = Disk(self._base, index, self._seed)
        self._disks.append(disk)
        return disk

    def open_files(self, index: int) -> list[str]:
        """Return the files of a machine that this process still holds open."""
        found = []
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{descriptor}")
            except OSError:
                continue
            if target.startswith(f"{self._base}/{index}-"):
                found.append(target)
        return sorted(found)

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Intercept the processes' access to their disks."""
        with ExitStack() as stack:
            stack.enter_context(patch("os.fsync", self._fsync))
            stack.enter_context(patch("io.open", self._open))
            yield

    def _disk_of(self, path: str) -> Disk | None:
        if not path.startswith(f"{self._base}/"):
            return None
        return next((d for d in self._disks if Path(path).is_relative_to(d.root)), None)

    def _fsync(self, descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        target = os.readlink(f"/proc/self/fd/{number}")
        if not target.startswith(f"{self._base}/"):
            _real_fsync(number)
        elif (disk := self._disk_of(target)) is not None:
            disk.synced(number)

    def _open(
        self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any
    ) -> Any:
        writes = set(mode) & set("wax+")
        disk = self._disk_of(os.fspath(file)) if writes and not isinstance(file, int) else None
        # A file with an opener is an unnamed one that disappears with the process.
        if disk is None or "opener" in more:
            return _real_open(file, mode, buffering, *rest, **more)
        raw = _Limited(file, mode.replace("b", "").replace("t", ""))
        raw.disk = disk
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered)


class _Limited(io.FileIO):
    """A file on a disk that may be full."""

    disk: Disk

    def write(self, data: Any) -> int:
        return super().write(memoryview(data)[: self.disk.room(len(data))])


def _content(path: Path | str) -> bytes:
    with _real_open(path, "rb") as file:
        return file.read()
