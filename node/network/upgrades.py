"""From circuits to direct connections, wherever there is a way.

A circuit costs the relay's line and a detour. For every peer that is connected through relays alone,
the node keeps trying the peer's own addresses and then hole punching, less and less often; once a
direct connection stands, new streams use it, and a little later the circuit is closed.
"""

from __future__ import annotations

import random

import trio

from ...crypto.identity import PeerId
from .addresses import through_relay
from .errors import BadAddress, DialError
from .introductions import Introducer
from .network import Network
from .punching import Punching

_CHECK_SECONDS = 1.0
_DIAL_SECONDS = 5.0
# Both must have learnt first where the world sees them.
_FIRST_RETRY_SECONDS = 2.0
_LAST_RETRY_SECONDS = 300.0
# What was under way on the circuit may come to its end: two updates on a home's upload.
_GRACE_SECONDS = 10.0


class Upgrades:
    """The upgrades of one node. `run` does the work, for ever."""

    def __init__(self, network: Network, introducer: Introducer, punching: Punching) -> None:
        self._network = network
        self._introducer = introducer
        self._punching = punching
        # By peer: when to try next, and what to wait after that.
        self._turns: dict[PeerId, tuple[float, float]] = {}
        self._trying: set[PeerId] = set()
        self._direct_since: dict[PeerId, float] = {}

    async def run(self) -> None:
        """Try, for ever."""
        async with trio.open_nursery() as nursery:
            while True:
                now = trio.current_time()
                relayed = self._network.relayed()
                for peer in self._turns.keys() - relayed:
                    del self._turns[peer]
                for peer in relayed - self._trying:
                    turn = self._turns.setdefault(peer, (now, _FIRST_RETRY_SECONDS))
                    if turn[0] <= now:
                        self._trying.add(peer)
                        nursery.start_soon(self._try, peer)
                self._close_spare_circuits(now, nursery)
                await trio.sleep(_CHECK_SECONDS)

    async def _try(self, peer: PeerId) -> None:
        try:
            record = self._introducer.records.get(peer)
            direct = [a for a in record.addresses if not through_relay(a)] if record else []
            async with trio.open_nursery() as nursery:
                for address in direct:
                    nursery.start_soon(self._dial, address, nursery.cancel_scope)
                # One of the two has to begin.
                if self._network.peer < peer:
                    nursery.start_soon(self._punch, peer, nursery.cancel_scope)
        finally:
            self._trying.discard(peer)
            delay = self._turns.get(peer, (0.0, _FIRST_RETRY_SECONDS))[1]
            self._turns[peer] = (
                trio.current_time() + delay * random.uniform(0.7, 1.0),
                min(2 * delay, _LAST_RETRY_SECONDS),
            )

    async def _punch(self, peer: PeerId, others: trio.CancelScope) -> None:
        if await self._punching.punch(peer):
            others.cancel()

    async def _dial(self, address: str, others: trio.CancelScope) -> None:
        try:
            await self._network.connect(address, _DIAL_SECONDS, direct=True)
        except (DialError, BadAddress):
            # As expected of most; the next turn comes.
            return
        others.cancel()

    def _close_spare_circuits(self, now: float, nursery: trio.Nursery) -> None:
        spare = self._network.spare_circuits()
        for peer in self._direct_since.keys() - spare:
            del self._direct_since[peer]
        for peer in spare:
            if now - self._direct_since.setdefault(peer, now) >= _GRACE_SECONDS:
                nursery.start_soon(self._network.close_circuits, peer)
