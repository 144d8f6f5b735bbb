"""Reservations at relays, which make a node reachable that cannot be dialled.

While reservations are wanted, a node holds them at up to two relays: bootstrap peers first, then members
that it could dial itself and that are willing. It announces the addresses that come with them, and finds
another relay when one disconnects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from ....crypto.identity import PeerId, peer_text, short_peer
from ....protocol.util.backoff import Backoff
from ..addresses import circuit_through
from ..circuit_client import Reservation
from ..discovery.introductions import Introducer
from ..errors import DialError
from ..events import PeerDown, PeerUp
from ..network import Network

log = logging.getLogger(__name__)

# Two for redundancy: peers learn both from the same introduction.
MAX_RELAYS = 2
# Up to two addresses of each relay are announced: the one at which we dialled it, and one that it
# reports.
_ADDRESSES_PER_RELAY = 2
_RENEW_SECONDS = 300.0
_CHECK_SECONDS = 2.0
# Pauses before a relay that refused is asked again: a full one stays full for a while, one that does not
# know its own reachability yet soon does. Doubled each time, and reset when it disconnects.
_FIRST_RETRY_SECONDS = 2.0
_LAST_RETRY_SECONDS = 30.0


class Reservations:
    """The reservations of one node. `run` does the work, for ever."""

    def __init__(
        self, network: Network, introducer: Introducer, wanted: Callable[[], bool] = lambda: True
    ) -> None:
        self._network = network
        self._introducer = introducer
        self._wanted = wanted
        self._held: dict[PeerId, Reservation] = {}
        # The relays that refused us.
        self._refusing_relays: Backoff[PeerId] = Backoff(_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS)
        self._changed = trio.Event()

    @property
    def relays(self) -> list[PeerId]:
        """The relays that hold a reservation for us."""
        return list(self._held)

    async def run(self) -> None:
        """Maintain reservations, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            while True:
                changed = self._changed
                await self._maintain()
                with trio.move_on_after(_CHECK_SECONDS):
                    await changed.wait()

    async def _watch(self) -> None:
        # When a relay disconnects, its reservation is dropped: a relay that has restarted, however fast,
        # has lost its reservations along with its connections.
        with self._network.peer_events() as events:
            async for event in events:
                if isinstance(event, PeerDown):
                    self._held.pop(event.peer, None)
                    self._refusing_relays.pop(event.peer, None)
                if isinstance(event, PeerUp) or event.peer in self._held:
                    self._changed.set()
                    self._changed = trio.Event()

    async def _maintain(self) -> None:
        now = trio.current_time()
        if not self._wanted():
            self._held.clear()
        else:
            for relay, reservation in list(self._held.items()):
                if reservation.expires - now < _RENEW_SECONDS:
                    await self._reserve(relay)
            for relay in self._candidates(now):
                if len(self._held) >= MAX_RELAYS:
                    break
                await self._reserve(relay)
        self._network.announce(
            "circuit", [address for relay in self._held for address in self._addresses(relay)]
        )

    def _candidates(self, now: float) -> list[PeerId]:
        bootstrap_peers = self._introducer.bootstrap_peers
        possible: list[PeerId] = []
        for peer in self._network.connected():
            remote = self._network.remote(peer)
            # Others can most likely dial the peers that we could dial.
            reachable = remote is not None and (remote.dialled or peer in bootstrap_peers)
            if reachable and not self._refusing_relays.rests(peer, now) and peer not in self._held:
                possible.append(peer)
        return sorted(possible, key=lambda peer: (peer not in bootstrap_peers, peer))

    async def _reserve(self, relay: PeerId) -> None:
        try:
            reservation = await self._network.circuits.reserve(relay)
        except DialError as error:
            log.debug("no reservation at %s: %s", short_peer(relay), error.reason)
            self._held.pop(relay, None)
            self._refusing_relays.failed(relay, trio.current_time())
            return
        self._refusing_relays.pop(relay, None)
        # The relay may have disconnected after its answer.
        if relay in self._network.connected():
            self._held[relay] = reservation

    def _addresses(self, relay: PeerId) -> list[str]:
        relay_addresses = list(self._held[relay].addresses)
        remote = self._network.remote(relay)
        if remote is not None and remote.dialled:
            family = "ip6" if ":" in remote.host else "ip4"
            relay_addresses.insert(
                0, f"/{family}/{remote.host}/tcp/{remote.port}/p2p/{peer_text(relay)}"
            )
        return [
            circuit_through(address, self._network.peer)
            for address in list(dict.fromkeys(relay_addresses))[:_ADDRESSES_PER_RELAY]
        ]
