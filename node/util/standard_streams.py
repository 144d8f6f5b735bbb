"""Standard streams that accept any text: closed ones discard it, and missing characters are replaced.

A service manager may start a program without standard streams, a terminal may lack the characters of a
swarm's name, and what reads a log may end. None of these is a reason to fail.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import os
import sys
from typing import Any

_log = logging.getLogger(__name__)

_HANDLER = "distro-node-plain"
# ASCII replacements for the characters that our commands write; all others become a question mark.
_ASCII = {
    "✓": "+",
    "✗": "x",
    "…": "...",
    "×": "x",
    "–": "-",
    "—": "-",
    "·": "-",
    "≥": ">=",
    "≤": "<=",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
}


def open_standard_streams() -> None:
    """Open closed ones of stdin, stdout and stderr at the null device. Let the output replace characters
    that its encoding lacks, and discard what cannot be written to stderr. Input bytes that are no text
    become lone surrogates, as in arguments, so that what reads them can refuse them."""
    _open_missing_descriptors()
    codecs.register_error(_HANDLER, _replace)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  (for the whole process)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    if isinstance(sys.stderr, io.TextIOWrapper) and _is_a_file(sys.stderr):
        # Programs may have used the old one: what it still holds comes first.
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(_Discarding(2, "w", closefd=False)),
            encoding=sys.stderr.encoding,
            errors=_HANDLER,
            line_buffering=True,
        )


def announce(text: str) -> None:
    """Print a line of a program that runs on. If stdout takes none (a pipe whose reader has ended, a
    full disk), log a warning: what the program does for others does not depend on who reads that."""
    try:
        print(text, flush=True)
    except OSError as error:
        _log.warning("nothing can be written to standard output: %s", error.strerror)
        drop_unwritten()


def drop_unwritten() -> None:
    """Discard what stdout has buffered if it cannot be written, such as to a closed pipe. Otherwise the
    interpreter's own flush at the end would fail, print an error and change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class _Discarding(io.FileIO):
    """A file that takes everything, and loses what the system does not take."""

    def write(self, data: Any, /) -> int:
        """Write, and return the number of bytes given."""
        try:
            written = super().write(data)
        except OSError:
            written = None
        # A terminal that another program made non-blocking takes nothing for a moment (None).
        return memoryview(data).nbytes if written is None else written


def _is_a_file(stream: io.TextIOWrapper) -> bool:
    # With PYTHONUNBUFFERED there is no buffer. While tests read what is written, it is something else.
    return type(getattr(stream.buffer, "raw", stream.buffer)) is io.FileIO


def _open_missing_descriptors() -> None:
    # Otherwise the next file or socket would get the number of a closed stream, and the output to that
    # stream would go there.
    null = os.open(os.devnull, os.O_RDWR)
    while null <= 2:
        os.set_inheritable(null, True)
        null = os.open(os.devnull, os.O_RDWR)
    os.close(null)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    # Most characters are replaced by one character, so that columns stay aligned.
    text = "".join(_ASCII.get(each, "?") for each in error.object[error.start : error.end])
    return text, error.end
