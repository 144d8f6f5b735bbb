"""User errors for a disk that is full, broken, read-only or owned by another user.

Many modules write files. If a write fails, the error propagates unchanged to the end of the command,
which explains it with this module. Everything stored before stays valid.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from ..errors import ExitCode, UserError
from ..util.system_errors import FULL, is_broken_disk

# The path itself cannot be used, whatever the state of the disk.
_BAD_PATH = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
# How libraries written in Rust quote the system's error number.
_RUST = re.compile(r"\(os error (\d+)\)")


def explain_disk(error: BaseException) -> UserError | None:
    """Return the user error for an `OSError` of the disk, or None for any other error."""
    if not isinstance(error, OSError):
        return None
    if error.errno in FULL:
        return disk_full(error.filename)
    if error.errno in _BAD_PATH and error.filename is not None:
        return UserError(
            ExitCode.DATA_DIR,
            f"{error.filename} cannot be used: {error.strerror}",
            "check the path, or give another one",
        )
    if is_broken_disk(error):
        return disk_broken(error.strerror or str(error), error.filename)
    return None


def disk_full(path: Path | str | None) -> UserError:
    """Return the error for a full disk, or an exhausted quota on it."""
    where = f" for {path}" if path else ""
    return UserError(
        ExitCode.DISK_FULL,
        f"the disk is full: there is no space left{where}",
        "free some space and start again (nothing is lost), or give a directory on a larger disk",
    )


def disk_broken(problem: str, path: Path | str | None) -> UserError:
    """Return the error for a failing disk; `problem` is the system's message."""
    what = f"{path} cannot be used" if path else "the disk cannot be used"
    return UserError(
        ExitCode.DATA_DIR,
        f"{what}: {problem}",
        "make sure that the disk is sound and that you may write there, and start again (what was "
        "stored is kept), or give another directory",
    )


def not_writable(error: OSError, path: Path, option: str) -> UserError:
    """Return the error for a `path`, given with `option`, that could not be written."""
    if error.errno in FULL:
        return disk_full(path)
    return UserError(
        ExitCode.NOT_WRITABLE,
        f"nothing can be written to {path}: {error.strerror or error}",
        f"give a path that you may write to with {option}",
    )


def error_number(error: BaseException) -> int | None:
    """Return the system's error number, also if a library only quotes it."""
    if isinstance(error, OSError):
        return error.errno
    quoted = _RUST.search(str(error))
    return int(quoted[1]) if quoted else None
