"""A node's own reachability: the verdict, and the addresses at which it was reached.

The verdict comes from peers that dial back (`dial_back`), bootstrap peers first, and is renewed from
time to time and whenever our addresses change. IPv4 and IPv6 are tested separately, since a router
treats them differently. An address at which we were reached is announced: behind a router that forwards
a port, or translates addresses one to one (as on most cloud machines), no interface has it. One peer's
report is enough: a false one costs an unnecessary reservation at a relay, or an announced address that
does not answer.
"""

from __future__ import annotations

import ipaddress
import logging
import random
from typing import Literal

import trio

from ....crypto.identity import PeerId, peer_text, short_peer
from ....protocol.util.backoff import BackoffTimer
from ....protocol.wire.errors import ProtocolError
from ..addresses import multiaddress
from ..discovery.introductions import Introducer
from ..errors import RequestError
from ..network import Network
from .dial_back import MAX_PORTS, DialBackResult, ask_dial_back, ports_of

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
_FIRST_RETRY_SECONDS = 2.0
_RENEW_SECONDS = 300.0

Verdict = Literal["unknown", "reachable", "local", "unreachable"]
# The better verdict of the two families counts.
_RANKED: tuple[Verdict, ...] = ("reachable", "local", "unreachable", "unknown")
_VERSIONS = (4, 6)


class Reachability:
    """The reachability of one node. `run` keeps it up to date, for ever."""

    def __init__(self, network: Network, introducer: Introducer) -> None:
        self._network = network
        self._introducer = introducer
        # By IP version: the report of the last peer that dialled back.
        self._results: dict[int, DialBackResult] = {}
        # Addresses at which we were reached and that are not announced otherwise.
        self._reached_addresses: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Who can dial us. `local`: a peer in our local network can; none outside has tried."""
        return min(map(self.verdict_in, _VERSIONS), key=_RANKED.index)

    def verdict_in(self, version: int) -> Verdict:
        """Return who can dial us in IPv4 or in IPv6 alone."""
        result = self._results.get(version)
        if result is None:
            return "unknown"
        if not result.reached:
            return "unreachable"
        return "reachable" if ipaddress.ip_address(result.observed).is_global else "local"

    def observed_in(self, version: int) -> str | None:
        """Return the address at which others see us in IPv4 or IPv6."""
        result = self._results.get(version)
        return result.observed if result is not None else None

    @property
    def observed(self) -> str | None:
        """The address at which others see us, in the family that decides the verdict."""
        result = self._deciding_result()
        return result.observed if result is not None else None

    @property
    def port(self) -> int | None:
        """The TCP port at which we were reached; if we were not, the one to open in the router."""
        result = self._deciding_result()
        if result is None:
            return None
        return next(iter(result.reached), next(iter(result.outcomes)))

    def _deciding_result(self) -> DialBackResult | None:
        version = min(_VERSIONS, key=lambda version: _RANKED.index(self.verdict_in(version)))
        return self._results.get(version)

    async def run(self) -> None:
        """Keep asking peers to dial back, for ever."""
        async with trio.open_nursery() as nursery:
            for version in _VERSIONS:
                nursery.start_soon(self._watch, version)

    async def _watch(self, version: int) -> None:
        due, retry = 0.0, BackoffTimer(_FIRST_RETRY_SECONDS, _RENEW_SECONDS)
        announced: list[str] = []
        unhelpful: set[PeerId] = set()
        while True:
            addresses = [
                address
                for address in self._network.dialable_addresses
                if address not in self._reached_addresses
            ]
            ports = ports_of(addresses, version)
            now = trio.current_time()
            if addresses != announced:
                due, announced = now, addresses
                retry.reset()
                unhelpful.clear()
                if not ports:
                    self._forget_result(version)
            if now >= due and ports:
                peer = self._choose(version, unhelpful)
                if peer is not None:
                    result = await self._ask(peer, version, ports)
                    if result is None:
                        unhelpful.add(peer)
                        due = now + retry.after_failure()
                    else:
                        self._record_result(version, result)
                        due = now + _RENEW_SECONDS
                        retry.reset()
                        unhelpful.clear()
                elif unhelpful:
                    unhelpful.clear()
                    due = now + retry.seconds
            await trio.sleep(_CHECK_SECONDS)

    def _choose(self, version: int, unhelpful: set[PeerId]) -> PeerId | None:
        """Return the peer to ask: one on the public internet rather than one in our own network."""
        ranked: list[tuple[bool, bool, float, PeerId]] = []
        for peer in self._network.connected() - unhelpful:
            remote = self._network.remote(peer)
            host = ipaddress.ip_address(remote.host) if remote is not None else None
            if host is not None and host.version == version:
                member = peer not in self._introducer.bootstrap_peers
                ranked.append((not host.is_global, member, random.random(), peer))
        return min(ranked)[3] if ranked else None

    async def _ask(self, peer: PeerId, version: int, ports: list[int]) -> DialBackResult | None:
        """Return a peer's report on our address in an IP version; None without one."""
        try:
            result = await ask_dial_back(self._network, peer, ports)
        except RequestError as error:
            log.debug("%s does not dial back: %s", short_peer(peer), error)
            return None
        except ProtocolError as error:
            self._network.penalise(peer, error.reason)
            return None
        if result is None or set(result.outcomes.values()) == {"untried"}:
            return None
        if ipaddress.ip_address(result.observed).version != version:
            # A peer that is connected in both versions may dial back in the other one, where these ports
            # need not be ours.
            return None
        return result

    def _record_result(self, version: int, result: DialBackResult) -> None:
        before = self.verdict
        self._results[version] = result
        if self.verdict != before:
            log.info("reachability: %s (observed address: %s)", self.verdict, result.observed)
        self._announce()

    def _forget_result(self, version: int) -> None:
        """Forget the result of an IP version in which we have no address any more, such as after a move
        to another network: nobody could ask about it again."""
        if self._results.pop(version, None) is not None:
            log.info("reachability: %s (no address in IPv%d any more)", self.verdict, version)
            self._announce()

    def _announce(self) -> None:
        """Announce the addresses at which we were reached, unless they are announced anyway."""
        announced = set(self._network.dialable_addresses) - set(self._reached_addresses)
        reached = [
            f"{multiaddress(result.observed, port)}/p2p/{peer_text(self._network.peer)}"
            for result in self._results.values()
            for port in result.reached
        ]
        unannounced = tuple(address for address in reached if address not in announced)[:MAX_PORTS]
        if unannounced != self._reached_addresses:
            self._reached_addresses = unannounced
            self._network.announce("reached", unannounced)
