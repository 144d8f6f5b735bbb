"""Text that others had a hand in, as it may be shown: the one way to a terminal, a log or an error line.

Names, addresses, failures of peers, libraries and trainers: everything that a stranger can make a
volunteer's node say passes through here, once, where it is written. JSON needs none of it, since its
own escapes leave nothing but ASCII.
"""

from __future__ import annotations

import unicodedata

MOST_CHARACTERS = 8192
"""Sixteen bootstrap addresses and what came of each fit into a line of this."""

# More than any script puts on one letter; a pile of them paints over the lines around.
_MOST_MARKS = 4
# What Python calls printable and no terminal shows: joiners, fillers, selectors of variants, a blank
# among the Braille patterns. A name with them looks like another.
_UNSEEN = frozenset(
    [
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    ]
)


def harmless(text: object) -> str:
    """One line without commands: what is not a visible character is spelled out, such as `\\x1b`.

    That goes for control characters, line breaks, marks of direction, characters of no width, and
    accents beyond the fourth on a letter; what is longer than `MOST_CHARACTERS` is cut. The
    result is printable (`str.isprintable`), means nothing to a terminal, and passing it through again
    changes nothing.
    """
    line = str(text)
    cut = len(line) > MOST_CHARACTERS
    line = line[:MOST_CHARACTERS]
    if not (line.isascii() and line.isprintable()):
        line = "".join(_visible(line))
        cut |= len(line) > MOST_CHARACTERS
    return line[: MOST_CHARACTERS - 1] + "…" if cut else line


def harmless_piece(text: str) -> str:
    """A piece of a text of many lines, which is shown as it comes (a model writes it): no commands.

    Line breaks and tabs stay; what is not printable (`str.isprintable`) becomes U+FFFD. What a terminal
    does not show stays, too: it is part of how some scripts are written, and nobody takes a text for a
    name.
    """
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )


def _visible(line: str) -> list[str]:
    shown = []
    marks = 0
    for character in line:
        marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        seen = character.isprintable() and ord(character) not in _UNSEEN
        shown.append(character if seen and marks <= _MOST_MARKS else ascii(character)[1:-1])
    return shown
