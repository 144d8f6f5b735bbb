"""Bounded table for state that a node keeps about other peers.

Identities are free, so an attacker could fill the memory if a table with an entry for each peer only
grew. Here a new entry evicts the one that was set longest ago: a crowd of identities evicts its own
entries, and active peers stay.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedTable(MutableMapping[K, V]):
    """At most `most` entries, in the order in which they were last set."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._entries: dict[K, V] = {}

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self.most:
            del self._entries[next(iter(self._entries))]

    def __delitem__(self, key: K) -> None:
        del self._entries[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
