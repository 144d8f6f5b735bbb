"""Texts of libraries' exceptions in one line: a text may have many lines, or none."""

from __future__ import annotations


def first_line(error: BaseException, longest: int = 200, *, empty: str | None = None) -> str:
    """Return the first line of an exception's text that is not blank, cut to `longest` characters; if it
    ends with a colon, with the line that it announces. If there is none, return `empty`, by default the
    name of the exception's class."""
    lines = filter(None, (line.strip() for line in str(error).splitlines()))
    found = next(lines, type(error).__name__ if empty is None else empty)
    while found.endswith(":") and (following := next(lines, None)) is not None:
        found = f"{found} {following}"
    return found[:longest]
