"""Ids of a chain's records."""

from __future__ import annotations

from collections.abc import Sequence

from ..wire.messages import Record, RecordId
from ..wire.saved_state import Restorable, fields, ids
from .chain_index import ChainView


class RecordIds(Restorable):
    """Ids of a chain's records by round."""

    STATE = fields(_ids=ids(0))

    def __init__(self, swarm: bytes, ids: Sequence[RecordId] = ()) -> None:
        self._swarm = swarm
        self._ids = list(ids)

    def __getitem__(self, round: int) -> RecordId:
        return self._ids[round]

    def parent(self, round: int) -> RecordId:
        """Return the id of the record before a round, at most the next one; before round 0, the swarm's
        id."""
        return self._ids[round - 1] if round else RecordId(self._swarm)

    def follow(self, record: Record) -> None:
        self._ids.append(record.id)

    def before(self, length: int, chain: ChainView) -> RecordIds:
        return RecordIds(self._swarm, self._ids[:length])
