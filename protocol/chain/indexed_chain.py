"""A chain of decided records with its indexes.

This is what a ledger consists of apart from the checks of new entries. It is extended by one thread;
others may read it, and copy its beginning, meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..wire.manifest import Manifest
from ..wire.membership import Membership, Votes
from ..wire.messages import Decided, Record, RecordId
from .chain_index import ChainIndex, ChainView, T, VoteSource, WeightRule
from .entry_store import EntryStore
from .memberships import MembershipHistory
from .record_ids import RecordIds


class IndexedChain:
    """Entries of rounds 0, 1, 2 … and the indexes that follow them."""

    def __init__(
        self,
        manifest: Manifest,
        entries: EntryStore,
        indexes: Callable[[ChainView], Iterable[ChainIndex]],
    ) -> None:
        """`indexes` is called with this chain and returns its indexes as of the last entry, in the order
        in which they follow a record. It may be a generator: an index can refer to those before it."""
        self.manifest = manifest
        self.entries = entries
        self._indexes: list[ChainIndex] = []
        # Results of `find`.
        self._found: dict[type, Any] = {}
        for index in indexes(self):
            self._indexes.append(index)
            self._found.clear()

    def __len__(self) -> int:
        return self.entries.length

    def record(self, round: int) -> Record:
        """Return the record of a round."""
        return self.entries[round].record

    def parent(self, round: int) -> RecordId:
        """Return the id of the record before a round, at most the next one."""
        return self.index(RecordIds).parent(round)

    def membership(self, round: int) -> Membership:
        """Return the members of a round, at most the next one."""
        return self.index(MembershipHistory)[round]

    def votes(self, round: int) -> Votes:
        """Return the votes of each member in a round, at most the next one."""
        return self.index(VoteSource).votes_in(round)

    def update_weights(self, record: Record) -> tuple[int, ...]:
        """Return the update weights of a record in its step, in the order of its updates. An update of
        weight 0 is not applied. The record must have been checked, and is the next one at most."""
        weights = dict[Any, int]()
        for rule in self.all(WeightRule):
            weights = rule.weights(record, weights)
        return tuple(weights[entry.peer] for entry in record.updates)

    def index(self, kind: type[T]) -> T:
        """Return the index of this class. Raises `LookupError` if there is none."""
        found = self.find(kind)
        if found is None:
            raise LookupError(f"this chain has no {kind.__name__}")
        return found

    def find(self, kind: type[T]) -> T | None:
        """Return the index of this class; None if the swarm lacks this feature."""
        try:
            return self._found[kind]
        except KeyError:
            return self._found.setdefault(kind, next(self.all(kind), None))

    @property
    def indexes(self) -> Sequence[ChainIndex]:
        """The indexes, in the order in which they follow a record."""
        return self._indexes

    def all(self, kind: type[T]) -> Iterator[T]:
        """Return an iterator over the indexes of this class, in their order."""
        return (index for index in self._indexes if isinstance(index, kind))

    def append(self, decided: Decided, encoded: bytes | None = None) -> None:
        """Append the next entry, which must have been checked. `encoded`: its bytes, if the caller has
        them."""
        self.entries.append(decided, encoded)
        for index in self._indexes:
            index.follow(decided.record)

    def before(self, length: int) -> IndexedChain:
        """Return a chain of the first `length` entries, which is extended independently."""
        return IndexedChain(
            self.manifest,
            self.entries.before(length),
            lambda chain: (index.before(length, chain) for index in self._indexes),
        )
