"""Discovery of members in the same local network, without introductions (multicast DNS).

A node announces itself under a name that contains a hash of the swarm-id and nothing else that
identifies the swarm, so strangers cannot tell which swarm it is. Announcements of others are only
suggestions of peers to dial: a peer that answers has to prove its key like any other.

IPv4 and IPv6 are both used, if the machine has them. In IPv6, a network without a router has link-local
addresses only: these are announced last, and dialled through the interface on which they were announced.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import trio
from zeroconf import (
    Error,
    InterfaceChoice,
    IPVersion,
    ServiceBrowser,
    ServiceInfo,
    ServiceStateChange,
    Zeroconf,
)

from ....crypto.hashing import content_id
from ....crypto.identity import PeerId, peer_from_text, peer_text
from ....protocol.util.backoff import BackoffTimer
from ....protocol.wire.manifest import SwarmId
from ..addresses import endpoint, parse_dial
from ..cancel_scopes import open_scope, shielded
from ..errors import BadAddress
from ..interfaces import link_hosts
from ..network import Network

log = logging.getLogger(__name__)

SERVICE = "_distro-node._tcp.local."

# Any machine in the network can invent any number of names. Beyond this number the oldest is dropped.
_MAX_FOUND = 1024
# Names being resolved at a time. A name that does not resolve takes two seconds.
_MAX_PARALLEL = 64
_MAX_ADDRESSES = 4
_RESOLVE_MILLISECONDS = 2000
# Pause before a name is resolved again, since multicast packets get lost and a machine may answer later.
# Doubled each time.
_FIRST_REPEAT_SECONDS = 1.0
_LAST_REPEAT_SECONDS = 20.0
# Pause before searching again after an error of the system or the library.
_RETRY_SECONDS = 30.0
# How often to check whether the machine has other addresses.
_CHECK_INTERVAL_SECONDS = 3.0
_CLOSE_SECONDS = 3.0
# Lengths: the part of the hash in a name; and an interface's index, in digits.
_TAG_CHARACTERS = 24
_SCOPE_DIGITS = 9


class LocalDiscovery:
    """Announces one node in its local network, and passes the peers found there to `on_found`."""

    def __init__(
        self, network: Network, swarm: SwarmId, on_found: Callable[[Sequence[str]], None]
    ) -> None:
        """`on_found` is called with the addresses of one peer at a time, repeatedly."""
        self._network = network
        self._on_found = on_found
        self._tag = swarm_tag(swarm)
        # One scope per announced name; cancelled when the name is withdrawn.
        self._follow_scopes: dict[str, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        # A separate limiter, so that names that do not resolve delay the others only briefly.
        self._resolve_limiter = trio.CapacityLimiter(_MAX_PARALLEL)

    async def run(self) -> None:
        """Announce this node and listen for others, for ever, at the addresses that the machine has at
        the time.

        A network may appear after the node has started, or give it other addresses: then everything is
        restarted there, and the old addresses are withdrawn. Returns at once if the node listens on
        loopback only.
        """
        while self._network.listening_ports:
            own = own_service(self._network, self._tag)
            pause = float("inf")
            if own is not None:
                try:
                    zeroconf = await trio.to_thread.run_sync(_open_sockets)
                    try:
                        await self._search(zeroconf, own)
                    finally:
                        with shielded(_CLOSE_SECONDS):
                            await trio.to_thread.run_sync(zeroconf.close)
                except (OSError, RuntimeError, Error) as error:
                    log.info("members in the local network cannot be searched for: %s", error)
                    pause = _RETRY_SECONDS
            with trio.move_on_after(pause):
                await self._wait_for_change(own)

    async def _wait_for_change(self, own: ServiceInfo | None) -> None:
        """Return once the machine has other addresses than those announced."""
        announced = _port_and_addresses(own)
        while _port_and_addresses(own_service(self._network, self._tag)) == announced:  # noqa: ASYNC110  (only Linux reports it)
            await trio.sleep(_CHECK_INTERVAL_SECONDS)

    async def _search(self, zeroconf: Zeroconf, own: ServiceInfo) -> None:
        failure: Exception | None = None
        self._follow_scopes.clear()
        async with trio.open_nursery() as self._nursery:
            try:
                await trio.to_thread.run_sync(_open, zeroconf, own, self._listener(zeroconf))
                await self._wait_for_change(own)
                log.info("this machine's addresses have changed: announcing the new ones")
                self._nursery.cancel_scope.cancel()
            except (OSError, RuntimeError, Error) as error:
                # Passed out of the nursery, which would wrap it in a group.
                failure = error
                self._nursery.cancel_scope.cancel()
            finally:
                # Later callbacks of the library's thread are ignored.
                self._nursery = None
        if failure is not None:
            raise failure

    def _listener(self, zeroconf: Zeroconf) -> Callable[..., None]:
        """Return the callback for the library, which calls it in its own thread for one name at a
        time."""
        token = trio.lowlevel.current_trio_token()

        def update(name: str, withdrawn: bool) -> None:
            scope = self._follow_scopes.pop(name, None)
            if scope is not None:
                scope.cancel()
            if self._nursery is not None and not withdrawn:
                if len(self._follow_scopes) >= _MAX_FOUND:
                    self._follow_scopes.pop(next(iter(self._follow_scopes))).cancel()
                self._follow_scopes[name] = open_scope()
                self._nursery.start_soon(self._follow, zeroconf, name, self._follow_scopes[name])

        def changed(
            zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
        ) -> None:
            if name.startswith(self._tag + "-"):
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(update, name, state_change is ServiceStateChange.Removed)

        return changed

    async def _follow(self, zeroconf: Zeroconf, name: str, scope: trio.CancelScope) -> None:
        """Suggest the addresses of a name until it is withdrawn."""
        pause = BackoffTimer(_FIRST_REPEAT_SECONDS, _LAST_REPEAT_SECONDS)
        # libp2p ships stubs of an old trio, which lack `abandon_on_cancel`.
        in_thread: Any = trio.to_thread.run_sync
        with scope:
            while True:
                # The library raises an `AssertionError` once it has been closed.
                with contextlib.suppress(Error, AssertionError):
                    info = await in_thread(
                        zeroconf.get_service_info,
                        *(SERVICE, name, _RESOLVE_MILLISECONDS),
                        abandon_on_cancel=True,
                        limiter=self._resolve_limiter,
                    )
                    if info is not None:
                        self._suggest(info)
                await trio.sleep(pause.after_failure())

    def _suggest(self, info: ServiceInfo) -> None:
        addresses = dialable(info, self._network.peer, self._network.own_addresses)
        for address in addresses:
            if address.interface:
                self._network.link_scopes.note(address.host, address.interface)
        if addresses:
            self._on_found([address.text for address in addresses])


@dataclass(frozen=True)
class LocalAddress:
    """An address to dial in the local network."""

    text: str
    """The full multiaddress."""
    host: str
    interface: int = 0
    """The index of the interface of a link-local address."""


def swarm_tag(swarm: SwarmId) -> str:
    """Return the prefix of the names of a swarm's members in a local network."""
    return content_id(b"distro-node local discovery" + swarm).hex()[:_TAG_CHARACTERS]


def own_service(network: Network, tag: str) -> ServiceInfo | None:
    """Return the announcement of a node; None if no machine in the network could dial it."""
    hosts: list[str] = []
    for text in network.own_addresses:
        try:
            host, _ = endpoint(parse_dial(text)[0])
            if not ipaddress.ip_address(host).is_loopback:
                hosts.append(host)
        except (BadAddress, ValueError):
            # A host name, which is announced for peers outside this network.
            continue
    if network.listens_on_all(6):
        hosts += [host for host, _ in link_hosts()]
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


def _port_and_addresses(own: ServiceInfo | None) -> tuple[int | None, frozenset[str]]:
    """Return the port and the addresses of an announcement."""
    return (None, frozenset()) if own is None else (own.port, frozenset(own.parsed_addresses()))


def dialable(info: Any, own: PeerId, own_addresses: Iterable[str] = ()) -> tuple[LocalAddress, ...]:
    """Return the usable addresses of an announcement, which is untrusted; none if it is invalid.

    Usable are only addresses in a local network, because no announcement may make us dial strangers:
    private ones, our `own_addresses`, those in an IPv6 network of one of them, and link-local ones that
    were announced at one interface.
    """
    try:
        peer = peer_from_text((info.properties.get(b"peer") or b"").decode("ascii"))
        if peer == own or not 0 < (info.port or 0) < 65536:
            return ()
        networks = _networks(own_addresses)
        found: list[LocalAddress] = []
        for host in info.parsed_scoped_addresses()[:_MAX_ADDRESSES]:
            plain, _, scope = host.partition("%")
            address = ipaddress.ip_address(plain)
            interface = 0
            if address.is_loopback or address.is_unspecified:
                continue
            if address.is_link_local:
                # In IPv4 such an address has no scope, so the system would choose the interface.
                if address.version == 4 or not scope.isdecimal() or len(scope) > _SCOPE_DIGITS:
                    continue
                interface = int(scope)
            elif not address.is_private and not any(address in network for network in networks):
                continue
            text = f"/ip{address.version}/{address}/tcp/{info.port}/p2p/{peer_text(peer)}"
            found.append(LocalAddress(text, str(address), interface))
        return tuple(found)
    except ValueError:
        return ()


def _networks(
    own_addresses: Iterable[str],
) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Return the networks of this machine's global addresses: the /64 in IPv6, an address alone in IPv4.

    Another node of this machine announces the same address, and no distant peer may make us dial it.
    """
    found: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    for text in own_addresses:
        with contextlib.suppress(BadAddress, ValueError):
            address = ipaddress.ip_address(endpoint(parse_dial(text)[0])[0])
            if address.is_global:
                prefix = 64 if address.version == 6 else 32
                found.append(ipaddress.ip_network((address, prefix), strict=False))
    return found


def _open_sockets() -> Zeroconf:
    """Open the library's sockets on all interfaces, in both families or, without IPv6, in IPv4. Raises
    `OSError`, and `RuntimeError` if there is no interface."""
    try:
        return Zeroconf(InterfaceChoice.All, ip_version=IPVersion.All)
    except (OSError, RuntimeError) as error:
        log.info("members in the local network are searched for over IPv4 only: %s", error)
        return Zeroconf()


def _open(zeroconf: Zeroconf, own: ServiceInfo, changed: Callable[..., None]) -> None:
    ServiceBrowser(zeroconf, SERVICE, handlers=[changed])
    # Another program of the same peer may still hold the name for a while.
    zeroconf.register_service(own, allow_name_change=True)
