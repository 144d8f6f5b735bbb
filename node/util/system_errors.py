"""Errors of the operating system: disk faults, which the owner has to fix, and temporary shortages.

Strangers can cause a shortage of open files, memory or buffers by opening connections, and networks come
and go. Such an error ends one attempt, never the node, and the log gets at most one line a minute,
without traceback (`background` restarts background work).
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable

from ..errors import ExitCode, UserError

_log = logging.getLogger(__name__)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# A broken disk, cable or file server, or a file system remounted read-only to protect it.
BROKEN = frozenset({errno.EIO, errno.EROFS, errno.ENXIO, errno.ESTALE, errno.EFBIG})
# Access to a path is denied. If the error has no file name, it may concern a socket instead.
_DENIED = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENODEV),
        *(errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
    }
)
_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN})
_LOG_SECONDS = 60.0


class Seldom(logging.Filter):
    """Log filter that lets one record a minute through, without its traceback."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        now = self._clock()
        if now - self._last < _LOG_SECONDS:
            return False
        self._last = now
        record.exc_info = record.exc_text = None
        return True


_log.addFilter(Seldom())


def is_broken_disk(error: OSError) -> bool:
    """Return whether the disk fails or denies access. A full disk does not count; see `FULL`."""
    return error.errno in BROKEN or (error.errno in _DENIED and error.filename is not None)


def is_shortage(error: BaseException) -> bool:
    """Return whether an exception means that the system is temporarily short of a resource."""
    return isinstance(error, OSError) and error.errno in _SHORTAGE


def note_shortage(error: BaseException) -> None:
    """Log a shortage, at most once a minute."""
    _log.warning("the system has too few resources, so an operation was given up: %s", error)


def explain_shortage(error: BaseException) -> UserError | None:
    """Return the error to show for a shortage that prevents all work; None for any other error."""
    if not is_shortage(error):
        return None
    return UserError(
        ExitCode.SYSTEM_LIMIT,
        f"the system's limit on this program is reached: {error}",
        "raise the limit of open files (`ulimit -n 4096`, or LimitNOFILE= of a service), or "
        "close other programs that take memory; then start again",
    )
