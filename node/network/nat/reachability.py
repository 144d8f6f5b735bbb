"""What a node knows of its own reachability, and what it tells its owner about it.

The verdict comes from peers that call back (`dial_back`), bootstrap peers first, and is renewed now
and then, and whenever our addresses change. One peer's word is enough: a lie costs us a reservation at a
relay that we did not need, or nothing.
"""

from __future__ import annotations

import ipaddress
import logging
import random
from typing import Literal

import trio

from ....crypto.identity import PeerId, short_peer
from ....protocol.wire.backoff import Pause
from ....protocol.wire.errors import ProtocolError
from ..discovery.introductions import Introducer
from ..errors import RequestError
from ..network import Network
from .dial_back import Finding, ask_dial_back, ports_of

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
_FIRST_RETRY_SECONDS = 2.0
_RENEW_SECONDS = 300.0

Verdict = Literal["unknown", "reachable", "local", "unreachable"]


class Reachability:
    """The verdict of one node. `run` keeps it up to date, for ever."""

    def __init__(self, network: Network, introducer: Introducer) -> None:
        self._network = network
        self._introducer = introducer
        self.verdict: Verdict = "unknown"
        """`local`: peers in this network can dial us; nobody else has tried."""
        self.observed: str | None = None
        """The address that others see us at, as the last peer said that called back."""
        self.port: int | None = None
        """The port at which we were reached, else the one to open."""

    async def run(self) -> None:
        """Ask, for ever."""
        due, retry = 0.0, Pause(_FIRST_RETRY_SECONDS, _RENEW_SECONDS)
        announced: list[str] = []
        unhelpful: set[PeerId] = set()
        while True:
            addresses = self._network.dialable_addresses
            now = trio.current_time()
            if addresses != announced:
                due, announced = now, addresses
                retry.reset()
                unhelpful.clear()
            if now >= due and addresses:
                peer = self._choose(unhelpful)
                if peer is not None:
                    finding = await self._ask(peer, addresses)
                    if finding is None:
                        unhelpful.add(peer)
                        due = now + retry.after_failure()
                    else:
                        self._judge(finding)
                        due = now + _RENEW_SECONDS
                        retry.reset()
                        unhelpful.clear()
                elif unhelpful:
                    unhelpful.clear()
                    due = now + retry.seconds
            await trio.sleep(_CHECK_SECONDS)

    def _choose(self, unhelpful: set[PeerId]) -> PeerId | None:
        """The peer that shall call: rather one out in the world than one in our own network."""
        ranked: list[tuple[bool, bool, float, PeerId]] = []
        for peer in self._network.connected() - unhelpful:
            remote = self._network.remote(peer)
            if remote is not None:
                inside = not ipaddress.ip_address(remote.host).is_global
                member = peer not in self._introducer.bootstrap_peers
                ranked.append((inside, member, random.random(), peer))
        return min(ranked)[3] if ranked else None

    async def _ask(self, peer: PeerId, addresses: list[str]) -> Finding | None:
        try:
            finding = await ask_dial_back(self._network, peer, ports_of(addresses))
        except RequestError as error:
            log.debug("%s does not call back: %s", short_peer(peer), error)
            return None
        except ProtocolError as error:
            self._network.penalise(peer, error.reason)
            return None
        if finding is None or set(finding.outcomes.values()) == {"untried"}:
            return None
        return finding

    def _judge(self, finding: Finding) -> None:
        reached = [port for port, outcome in finding.outcomes.items() if outcome == "reached"]
        before = self.verdict
        self.observed = finding.observed
        self.port = reached[0] if reached else next(iter(finding.outcomes))
        if not reached:
            self.verdict = "unreachable"
        elif ipaddress.ip_address(finding.observed).is_global:
            self.verdict = "reachable"
        else:
            self.verdict = "local"
        if self.verdict != before:
            log.info("reachability: %s (seen at %s)", self.verdict, finding.observed)
