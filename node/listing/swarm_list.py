"""The table of public swarms at a bootstrap peer.

An invented swarm costs nothing, and neither does an identity, so the bounds count addresses: a swarm
weighs as much as the addresses that publish it, and an address shares its weight among its swarms. When
the table is full, the swarm that weighs least makes room. A swarm that was pushed out returns when one
of its members renews its entry. `now` is any steady clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...crypto.identity import PeerId
from ...protocol.wire.manifest import SwarmId
from ..network.connection_limits import choose_eviction
from .entries import MAX_ENTRIES_PER_SWARM, MAX_LISTED_SWARMS, Entry, ListedSwarm, SwarmListing

ENTRY_SECONDS = 600.0
"""Lifetime of an entry. Members renew theirs well before that."""

MAX_SWARMS_PER_ADDRESS = 8
"""Swarms that are listed on the word of one address: few homes take part in more."""
MAX_ENTRIES_PER_ADDRESS = 2
"""Entries of one swarm from one address, so that a home with many identities is not a majority."""


@dataclass(frozen=True)
class _KeptEntry:
    """An entry, the address from which its publisher sent it, and the time of arrival."""

    entry: Entry
    address: str
    received: float


@dataclass
class _KeptSwarm:
    """A swarm's manifest and its entries by publisher, the one renewed longest ago first."""

    manifest: bytes
    entries: dict[PeerId, _KeptEntry] = field(default_factory=dict)

    def addresses(self) -> set[str]:
        return {kept.address for kept in self.entries.values()}


class SwarmList:
    """Entries by swarm, as received from their publishers."""

    def __init__(self) -> None:
        self._swarms: dict[SwarmId, _KeptSwarm] = {}

    def __len__(self) -> int:
        return len(self._swarms)

    def add(self, entry: Entry, address: str, manifest: bytes | None, now: float) -> Entry | None:
        """Keep an entry received from its publisher at `address`. If the publisher's entry with a higher
        number is known, keep and return that one instead.

        `manifest` is the swarm's, checked with `check_public`; it may be None if the swarm is listed
        (`manifest` returns it). Raises `LookupError` if it is needed.
        """
        self.expire(now)
        swarm = self._swarms.get(entry.swarm)
        if swarm is None:
            if manifest is None:
                raise LookupError("the swarm is not listed and has no manifest here")
            swarm = _KeptSwarm(manifest)
        known = swarm.entries.get(entry.publisher)
        if known is not None and known.entry.number > entry.number:
            return known.entry
        # Both tables are in the order of the last renewal.
        self._swarms.pop(entry.swarm, None)
        self._swarms[entry.swarm] = swarm
        swarm.entries.pop(entry.publisher, None)
        swarm.entries[entry.publisher] = _KeptEntry(entry, address, now)
        self._bound_entries(swarm, address)
        self._bound_swarms_of(address)
        if len(self._swarms) > MAX_LISTED_SWARMS:
            weights = self._weights()
            # Of several, the one renewed longest ago.
            del self._swarms[min(self._swarms, key=lambda each: weights[each])]
        return None

    def manifest(self, swarm: SwarmId, now: float) -> bytes | None:
        """Return the manifest of a listed swarm; None: it is not listed."""
        self.expire(now)
        kept = self._swarms.get(swarm)
        return None if kept is None else kept.manifest

    def listing(self, now: float) -> SwarmListing:
        """Return all listed swarms, those that most addresses publish first."""
        self.expire(now)
        weights = self._weights()
        order = sorted(self._swarms, key=lambda swarm: weights[swarm], reverse=True)
        return SwarmListing(
            tuple(
                ListedSwarm(
                    swarm, tuple(kept.entry.sealed for kept in self._swarms[swarm].entries.values())
                )
                for swarm in order
            )
        )

    def expire(self, now: float) -> None:
        """Drop the expired entries, and the swarms without entries."""
        for swarm, kept in list(self._swarms.items()):
            for publisher, each in list(kept.entries.items()):
                if each.received + ENTRY_SECONDS > now:
                    break
                del kept.entries[publisher]
            if not kept.entries:
                del self._swarms[swarm]

    def _bound_entries(self, swarm: _KeptSwarm, address: str) -> None:
        own = [peer for peer, kept in swarm.entries.items() if kept.address == address]
        for publisher in own[:-MAX_ENTRIES_PER_ADDRESS]:
            del swarm.entries[publisher]
        if len(swarm.entries) > MAX_ENTRIES_PER_SWARM:
            candidates = [(peer, kept.address) for peer, kept in swarm.entries.items()]
            publisher = choose_eviction(candidates)
            assert publisher is not None  # there are candidates
            del swarm.entries[publisher]

    def _bound_swarms_of(self, address: str) -> None:
        """If an address publishes too many swarms, drop its entries in those renewed longest ago."""
        having = [swarm for swarm, kept in self._swarms.items() if address in kept.addresses()]
        for swarm in having[:-MAX_SWARMS_PER_ADDRESS]:
            entries = self._swarms[swarm].entries
            for publisher in [peer for peer, kept in entries.items() if kept.address == address]:
                del entries[publisher]
            if not entries:
                del self._swarms[swarm]

    def _weights(self) -> dict[SwarmId, float]:
        """Return each swarm's weight. An address that publishes n swarms counts as 1/n in each."""
        addresses = {swarm: kept.addresses() for swarm, kept in self._swarms.items()}
        counts = Counter(address for group in addresses.values() for address in group)
        return {
            swarm: sum(1 / counts[address] for address in group)
            for swarm, group in addresses.items()
        }
