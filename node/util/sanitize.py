"""Sanitizer for text that others influence, before it reaches a terminal, a log or an error line.

All output that a stranger can influence (names, addresses, error texts of peers, libraries and trainers)
passes through here once, where it is written. JSON output does not need it, because its own escapes
leave nothing but ASCII.
"""

from __future__ import annotations

import unicodedata

UNREADABLE = "\N{REPLACEMENT CHARACTER}"
"""Stands for bytes that are not text, and for characters that a terminal would obey."""

MAX_CHARACTERS = 8192
"""Maximum length of a line: enough for sixteen bootstrap addresses and the result of each."""

# Maximum number of combining marks on one letter. No script uses more, and a pile of marks would cover
# the neighbouring lines.
_MAX_MARKS = 4
# Characters that Python considers printable but terminals do not show: joiners, fillers, variation
# selectors, the blank Braille pattern. A name with one of them looks like another name.
_INVISIBLE = frozenset(
    [
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    ]
)


def harmless(text: object) -> str:
    """Return the text as one line without control sequences.

    Control characters, line breaks, direction marks, invisible characters, and combining marks beyond
    the fourth on a letter are escaped, for example as `\\x1b`. Text longer than
    `MAX_CHARACTERS` is cut. The result is printable (`str.isprintable`) and inert in a terminal, and the
    function is idempotent.
    """
    line = str(text)
    cut = len(line) > MAX_CHARACTERS
    line = line[:MAX_CHARACTERS]
    if not (line.isascii() and line.isprintable()):
        line = "".join(_visible(line))
        cut |= len(line) > MAX_CHARACTERS
    return line[: MAX_CHARACTERS - 1] + "…" if cut else line


def harmless_piece(text: str) -> str:
    """Return a piece of multi-line text without control sequences, for a model's output as it streams.

    Line breaks, tabs and all printable characters (`str.isprintable`) stay. These include `_INVISIBLE`:
    some scripts need them, and generated text is not mistaken for a name. Other characters become
    U+FFFD.
    """
    return "".join(
        character if character.isprintable() or character in "\n\t" else UNREADABLE
        for character in text
    )


def _visible(line: str) -> list[str]:
    shown = []
    marks = 0
    for character in line:
        marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        visible = character.isprintable() and ord(character) not in _INVISIBLE
        shown.append(character if visible and marks <= _MAX_MARKS else ascii(character)[1:-1])
    return shown
