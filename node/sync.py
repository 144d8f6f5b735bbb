"""Asking other members what was missed, and answering them.

One request serves a member that lost a message, one that fell behind and a newcomer that has nothing: it
names a round, and the answer is what the other knows from there on.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import trio

from ..crypto.identity import PeerId, short_peer
from ..protocol.chain.fork import better_chain
from ..protocol.chain.ledger import Ledger
from ..protocol.chain.sync import (
    MAX_SYNC_REQUEST_BYTES,
    MAX_SYNC_RESPONSE_BYTES,
    SYNC_PROTOCOL,
    SyncRequest,
    SyncResponse,
    compose_response,
    decode_request,
    decode_response,
)
from ..protocol.member.member import Member
from ..protocol.wire.encoding import encode
from ..protocol.wire.errors import ProtocolError
from ..protocol.wire.manifest import Manifest
from ..protocol.wire.messages import Decided
from .network.errors import RequestError
from .network.network import Network

_log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 60.0
_MAX_CONCURRENT = 8
# Of members whose word on the ledger's end is asked for when a node starts, at a time and in all. Who
# is behind is no liar, but should not be the only one that a newcomer believes.
_ASKED_AT_ONCE = 3
_ENOUGH = 5
# Who takes longer than that to say a word is not waited for, if others have answered.
_DAWDLE_SECONDS = 3.0
# Behind by more than a node's ordinary delay.
_STALE_ROUNDS = 8
# How far back a fork is looked for, in steps that double.
_FORK_STEPS = (8, 64, 512, 4096, 1 << 40)
# Weeks of rounds. A member that calls all others silent can make a chain as long as it likes.
_MAX_FORK_ROUNDS = 1 << 16


def serve_sync(network: Network, manifest: Manifest, member: Member) -> None:
    """Answer sync requests out of a member's ledger and mailbox."""

    async def answer(peer: PeerId, data: bytes) -> bytes:
        request = decode_request(data)
        if request.swarm != manifest.swarm:
            raise ProtocolError("wrong_swarm", "a sync request for another swarm")
        ledger = member.ledger
        entries = (ledger[round_] for round_ in range(request.round, len(ledger)))
        envelopes = (
            [envelope.encode() for envelope in member.messages(request.round)]
            if request.round == len(ledger)
            else []
        )
        return encode(compose_response(len(ledger), entries, envelopes))

    network.serve(
        SYNC_PROTOCOL,
        answer,
        max_request=MAX_SYNC_REQUEST_BYTES,
        max_concurrent=_MAX_CONCURRENT,
        kind="ledger",
    )


async def ask_peer(
    network: Network, manifest: Manifest, peer: PeerId, round: int
) -> SyncResponse | None:
    """What one peer knows from `round` on; None if it does not answer (it may not be a member)."""
    request = encode(SyncRequest(manifest.swarm, round))
    try:
        data = await network.request(
            peer,
            SYNC_PROTOCOL,
            request,
            max_response=MAX_SYNC_RESPONSE_BYTES,
            timeout=_TIMEOUT_SECONDS,
            kind="ledger",
        )
        return decode_response(data)
    except RequestError:
        return None
    except ProtocolError as error:
        network.penalise(peer, error.reason)
        return None


async def ask_any(
    network: Network, manifest: Manifest, round: int, preferred: Callable[[], set[PeerId]]
) -> tuple[PeerId, SyncResponse] | None:
    """The answer of a random connected peer, one of `preferred` if there is any."""
    connected = list(network.connected())
    random.shuffle(connected)
    likely = preferred()
    connected.sort(key=lambda peer: peer not in likely)
    for peer in connected:
        answer = await ask_peer(network, manifest, peer, round)
        if answer is not None:
            return peer, answer
    return None


async def catch_up(
    network: Network,
    manifest: Manifest,
    ledger: Ledger,
    *,
    keep: Callable[[Decided], None],
    report: Callable[[int, int], None],
) -> bool:
    """Bring a ledger up to what the connected peers have; whether any of them is a member.

    Every entry is checked, and several peers are asked, so that one which is behind, frozen or lying
    costs a moment. `keep` hears of every entry, `report` how many there are of how many.
    """
    return await _CatchUp(network, manifest, ledger, keep, report).run()


class _CatchUp:
    def __init__(
        self,
        network: Network,
        manifest: Manifest,
        ledger: Ledger,
        keep: Callable[[Decided], None],
        report: Callable[[int, int], None],
    ) -> None:
        self._network = network
        self._manifest = manifest
        self._ledger = ledger
        self._keep = keep
        self._report = report
        self._asking: set[PeerId] = set()
        # Who has nothing for us, by the height that it says it has.
        self._done: dict[PeerId, int] = {}
        self._strangers: set[PeerId] = set()
        self._news = trio.Event()

    async def run(self) -> bool:
        async with trio.open_nursery() as nursery:
            while True:
                waiting = self._choose()
                for peer in waiting[: _ASKED_AT_ONCE - len(self._asking)]:
                    self._asking.add(peer)
                    nursery.start_soon(self._ask, peer)
                if not self._asking:
                    break
                self._news = trio.Event()
                with trio.move_on_after(_DAWDLE_SECONDS) as scope:
                    await self._news.wait()
                # Those who were quick have nothing more to give.
                if scope.cancelled_caught and self._done and not self._choose():
                    break
            nursery.cancel_scope.cancel()
        for height in self._done.values():
            if height < len(self._ledger) - _STALE_ROUNDS:
                self._network.traffic.reject("stale")
        return bool(self._done)

    def _choose(self) -> list[PeerId]:
        """Whom to ask next, in random order."""
        if sum(height <= len(self._ledger) for height in self._done.values()) >= _ENOUGH:
            return []
        asked = self._asking | self._strangers | set(self._done)
        others = [peer for peer in self._network.connected() if peer not in asked]
        random.shuffle(others)
        return others

    async def _ask(self, peer: PeerId) -> None:
        try:
            while True:
                first = len(self._ledger)
                answer = await ask_peer(self._network, self._manifest, peer, first)
                if answer is None:
                    self._strangers.add(peer)
                    return
                if not self._take(peer, first, answer):
                    self._done[peer] = answer.height
                    return
                self._news.set()
        finally:
            self._asking.discard(peer)
            self._news.set()

    def _take(self, peer: PeerId, first: int, answer: SyncResponse) -> bool:
        """Take in an answer that begins at round `first`; whether its sender has more."""
        try:
            for decided in answer.decided():
                # Somebody else's answer may have been quicker.
                if decided.record.round >= len(self._ledger):
                    self._ledger.append(decided)
                    self._keep(decided)
            if not answer.entries and answer.height > first:
                raise ProtocolError("invalid", "a height without the rounds that make it")
        except ProtocolError as error:
            _log.info("peer %s: %s", short_peer(peer), error)
            self._network.traffic.reject(error.reason)
            # That may be another chain: once the member runs, fork choice looks into it.
            if error.reason != "wrong_parent":
                self._network.penalise(peer, error.reason)
            return False
        self._report(len(self._ledger), max(answer.height, len(self._ledger)))
        return bool(answer.entries) and len(self._ledger) < answer.height


class Synchronizer:
    """A member's questions to the others."""

    def __init__(self, network: Network, manifest: Manifest, member: Member) -> None:
        self._network = network
        self._manifest = manifest
        self._member = member
        serve_sync(network, manifest, member)

    async def ask(self, round: int) -> SyncResponse | None:
        """What some member knows from `round` on."""
        found = await ask_any(self._network, self._manifest, round, self._others)
        return found[1] if found is not None else None

    async def better_chain(self, ours: Ledger, *, abandoned: bool) -> Ledger | None:
        """A chain of some other peer's that is to be followed instead of ours, checked, or None.

        `abandoned` says that no member of our chain is left on it.
        """
        for peer in self._network.connected():
            try:
                theirs = await self._chain_of(peer, ours)
                better = better_chain(ours, theirs, me=self._member.me, abandoned=abandoned)
            except ProtocolError as error:
                _log.info("peer %s offers a chain that fails: %s", short_peer(peer), error)
                self._network.penalise(peer, error.reason)
                continue
            if better is not None:
                return better
        return None

    async def _chain_of(self, peer: PeerId, ours: Ledger) -> list[Decided]:
        """A peer's ledger from a round on that both have; empty if it has none or is ours.

        Each entry is checked before more is asked for. Raises `ProtocolError`.
        """
        for step in _FORK_STEPS:
            first = max(ours.floor, len(ours) - step)
            answer = await ask_peer(self._network, self._manifest, peer, first)
            if answer is None or not answer.entries:
                return []
            entries = answer.decided()
            if entries[0].record.round != first:
                raise ProtocolError("invalid", "entries of another round than was asked for")
            if first and entries[0].record.parent != ours.parent(first):
                if first == ours.floor:
                    return []
                continue
            chain = ours.truncated(first)
            followed: list[Decided] = []
            while entries and len(followed) < _MAX_FORK_ROUNDS:
                for decided in entries:
                    chain.append(decided)
                followed += entries
                answer = await ask_peer(self._network, self._manifest, peer, len(chain))
                entries = answer.decided() if answer is not None else []
            return followed
        return []

    def _others(self) -> set[PeerId]:
        return set(self._member.members) - {self._member.me}
