"""Entry store of a ledger: all entries as bytes in a spill file, the latest also as objects in memory.

A round's entry takes some kilobytes as objects, and a run has tens of thousands of rounds. All but the
latest are hardly ever read, except by newcomers. So a node gives its ledger a spill file on disk:
memory does not grow with the entries, and peers are served the stored bytes. A ledger without a spill
file keeps all entries in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..wire.encoding import decode, encode
from ..wire.messages import Decided

# Room for 4,096 members, each with an update entry, an admission and a ballot of about 130 bytes each.
MAX_DECIDED_BYTES = 4 << 20

AT_HAND = 128
"""Number of latest entries that are at least kept in memory: messages may still refer to their
rounds."""


def decode_decided(data: bytes) -> Decided:
    """Decode a ledger entry, without checking its content. Raises `ProtocolError`."""
    return decode(Decided, data, max_bytes=MAX_DECIDED_BYTES)


class Spill(Protocol):
    """Storage for byte strings, kept as long as a reader may request them."""

    def put(self, entry: bytes) -> int:
        """Store `entry`. Returns the offset for `get`."""
        ...

    def get(self, offset: int) -> bytes:
        """Return the entry stored at `offset`."""
        ...


class EntryStore:
    """Entries of rounds 0, 1, 2 … Append-only, so that copies may share a spill file."""

    def __init__(self, spill: Spill | None = None) -> None:
        self._spill = spill
        # Offsets of the entries in the spill file, and the latest entries as objects.
        self._offsets: list[int] = []
        self._latest: list[Decided] = []
        self.length = 0
        """Number of entries."""

    @classmethod
    def stored(cls, spill: Spill, offsets: list[int]) -> EntryStore:
        """Return the entries that are in a spill file at these offsets, with the latest as objects.
        Raises `ProtocolError`."""
        entries = cls(spill)
        entries._offsets, entries.length = offsets, len(offsets)
        entries._latest = [decode_decided(spill.get(offset)) for offset in offsets[-AT_HAND:]]
        return entries

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, round: int) -> Decided:
        behind = self.length - round
        if not 0 < behind <= self.length:
            raise IndexError(f"no entry for round {round}")
        if behind <= len(self._latest):
            return self._latest[-behind]
        return decode_decided(self.raw(round))

    def raw(self, round: int) -> bytes:
        """Return the encoded bytes of an entry."""
        return encode(self[round]) if self._spill is None else self._spill.get(self._offsets[round])

    def append(self, decided: Decided, encoded: bytes | None = None) -> None:
        """Append the next entry. `encoded`: its bytes, if the caller has them."""
        self.length += 1
        self._latest.append(decided)
        if self._spill is not None:
            self._offsets.append(self._spill.put(encode(decided) if encoded is None else encoded))
            if len(self._latest) >= 2 * AT_HAND:
                del self._latest[:AT_HAND]

    def since(self, round: int) -> Iterator[Decided]:
        """Return an iterator over the entry of `round` and all later ones."""
        return (self[number] for number in range(round, len(self)))

    def before(self, round: int) -> EntryStore:
        """Return the entries before `round`, in the same spill file."""
        copy = EntryStore(self._spill)
        copy._offsets = self._offsets[:round]
        copy._latest = self._latest[: max(0, len(self._latest) - (self.length - round))]
        copy.length = round
        return copy
