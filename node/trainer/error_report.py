"""Mapping of a trainer's exception to a failure kind and one line."""

from __future__ import annotations

import errno
import logging
import traceback

from ..storage.disk_faults import error_number
from ..training.errors import FailureKind, TrainerFailed
from ..util.first_line import first_line
from ..util.system_errors import BROKEN, FULL
from .device import is_out_of_memory

_log = logging.getLogger(__name__)


def describe(error: Exception) -> tuple[FailureKind, str]:
    """Return the kind and the one-line message with which an exception is reported to the node."""
    line = first_line(error, 500, empty=repr(error))
    if isinstance(error, TrainerFailed):
        return error.kind, line
    if is_out_of_memory(error):
        return "out_of_memory", line
    number = error_number(error)
    if number in FULL:
        return "disk_full", line
    if number in BROKEN or isinstance(error, PermissionError) or number == errno.EACCES:
        return "disk_broken", line
    _log.error("internal error\n%s", "".join(traceback.format_exception(error)))
    return "internal", f"{type(error).__name__}: {line}"
