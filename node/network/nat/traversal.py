"""Reachability: everything a node does so that others can connect to it, on any network."""

from __future__ import annotations

import ipaddress

import trio

from ....crypto.identity import PeerId
from ...util.background import keep_running
from ..addresses import versions_of
from ..discovery.introductions import Introducer
from ..network import Network
from .dial_back import DialBack
from .hole_punching import HolePunching
from .port_mapping import PortMapping
from .reachability import Reachability, Verdict
from .reservations import Reservations
from .upgrades import Upgrades

_CHECK_SECONDS = 1.0


class NatTraversal:
    """Keeps one node reachable. `run` does the work, for ever."""

    def __init__(self, network: Network, introducer: Introducer, *, upnp: bool = True) -> None:
        """`upnp`: ask the router to open a port if others cannot dial us."""
        self._network = network
        self._introducer = introducer
        self._reachability = Reachability(network, introducer)
        self._reservations = Reservations(network, introducer, self._needs_relay)
        # Routers map ports for IPv4; in IPv6 they translate nothing.
        self._mapping = PortMapping(
            network, lambda: self._reachability.verdict_in(4) == "unreachable"
        )
        punching = HolePunching(network, self._reachability.observed_in)
        self._upgrades = Upgrades(network, introducer, punching)
        self._upnp = upnp
        network.knows = lambda peer: peer in introducer.known.records
        DialBack(network)

    async def run(self) -> None:
        """Determine our reachability, hold reservations at relays, and replace circuits; for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_running, self._reachability.run)
            nursery.start_soon(keep_running, self._reservations.run)
            nursery.start_soon(keep_running, self._upgrades.run)
            if self._upnp:
                nursery.start_soon(keep_running, self._mapping.run)
            while True:
                # A node that cannot be dialled cannot relay for others.
                self._network.accepts_reservations = self._reachability.verdict in (
                    "reachable",
                    "local",
                )
                await trio.sleep(_CHECK_SECONDS)

    @property
    def dialable(self) -> bool | None:
        """Whether others can dial this node; None if no peer has tried yet."""
        verdict = self._reachability.verdict
        return None if verdict == "unknown" else verdict != "unreachable"

    @property
    def verdict(self) -> Verdict:
        """Who can dial this node, as far as is known."""
        return self._reachability.verdict

    @property
    def observed(self) -> str | None:
        """The address at which others see this node."""
        return self._reachability.observed

    @property
    def port(self) -> int | None:
        """The TCP port at which this node was reached; if it was not, the one to open in the router."""
        return self._reachability.port

    @property
    def mapped(self) -> str | None:
        """The address at which the router forwards a port to this node; None without a mapping."""
        return self._mapping.address

    @property
    def relays(self) -> list[PeerId]:
        """The relays through which others connect to this node."""
        return list(self._reservations.relays)

    def _needs_relay(self) -> bool:
        verdict = self._reachability.verdict
        if verdict == "local":
            # A relay is needed if any connected peer is outside our local network.
            remotes = (self._network.remote(peer) for peer in self._network.connected())
            return any(r is not None and ipaddress.ip_address(r.host).is_global for r in remotes)
        return verdict != "reachable" or self._has_peers_of_unreached_family()

    def _has_peers_of_unreached_family(self) -> bool:
        """Whether a peer without a direct connection uses only IPv4 while we are reachable only in IPv6,
        or the other way round."""
        reached = {
            version
            for version in (4, 6)
            if self._reachability.verdict_in(version) in ("reachable", "local")
        }
        direct = self._network.connected() - self._network.relayed()
        families = (
            versions_of(record.addresses)
            for peer, record in self._introducer.known.records.items()
            if peer not in direct
        )
        return any(versions and versions.isdisjoint(reached) for versions in families)
