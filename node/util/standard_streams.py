"""Standard streams that take any text: closed ones go nowhere, missing characters are replaced.

A service manager may start a program without them, and a terminal may lack the characters of a swarm's
name. Neither is a reason to fail.
"""

from __future__ import annotations

import codecs
import io
import os
import sys

_HANDLER = "distro-node-plain"
# What commands write themselves, in the nearest ASCII; everything else becomes a question mark.
_PLAIN = {
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
    """Open what is closed of stdin, stdout and stderr at the null device, and let all of them replace
    what their encoding lacks."""
    _fill_descriptors()
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
        sys.stdin.reconfigure(errors="replace")


def drop_unwritten() -> None:
    """Drop what stdout still holds, if nothing takes it: else the interpreter's own flush at the end
    fails, prints that, and changes the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fill_descriptors() -> None:
    # Otherwise the next file or socket takes the number, and what is written to "stdout" lands there.
    null = os.open(os.devnull, os.O_RDWR)
    while null <= 2:
        os.set_inheritable(null, True)
        null = os.open(os.devnull, os.O_RDWR)
    os.close(null)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    # One character for one, so that columns stay in line, except where a sign would be unclear.
    text = "".join(_PLAIN.get(each, "?") for each in error.object[error.start : error.end])
    return text, error.end
