"""The lists of an observer's bootstrap peers, as its page shows them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import trio

from ..network.network import Network
from .directory import Directory, DirectoryReader, shown_rows
from .swarm_list import ENTRY_SECONDS

# The lists are read at most this often, and only while somebody looks at the page. Members renew their
# entries every three minutes.
_FRESH_SECONDS = 60.0
# How long a visitor waits for the first list; later ones get the last that was read.
_FIRST_WAIT_SECONDS = 5.0


class BootstrapDirectory:
    """The public swarms that bootstrap peers list, read by one session after another."""

    def __init__(self) -> None:
        self._directory: Directory | None = None
        """What was last read; None: no bootstrap peer has given a list lately."""
        self._read_at = float("-inf")
        self._wanted = trio.Event()
        self._was_read = trio.Event()

    async def rows(self) -> list[dict[str, Any]] | None:
        """Return the swarms as tables for JSON, those that most publishers report first; None without a
        list."""
        self._wanted.set()
        with trio.move_on_after(_FIRST_WAIT_SECONDS):
            await self._was_read.wait()
        if self._directory is None or trio.current_time() - self._read_at > ENTRY_SECONDS:
            return None
        return shown_rows(self._directory)

    async def run(self, network: Network, addresses: Sequence[str]) -> None:
        """Read the lists of the bootstrap peers at these addresses for visitors; for ever."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            last = self._directory or Directory()
            known = {each.swarm: each.manifest for each in last.swarms}
            reader = DirectoryReader(time.time(), known)
            async with trio.open_nursery() as each:
                for address in addresses:
                    each.start_soon(reader.ask, network, address)
            found = reader.directory()
            if len(found.failures) < len({*addresses}):
                self._directory, self._read_at = found, trio.current_time()
            self._was_read.set()
            await trio.sleep(_FRESH_SECONDS)
