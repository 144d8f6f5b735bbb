"""Aggregator: the state of one committee member for its section during an epoch.

In each step an aggregator announces an aggregate of the sign votes that it has received. The round's
record shows the aggregate that counted, which determines the state of all aggregators of the committee
afterwards, whatever each announced, because a sign vote may have reached only some of them. After a step
without an agreed aggregate the whole committee restarts, each member with a new `Aggregator`. An
aggregator that lacks a sign vote that counted cannot adopt the new state, and cannot aggregate until the
committee restarts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..wire.errors import ProtocolError
from .aggregate import Aggregate, Momentum, decode_aggregate, encode_aggregate, summed
from .sections import Section
from .sign_vote import decode_part

CountedPart = tuple[bytes, int]
"""A section's part of a sign vote, which decodes, and the sign vote's update weight."""

# Bytes per element: of the momentum; of a second momentum and the sums while it aggregates
# (2026-11-27-speaking.json).
_HELD_BYTES = 4
_AGGREGATING_BYTES = 8


def aggregator_bytes(elements: int, *, begun: bool = False) -> int:
    """Return the bytes of memory that an aggregator needs for a section of this many elements. If it has
    `begun`, only those that it needs in addition to its present state."""
    return elements * (_AGGREGATING_BYTES if begun else _HELD_BYTES + _AGGREGATING_BYTES)


class Aggregator:
    """One aggregator of a committee."""

    def __init__(self, section: Section, number: int, count: int, rotation_steps: int) -> None:
        """`number`: that of its section, from 0, out of `count` sections. It starts with a momentum of
        zero."""
        self._section = section
        self._place = number, count
        self._rotation_steps = rotation_steps
        self._momentum = Momentum(section)
        # For the step that is not settled yet: its number, the received parts, this aggregator's
        # aggregate, and the momentum after it. Parts are kept encoded: decoded, they are eight times as
        # long.
        self._step = -1
        self._parts: list[CountedPart | None] = []
        self._own_aggregate: bytes | None = None
        self._after = self._momentum

    def aggregate(self, step: int, parts: Sequence[tuple[bytes | None, int]]) -> bytes:
        """Return the aggregate of a step. `parts`: for each sign vote that the record names, in the
        record's order, its part for this section (None if it was not received) and its update weight. A
        part that does not decode counts as missing: no aggregator can count it."""
        self._step, self._parts = step, [self._read(step, *part) for part in parts]
        counted = tuple(part is not None for part in self._parts)
        self._own_aggregate, self._after = self._aggregate(counted)
        return self._own_aggregate

    def settle(self, agreed: bytes) -> bool:
        """Adopt the state that follows from the agreed aggregate of the last step for which `aggregate`
        was called. Returns whether this was possible. `agreed` must be of this section, and decode."""
        if agreed != self._own_aggregate:
            counted = decode_aggregate(self._section.whole, agreed).counted
            known = [part is not None for part in self._parts]
            if len(counted) != len(known) or any(
                theirs and not ours for theirs, ours in zip(counted, known, strict=True)
            ):
                return False
            found, self._after = self._aggregate(counted)
            if found != agreed:
                # The committee's majority is byzantine: an honest aggregator that counted these sign
                # votes would not have made this aggregate.
                return False
        self._momentum = self._after
        return True

    def _aggregate(self, counted: Sequence[bool]) -> tuple[bytes, Momentum]:
        """Return the aggregate of the sign votes that are counted, and the momentum after it."""
        counting = (t for t, yes in zip(self._parts, counted, strict=True) if yes and t is not None)
        sign_votes = (
            (decode_part(self._section, self._rotation_steps, self._step, part), weight)
            for part, weight in counting
        )
        momentum = self._momentum.copy()
        sums = summed(self._section, self._rotation_steps, self._step, sign_votes)
        momentum.add(sums, self._rotation_steps, self._step)
        update = momentum.take_strongest(self._step)
        number, count = self._place
        return encode_aggregate(
            self._section, Aggregate(number, count, tuple(counted), update)
        ), momentum

    def _read(self, step: int, part: bytes | None, weight: int) -> CountedPart | None:
        if part is None:
            return None
        try:
            decode_part(self._section, self._rotation_steps, step, part)
        except ProtocolError:
            return None
        return part, weight
