"""The libp2p host of a node: Noise and yamux over TCP, with our identity and limits.

Everything else that libp2p would do by itself (dial peers that it learns of, retry, measure, apply
limits of its own) is switched off; `Network` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.swarm import Swarm
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from ...crypto.identity import Identity
from .addresses import advertised, check_free, endpoint, id_of, multiaddress
from .errors import BadAddress, PortInUse
from .peer_store import OwnKeyStore
from .segment_size import SegmentSizes
from .tcp_transport import LinkScopes, NodeTCP

# Two peers that dial each other at once make two; a third can be a reconnection that arrives before the
# old one is known to be broken.
MAX_CONNECTIONS_PER_PEER = 3
# A stranger that opens a connection and sends nothing holds one of the slots for this long.
_UPGRADE_SECONDS = 6.0


def build_host(
    identity: Identity,
    *,
    max_connections: int,
    announce: Sequence[Multiaddr] = (),
    sizes: SegmentSizes | None = None,
    scopes: LinkScopes | None = None,
) -> tuple[BasicHost, Swarm]:
    """Build a host that is not listening yet, and the libp2p swarm in it. It dials with
    these `sizes` of segments, and link-local addresses with these `scopes`."""
    key_pair = create_new_key_pair(identity.seed)
    config = ConnectionConfig(
        max_connections=max_connections,
        high_watermark=max_connections,
        low_watermark=0,
        min_connections=0,
        max_connections_per_peer=MAX_CONNECTIONS_PER_PEER,
        inbound_upgrade_timeout=_UPGRADE_SECONDS,
        outbound_upgrade_timeout=_UPGRADE_SECONDS,
        inbound_stream_protocol_negotiation_timeout=_UPGRADE_SECONDS,
        outbound_stream_protocol_negotiation_timeout=_UPGRADE_SECONDS,
        # The library's own monitor mistakes a line that is busy with our uploads for a dead one;
        # `liveness` monitors instead.
        enable_health_monitoring=False,
    )
    host = new_host(
        key_pair=key_pair,
        peerstore_opt=OwnKeyStore(id_of(identity.peer)),
        # Noise alone. By default a host also accepts unencrypted connections, where knowing a public key
        # is enough to impersonate its owner.
        sec_opt={TProtocol(NOISE): Noise(key_pair, create_noise_key_pair().private_key)},
        muxer_opt={TProtocol(YAMUX): Yamux},
        connection_config=config,
        addrs_factory=lambda bound: advertised(bound, announce),
        disable_identify_address_discovery=True,
    )
    assert isinstance(host, BasicHost)
    swarm = host.get_network()
    assert isinstance(swarm, Swarm)
    # Identify would ask all peers for their protocols and addresses, and trust what they push;
    # introductions provide the addresses, and the protocols are known. Our peers do not use the
    # library's ping either.
    host.multiselect.handlers.clear()
    untyped_host: Any = host
    untyped_host._schedule_identify = lambda peer_id, *, reason: None
    manager: Any = swarm.transport_manager
    ours = NodeTCP(sizes or SegmentSizes(), scopes or LinkScopes())
    manager._transports = [ours if type(t) is TCP else t for t in manager.get_transports()]
    # One attempt per dial: the callers decide when to retry.
    swarm.retry_config = RetryConfig(max_retries=0)
    # The resource manager's rate limits and circuit breaker lock out honest peers that reconnect often;
    # connections and streams are bounded by the configuration above and by `library_patches`.
    swarm.set_resource_manager(None)
    # Despite the watermarks above, the library's connector would dial every peer that it learns of until
    # it has half of `max_connections`, and it remembers for ever which peers disconnected.
    connector: Any = swarm.auto_connector
    connector.maybe_connect = trio.lowlevel.checkpoint
    connector.record_disconnect = lambda peer_id: None
    return host, swarm


async def start_listening(swarm: Swarm, listen: Sequence[Multiaddr]) -> None:
    """Listen at all these addresses, using one port for all addresses with port 0.

    Raises `BadAddress` if one of them cannot be listened on.
    """
    shared = 0
    for address in listen:
        host, wanted = endpoint(address)
        chosen = address if wanted else multiaddress(host, shared)
        if not wanted and shared:
            try:
                check_free(chosen)
            except PortInUse:
                chosen = address
        # The library does not report why an address cannot be listened on; `check_free` has caught
        # everything but a race.
        if not await swarm.listen(chosen):
            raise BadAddress(str(address), "cannot listen there")
        (bound, *_) = swarm.listeners[str(chosen)].get_addrs()
        if not wanted:
            shared = shared or endpoint(bound)[1]
