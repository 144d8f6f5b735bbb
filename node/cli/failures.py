"""Mapping of an exception to the user's view: one line, a remedy, an exit code.

For a user's mistake the message states what to do. Anything else is a bug of ours: the traceback
goes into a file, and the message names it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import traceback

from ..errors import ExitCode, UserError, leaves
from ..storage.disk_faults import explain_disk
from ..util.sanitize import harmless
from ..util.system_errors import explain_shortage

DEBUG_VARIABLE = "DISTRO_NODE_DEBUG"

# Multiaddresses have at most 256 characters, and must stay whole; of a longer path or value the two ends
# suffice.
_MAX_WORD = 300


def explain(error: BaseException) -> int:
    """Print what went wrong, and return the exit code."""
    found = list(leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in found):
        return ExitCode.INTERRUPTED
    # Disk errors come first: they may have caused the others.
    for fault in map(explain_disk, found):
        if fault is not None:
            return _print_error(fault)
    for shortage in map(explain_shortage, found):
        if shortage is not None:
            return _print_error(shortage)
    mistakes = [leaf for leaf in found if isinstance(leaf, UserError)]
    # If only the user's mistake were reported, a bug beside it would be lost.
    if mistakes and len(mistakes) == len(found):
        return _print_error(mistakes[0])
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exception(error)
        return ExitCode.BUG
    return _report_bug(error, found[0])


def _print_error(error: UserError) -> int:
    _write(f"error: {_one_line(_shortened(error.problem))}\n  {_one_line(error.remedy)}\n")
    return error.code


def _report_bug(error: BaseException, leaf: BaseException) -> int:
    summary = "".join(traceback.format_exception_only(leaf)).strip()
    try:
        # mkstemp makes it readable for this user only.
        descriptor, path = tempfile.mkstemp(prefix="distro-node-bug-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"distro-node {' '.join(sys.argv[1:2])}\n")
            traceback.print_exception(error, file=file)
        where = f"the details are in {path}"
    except OSError:
        where = f"set {DEBUG_VARIABLE}=1 to see the details"
    _write(f"this is a bug in distro-node: {_one_line(summary)}; {where}\n")
    return ExitCode.BUG


def _shortened(text: str) -> str:
    """Cut the middle out of words that are too long for a line, such as a value given by mistake."""
    return " ".join(
        word if len(word) <= _MAX_WORD else f"{word[: _MAX_WORD // 2]}…{word[-_MAX_WORD // 2 :]}"
        for word in text.split()
    )


def _one_line(text: str) -> str:
    return harmless(" ".join(text.split()))


def _write(text: str) -> None:
    # The terminal may be gone; the exit code still counts.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
