"""A port opened in the home's router, where the router does that when asked (UPnP).

It is asked only once others have found that they cannot dial us; the mapping is renewed, told to
others as an address of ours, and taken back when the node ends. All that the router says is hostile: it
may be none.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable

import trio
from libp2p.discovery.upnp.upnp import UpnpManager

from ....crypto.identity import peer_text
from ..network import Network
from ..scopes import shielded

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
# Routers forget mappings when they restart, and nobody tells.
_RENEW_SECONDS = 1200.0
_RETRY_SECONDS = 600.0
# A router answers in tens of milliseconds, or not at all.
_REMOVE_SECONDS = 3.0


class Mapping:
    """The mapping of one node. `run` does the work, for ever."""

    def __init__(self, network: Network, wanted: Callable[[], bool]) -> None:
        self._network = network
        self._wanted = wanted
        self.address: str | None = None
        """What the world dials, `/ip4/<address>/tcp/<port>/p2p/<peer>`; None without a mapping."""

    async def run(self) -> None:
        """Wait until a mapping is wanted, then keep one, for ever."""
        while not self._wanted():  # noqa: ASYNC110  (whoever knows has no event for it)
            await trio.sleep(_CHECK_SECONDS)
        port, mapped = self._network.listening_port(4), None
        if port is None:
            return
        try:
            while True:
                # Anew each time: the router may have gone, or another one come.
                manager = UpnpManager()
                if await manager.discover() and await manager.add_port_mapping(port):
                    mapped = manager
                    self._tell(manager.get_external_ip(), port)
                    await trio.sleep(_RENEW_SECONDS)
                else:
                    self._tell(None, port)
                    await trio.sleep(_RETRY_SECONDS)
        finally:
            self._tell(None, port)
            if mapped is not None:
                with shielded(_REMOVE_SECONDS):
                    await mapped.remove_port_mapping(port)

    def _tell(self, outside: str | None, port: int) -> None:
        before, self.address = self.address, None
        if outside is not None and _is_public(outside):
            self.address = f"/ip4/{outside}/tcp/{port}/p2p/{peer_text(self._network.peer)}"
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
