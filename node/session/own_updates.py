"""This node's own updates: what it makes of the results of its trainer."""

from __future__ import annotations

from collections.abc import Callable

import trio

from ...crypto.hashing import ContentId
from ...protocol.member.aggregation import MakeAggregate
from ...protocol.member.effects import Train
from ...protocol.member.inputs import Input, Trained
from ..storage.blob_store import BlobStore
from ..training.client import TrainedUpdate
from .update_exchange import UpdateExchange


class OwnUpdates:
    """The updates of one node. Here each result of the trainer is an update."""

    def __init__(
        self, store: BlobStore, updates: UpdateExchange, report: Callable[[Input], None]
    ) -> None:
        """`report` passes inputs to the member."""
        self._store = store
        self._updates = updates
        self._report = report

    async def take(self, what: Train, made: TrainedUpdate) -> None:
        """Store and report the result of a training. Raises `DiskFull`."""
        update = await self._put(what.round, made.body)
        self._report(report_of(what, update, made))

    async def make_aggregate(self, effect: MakeAggregate) -> None:
        """Do nothing: without committees no aggregate is requested."""

    async def _put(self, round: int, body: bytes) -> ContentId:
        update = await trio.to_thread.run_sync(self._store.put, body)
        self._updates.keep(round, update)
        return update


def report_of(what: Train, update: ContentId, made: TrainedUpdate) -> Trained:
    """Return the report to the member about our own update, which is in the store."""
    return Trained(
        what.round,
        what.assigned_in,
        update,
        len(made.body),
        made.tokens,
        made.loss,
        len(what.samples),
        made.compute_seconds,
        made.encode_seconds,
    )
