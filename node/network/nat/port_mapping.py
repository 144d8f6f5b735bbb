"""A port opened in the home router, if the router supports that (UPnP).

The router is asked only after peers have found that they cannot dial us. The mapping is renewed,
announced as an address of ours, and removed when the node ends. The router's answers are untrusted: it
may not be a router at all.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable

import trio
from libp2p.discovery.upnp.upnp import UpnpManager

from ....crypto.identity import peer_text
from ..cancel_scopes import shielded
from ..network import Network

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
# Routers forget mappings when they restart, without any notification.
_RENEW_SECONDS = 1200.0
_RETRY_SECONDS = 600.0
# A router answers within tens of milliseconds, or not at all.
_REMOVE_SECONDS = 3.0


class PortMapping:
    """The port mapping of one node. `run` does the work, for ever."""

    def __init__(self, network: Network, wanted: Callable[[], bool]) -> None:
        self._network = network
        self._wanted = wanted
        self.address: str | None = None
        """The address to announce, `/ip4/<address>/tcp/<port>/p2p/<peer>`; None without a mapping."""

    async def run(self) -> None:
        """Wait until a mapping is wanted, then maintain one, for ever."""
        while not self._wanted():  # noqa: ASYNC110  (`wanted` has no event)
            await trio.sleep(_CHECK_SECONDS)
        port, mapped = self._network.listening_port(4), None
        if port is None:
            return
        try:
            while True:
                # Discovered again each time: the router may have gone or been replaced.
                manager = UpnpManager()
                if await manager.discover() and await manager.add_port_mapping(port):
                    mapped = manager
                    self._announce(manager.get_external_ip(), port)
                    await self._pause(_RENEW_SECONDS)
                else:
                    self._announce(None, port)
                    await self._pause(_RETRY_SECONDS)
        finally:
            self._announce(None, port)
            if mapped is not None:
                with shielded(_REMOVE_SECONDS):
                    await mapped.remove_port_mapping(port)

    async def _pause(self, seconds: float) -> None:
        """Wait, but only until our IPv4 addresses change: another network has another router."""
        before = self._ipv4_addresses()
        with trio.move_on_after(seconds):
            while self._ipv4_addresses() == before:  # noqa: ASYNC110  (a change has no event)
                await trio.sleep(_CHECK_SECONDS)

    def _ipv4_addresses(self) -> set[str]:
        return {each for each in self._network.own_addresses if each.startswith("/ip4/")}

    def _announce(self, external_ip: str | None, port: int) -> None:
        before, self.address = self.address, None
        if external_ip is not None and _is_public(external_ip):
            self.address = f"/ip4/{external_ip}/tcp/{port}/p2p/{peer_text(self._network.peer)}"
        if self.address != before:
            log.info(
                "the router %s", f"forwards {self.address}" if self.address else "forwards no port"
            )
        self._network.announce("mapping", [self.address] if self.address else [])


def _is_public(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.version == 4 and address.is_global and not address.is_multicast
