"""Finding members in the same local network, with nobody to introduce them (multicast DNS).

A node tells its network "somebody of this swarm is here" under a name that carries a hash of the
swarm-id and nothing else of it: a stranger to the swarm cannot tell which it is. Words that it hears are
suggestions of whom to dial, no more; a peer that answers has to prove its key, like anybody.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio
from zeroconf import Error, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

from ....crypto.hashing import content_id
from ....crypto.identity import PeerId, peer_from_text, peer_text
from ....protocol.wire.backoff import Pause
from ....protocol.wire.manifest import SwarmId
from ..addresses import endpoint, parse_dial
from ..errors import BadAddress
from ..network import Network
from ..scopes import open_scope, shielded

log = logging.getLogger(__name__)

SERVICE = "_distro-node._tcp.local."

# Anybody in the network can invent any number of names. Beyond these the oldest is forgotten.
_MAX_FOUND = 1024
# Those behind which nobody stands take two seconds each.
_ASKED_AT_ONCE = 64
_MAX_ADDRESSES = 4
_RESOLVE_MILLISECONDS = 2000
# Multicast gets lost, and whoever did not answer may do so later. Doubled each time.
_FIRST_REPEAT_SECONDS = 1.0
_LAST_REPEAT_SECONDS = 20.0
_AGAIN_SECONDS = 30.0
# How often to look whether the machine has other addresses.
_LOOK_SECONDS = 3.0
_CLOSE_SECONDS = 3.0
_TAG_CHARACTERS = 24


class LocalDiscovery:
    """Tells of one node in its local network and suggests those that it hears of to `hear`."""

    def __init__(
        self, network: Network, swarm: SwarmId, hear: Callable[[Sequence[str]], None]
    ) -> None:
        """`hear` is told the addresses of one peer at a time, again and again."""
        self._network = network
        self._hear = hear
        self._tag = swarm_tag(swarm)
        # Those told of, by name; cancelled when the name is taken back.
        self._followed: dict[str, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        # Threads of their own, by turns: names without anybody behind them keep none waiting long.
        self._questions = trio.CapacityLimiter(_ASKED_AT_ONCE)

    async def run(self) -> None:
        """Announce this node and listen, for ever, at the addresses that the machine has at the time.

        A network may come after the node, or give it other addresses: then all begins again there, and
        the old addresses are taken back. Returns at once if the node listens on loopback alone.
        """
        while self._network.listening_ports:
            own = own_service(self._network, self._tag)
            pause = float("inf")
            if own is not None:
                try:
                    zeroconf = await trio.to_thread.run_sync(Zeroconf)
                    try:
                        await self._look_around(zeroconf, own)
                    finally:
                        with shielded(_CLOSE_SECONDS):
                            await trio.to_thread.run_sync(zeroconf.close)
                except (OSError, Error) as error:
                    log.info("members in this network are not looked for: %s", error)
                    pause = _AGAIN_SECONDS
            with trio.move_on_after(pause):
                await self._wait_for_change(own)

    async def _wait_for_change(self, own: ServiceInfo | None) -> None:
        """Return once the machine has other addresses than those announced."""
        announced = _places(own)
        # No system but Linux reports a change by itself.
        while _places(own_service(self._network, self._tag)) == announced:  # noqa: ASYNC110
            await trio.sleep(_LOOK_SECONDS)

    async def _look_around(self, zeroconf: Zeroconf, own: ServiceInfo) -> None:
        failure: OSError | Error | None = None
        self._followed.clear()
        async with trio.open_nursery() as self._nursery:
            try:
                await trio.to_thread.run_sync(_open, zeroconf, own, self._listener(zeroconf))
                await self._wait_for_change(own)
                log.info("the addresses of this machine have changed: announcing the new ones")
                self._nursery.cancel_scope.cancel()
            except (OSError, Error) as error:
                # Carried past the nursery, which would wrap it into a group.
                failure = error
                self._nursery.cancel_scope.cancel()
            finally:
                # What the library's thread still tells comes too late.
                self._nursery = None
        if failure is not None:
            raise failure

    def _listener(self, zeroconf: Zeroconf) -> Callable[..., None]:
        """What the library calls, in a thread of its own, one name at a time."""
        token = trio.lowlevel.current_trio_token()

        def note(name: str, gone: bool) -> None:
            followed = self._followed.pop(name, None)
            if followed is not None:
                followed.cancel()
            if self._nursery is not None and not gone:
                if len(self._followed) >= _MAX_FOUND:
                    self._followed.pop(next(iter(self._followed))).cancel()
                self._followed[name] = open_scope()
                self._nursery.start_soon(self._follow, zeroconf, name, self._followed[name])

        def changed(
            zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
        ) -> None:
            if name.startswith(self._tag + "-"):
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(note, name, state_change is ServiceStateChange.Removed)

        return changed

    async def _follow(self, zeroconf: Zeroconf, name: str, scope: trio.CancelScope) -> None:
        """Suggest the addresses behind a name until it is taken back."""
        pause = Pause(_FIRST_REPEAT_SECONDS, _LAST_REPEAT_SECONDS)
        # libp2p brings stubs of an old trio along, which do not know how to leave a thread alone.
        in_thread: Any = trio.to_thread.run_sync
        with scope:
            while True:
                # Asserted by the library: that it has not been closed meanwhile.
                with contextlib.suppress(Error, AssertionError):
                    info = await in_thread(
                        zeroconf.get_service_info,
                        *(SERVICE, name, _RESOLVE_MILLISECONDS),
                        abandon_on_cancel=True,
                        limiter=self._questions,
                    )
                    addresses = dialable(info, self._network.peer) if info is not None else ()
                    if addresses:
                        self._hear(addresses)
                await trio.sleep(pause.after_failure())


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


def _places(own: ServiceInfo | None) -> tuple[int | None, frozenset[str]]:
    """Return the port and the addresses of an announcement."""
    return (None, frozenset()) if own is None else (own.port, frozenset(own.parsed_addresses()))


def dialable(info: Any, own: PeerId) -> tuple[str, ...]:
    """The addresses in what somebody tells, which may be anything; none if it makes no sense."""
    try:
        peer = peer_from_text((info.properties.get(b"peer") or b"").decode("ascii"))
        if peer == own or not 0 < (info.port or 0) < 65536:
            return ()
        found: list[str] = []
        for host in info.parsed_addresses()[:_MAX_ADDRESSES]:
            address = ipaddress.ip_address(host.partition("%")[0])
            # Only what is in a local network: nobody has us knock at strangers' doors. One that holds
            # on a link alone leads nowhere without the name of ours.
            nowhere = address.is_loopback or address.is_unspecified or address.is_link_local
            if address.is_private and not nowhere:
                family = f"ip{address.version}"
                found.append(f"/{family}/{address}/tcp/{info.port}/p2p/{peer_text(peer)}")
        return tuple(found)
    except ValueError:
        return ()


def _open(zeroconf: Zeroconf, own: ServiceInfo, changed: Callable[..., None]) -> None:
    ServiceBrowser(zeroconf, SERVICE, handlers=[changed])
    # Another program of the same peer may still be known by the name for a while.
    zeroconf.register_service(own, allow_name_change=True)
