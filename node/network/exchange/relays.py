"""The relays within reach: which of our connections fetch updates once and serve them to everybody.

Each new connection is asked once whether it relays; the answer is an empty one, or that it does not
know the protocol. One that turned out slow is left alone for a while, since the others do without.
"""

from __future__ import annotations

import logging

import trio

from ....crypto.hashing import ContentId, content_id
from ....crypto.identity import PeerId
from ....protocol.wire.relay_requests import RelayRequest
from ..errors import RequestError
from ..network import Network, PeerUp
from .quarantine import Quarantine

_log = logging.getLogger(__name__)

PROTOCOL = "/distro/relay/1"
"""Request: a relay request, or nothing at all ("do you relay?"). Answer: the update, which may come as
slowly as its author sends it; or nothing: not to be had here (or "yes"). Its author asks to have it
fetched and gets nothing, either way."""

_ASK_SECONDS = 10.0
_ASK_AGAIN_SECONDS = 5.0


class Relays:
    """The relays that a node is connected to, kept up by `run`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._relays: set[PeerId] = set()
        # A relay that a home line has overtaken is no help.
        self._slow = Quarantine()

    async def run(self) -> None:
        """Ask every new connection, for ever."""
        async with trio.open_nursery() as nursery:
            async for event in self._network.peer_events():
                self._relays.discard(event.peer)
                self._slow.forgive(event.peer)
                if isinstance(event, PeerUp):
                    nursery.start_soon(self._ask, event.peer)

    def __len__(self) -> int:
        return len(self._relays)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._relays

    def order(self, update: ContentId) -> list[PeerId]:
        """The relays to ask for an update, the first choice first.

        All members choose the same one, so that its author sends it once; different updates go to
        different relays, so that they share the work.
        """
        usable = [relay for relay in self._relays if relay not in self._slow]
        return sorted(usable, key=lambda relay: content_id(update + relay))

    async def offer(self, update: RelayRequest) -> None:
        """Have an update of our own fetched by the relay that others will ask for it.

        They need a while to hear of it, and each other's requests to be served; that long our line would
        stand idle.
        """
        for relay in self.order(update.announcement.update)[:1]:
            try:
                await self._network.request(
                    relay, PROTOCOL, update.sealed, max_response=0, timeout=_ASK_SECONDS
                )
            except RequestError as error:
                # Others will ask for it.
                _log.debug("an update could not be offered: %s", error)

    def too_slow(self, relay: PeerId) -> None:
        """A relay was overtaken by others who had what it was asked for."""
        if relay in self._relays:
            self._slow.add(relay)

    async def _ask(self, peer: PeerId) -> None:
        while peer in self._network.connected():
            try:
                await self._network.request(
                    peer, PROTOCOL, b"", max_response=0, timeout=_ASK_SECONDS
                )
            except RequestError as error:
                if error.reason == "refused":
                    return
                await trio.sleep(_ASK_AGAIN_SECONDS)
            else:
                if peer in self._network.connected():
                    self._relays.add(peer)
                return
