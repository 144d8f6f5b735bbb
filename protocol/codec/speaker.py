"""A speaker: what one member of a panel holds for its section while a term lasts.

In each step it says a tally of the sheets that it has by then. What the panel agreed on stands in the
round's record, and that decides what all of its members hold afterwards, whatever each has said: a sheet
may have reached some of them alone. After a step in which the panel agreed on nothing, all of them begin
anew, with another `Speaker`. Who lacks a sheet that the others counted cannot follow until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..wire.errors import ProtocolError
from .sections import Section
from .sheet import decode_part
from .tally import Momentum, Tally, decode_tally, encode_tally, summed

Told = tuple[bytes, int]
"""A sheet's part for a section, that decodes, and how often it counts."""

# Bytes for each element: those of a momentum, and of another one and of sums (benchmarks/speaking.py).
_HELD_BYTES = 4
_SPEAKING_BYTES = 8


def room_to_speak(elements: int, *, begun: bool = False) -> int:
    """The bytes of memory that a speaker takes for a section of so many elements; once it has `begun`,
    those beside what it holds."""
    return elements * (_SPEAKING_BYTES if begun else _HELD_BYTES + _SPEAKING_BYTES)


class Speaker:
    """One member's part in a panel."""

    def __init__(self, section: Section, number: int, count: int, one_of: int) -> None:
        """It speaks for section `number` of so many, of which nothing was heard yet."""
        self._section = section
        self._place = number, count
        self._one_of = one_of
        self._momentum = Momentum(section)
        # Of the step that is not settled yet: its turn, what each sheet told, what was said of it. Parts
        # stay as they came: decoded, they are eight times as long.
        self._turn = -1
        self._told: list[Told | None] = []
        self._said: bytes | None = None
        self._after = self._momentum

    def say(self, turn: int, parts: Sequence[tuple[bytes | None, int]]) -> bytes:
        """The tally of a step, given this section's part of each sheet that the record names, in its
        order, None where it is not here, and how often each counts. A part that does not decode tells
        nothing: nobody can count it."""
        self._turn, self._told = turn, [self._read(turn, *part) for part in parts]
        counted = tuple(told is not None for told in self._told)
        self._said, self._after = self._tally(counted)
        return self._said

    def settle(self, agreed: bytes) -> bool:
        """Go on from what the panel has agreed on in the step of which this one has spoken. Returns
        whether it can. The tally is of this section, and decodes."""
        if agreed != self._said:
            counted = decode_tally(self._section.whole, agreed).counted
            known = [told is not None for told in self._told]
            if len(counted) != len(known) or any(
                theirs and not ours for theirs, ours in zip(counted, known, strict=True)
            ):
                return False
            found, self._after = self._tally(counted)
            if found != agreed:
                # A panel of liars: nothing that an honest member holds leads there.
                return False
        self._momentum = self._after
        return True

    def _tally(self, counted: Sequence[bool]) -> tuple[bytes, Momentum]:
        """The tally of those sheets that are counted, and what is held after it."""
        counting = (t for t, yes in zip(self._told, counted, strict=True) if yes and t is not None)
        sheets = (
            (decode_part(self._section, self._one_of, self._turn, part), often)
            for part, often in counting
        )
        momentum = self._momentum.copy()
        sums = summed(self._section, self._one_of, self._turn, sheets)
        momentum.hear(sums, self._one_of, self._turn)
        said = momentum.speak(self._turn)
        number, count = self._place
        return encode_tally(self._section, Tally(number, count, tuple(counted), said)), momentum

    def _read(self, turn: int, part: bytes | None, often: int) -> Told | None:
        if part is None:
            return None
        try:
            decode_part(self._section, self._one_of, turn, part)
        except ProtocolError:
            return None
        return part, often
