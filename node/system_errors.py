"""Errors of the operating system: those of the disk, which the owner has to mend, and those that pass.

Strangers can cause a shortage of open files, memory or buffers by opening connections, and networks come
and go. Such an error ends a try, never the node, and the log gets a line a minute instead of a traceback
each (`services` runs background work again).
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable

from .errors import ExitCode, UserError

_log = logging.getLogger(__name__)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# A disk, a cable, a file server, a file system that was mounted anew to save what is left of it.
BROKEN = frozenset({errno.EIO, errno.EROFS, errno.ENXIO, errno.ESTALE, errno.EFBIG})
# Denied at a path; without a name in the error it may as well be a socket that was refused.
_DENIED = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENODEV),
        *(errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
    }
)
_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN})
_LOG_SECONDS = 60.0


class Seldom(logging.Filter):
    """Lets one record a minute through, without its traceback."""

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
    """Return whether the disk does not do what it is asked to; a full one is in `FULL`."""
    return error.errno in BROKEN or (error.errno in _DENIED and error.filename is not None)


def is_shortage(error: BaseException) -> bool:
    """Return whether an exception says that the system is short of something at present."""
    return isinstance(error, OSError) and error.errno in _SHORTAGE


def note_shortage(error: BaseException) -> None:
    """Log a shortage, at most once a minute."""
    _log.warning("the system is short of something, and a try is given up: %s", error)


def explain_shortage(error: BaseException) -> UserError | None:
    """Return the error to show for a shortage that nothing could be done about; None if it is none."""
    if not is_shortage(error):
        return None
    return UserError(
        ExitCode.SYSTEM_LIMIT,
        f"the system gives this program no more: {error}",
        "raise the limit of open files (`ulimit -n 4096`, or LimitNOFILE= of a service), or close "
        "what else takes memory; then start again",
    )
