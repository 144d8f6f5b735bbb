"""What a disk that is full, broken, read-only or somebody else's means to the user.

Many modules write files; if one of them cannot be, the error travels up as it is and is
explained here, at the end of a command. Everything stored before stays good.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import ExitCode, UserError
from ..system_errors import FULL, is_broken_disk

# How libraries written in Rust pass on what the system said.
_RUST = re.compile(r"\(os error (\d+)\)")


def explain_disk(error: BaseException) -> UserError | None:
    """What to tell the user of an `OSError` that is the disk's, or None if it is not."""
    if not isinstance(error, OSError):
        return None
    if error.errno in FULL:
        return disk_full(error.filename)
    if is_broken_disk(error):
        return disk_broken(error.strerror or str(error), error.filename)
    return None


def disk_full(path: Path | str | None) -> UserError:
    """The error for a disk, or a quota on it, without room."""
    where = f" for {path}" if path else ""
    return UserError(
        ExitCode.DISK_FULL,
        f"the disk is full: there is no space left{where}",
        "free some space and start again (nothing is lost), or give a directory on a larger disk",
    )


def disk_broken(problem: str, path: Path | str | None) -> UserError:
    """The error for a disk that does not do what it is asked to; `problem` is the system's word."""
    what = f"{path} cannot be used" if path else "the disk cannot be used"
    return UserError(
        ExitCode.DATA_DIR,
        f"{what}: {problem}",
        "make sure that the disk is sound and that you may write there, and start again (what was "
        "stored is kept), or give another directory",
    )


def not_writable(error: OSError, path: Path, option: str) -> UserError:
    """What to tell the user whose `path`, given with `option`, could not be written."""
    if error.errno in FULL:
        return disk_full(path)
    return UserError(
        ExitCode.NOT_WRITABLE,
        f"nothing can be written to {path}: {error.strerror or error}",
        f"name a place that you may write to with {option}",
    )


def error_number(error: BaseException) -> int | None:
    """The system's number of what went wrong, also where a library only quotes it."""
    if isinstance(error, OSError):
        return error.errno
    quoted = _RUST.search(str(error))
    return int(quoted[1]) if quoted else None
