"""The list of a bootstrap peer as its own page shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import trio

from .directory import Directory, DirectoryReader, shown_rows
from .swarm_list import SwarmList

# Visitors see a list that is at most this old; members renew their entries every three minutes.
_FRESH_SECONDS = 30.0


class OwnDirectory:
    """The public swarms in this bootstrap peer's own list, checked as any reader checks them."""

    def __init__(self, swarms: SwarmList, addresses: Callable[[], Sequence[str]]) -> None:
        """`addresses` returns the bootstrap peer's addresses, for links."""
        self._swarms = swarms
        self._addresses = addresses
        self._directory = Directory()
        self._read_at = float("-inf")
        self._reading = trio.Lock()

    async def rows(self) -> list[dict[str, Any]]:
        """Return the swarms as tables for JSON, those that most publishers report first."""
        async with self._reading:
            if trio.current_time() - self._read_at >= _FRESH_SECONDS:
                known = {each.swarm: each.manifest for each in self._directory.swarms}
                reader = DirectoryReader(time.time(), known)
                await reader.take_own(self._swarms, self._addresses())
                self._directory = reader.directory()
                self._read_at = trio.current_time()
        return shown_rows(self._directory)
