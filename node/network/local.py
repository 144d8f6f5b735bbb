"""Finding members in the same local network, with nobody to introduce them (multicast DNS).

A node tells its network "somebody of this swarm is here" under a name that carries a hash of the
swarm-id and nothing else of it: whoever does not know the swarm cannot tell which it is. What it hears
are suggestions of whom to dial, no more; who answers has to prove its key, like anybody.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio
from zeroconf import Error, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

from ...crypto.hashing import content_id
from ...crypto.identity import PeerId, peer_from_text, peer_text
from ...protocol.manifest import SwarmId
from .addresses import endpoint, parse_dial
from .errors import BadAddress
from .network import Network
from .scopes import shielded

log = logging.getLogger(__name__)

SERVICE = "_distro-node._tcp.local."

# Anybody in the network can invent any number of names.
_MAX_FOUND = 64
_MAX_ADDRESSES = 4
_RESOLVE_MILLISECONDS = 2000
# Whoever did not answer may do so later; each suggestion costs one dial.
_REPEAT_SECONDS = 20.0
_CLOSE_SECONDS = 3.0
_TAG_CHARACTERS = 24


class LocalDiscovery:
    """Tells of one node in its local network and suggests those that it hears of to `hear`."""

    def __init__(self, network: Network, swarm: SwarmId, hear: Callable[[str], None]) -> None:
        self._network = network
        self._hear = hear
        self._tag = swarm_tag(swarm)
        self._found: dict[str, tuple[str, ...]] = {}

    async def run(self) -> None:
        """Tell and listen, for ever. Returns where there is no multicast."""
        own = own_service(self._network, self._tag)
        if own is None:
            return
        zeroconf: Zeroconf | None = None
        try:
            zeroconf = await trio.to_thread.run_sync(Zeroconf)
            await trio.to_thread.run_sync(_open, zeroconf, own, self._listener())
            while True:
                await trio.sleep(_REPEAT_SECONDS)
                for addresses in list(self._found.values()):
                    self._suggest(addresses)
        except (OSError, Error) as error:
            log.info("members in this network are not looked for: %s", error)
        finally:
            if zeroconf is not None:
                with shielded(_CLOSE_SECONDS):
                    await trio.to_thread.run_sync(zeroconf.close)

    def _listener(self) -> Callable[..., None]:
        """What the library calls, in a thread of its own."""
        token = trio.lowlevel.current_trio_token()

        def changed(
            zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
        ) -> None:
            if not name.startswith(self._tag + "-"):
                return
            info = None
            if state_change is not ServiceStateChange.Removed:
                info = zeroconf.get_service_info(service_type, name, _RESOLVE_MILLISECONDS)
            try:
                trio.from_thread.run_sync(self._note, name, info, trio_token=token)
            except trio.RunFinishedError:
                # The program ends.
                return

        return changed

    def _note(self, name: str, info: ServiceInfo | None) -> None:
        self._found.pop(name, None)
        addresses = dialable(info, self._network.peer) if info is not None else ()
        if addresses and len(self._found) < _MAX_FOUND:
            self._found[name] = addresses
            self._suggest(addresses)

    def _suggest(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            self._hear(address)


def swarm_tag(swarm: SwarmId) -> str:
    """What the names of a swarm's members in a local network begin with."""
    return content_id(b"distro-node local discovery" + swarm).hex()[:_TAG_CHARACTERS]


def own_service(network: Network, tag: str) -> ServiceInfo | None:
    """What a node tells; None if nobody in the network could dial it."""
    hosts: list[str] = []
    for text in network.own_addresses:
        try:
            host, _ = endpoint(parse_dial(text)[0])
            if not ipaddress.ip_address(host).is_loopback:
                hosts.append(host)
        except (BadAddress, ValueError):
            # A name, for those outside.
            continue
    ports = network.listening_ports
    if not hosts or not ports:
        return None
    name = f"{tag}-{peer_text(network.peer)[-12:]}"
    return ServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        port=ports[0],
        properties={"peer": peer_text(network.peer)},
        server=f"{name}.local.",
        parsed_addresses=hosts[:_MAX_ADDRESSES],
    )


def dialable(info: Any, own: PeerId) -> tuple[str, ...]:
    """The addresses in what somebody tells, which may be anything; none if it makes no sense."""
    try:
        peer = peer_from_text((info.properties.get(b"peer") or b"").decode("ascii"))
        if peer == own or not 0 < (info.port or 0) < 65536:
            return ()
        found: list[str] = []
        for host in info.parsed_addresses()[:_MAX_ADDRESSES]:
            address = ipaddress.ip_address(host.partition("%")[0])
            # Only what is in a local network: nobody has us knock at strangers' doors.
            if address.is_private and not (address.is_loopback or address.is_unspecified):
                family = f"ip{address.version}"
                found.append(f"/{family}/{address}/tcp/{info.port}/p2p/{peer_text(peer)}")
        return tuple(found)
    except ValueError:
        return ()


def _open(zeroconf: Zeroconf, own: ServiceInfo, changed: Callable[..., None]) -> None:
    ServiceBrowser(zeroconf, SERVICE, handlers=[changed])
    # Another program of the same peer may still be known by the name for a while.
    zeroconf.register_service(own, allow_name_change=True)
