"""Upgrades from circuits to direct connections, wherever possible.

A circuit costs the relay's bandwidth and a detour. For every peer that is connected only through relays,
the node keeps trying the peer's own addresses and hole punching: soon after the peer's addresses or ours
have changed, otherwise less and less often. Once there is a direct connection, new streams use it, and a
little later the circuit is closed.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator
from typing import Literal

import trio

from ....crypto.identity import PeerId
from ....protocol.util.backoff import Backoff
from ..addresses import through_relay
from ..dial_policy import AddressSource
from ..discovery.introductions import Introducer
from ..errors import BadAddress, DialError
from ..network import Network
from .hole_punching import HolePunching

_CHECK_SECONDS = 0.5
_DIAL_SECONDS = 5.0
# Pauses, counted from the start of an attempt, so that the five seconds of an address that does not
# answer are not added to them. The next attempt never starts before the last one has ended.
_FIRST_RETRY_SECONDS = 2.0
_LAST_RETRY_SECONDS = 300.0
# Time for transfers on the circuit to finish before it is closed: two updates on a home's upload.
_GRACE_SECONDS = 10.0

Way = Literal["dial", "punch"]


class Upgrades:
    """The upgrades of one node, tried by `run`."""

    def __init__(self, network: Network, introducer: Introducer, punching: HolePunching) -> None:
        self._network = network
        self._introducer = introducer
        self._punching = punching
        self._retries: Backoff[tuple[PeerId, Way]] = Backoff(
            _FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS
        )
        # What was known about each way when it was last considered: the peer's addresses, or our
        # endpoints.
        self._known: dict[tuple[PeerId, Way], Hashable] = {}
        self._trying: set[tuple[PeerId, Way]] = set()
        self._direct_since: dict[PeerId, float] = {}

    async def run(self) -> None:
        """Keep trying until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                now = trio.current_time()
                relayed = self._network.relayed()
                for key in self._known.keys() - self._trying:
                    if key[0] not in relayed:
                        del self._known[key]
                        self._retries.pop(key, None)
                for peer in relayed:
                    for way, known in self._ways(peer):
                        if (peer, way) not in self._trying and self._is_due(peer, way, known, now):
                            self._trying.add((peer, way))
                            nursery.start_soon(self._try, peer, way)
                self._close_spare_circuits(now, nursery)
                await trio.sleep(_CHECK_SECONDS)

    def _ways(self, peer: PeerId) -> Iterator[tuple[Way, Hashable]]:
        """Yield the ways that may lead to a peer, each with what is known about it."""
        if addresses := self._addresses(peer):
            yield "dial", addresses
        # Only one of the two peers starts hole punching, and it must know its own public address.
        if self._network.peer < peer and self._punching.public_endpoints:
            yield "punch", self._punching.public_endpoints

    def _addresses(self, peer: PeerId) -> tuple[str, ...]:
        record = self._introducer.known.records.get(peer)
        return tuple(a for a in record.addresses if not through_relay(a)) if record else ()

    def _is_due(self, peer: PeerId, way: Way, known: Hashable, now: float) -> bool:
        key = (peer, way)
        if key not in self._known:
            self._retries.set_due(key, now)
        elif self._known[key] != known:
            # The peer's router has a new mapping, or we have a new public address. The next attempt
            # comes sooner, but not at once: otherwise a peer that announces something new all the time
            # would keep us dialling.
            self._retries.set_due(key, min(self._retries.due(key), now + self._retries.first))
        self._known[key] = known
        return not self._retries.rests(key, now)

    async def _try(self, peer: PeerId, way: Way) -> None:
        began = trio.current_time()
        try:
            if way == "punch":
                await self._punching.punch(peer)
            else:
                await self._dial_all(peer)
        finally:
            self._trying.discard((peer, way))
            # After a success as well: this pause counts only if there is no direct connection, and `run`
            # forgets it once there is one.
            self._retries.failed((peer, way), began, random.uniform(0.7, 1.0))

    async def _dial_all(self, peer: PeerId) -> None:
        source = self._introducer.known.source(peer)
        async with trio.open_nursery() as nursery:
            for address in self._addresses(peer):
                nursery.start_soon(self._dial, address, source, nursery.cancel_scope)

    async def _dial(
        self, address: str, source: AddressSource | None, others: trio.CancelScope
    ) -> None:
        try:
            await self._network.connect(address, _DIAL_SECONDS, direct=True, source=source)
        except (DialError, BadAddress):
            # Most attempts fail; the next one follows later.
            return
        others.cancel()

    def _close_spare_circuits(self, now: float, nursery: trio.Nursery) -> None:
        spare = self._network.spare_circuits()
        for peer in self._direct_since.keys() - spare:
            del self._direct_since[peer]
        for peer in spare:
            if now - self._direct_since.setdefault(peer, now) >= _GRACE_SECONDS:
                nursery.start_soon(self._network.close_circuits, peer)
