"""Finding the other peers of a swarm, and staying connected to them.

Every node introduces itself to the bootstrap peers and to some of its connected members, learns of other
peers from them, and dials those. It also stores their records on disk, so that a node gets back into its
swarm even if every bootstrap peer is down, as long as one peer that it knew is up.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from ....crypto.identity import Identity, PeerId
from ....protocol.util.backoff import Backoff, BackoffTimer
from ....protocol.util.bounded_dict import BoundedTable
from ....protocol.wire.errors import ProtocolError
from ....protocol.wire.introductions import (
    MAX_RESPONSE_BYTES,
    IntroductionRequest,
    PeerRecord,
    Registry,
    decode_response,
    open_peer_record,
    seal_peer_record,
)
from ....protocol.wire.manifest import SwarmId
from ...storage.monotonic_counter import MonotonicCounter
from ..addresses import parse_dial, through_relay
from ..cancel_scopes import shielded
from ..dial_policy import AddressSource, Scope
from ..errors import BadAddress, DialError, RequestError
from ..events import PeerDown
from ..network import Network
from .introduction_service import PROTOCOL, IntroductionService
from .known_peers import MAX_KNOWN, KnownPeers
from .peers_file import PeersFile
from .version_query import query_versions

log = logging.getLogger(__name__)

# Up to this size a swarm is fully connected; in larger ones gossip is forwarded.
MAX_CONNECTED = 64
# Queued suggestions: addresses of peers that were found by mDNS in the local network.
_MAX_SUGGESTIONS = 64
_REQUEST_TIMEOUT_SECONDS = 5.0
_DIAL_SECONDS = 5.0
# A dial through a relay takes three more round trips, and the relay's connection may be saturated.
_CIRCUIT_SECONDS = 15.0
# Bounds of the pause before introducing ourselves again: short after a change in the swarm; the longest
# one is short enough that our record does not expire at other peers.
_SOON_SECONDS = 1.0
_SETTLED_SECONDS = 30.0
# Bounds of the pause before a bootstrap peer, or a peer that could not be dialled, is dialled again.
_FIRST_RETRY_SECONDS = 1.0
_LAST_RETRY_SECONDS = 30.0
# Interval between saves of the known peers, and time limit of the save at the end.
_SAVE_SECONDS = 10.0
_LAST_SAVE_SECONDS = 5.0
# Connected members to which we introduce ourselves in each pass, and peers dialled at the same time.
_MEMBERS_ASKED = 3
_CONCURRENT_DIALS = 8
# Head start of one address of a peer before the next is dialled in parallel, as in "happy eyeballs" (RFC
# 8305).
_NEXT_ADDRESS_SECONDS = 0.25
# If two peers learn of each other at once, the one with the larger id waits for the other's dial.
_POLITE_SECONDS = 1.0
_POLL_SECONDS = 0.25
# How often to check whether this machine has other addresses.
_CHECK_INTERVAL_SECONDS = 3.0
# The source of suggestions: any machine in the local network can make one. A source of the scope
# `MACHINE` permits every address; that is safe here, because `mdns` passes on only addresses in that
# network.
_LOCAL_SOURCE = AddressSource(None, Scope.MACHINE)
_NEWER_RECORD_EXISTS = (
    "peers have a newer record of this node and refuse ours: either the clock was ahead before "
    "the data directory was lost, or another node uses a copy of this key (stop that node). "
    "Continuing from the newer record"
)


class NoBootstrap(Exception):
    """No peer that could introduce us answered; `outcomes` has the reason for each address."""

    def __init__(self, outcomes: dict[str, str]) -> None:
        tried = "; ".join(f"{address}: {reason}" for address, reason in outcomes.items())
        super().__init__(f"tried {tried}" if tried else "no address to try")
        self.outcomes = outcomes


class Introducer:
    """Keeps a node introduced to its swarm. `run` does the work, for ever."""

    def __init__(
        self,
        network: Network,
        identity: Identity,
        swarm: SwarmId,
        bootstrap: Sequence[str] = (),
        peers_path: Path | None = None,
        *,
        suggestion_seconds: float = 0.0,
        message_numbers: MonotonicCounter | None = None,
        registry: Registry | None = None,
    ) -> None:
        """Serve introductions for the swarm, unless a `registry` is given, whose owner serves them over
        this network already.

        `peers_path` is the file of remembered peers; `suggestion_seconds` is how long `first_contact`
        waits for suggestions before it gives up; our own peer records take their numbers from
        `message_numbers`. Raises `BadAddress` if a bootstrap address is invalid.
        """
        self._network = network
        self._identity = identity
        self._swarm = swarm
        self._bootstrap = {address: parse_dial(address)[1] for address in bootstrap}
        self._message_numbers = message_numbers or MonotonicCounter()
        self._newer_record_logged = False
        self._suggestion_seconds = suggestion_seconds
        self._suggestion_sender, self._suggestions = trio.open_memory_channel[tuple[str, ...]](
            _MAX_SUGGESTIONS
        )
        self._suggested_peers: set[PeerId] = set()
        if registry is None:
            registry = Registry()
            IntroductionService(network, registry, {swarm})
        self.known = KnownPeers(
            swarm,
            network.peer,
            registry,
            PeersFile(peers_path, swarm) if peers_path is not None else None,
            clock=trio.current_time,
            sources=network.source_of,
            scope_of=network.scope_of,
        )
        """The other peers of the swarm."""
        self._dial_outcomes: BoundedTable[str, _DialOutcome] = BoundedTable(MAX_KNOWN)
        # Set once a peer has answered our first introduction.
        self._introduced = trio.Event()
        # Set by `_wake_tasks`, which then puts a new event in its place.
        self._changed = trio.Event()
        self._dialling: set[PeerId] = set()
        self._retries: Backoff[PeerId] = Backoff(_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS)

    @property
    def bootstrap_peers(self) -> frozenset[PeerId]:
        """The configured bootstrap peers."""
        return frozenset(self._bootstrap.values())

    def bootstrap_connected(self) -> bool:
        """Whether any bootstrap peer is connected."""
        return not self._network.connected().isdisjoint(self._bootstrap.values())

    async def versions(self) -> set[int]:
        """Return the protocol versions that connected peers of the swarm report; if none is connected,
        the bootstrap peers' own."""
        connected = self._network.connected()
        members = connected & self.known.records.keys()
        return await query_versions(self._network, members or connected & self.bootstrap_peers)

    def outcomes(self, peer: PeerId) -> dict[str, str]:
        """Return the result of the last dial of each address that a peer announces."""
        record = self.known.records.get(peer)
        addresses = () if record is None else record.addresses
        return {
            address: self._dial_outcomes.get(address, _NO_OUTCOME).outcome for address in addresses
        }

    def suggest(self, addresses: Sequence[str]) -> None:
        """Queue the addresses at which a peer of the swarm may be, to be dialled; they are dropped if
        too many are queued."""
        with contextlib.suppress(trio.WouldBlock):
            self._suggestion_sender.send_nowait(tuple(addresses))

    @property
    def has_peers_to_dial(self) -> bool:
        """Whether there is a bootstrap peer or a remembered peer to dial."""
        return bool(self._bootstrap or self.known.remembered)

    @property
    def waits_for_suggestions(self) -> bool:
        """Whether `first_contact` waits for suggestions from the local network."""
        return self._suggestion_seconds > 0

    async def first_contact(self, timeout: float = 20.0) -> None:
        """Return once a peer has introduced us; `run` must be running.

        Raises `NoBootstrap` when all bootstrap peers and all remembered peers have been tried twice
        without success, or after `timeout` seconds.
        """
        suggestions_until = trio.current_time() + self._suggestion_seconds
        expected = [*self._bootstrap, *(a for r in self.known.remembered for a in r.addresses)]
        with trio.move_on_after(timeout):
            while not self._introduced.is_set():
                all_tried = all(
                    self._dial_outcomes.get(a, _NO_OUTCOME).attempts >= 2 for a in expected
                )
                if all_tried and trio.current_time() >= suggestions_until:
                    break
                with trio.move_on_after(_POLL_SECONDS):
                    await self._introduced.wait()
        if not self._introduced.is_set():
            raise NoBootstrap(
                {a: self._dial_outcomes.get(a, _NO_OUTCOME).outcome for a in expected}
            )

    async def run(self) -> None:
        """Introduce ourselves, dial the peers we learn of, and remember them; for ever."""
        try:
            async with trio.open_nursery() as nursery:
                for address, peer in self._bootstrap.items():
                    nursery.start_soon(self._keep_bootstrap, address, peer)
                nursery.start_soon(self._watch_peers)
                nursery.start_soon(self._ask_members)
                nursery.start_soon(self._dial_unconnected, nursery)
                nursery.start_soon(self._follow_suggestions)
                nursery.start_soon(self._save_regularly)
        finally:
            with shielded(_LAST_SAVE_SECONDS):
                await self._save()

    async def _watch_peers(self) -> None:
        """When the connection to a peer of the swarm is lost, dial it again at once, and ask the others
        for new peers."""
        with self._network.peer_events() as events:
            async for event in events:
                if isinstance(event, PeerDown) and (
                    event.peer in self.bootstrap_peers or event.peer in self.known.records
                ):
                    self._wake_tasks()

    async def _keep_bootstrap(self, address: str, peer: PeerId) -> None:
        retry = BackoffTimer(_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS)
        pause = _Pause(lambda: self._changed)
        while True:
            lost = peer not in self._network.connected()
            if await self._dial(address) and await self._introduce(peer, address):
                retry.reset()
                if lost:
                    # Peers that could not be reached before may be reachable through this bootstrap peer
                    # now.
                    self._retries.clear()
                await pause.wait()
            else:
                await trio.sleep(retry.after_failure() * random.uniform(0.7, 1.0))

    async def _follow_suggestions(self) -> None:
        slots = trio.Semaphore(_CONCURRENT_DIALS)
        async with trio.open_nursery() as nursery:
            async for addresses in self._suggestions:
                peer = parse_dial(addresses[0])[1]
                if peer not in self._network.connected() and peer not in self._suggested_peers:
                    await slots.acquire()
                    self._suggested_peers.add(peer)
                    nursery.start_soon(self._follow_suggestion, peer, addresses, slots)

    async def _follow_suggestion(
        self, peer: PeerId, addresses: Sequence[str], slots: trio.Semaphore
    ) -> None:
        try:
            await self._race(addresses, _LOCAL_SOURCE)
            if peer in self._network.connected():
                await self._introduce(peer, addresses[0])
        finally:
            self._suggested_peers.discard(peer)
            slots.release()

    async def _ask_members(self) -> None:
        pause = _Pause(lambda: self._changed)
        while True:
            connected = self._network.connected()
            members = [peer for peer in self.known.records if peer in connected]
            for peer in random.sample(members, min(_MEMBERS_ASKED, len(members))):
                await self._introduce(peer)
            await pause.wait()

    async def _introduce(self, peer: PeerId, address: str | None = None) -> bool:
        """Introduce ourselves to a connected peer and store the records that it returns; return whether
        it answered with valid ones."""
        number = self._message_numbers.next()
        record = seal_peer_record(self._identity, self._swarm, self._network.addresses, number)
        try:
            response = decode_response(
                await self._network.request(
                    peer,
                    PROTOCOL,
                    IntroductionRequest(swarm=self._swarm, record=record).encode(),
                    max_response=MAX_RESPONSE_BYTES,
                    timeout=_REQUEST_TIMEOUT_SECONDS,
                )
            )
            for sealed in response.records:
                opened = open_peer_record(sealed, self._swarm)
                if opened.peer == self._network.peer:
                    self._number_above(opened)
                else:
                    self._receive(opened, self._network.source_of(peer))
        except RequestError as error:
            self._note_outcome(
                address, f"connected, but it sends no introductions ({error.reason})"
            )
            return False
        except ProtocolError as error:
            self._note_outcome(address, "connected, but its introductions are invalid")
            self._network.penalise(peer, error.reason)
            return False
        self._note_outcome(address, "connected")
        self._introduced.set()
        return True

    def _number_above(self, record: PeerRecord) -> None:
        """Number our next records above this one of our own, which another peer has: that peer may have
        refused records with smaller numbers."""
        if self._message_numbers.beyond(record.number):
            log.log(
                logging.DEBUG if self._newer_record_logged else logging.WARNING,
                _NEWER_RECORD_EXISTS,
            )
            self._newer_record_logged = True
            self._wake_tasks()

    def _receive(self, record: PeerRecord, source: AddressSource) -> None:
        if self.known.receive(record, source):
            # The new address may be a reservation at a relay: so dial it now rather than when the next
            # retry is due.
            self._retries.pop(record.peer, None)
            self._wake_tasks()

    def _wake_tasks(self) -> None:
        """End the pauses of the tasks that introduce us and that dial, since peers or addresses have
        changed."""
        self._changed.set()
        self._changed = trio.Event()

    async def _dial_unconnected(self, nursery: trio.Nursery) -> None:
        """Keep dialling the known peers that are not connected, up to `MAX_CONNECTED`, and announce
        changes of our own addresses."""
        self.known.recall()
        announced, own_addresses, checked_at = self._network.announcements, (), float("-inf")
        while True:
            now = trio.current_time()
            connected = self._network.connected()
            if connected.isdisjoint(self.bootstrap_peers | self.known.records.keys()):
                # Cut off, as by a line that is down: what is forgotten now could not be learned again.
                self.known.renew()
            else:
                self.known.forget_old(connected)
            self._forget_retries(connected)
            if announced != self._network.announcements:
                # We have a new address to announce.
                announced = self._network.announcements
                self._wake_tasks()
            if now - checked_at >= _CHECK_INTERVAL_SECONDS:
                before, checked_at = own_addresses, now
                own_addresses = tuple(self._network.own_addresses)
                if before and own_addresses != before:
                    # The machine is in another network: the other peers must learn our new address, and
                    # may be reachable from here.
                    self._retries.clear()
                    self._wake_tasks()
            # Strangers do not count: with free identities they could keep us from dialling members.
            members = connected & self.known.records.keys()
            for peer, record in self._by_due_time():
                if len(members | self._dialling) >= MAX_CONNECTED:
                    break
                if len(self._dialling) >= _CONCURRENT_DIALS:
                    break
                if peer in connected or peer in self._dialling or self._network.refuses(peer):
                    continue
                if peer not in self._retries:
                    polite = _POLITE_SECONDS if self._network.peer > peer else 0.0
                    self._retries.set_due(peer, now + polite)
                if not self._retries.rests(peer, now):
                    self._dialling.add(peer)
                    nursery.start_soon(self._dial_peer, record)
            changed = self._changed
            with trio.move_on_after(_POLL_SECONDS):
                await changed.wait()

    def _by_due_time(self) -> list[tuple[PeerId, PeerRecord]]:
        # Peers whose next dial is due earliest come first: those with the fewest failures, so that
        # invented peers cannot delay real ones.
        return sorted(self.known.records.items(), key=lambda item: self._retries.due(item[0]))

    def _forget_retries(self, connected: Collection[PeerId]) -> None:
        records = self.known.records
        for peer in [p for p in self._retries if p in connected or p not in records]:
            del self._retries[peer]

    async def _dial_peer(self, record: PeerRecord) -> None:
        peer = record.peer
        try:
            # Through relays last, because they use another peer's bandwidth.
            addresses = sorted(record.addresses, key=through_relay)
            await self._race(addresses, self.known.source(peer))
            if peer in self._network.connected():
                await self._introduce(peer)
        finally:
            self._dialling.discard(peer)
            # After a success as well: `_forget_retries` drops this pause once the peer is connected.
            self._retries.failed(peer, trio.current_time(), random.uniform(0.7, 1.0))

    async def _race(self, addresses: Sequence[str], source: AddressSource | None) -> None:
        """Dial the addresses of a peer in short succession until one answers."""
        async with trio.open_nursery() as nursery:
            for address in addresses:
                ended = trio.Event()
                nursery.start_soon(self._dial_one, address, source, ended, nursery)
                with trio.move_on_after(_NEXT_ADDRESS_SECONDS):
                    await ended.wait()

    async def _dial_one(
        self, address: str, source: AddressSource | None, ended: trio.Event, nursery: trio.Nursery
    ) -> None:
        if await self._dial(address, source):
            nursery.cancel_scope.cancel()
        ended.set()

    async def _dial(self, address: str, source: AddressSource | None = None) -> bool:
        limit = _CIRCUIT_SECONDS if through_relay(address) else _DIAL_SECONDS
        try:
            await self._network.connect(address, timeout=limit, source=source)
        except DialError as error:
            self._note_outcome(address, error.reason)
            return False
        except BadAddress as error:
            self._note_outcome(address, error.why)
            return False
        return True

    def _note_outcome(self, address: str | None, outcome: str) -> None:
        if address is not None:
            attempts = self._dial_outcomes.get(address, _NO_OUTCOME).attempts + 1
            self._dial_outcomes[address] = _DialOutcome(outcome, attempts)

    async def _save_regularly(self) -> None:
        while True:
            await trio.sleep(_SAVE_SECONDS)
            await self._save()

    async def _save(self) -> None:
        """Store our record number, and the peers that are worth a dial after a restart, the connected
        ones first."""
        await trio.to_thread.run_sync(self._message_numbers.keep)
        records = self.known.to_remember(self._network.connected())
        await trio.to_thread.run_sync(self.known.save, records)


@dataclass(frozen=True)
class _DialOutcome:
    """The result of the last dial of an address, and the number of dials."""

    outcome: str
    attempts: int


_NO_OUTCOME = _DialOutcome("no answer yet", 0)


class _Pause:
    """The pause before introducing ourselves again: short after a change, then longer and longer."""

    def __init__(self, changed: Callable[[], trio.Event]) -> None:
        """`changed` returns the event of the next change; each event is set only once."""
        self._changed = changed
        self._pause = BackoffTimer(_SOON_SECONDS, _SETTLED_SECONDS)

    async def wait(self) -> None:
        changed = self._changed()
        # At least this long even after a change, because otherwise many newcomers would keep all members
        # introducing themselves.
        await trio.sleep(_SOON_SECONDS * random.uniform(0.5, 1.0))
        # Each pause without a change doubles the next one, as a failure would.
        longer = self._pause.after_failure() - _SOON_SECONDS
        with trio.move_on_after(longer * random.uniform(0.7, 1.0)):
            await changed.wait()
        if changed.is_set():
            self._pause.reset()
