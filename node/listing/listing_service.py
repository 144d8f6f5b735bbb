"""A bootstrap peer's side of the list of public swarms: it keeps entries and shows them."""

from __future__ import annotations

import trio

from ...crypto.identity import PeerId
from ...protocol.util.token_bucket import TokenBuckets, TokenRate
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import SwarmId
from ..network.dial_policy import household_of
from ..network.errors import NotHere
from ..network.network import Network
from .entries import (
    LIST_PROTOCOL,
    MANIFEST_PROTOCOL,
    MAX_PUBLISH_BYTES,
    PUBLISH_PROTOCOL,
    PublishResponse,
    check_public,
    decode_publish_request,
    open_entry,
)
from .swarm_list import SwarmList

_SWARM_ID_BYTES = 32
_MAX_ADDRESSES = 4096
# By address. An office of a hundred members renews a hundred entries in three minutes.
_PUBLISH_RATE = TokenRate(at_once=128, per_second=1.0)
# Hashing and decoding the largest manifest takes some 10 ms. Honest members send one when their swarm is
# not listed yet.
_MANIFEST_RATE = TokenRate(at_once=16, per_second=0.1)
# Bytes sent: a full list of ordinary manifests (20 kB each) has 3 MB.
_SENDING_RATE = TokenRate(at_once=32 << 20, per_second=64 << 10)


class ListingService:
    """Keeps the entries that members publish in `swarms`, and sends the list to peers that ask."""

    def __init__(self, network: Network, swarms: SwarmList) -> None:
        self._network = network
        self._swarms = swarms
        self._publishing: TokenBuckets[str] = TokenBuckets(_MAX_ADDRESSES)
        self._manifests: TokenBuckets[str] = TokenBuckets(_MAX_ADDRESSES)
        self._sending: TokenBuckets[str] = TokenBuckets(_MAX_ADDRESSES)
        network.serve(
            PUBLISH_PROTOCOL, self._publish, max_request=MAX_PUBLISH_BYTES, max_concurrent=16
        )
        network.serve(LIST_PROTOCOL, self._list, max_request=1, max_concurrent=16)
        network.serve(
            MANIFEST_PROTOCOL, self._manifest, max_request=_SWARM_ID_BYTES, max_concurrent=16
        )

    async def _publish(self, peer: PeerId, data: bytes) -> bytes:
        address, now = self._address_of(peer), trio.current_time()
        if not self._publishing.take(address, _PUBLISH_RATE, now):
            raise NotHere
        request = decode_publish_request(data)
        swarm = SwarmId(request.swarm)
        entry = open_entry(request.entry, swarm)
        if entry.publisher != peer:
            raise ProtocolError("impersonation", "a peer sent another peer's entry as its own")
        checked = None
        if self._swarms.manifest(swarm, now) is None:
            if request.manifest is None:
                return PublishResponse(wants_manifest=True, newer=None).encode()
            if not self._manifests.take(address, _MANIFEST_RATE, now):
                raise NotHere
            await trio.to_thread.run_sync(check_public, request.manifest, swarm)
            checked, now = request.manifest, trio.current_time()
        newer = self._swarms.add(entry, address, checked, now)
        return PublishResponse(wants_manifest=False, newer=newer and newer.sealed).encode()

    async def _list(self, peer: PeerId, data: bytes) -> bytes:
        return self._sent(peer, self._swarms.listing(trio.current_time()).encode())

    async def _manifest(self, peer: PeerId, data: bytes) -> bytes:
        manifest = self._swarms.manifest(SwarmId(data), trio.current_time())
        if manifest is None:
            raise NotHere
        return self._sent(peer, manifest)

    def _sent(self, peer: PeerId, data: bytes) -> bytes:
        """Return `data` if the peer's address may be sent that much now."""
        address, now = self._address_of(peer), trio.current_time()
        if not self._sending.take(address, _SENDING_RATE, now, len(data)):
            raise NotHere
        return data

    def _address_of(self, peer: PeerId) -> str:
        """Return the address that counts for a peer; peers behind relays share one."""
        remote = self._network.remote(peer)
        return household_of(None if remote is None else remote.host)
