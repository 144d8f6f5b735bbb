"""Being reached: all that a node does so that others can connect to it, wherever it stands."""

from __future__ import annotations

import trio

from .introductions import Introducer
from .network import Network
from .places import Places
from .upgrades import Upgrades


class Reach:
    """What keeps one node within reach. `run` does the work, for ever."""

    def __init__(self, network: Network, introducer: Introducer) -> None:
        self._places = Places(network, introducer)
        self._upgrades = Upgrades(network, introducer)

    async def run(self) -> None:
        """Hold places at relays and turn circuits into direct connections, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._places.run)
            nursery.start_soon(self._upgrades.run)
