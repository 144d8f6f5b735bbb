"""Files that are replaced whole or not at all, and are on the disk when that is said.

Neither a crash nor a power cut nor a full disk leaves half a file, or a name that points to nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path, aside: Path | None = None) -> Iterator[Path]:
    """Yield the name of a file to write; when the context ends that file durably becomes `path`.

    The file is `aside`, in the same directory. By default it has one fixed name, so that what a killed
    process left is written over: good where a single process at a time writes `path`. On any error the
    file is removed and `path` stays as it was. Raises `OSError` as files do.
    """
    aside = aside or aside_of(path)
    try:
        yield aside
        sync(aside)
        aside.replace(path)
        # The new name survives a power cut only once the directory itself is on the disk.
        sync(path.parent)
    except BaseException:
        # The disk may be as broken for this; the first fault is the one that is told.
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def aside_of(path: Path) -> Path:
    """Where a file is written before it becomes `path`."""
    return path.with_name(f".{path.name}.new")


def write_atomically(path: Path, data: bytes | memoryview, aside: Path | None = None) -> None:
    """Make `data` the content of `path`, as in `replacing`."""
    with replacing(path, aside) as file:
        file.write_bytes(data)


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
