"""A ledger's entries: the bytes of all in a spill file, the latest at hand as objects, too.

A round's entry is some kilobytes of objects, and a run has tens of thousands of rounds. All but the last
are hardly ever read, unless a newcomer asks for them. So a node gives its ledger a spill
file on its disk: its memory does not grow with them, and others are answered with the very bytes that
lie there. A ledger without one keeps all at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..wire.encoding import decode, encode
from ..wire.messages import Decided

# 4,096 members at some 130 bytes an entry, admission and ballot each.
MAX_DECIDED_BYTES = 4 << 20

AT_HAND = 128
"""At least so many entries are at hand: the rounds that messages may still refer to."""


def decode_decided(data: bytes) -> Decided:
    """Decode a ledger entry. Raises `ProtocolError`; what it says is not checked yet."""
    return decode(Decided, data, max_bytes=MAX_DECIDED_BYTES)


class Spill(Protocol):
    """Keeps byte strings as long as there is somebody who may ask for them."""

    def put(self, entry: bytes) -> int:
        """Keep `entry`. Returns what `get` is to be called with."""
        ...

    def get(self, offset: int) -> bytes:
        """The entry that was put there."""
        ...


class Entries:
    """The entries of rounds 0, 1, 2 … Only ever appended to, so copies may share a spill file."""

    def __init__(self, spill: Spill | None = None) -> None:
        self._spill = spill
        # Where each is in the spill file, and the latest themselves.
        self._offsets: list[int] = []
        self._latest: list[Decided] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, round: int) -> Decided:
        behind = self._length - round
        if not 0 < behind <= self._length:
            raise IndexError(f"no entry for round {round}")
        if behind <= len(self._latest):
            return self._latest[-behind]
        return decode_decided(self.raw(round))

    def raw(self, round: int) -> bytes:
        """The bytes of an entry."""
        return encode(self[round]) if self._spill is None else self._spill.get(self._offsets[round])

    def append(self, decided: Decided) -> None:
        """Add the next entry."""
        self._length += 1
        self._latest.append(decided)
        if self._spill is not None:
            self._offsets.append(self._spill.put(encode(decided)))
            if len(self._latest) >= 2 * AT_HAND:
                del self._latest[:AT_HAND]

    def since(self, round: int) -> Iterator[Decided]:
        """The entry of `round` and all after it."""
        return (self[number] for number in range(round, len(self)))

    def before(self, round: int) -> Entries:
        """Those before `round`, in the same spill file."""
        copy = Entries(self._spill)
        copy._offsets = self._offsets[:round]
        copy._latest = self._latest[: max(0, len(self._latest) - (self._length - round))]
        copy._length = round
        return copy
