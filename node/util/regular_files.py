"""Opening of files whose paths a user names, or that lie in folders a user names.

A named pipe blocks whoever opens it, a device may never end, and a socket cannot be opened at all. Only
regular files are opened; anything else raises an `OSError` whose text says what it is.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from .operating_system import open_without_waiting

_KINDS = (
    (stat.S_ISDIR, "it is a directory, not a file"),
    (stat.S_ISFIFO, "it is a named pipe, not a file"),
    (stat.S_ISSOCK, "it is a socket, not a file"),
    (stat.S_ISCHR, "it is a device, not a file"),
    (stat.S_ISBLK, "it is a device, not a file"),
)


class NotRegularFile(OSError):
    """A path leads to something other than a regular file; `strerror` says to what."""


def open_regular(path: Path, *, or_pipe: bool = False) -> BinaryIO:
    """Open a regular file for reading, without waiting. Raises `OSError`, and `NotRegularFile` if it is
    none.

    With `or_pipe` a pipe is opened as well, such as the shell's `<(command)`: reading from it waits as
    long as somebody has it open for writing.
    """
    try:
        descriptor = open_without_waiting(path)
    except OSError as error:
        # A socket cannot be opened, and neither can a device without a driver.
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise _not_regular(path, path.stat().st_mode) from None
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if or_pipe and stat.S_ISFIFO(mode):
            os.set_blocking(descriptor, True)
        elif not stat.S_ISREG(mode):
            raise _not_regular(path, mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most: int) -> bytes:
    """Return the first `most` + 1 bytes of a regular file, so that a longer file can be told. Raises
    `OSError`, and `NotRegularFile` if it is none."""
    with open_regular(path) as file:
        return file.read(most + 1)


def check_replaceable(path: Path) -> None:
    """Raise `NotRegularFile` if something other than a regular file is at a path."""
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise _not_regular(path, mode)


def kind_text(mode: int) -> str:
    """Return what a file of this mode is, for a message: "it is a directory, not a file"."""
    return next((text for is_kind, text in _KINDS if is_kind(mode)), "it is not a file")


def _not_regular(path: Path, mode: int) -> NotRegularFile:
    return NotRegularFile(errno.EINVAL, kind_text(mode), str(path))
