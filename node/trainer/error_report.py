"""Mapping of a trainer's exception to a failure kind and one line."""

from __future__ import annotations

import errno
import logging
import traceback

from ..storage.disk_faults import error_number
from ..training.errors import FailureKind, TrainerFailed
from ..util.system_errors import BROKEN, FULL
from .device import is_out_of_memory

_log = logging.getLogger(__name__)


def describe(error: Exception) -> tuple[FailureKind, str]:
    """Return the kind and the one-line message with which an exception is reported to the node."""
    first_line = (str(error).splitlines() or [""])[0][:500] or repr(error)
    if isinstance(error, TrainerFailed):
        return error.kind, first_line
    if is_out_of_memory(error):
        return "out_of_memory", first_line
    number = error_number(error)
    if number in FULL:
        return "disk_full", first_line
    if number in BROKEN or isinstance(error, PermissionError) or number == errno.EACCES:
        return "disk_broken", first_line
    _log.error("internal error\n%s", "".join(traceback.format_exception(error)))
    return "internal", f"{type(error).__name__}: {first_line}"
