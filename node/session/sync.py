"""Sync: asking other members for missed records and messages, and answering such requests.

One request serves a member that lost a message, one that fell behind, and a newcomer that has nothing:
it names a round, and the answer has what the peer knows from there on. The state machines in `protocol/`
(`request_failover`, `initial_sync`, `fork_search`, `vote_recovery`) decide which peers to ask, how
far to trust each, and when to stop; this module sends their requests and applies their timeouts.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

import trio

from ...crypto.envelope import Envelope
from ...crypto.identity import PeerId, short_peer
from ...protocol.chain.diverged_peers import DivergedPeers
from ...protocol.chain.fork_search import ChainComparison, FetchBackoff, PeerFault
from ...protocol.chain.initial_sync import InitialSync
from ...protocol.chain.ledger import Ledger
from ...protocol.chain.request_failover import PeerFailover
from ...protocol.chain.sync import (
    MAX_SYNC_REQUEST_BYTES,
    MAX_SYNC_RESPONSE_BYTES,
    SYNC_PROTOCOL,
    SyncAnswer,
    SyncQuery,
    answer_to,
    compose_response,
    decode_request,
    read_answer,
)
from ...protocol.member.view import MemberView
from ...protocol.member.vote_recovery import RecallRequests
from ...protocol.wire.encoding import encode
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest
from ..network.errors import NotHere, RequestError
from ..network.network import Network

_log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 60.0
_MAX_CONCURRENT = 8
# A larger answer is decoded in a thread. One of this size takes at most 20 ms.
_LARGE_BYTES = 16 << 10


Written = Callable[[], Awaitable[None]]
"""Returns when every change queued so far is on the disk."""
Peers = Callable[[], Collection[PeerId]]
"""Returns the peers that can be asked now."""


RecordsServed = Callable[[PeerId], None]
"""Called with each peer that received records that it lacked."""


def serve_sync(
    network: Network,
    manifest: Manifest,
    member: MemberView,
    written: Written = trio.lowlevel.checkpoint,
    on_served: RecordsServed = lambda peer: None,
) -> None:
    """Answer sync requests from a member's ledger and mailbox; each answer is sent once its content is
    on the disk (`written`)."""

    def ledger() -> Ledger:
        return member.ledger

    _serve(network, manifest, ledger, member.messages, written, on_served, shared=False)


def serve_ledger(
    network: Network,
    manifest: Manifest,
    ledger: Callable[[], Ledger],
    written: Written = trio.lowlevel.checkpoint,
    *,
    shared: bool,
) -> None:
    """Answer sync requests from a ledger alone, for a node that is not a member.

    `shared`: peers of other swarms are connected as well, and their requests are not an offence.
    """
    _serve(network, manifest, ledger, lambda _: [], written, lambda _: None, shared=shared)


def _serve(
    network: Network,
    manifest: Manifest,
    ledger: Callable[[], Ledger],
    messages: Callable[[int], list[Envelope]],
    written: Written,
    on_served: RecordsServed,
    *,
    shared: bool,
) -> None:
    async def answer(peer: PeerId, data: bytes) -> bytes:
        request = decode_request(data)
        if request.swarm != manifest.swarm:
            if shared:
                raise NotHere
            raise ProtocolError("wrong_swarm", "a sync request of another swarm")
        known = ledger()
        height, ids, rounds, heard = answer_to(request, known, messages)
        if rounds:
            on_served(peer)
        entries = map(known.raw, rounds)
        response = compose_response(height, entries, [each.encode() for each in heard], ids)
        # The answer contains our own messages, which bind us once a peer has seen them.
        await written()
        return encode(response)

    network.serve(
        SYNC_PROTOCOL,
        answer,
        max_request=MAX_SYNC_REQUEST_BYTES,
        max_concurrent=_MAX_CONCURRENT,
        kind="ledger",
    )


async def ask_peer(network: Network, manifest: Manifest, question: SyncQuery) -> SyncAnswer | None:
    """Return one peer's answer; None if it does not answer (it may not be a member) or its answer is
    invalid."""
    try:
        data = await network.request(
            question.peer,
            SYNC_PROTOCOL,
            encode(question.request(manifest.swarm)),
            max_response=MAX_SYNC_RESPONSE_BYTES,
            timeout=_TIMEOUT_SECONDS,
            kind="ledger",
        )
        # A stranger may send tens of thousands of items, which take a third of a second to decode.
        if len(data) > _LARGE_BYTES:
            return await trio.to_thread.run_sync(read_answer, data)
        return read_answer(data)
    except RequestError:
        return None
    except ProtocolError as error:
        network.penalise(question.peer, error.reason)
        return None


async def ask_any(
    network: Network, manifest: Manifest, round: int, preferred: Callable[[], set[PeerId]]
) -> tuple[PeerId, SyncAnswer] | None:
    """Ask a random connected peer, one of `preferred` if any is connected; return which peer answered,
    and its answer, or None if none did."""
    connected = list(network.connected())
    random.shuffle(connected)
    failover = PeerFailover(connected, preferred(), round)
    await _run_machine(network, manifest, failover, trio.lowlevel.checkpoint)
    return failover.found


async def catch_up(
    network: Network,
    manifest: Manifest,
    ledger: Ledger,
    *,
    keep: Callable[[bytes], None],
    replace_chain: Callable[[Ledger], None],
    report: Callable[[int, int], None],
    written: Written = trio.lowlevel.checkpoint,
    peers: Peers | None = None,
) -> bool:
    """Extend a ledger by what `peers` have (by default all connected ones); return whether any of
    them is a member whose chain has the ledger's checkpoint.

    `keep` is called with every entry, `replace_chain` with a ledger that was restarted from the first
    round, and `report` with the number of entries so far and in all. `written` is awaited before the
    answers that follow are read.
    """
    initial_sync = InitialSync(ledger)

    async def kept() -> None:
        if initial_sync.rewound():
            replace_chain(ledger.truncated(0))
        rounds = [decided.record.round for decided in initial_sync.drain()]
        # A thousand entries take a tenth of a second to encode, and more in a large swarm. Nothing else
        # touches the ledger meanwhile.
        for entry in await trio.to_thread.run_sync(lambda: [*map(ledger.raw, rounds)]):
            keep(entry)
        await written()
        if rounds:
            report(len(ledger), initial_sync.height)

    machine = _ConnectedPeers(initial_sync, peers or network.connected)
    await _run_machine(network, manifest, machine, kept)
    for _ in range(initial_sync.stale):
        network.traffic.reject("stale")
    return initial_sync.found


async def compare_chains(
    network: Network,
    manifest: Manifest,
    ours: Ledger,
    backoff: FetchBackoff,
    *,
    me: PeerId,
    abandoned: bool,
    peers: Peers | None = None,
) -> tuple[ChainComparison, Ledger | None]:
    """Compare our chain with those of `peers` (by default all connected ones); return the comparison
    and a verified chain that the fork choice prefers to ours, or None. `backoff`: the peers to leave
    alone for a while, because their chains were fetched in vain. `abandoned`: no other member is left on
    our chain."""
    connected = list((peers or network.connected)())
    random.shuffle(connected)
    # A copy, because a thread reads it while our ledger grows.
    comparison = ChainComparison(
        ours.truncated(len(ours)), connected, backoff, me=me, abandoned=abandoned
    )
    await _run_machine(network, manifest, comparison, trio.lowlevel.checkpoint)
    while True:
        # The thread reads up to a thousand records of each chain; ours may grow meanwhile.
        known = ours.truncated(len(ours))
        better = await trio.to_thread.run_sync(comparison.better_than, known)
        if len(ours) == len(known):
            return comparison, better


class Synchronizer:
    """A member's sync requests to the others."""

    def __init__(
        self,
        network: Network,
        manifest: Manifest,
        member: MemberView,
        written: Written,
        on_served: RecordsServed,
    ) -> None:
        """`written` and `on_served` as in `serve_sync`."""
        self._network = network
        self._manifest = manifest
        self._member = member
        self._backoff = FetchBackoff()
        self._diverged = DivergedPeers()
        self._unreported: list[PeerId] = []
        serve_sync(network, manifest, member, written, on_served)

    async def ask(self, round: int) -> tuple[PeerId, SyncAnswer] | None:
        """Ask one peer for what it knows from `round` on; return the peer and its answer, or None."""
        return await ask_any(self._network, self._manifest, round, self._others)

    async def recall(self, requests: RecallRequests, after: Callable[[], Awaitable[None]]) -> None:
        """Ask the other members what they have of a round; call `after` for each answer."""
        machine = _ConnectedPeers(requests, self._network.connected)
        await _run_machine(self._network, self._manifest, machine, after)

    async def better_chain(self, ours: Ledger, *, abandoned: bool) -> Ledger | None:
        """Return another peer's chain that the fork choice prefers to ours, verified, or None.

        `abandoned`: no other member is left on our chain.
        """
        comparison, better = await compare_chains(
            self._network,
            self._manifest,
            ours,
            self._backoff,
            me=self._member.me,
            abandoned=abandoned,
        )
        self._unreported += self._diverged.take_reports(comparison.reported)
        return better

    def diverged_peers(self) -> frozenset[PeerId]:
        """Return connected current or former members whose chain diverges from ours before the final
        round."""
        return self._diverged.peers & self._network.connected()

    def newly_diverged(self) -> list[PeerId]:
        """Return one peer of each diverged chain (`diverged_peers`) that was not reported yet."""
        unreported, self._unreported = self._unreported, []
        return unreported

    def _others(self) -> set[PeerId]:
        return set(self._member.members) - {self._member.me}


class _Machine(Protocol):
    """A state machine that decides which peers to ask, and for what."""

    @property
    def done(self) -> bool: ...

    def deadline(self, now: float) -> float: ...

    def requests(self, now: float) -> list[SyncQuery]: ...

    def on_answer(
        self, peer: PeerId, answer: SyncAnswer | None, now: float
    ) -> PeerFault | None: ...


class _ConnectedPeers:
    """Adapter for machines that choose among the peers connected when they ask."""

    def __init__(self, machine: InitialSync | RecallRequests, peers: Peers) -> None:
        self._machine = machine
        self._peers = peers
        self.deadline = machine.deadline
        self.on_answer = machine.on_answer

    @property
    def done(self) -> bool:
        return self._machine.done

    def requests(self, now: float) -> list[SyncQuery]:
        connected = list(self._peers())
        random.shuffle(connected)
        return self._machine.requests(connected, now)


async def _run_machine(
    network: Network, manifest: Manifest, machine: _Machine, after: Callable[[], Awaitable[None]]
) -> None:
    """Send a machine's requests until it is done; call `after` for each answer.

    An answer may contain thousands of signatures, so it is verified in a thread, one at a time.
    """
    answer_arrived = trio.Event()
    step = trio.Lock()

    async def ask(question: SyncQuery) -> None:
        answer = await ask_peer(network, manifest, question)
        async with step:
            now = trio.current_time()
            blame = await trio.to_thread.run_sync(machine.on_answer, question.peer, answer, now)
            await after()
        if blame is not None:
            _log.info("peer %s: %s", short_peer(blame.peer), blame.text)
            network.traffic.reject(blame.reason)
            network.penalise(blame.peer, blame.reason)
        answer_arrived.set()

    async with trio.open_nursery() as nursery:
        while True:
            answer_arrived = trio.Event()
            async with step:
                for question in machine.requests(trio.current_time()):
                    nursery.start_soon(ask, question)
                if machine.done:
                    break
            with trio.move_on_at(machine.deadline(trio.current_time())):
                await answer_arrived.wait()
        # Peers that have not answered by now are not waited for.
        nursery.cancel_scope.cancel()
