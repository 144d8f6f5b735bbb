"""A ledger's entries: the latest at hand, older ones on a spill.

A round's entry is some kilobytes of objects, and a run has tens of thousands of rounds, of which all but
the last are read when a newcomer asks for them and hardly ever else. So a node gives its ledger a spill
on its disk, and its memory does not grow with them. A ledger without a spill keeps all at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..wire.encoding import decode, encode
from ..wire.messages import Decided

# 4,096 members at some 130 bytes an entry, admission and ballot each.
MAX_DECIDED_BYTES = 4 << 20

AT_HAND = 128
"""At least so many entries are not put on the spill: the rounds that messages may still refer to, and
what those lack who were away for a moment."""


def decode_decided(data: bytes) -> Decided:
    """Decode a ledger entry. Raises `ProtocolError`; what it says is not checked yet."""
    return decode(Decided, data, max_bytes=MAX_DECIDED_BYTES)


class Spill(Protocol):
    """Keeps byte strings as long as there is somebody who may ask for them."""

    def put(self, entry: bytes) -> int:
        """Keep `entry`. Returns what `get` is to be called with."""
        ...

    def get(self, place: int) -> bytes:
        """The entry that was put there."""
        ...


class Entries:
    """The entries of rounds 0, 1, 2 … Only ever appended to, so copies may share a spill."""

    def __init__(self, spill: Spill | None = None) -> None:
        self._spill = spill
        # Where the entries before those at hand are.
        self._places: list[int] = []
        self._latest: list[Decided] = []

    def __len__(self) -> int:
        return len(self._places) + len(self._latest)

    def __getitem__(self, round: int) -> Decided:
        if not 0 <= round < len(self):
            raise IndexError(f"no entry for round {round}")
        if round >= len(self._places):
            return self._latest[round - len(self._places)]
        assert self._spill is not None  # where else would its place be?
        return decode_decided(self._spill.get(self._places[round]))

    def append(self, decided: Decided) -> None:
        """Add the next entry."""
        self._latest.append(decided)
        if self._spill is not None and len(self._latest) >= 2 * AT_HAND:
            self._places += [self._spill.put(encode(entry)) for entry in self._latest[:AT_HAND]]
            del self._latest[:AT_HAND]

    def since(self, round: int) -> Iterator[Decided]:
        """The entry of `round` and all after it."""
        return (self[number] for number in range(round, len(self)))

    def before(self, round: int) -> Entries:
        """Those before `round`, on the same spill."""
        copy = Entries(self._spill)
        copy._places = self._places[:round]
        copy._latest = self._latest[: max(0, round - len(self._places))]
        return copy
