"""Directories that an export fills under a temporary name, and what is left of them when it is killed.

An export holds a lock on its own directory. The system releases the lock when the process ends, however
it ends, so a directory that nobody has locked is abandoned.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..util.operating_system import lock_file

_PREFIX = ".export-partial-"


@contextlib.contextmanager
def partial_directory(place: Path) -> Iterator[Path]:
    """Yield a new directory in `place`, locked until the block ends. The caller renames or removes it.
    Raises `OSError` if it cannot be created."""
    with contextlib.ExitStack() as held:
        while True:
            # Not after the destination's name, which may have all 255 bytes that a name can have.
            path = place / f"{_PREFIX}{secrets.token_hex(8)}"
            path.mkdir()
            try:
                if _lock(path, held):
                    break
            except OSError:
                # Some file systems have no locks. There no process takes it for abandoned.
                break
        yield path


def remove_abandoned(place: Path) -> None:
    """Remove the partial directories in `place` whose process has ended; nothing if there are none."""
    for path in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            if _lock(path, held):
                shutil.rmtree(path, ignore_errors=True)


def _lock(path: Path, held: contextlib.ExitStack) -> bool:
    """Lock a directory until `held` is closed; return False if another process has locked or removed it.
    Raises `OSError` where directories cannot be locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        held.callback(os.close, descriptor)
        return lock_file(descriptor) and os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
