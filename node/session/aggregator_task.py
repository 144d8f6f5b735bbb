"""The node's part in aggregation by committees: its sign votes, and the aggregates of its own section.

An aggregator's state follows from the aggregates that its committee has agreed on so far. An aggregator
that did not take part in one of these steps, or lacks an aggregate that counted, abstains until the
committee starts over: with the next epoch, or after a step without agreement. An aggregator without
enough free memory abstains, too: with few members and large sections, aggregation may take more memory
than training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ...protocol.chain.committees import Place
from ...protocol.codec.update import manifest_layout
from ...protocol.committee.aggregate import ABSTAIN
from ...protocol.committee.aggregator_state import Aggregator, aggregator_bytes
from ...protocol.committee.sections import sections
from ...protocol.committee.sign_vote import step_of
from ...protocol.member.aggregation import MakeAggregate
from ...protocol.member.effects import Train
from ...protocol.member.inputs import Input, Trained
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.work_specs import CommitteesSpec
from ..storage.blob_store import BlobStore
from ..training.client import TrainedUpdate
from ..training.main_memory import free_main_memory
from .own_updates import OwnUpdates, report_of
from .sign_vote_exchange import SignVoteExchange
from .update_exchange import UpdateExchange
from .update_parts import UpdateParts

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2


class AggregatorTask(OwnUpdates):
    """One node's part in the committees of a swarm."""

    def __init__(
        self,
        manifest: Manifest,
        committees: CommitteesSpec,
        store: BlobStore,
        updates: UpdateExchange,
        sign_votes: SignVoteExchange,
        report: Callable[[Input], None],
        spawn: Callable[..., None],
    ) -> None:
        super().__init__(store, updates, report)
        self._rotation_steps = committees.rotation_steps
        self._sign_votes = sign_votes
        self._spawn = spawn
        self._layout = manifest_layout(manifest)
        self._elements = manifest.elements
        self._aggregate_lock = trio.Lock()
        self._place: Place | None = None
        self._aggregator: Aggregator | None = None
        # Ids of the aggregates that the aggregator has applied, and how many there were when it last
        # made one of its own.
        self._applied: list[ContentId] = []
        self._agreed_when_last_made: int | None = None
        self._lacks_room = False

    async def take(self, what: Train, made: TrainedUpdate) -> None:
        """Begin to make a sign vote. It may have to wait for the committees; the trainer must not."""
        self._spawn(self.make_sign_vote, what, made)

    async def make_sign_vote(self, what: Train, made: TrainedUpdate) -> None:
        """Cut the trainer's result into a sign vote and report it. Raises `DiskFull`."""
        sign_vote = await self._sign_votes.store_own_parts(what.round, made.body)
        if sign_vote is not None:
            self._report(report_of(what, sign_vote, made))

    async def make_aggregate(self, effect: MakeAggregate) -> None:
        """Make the requested aggregate and report it. If this node cannot follow its committee, or lacks
        the memory, report an abstention, so that no one waits for it. Raises `DiskFull`."""
        # One at a time: the state after a step depends on the aggregate that it made there.
        async with self._aggregate_lock:
            body = await self._aggregate(effect)
        update = await self._put(effect.round, body)
        self._report(Trained(effect.round, effect.round, update, len(body), 0, 0.0))

    async def _aggregate(self, effect: MakeAggregate) -> bytes:
        if not await trio.to_thread.run_sync(self._has_room, effect):
            return ABSTAIN
        aggregator = await trio.to_thread.run_sync(self._follow, effect)
        if aggregator is None:
            _log.info(
                "abstaining in round %d: the committee's earlier aggregates cannot be followed here",
                effect.round,
            )
            return ABSTAIN
        parts = await self._parts(effect)
        body = await trio.to_thread.run_sync(aggregator.aggregate, step_of(effect.round), parts)
        self._agreed_when_last_made = len(effect.agreed)
        return body

    async def _parts(self, effect: MakeAggregate) -> list[tuple[bytes | None, int]]:
        """Return this section's part of each sign vote (None if not here in time), and its update
        weight."""
        place, found = (effect.section, effect.sections), dict[ContentId, bytes]()
        voted = effect.sign_votes

        async def get(peer: PeerId, sign_vote: ContentId) -> None:
            found[sign_vote] = await self._sign_votes.wait_for(voted.round, peer, sign_vote, place)

        with trio.move_on_after(effect.patience) as waiting:

            async def abandon_if_late() -> None:
                while True:
                    await trio.sleep(_POLL_SECONDS)
                    if self._sign_votes.is_decided(effect.round):
                        waiting.cancel()

            async def share_received_parts() -> None:
                await trio.sleep(effect.patience / 2)
                self._sign_votes.close(voted.round)

            async with trio.open_nursery() as helpers:
                helpers.start_soon(abandon_if_late)
                helpers.start_soon(share_received_parts)
                async with trio.open_nursery() as nursery:
                    for entry in voted.updates:
                        nursery.start_soon(get, entry.peer, entry.update)
                helpers.cancel_scope.cancel()
        entries = zip(voted.updates, effect.update_weights, strict=True)
        return [(found.get(entry.update), weight) for entry, weight in entries]

    def _has_room(self, effect: MakeAggregate) -> bool:
        """Whether there is enough memory to aggregate; if not, the aggregator's state is freed."""
        section = -(-self._elements // effect.sections)
        needed = aggregator_bytes(section, begun=bool(effect.agreed and self._aggregator))
        free = free_main_memory()
        lacked, self._lacks_room = self._lacks_room, free < needed
        if self._lacks_room:
            self._place = self._aggregator = None
            _log.log(
                logging.INFO if lacked else logging.WARNING,
                "not aggregating in round %d: one of %d sections needs %.1f GB of main memory, "
                "%.1f GB are free; training goes on",
                *(effect.round, effect.sections, needed / 1e9, free / 1e9),
            )
        return not self._lacks_room

    def _follow(self, effect: MakeAggregate) -> Aggregator | None:
        """Return an aggregator that has applied all aggregates since its committee started (over); None
        if this node cannot follow."""
        place, agreed = (effect.section, effect.sections), [*effect.agreed]
        applied = len(self._applied)
        if not agreed:
            own = sections(self._layout, effect.sections)[effect.section]
            self._place, self._aggregator = place, Aggregator(own, *place, self._rotation_steps)
            self._applied, self._agreed_when_last_made = [], None
        elif self._place != place or self._applied != agreed[:applied]:
            self._aggregator = None
        elif self._aggregator is not None and agreed[applied:]:
            # Exactly one aggregate, the last step's, can be applied: after a missed step the aggregator
            # cannot follow.
            body = self._store.get(agreed[-1])
            made_last = self._agreed_when_last_made == applied == len(agreed) - 1
            if not (made_last and body is not None and self._aggregator.settle(body)):
                self._aggregator = None
            self._applied = agreed
        return self._aggregator


def open_own_updates(
    manifest: Manifest,
    store: BlobStore,
    updates: UpdateExchange,
    parts: UpdateParts,
    report: Callable[[Input], None],
    spawn: Callable[..., None],
) -> OwnUpdates:
    """Return the node's own updates; in a swarm with committees, whose `parts` are those of sign votes,
    its aggregator task. `report` passes inputs to the member, and `spawn` starts an async function."""
    if manifest.committees is None or not isinstance(parts, SignVoteExchange):
        return OwnUpdates(store, updates, report)
    committees = manifest.committees
    return AggregatorTask(manifest, committees, store, updates, parts, report, spawn)
