"""Atomic, durable replacement of files.

A crash, a power cut or a full disk never leaves half a file, or a name without content.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from ..util.operating_system import sync_path
from ..util.regular_files import check_replaceable


@contextlib.contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Yield the name of a file to write, which durably becomes `path` when the context ends.

    The file is `temporary`, in the same directory. By default it has one fixed name, so a killed
    process's leftover is overwritten, provided that only one process at a time writes `path`. On any
    error the file is removed and `path` is unchanged. Raises `OSError` as files do.
    """
    temporary = temporary or temporary_path(path)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        # The new name survives a power cut only once the directory itself is synced.
        sync(path.parent)
    except BaseException:
        # Removing it may fail as well; the first error is the one to raise.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def temporary_path(path: Path) -> Path:
    """Return the name under which a file is written before it becomes `path`."""
    return path.with_name(f".{path.name}.new")


def write_atomically(path: Path, data: bytes | memoryview, temporary: Path | None = None) -> None:
    """Replace the content of `path` by `data`, as in `replacing`."""
    with replacing(path, temporary) as file:
        file.write_bytes(data)


def write_output(path: Path, data: bytes) -> None:
    """Write a file whose path a user names, as in `replacing`.

    Raises `OSError`, and `NotRegularFile` for a device, pipe or directory: /dev/null would be gone if a
    file replaced it.
    """
    check_replaceable(path)
    # Not after the file's own name, which may have all 255 bytes that a name can have.
    write_atomically(path, data, path.with_name(f".output-{secrets.token_hex(8)}"))


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's entries, are on the disk."""
    sync_path(path)
