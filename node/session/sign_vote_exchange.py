"""The parts of sign votes on this node: all of its own vote, and of each other its own section's part.

A part is requested from the vote's author, and from the aggregators of the same section that may have it
by now. It is kept for some rounds, under the name by which it is requested.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path

import trio

from ...crypto.hashing import ContentId, content_id
from ...crypto.identity import PeerId, short_peer
from ...protocol.chain.committees import CommitteeChain, Place
from ...protocol.codec.update import UpdateLayout, manifest_layout
from ...protocol.committee.aggregate import check_aggregate, max_aggregate_bytes
from ...protocol.committee.sections import sections
from ...protocol.committee.sign_vote import cut_sign_vote, decode_part, part_bytes, step_of
from ...protocol.committee.sign_vote_tree import (
    open_part,
    part_name,
    proof_bytes,
    sign_vote_id,
    with_proof,
)
from ...protocol.member.effects import FetchUpdate
from ...protocol.member.update_fetch import FETCH_PAUSE_SECONDS, FETCH_SECONDS
from ...protocol.member.view import MemberView
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.work_specs import CommitteesSpec
from ..network.cancel_scopes import open_scope
from ..network.exchange.blobs import PART_PROTOCOL, BlobFetcher, FetchFailed, serve_parts
from ..network.network import Network
from ..storage.sign_vote_store import SignVotePartStore
from ..telemetry.telemetry import Telemetry
from .update_parts import ALL_WHOLE, UpdateParts

_log = logging.getLogger(__name__)

# Committees aggregate in the round after the vote's, and some aggregators lag a little.
_KEPT_ROUNDS = 3
_POLL_SECONDS = 0.2
# Longest pause before a peer that lacked a part is asked again: an aggregator of the same section may
# get the part at any moment.
_LONGEST_PAUSE_SECONDS = 1.0


class SignVoteExchange(UpdateParts):
    """Makes, fetches, checks, keeps and removes parts of sign votes."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        committees: CommitteesSpec,
        member: MemberView,
        network: Network,
        store: SignVotePartStore,
        fetcher: BlobFetcher,
        telemetry: Telemetry,
    ) -> None:
        self._manifest = manifest
        self._rotation_steps = committees.rotation_steps
        self._member = member
        self._network = network
        self._store = store
        self._fetcher = fetcher
        self._telemetry = telemetry
        self._layout = manifest_layout(manifest)
        # Computing the sections of a model with many tensors takes tens of milliseconds, once per vote
        # without the cache.
        self._sections_of = lru_cache(2)(partial(sections, self._layout))
        # Votes are cut and decoded one at a time, because that takes memory as well as time.
        self._one_at_a_time = trio.CapacityLimiter(1)
        # The first round that this process has applied; and whether it has removed the parts that
        # earlier processes left.
        self._first_applied: int | None = None
        self._old_parts_removed = False
        # The names of parts that are kept or expected, by round; and the fetches under way of each part.
        self._names: dict[int, set[ContentId]] = {}
        self._under_way: Counter[ContentId] = Counter()
        # The scopes of fetches that may still ask the author besides the committee, by round; and the
        # closed rounds, whose parts only the committee is asked for.
        self._author_requests: dict[int, set[trio.CancelScope]] = {}
        self._closed: set[int] = set()

    async def store_own_parts(self, round: int, sign_vote: bytes) -> ContentId | None:
        """Wait until the number of sections of `round` is known, store the parts of our own sign vote,
        and return its id; None if the round is decided first. Raises `DiskFull`."""
        while not (count := self._section_count(round)):
            if self.is_decided(round):
                return None
            await trio.sleep(_POLL_SECONDS)
        store = partial(self._store_parts, count, step_of(round), sign_vote)
        name, parts = await trio.to_thread.run_sync(store, limiter=self._one_at_a_time)
        for part in parts:
            self._note(round, part)
        return name

    def max_bytes(self, layout: UpdateLayout) -> int:
        return max_aggregate_bytes(layout)

    def check(self, layout: UpdateLayout, body: bytes) -> None:
        check_aggregate(layout, body)

    def splits(self, round: int) -> bool:
        return not self._manifest.aggregates_in(round)

    async def get(self, wanted: FetchUpdate) -> bool:
        """Try to get the part that this node needs of an announced sign vote; return whether it is here.
        A node that is in no committee needs none. Raises `DiskFull`."""
        member = self._member
        place = self._committee_chain.place(wanted.round, member.me)
        if wanted.peer == member.me:
            # Our own vote from before a restart: its parts are on the disk, and others request them.
            count = self._section_count(wanted.round)
            for section in range(count):
                self._note(
                    wanted.round, _register_name(self._store, wanted.update, (section, count))
                )
        return (
            place is None
            or await self.part(wanted.round, wanted.peer, wanted.update, place) is not None
        )

    async def part(
        self, round: int, author: PeerId, sign_vote: ContentId, place: Place
    ) -> bytes | None:
        """Return this section's part of a sign vote of `round`, or None if it cannot be fetched now. A
        part that does not decode is returned as well: its author made it so. Raises `DiskFull`."""
        section, count = place
        own = self._sections_of(count)[section]
        name = _register_name(self._store, sign_vote, place)
        self._note(round, name)
        known = name in self._under_way or self._store.has(name)
        self._under_way[name] += 1
        data: bytes | None = None
        try:
            with self._until_closed(round):
                data = await self._fetcher.fetch(
                    name,
                    max_bytes=part_bytes(own, self._rotation_steps, step_of(round))
                    + proof_bytes(*place),
                    providers=lambda: self._providers(round, author, section),
                    kind="update",
                    timeout=FETCH_SECONDS,
                    # The committee aggregates the votes in the following round.
                    wanted=lambda: not self.is_decided(round + 1),
                )
        except FetchFailed as failure:
            _log.info(
                "part of a sign vote of round %d is not available yet: %s", round, failure.reason
            )
        finally:
            self._under_way[name] -= 1
            # Drops entries whose count is zero.
            self._under_way = +self._under_way
        if data is None:
            return None
        part = open_part(sign_vote, section, count, data)
        if not known:
            self._telemetry.received(round, len(data))
            await self._check(
                partial(decode_part, own, self._rotation_steps, step_of(round), part), author
            )
        return part

    async def wait_for(
        self, round: int, author: PeerId, sign_vote: ContentId, place: Place
    ) -> bytes:
        """Retry `part` until the part is here, and return it."""
        while True:
            closed = round in self._closed
            part = await self.part(round, author, sign_vote, place)
            if part is not None:
                return part
            if closed == (round in self._closed):
                await trio.sleep(FETCH_PAUSE_SECONDS)

    def close(self, round: int) -> None:
        """From now on request parts of the sign votes of `round` only within the committee: an author
        that gave its part to a single aggregator at the last moment would make the aggregates differ."""
        self._closed.add(round)
        for scope in self._author_requests.pop(round, ()):
            scope.cancel()

    def is_decided(self, round: int) -> bool:
        """Whether a round is decided, so that nothing more can count in it."""
        return len(self._member.ledger) > round

    async def sweep(self, round: int) -> None:
        if self._may_remove_old_parts(round):
            await trio.to_thread.run_sync(self._store.remove_unregistered)
        self._closed = {closed for closed in self._closed if closed + _KEPT_ROUNDS > round}
        files = self._store.set_aside(self._missed(round))
        await trio.to_thread.run_sync(self._store.delete_files, files)

    def _missed(self, round: int) -> set[ContentId]:
        missed: set[ContentId] = set()
        for old in [r for r in self._names if r + _KEPT_ROUNDS <= round]:
            # Parts still being fetched stay known under their names until the next sweep.
            missed |= self._names[old] - self._under_way.keys()
            self._names[old] &= self._under_way.keys()
            if not self._names[old]:
                del self._names[old]
        return missed

    def _may_remove_old_parts(self, round: int) -> bool:
        """Return True once: when parts kept by earlier processes are no longer needed. Else False."""
        self._first_applied = round if self._first_applied is None else self._first_applied
        if self._old_parts_removed or round < self._first_applied + _KEPT_ROUNDS:
            return False
        self._old_parts_removed = True
        return True

    async def _check(self, decode: partial[object], author: PeerId) -> None:
        try:
            await trio.to_thread.run_sync(decode, limiter=self._one_at_a_time)
        except ProtocolError as problem:
            self._network.traffic.reject(problem.reason)
            self._network.penalise(author, problem.reason)
            _log.debug("from peer %s: an invalid sign vote: %s", short_peer(author), problem)

    @contextlib.contextmanager
    def _until_closed(self, round: int) -> Iterator[None]:
        """Cancel the body once the sign votes of a round are closed, unless they were closed before."""
        scope = open_scope()
        scopes = set() if round in self._closed else self._author_requests.setdefault(round, set())
        scopes.add(scope)
        try:
            with scope:
                yield
        finally:
            scopes.discard(scope)
            if not scopes and self._author_requests.get(round) is scopes:
                del self._author_requests[round]

    def _note(self, round: int, name: ContentId) -> None:
        self._names.setdefault(round, set()).add(name)

    @property
    def _committee_chain(self) -> CommitteeChain:
        return self._member.ledger.index(CommitteeChain)

    def _section_count(self, round: int) -> int:
        return self._committee_chain.sections(round)

    def _providers(self, round: int, author: PeerId, section: int) -> list[PeerId]:
        committee = self._committee_chain.committee(round, section)
        others = [peer for peer in committee if peer not in (author, self._member.me)]
        random.shuffle(others)
        connected = self._network.connected()
        asked = others if round in self._closed else [author, *others]
        return [peer for peer in asked if peer in connected]

    def _store_parts(
        self, count: int, step: int, sign_vote: bytes
    ) -> tuple[ContentId, list[ContentId]]:
        """Store the parts of a sign vote; return its id and their names."""
        (whole_model,) = sections(self._layout, 1)
        parts = cut_sign_vote(
            whole_model, self._sections_of(count), self._rotation_steps, step, sign_vote
        )
        ids = [content_id(part) for part in parts]
        vote_id = sign_vote_id(ids)
        names = [_register_name(self._store, vote_id, (section, count)) for section in range(count)]
        for section, name in enumerate(names):
            self._store.keep(name, with_proof(ids, section, parts[section]))
        return vote_id, names


def open_sign_votes(
    manifest: Manifest, member: MemberView, network: Network, directory: Path, telemetry: Telemetry
) -> UpdateParts:
    """Open the parts of sign votes in `directory`, in a swarm with committees, and serve them to peers;
    in other swarms updates have no parts."""
    if manifest.committees is None:
        return ALL_WHOLE
    store = SignVotePartStore(directory)
    serve_parts(network, store)
    return SignVoteExchange(
        manifest=manifest,
        committees=manifest.committees,
        member=member,
        network=network,
        store=store,
        fetcher=BlobFetcher(
            network, store, protocol=PART_PROTOCOL, longest_pause=_LONGEST_PAUSE_SECONDS
        ),
        telemetry=telemetry,
    )


def _register_name(store: SignVotePartStore, sign_vote: ContentId, place: Place) -> ContentId:
    """Return the name of a section's part of a sign vote, and make it known to the store."""
    name = part_name(sign_vote, *place)
    store.register(name, partial(_fits, sign_vote, place))
    return name


def _fits(sign_vote: ContentId, place: Place, data: bytes) -> bool:
    try:
        open_part(sign_vote, *place, data)
    except ProtocolError:
        return False
    return True
