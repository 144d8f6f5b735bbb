"""The connected relays: peers that fetch each update once and serve it to all members.

Each newly connected peer is asked whether it relays: a relay answers with no bytes, any other peer with
the error that the protocol is unknown. A relay that turned out slow is not used for a while, since
members can do without it.
"""

from __future__ import annotations

import logging

import trio

from ....crypto.hashing import ContentId, content_id
from ....crypto.identity import PeerId
from ....protocol.wire.relay_requests import RelayRequest
from ..errors import RequestError
from ..events import PeerEvent, PeerUp
from ..network import Network
from .quarantine import Quarantine

_log = logging.getLogger(__name__)

PROTOCOL = "/distro/relay/1"
"""Request: a relay request, or empty to ask whether the peer relays. Answer to a relay request: the
update, which may arrive at its author's upload rate, or empty if it is not available. A relay's answer
to an empty request is empty. The author's own request makes the relay fetch the update, and is always
answered empty."""

_REQUEST_TIMEOUT_SECONDS = 10.0
_RETRY_SECONDS = 5.0


class Relays:
    """The relays that a node is connected to, kept up to date by `run`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._relays: set[PeerId] = set()
        # Relays that were slower than another provider.
        self._slow = Quarantine()

    async def run(self) -> None:
        """Ask every new connection whether it relays, for ever."""
        with self._network.peer_events() as events:
            await self._follow(events)

    async def _follow(self, events: trio.MemoryReceiveChannel[PeerEvent]) -> None:
        async with trio.open_nursery() as nursery:
            async for event in events:
                self._relays.discard(event.peer)
                self._slow.release(event.peer)
                if isinstance(event, PeerUp):
                    nursery.start_soon(self._ask, event.peer)

    def __len__(self) -> int:
        return len(self._relays)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._relays

    def order(self, update: ContentId) -> list[PeerId]:
        """Return the relays to ask for an update, the first choice first.

        All members choose the same one, so its author sends the update once; different updates go to
        different relays, which spreads the load.
        """
        usable = [relay for relay in self._relays if relay not in self._slow]
        return sorted(usable, key=lambda relay: content_id(update + relay))

    async def offer(self, update: RelayRequest) -> None:
        """Ask a relay to fetch our own update now: the relay that the other members will ask for it.

        Otherwise our upload would be idle until the others have received the announcement and their
        requests are served.
        """
        for relay in self.order(update.announcement.update)[:1]:
            try:
                await self._network.request(
                    relay, PROTOCOL, update.sealed, max_response=0, timeout=_REQUEST_TIMEOUT_SECONDS
                )
            except RequestError as error:
                # The others will request it anyway.
                _log.debug("offering an update to a relay failed: %s", error)

    def note_slow(self, relay: PeerId) -> None:
        """Note that other providers delivered before this relay did."""
        if relay in self._relays:
            self._slow.add(relay)

    async def _ask(self, peer: PeerId) -> None:
        while peer in self._network.connected():
            try:
                await self._network.request(
                    peer, PROTOCOL, b"", max_response=0, timeout=_REQUEST_TIMEOUT_SECONDS
                )
            except RequestError as error:
                # The peer does not know the protocol.
                if error.reason == "refused":
                    return
                await trio.sleep(_RETRY_SECONDS)
            else:
                if peer in self._network.connected():
                    self._relays.add(peer)
                return
