"""The other peers of a swarm that a node knows, with their records and where these came from.

A record is believed for some minutes after it was last received. Where it came from limits which of its
addresses are dialled: a peer elsewhere must not make this node dial into its own network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ....crypto.identity import PeerId
from ....protocol.util.bounded_dict import BoundedTable
from ....protocol.wire.introductions import PeerRecord, Registry
from ....protocol.wire.manifest import SwarmId
from ..addresses import endpoint, parse_dial, split_circuit
from ..dial_policy import AddressSource, Scope, nearer
from .peers_file import PeersFile

MAX_KNOWN = 512
"""Bound of the records that others send of peers."""
_KNOWN_SECONDS = 600.0


class KnownPeers:
    """The newest record of each other peer of a swarm.

    The registry has the records that peers sent of themselves, and this table those that others sent,
    or that were on disk. `clock`, `sources` and `scope_of` are the network's: the time in seconds, where
    a connected peer is, and how near an IP address is.
    """

    def __init__(
        self,
        swarm: SwarmId,
        me: PeerId,
        registry: Registry,
        file: PeersFile | None,
        *,
        clock: Callable[[], float],
        sources: Callable[[PeerId], AddressSource],
        scope_of: Callable[[str], Scope],
    ) -> None:
        self._swarm = swarm
        self._me = me
        self._registry = registry
        self._file = file
        self._clock = clock
        self._sources = sources
        self._scope_of = scope_of
        self._received: BoundedTable[PeerId, _ReceivedRecord] = BoundedTable(MAX_KNOWN)
        loaded = file.load() if file is not None else []
        self.remembered = [record for record in loaded if record.peer != me]
        """The records that were on disk at the start."""

    @property
    def records(self) -> dict[PeerId, PeerRecord]:
        """The newest record of each other peer."""
        result = {peer: received.record for peer, received in self._received.items()}
        for record in self._registry.peer_records(self._swarm, self._clock()):
            result[record.peer] = record
        result.pop(self._me, None)
        return result

    def source(self, peer: PeerId) -> AddressSource | None:
        """Return the source of a peer's addresses, which limits where it is dialled; None if they come
        from this node's disk, which sets no limit, or if the peer is unknown."""
        for record in self._registry.peer_records(self._swarm, self._clock()):
            if record.peer == peer:
                return self._source_of_registered(record)
        received = self._received.get(peer)
        return received.source if received is not None else None

    def _source_of_registered(self, record: PeerRecord) -> AddressSource | None:
        registered, received = self._sources(record.peer), self._received.get(record.peer)
        # If two sources give the same addresses, the nearer one counts.
        if received is not None and received.record.addresses == record.addresses:
            return nearer(registered, received.source)
        return registered

    def recall(self) -> None:
        """Count the remembered records as received now."""
        for record in self.remembered:
            self._received[record.peer] = _ReceivedRecord(record, self._clock(), None)

    def receive(self, record: PeerRecord, source: AddressSource) -> bool:
        """Take a record that a peer sent of another; return whether it tells of new addresses."""
        kept: AddressSource | None = source
        known = self._received.get(record.peer)
        if known is not None and known.record.number > record.number:
            # An older record does not refresh the age of the known one either: so a peer that has lost
            # its record numbers is accepted once the known record has expired.
            return False
        self._received.pop(record.peer, None)
        if known is not None and known.record.addresses == record.addresses:
            # If a nearer source confirms the addresses, they may be dialled within that source's range.
            kept = nearer(known.source, source)
        self._received[record.peer] = _ReceivedRecord(record, self._clock(), kept)
        return known is None or known.record.addresses != record.addresses

    def forget_old(self, connected: Collection[PeerId]) -> None:
        """Drop the records that nobody has sent for long, but for those of connected peers."""
        oldest = self._clock() - _KNOWN_SECONDS
        for peer, received in list(self._received.items()):
            if received.received_at < oldest and peer not in connected:
                del self._received[peer]

    def renew(self) -> None:
        """Count every record as received now, those that peers sent of themselves as well: while nobody
        is connected who could send them again, their age means nothing."""
        now = self._clock()
        for record in self._registry.peer_records(self._swarm, now):
            known = self._received.get(record.peer)
            if record.peer != self._me and (known is None or known.record.number <= record.number):
                source = self._source_of_registered(record)
                self._received[record.peer] = _ReceivedRecord(record, now, source)
        for peer, received in list(self._received.items()):
            self._received[peer] = replace(received, received_at=now)

    def to_remember(self, connected: Collection[PeerId]) -> list[PeerRecord]:
        """Return the records that are worth a dial after a restart, those of connected peers first."""
        known = [
            record for record in self.records.values() if self._may_remember(record, connected)
        ]
        return sorted(known, key=lambda record: record.peer not in connected)

    def save(self, records: Sequence[PeerRecord]) -> None:
        """Store records on disk, if there is a file; for a worker thread."""
        if self._file is not None:
            self._file.save(records)

    def _may_remember(self, record: PeerRecord, connected: Collection[PeerId]) -> bool:
        # A record read from disk has no source that limits where its peer is dialled. So a record with
        # an address nearer than its source, which that source may not make this node dial, is stored
        # only while its peer is connected.
        source = self.source(record.peer)
        if source is None or record.peer in connected:
            return True
        return all(_scope(address, self._scope_of) >= source.scope for address in record.addresses)


@dataclass(frozen=True)
class _ReceivedRecord:
    """A peer record, the time it was received, and its source, None for this node's disk."""

    record: PeerRecord
    received_at: float
    source: AddressSource | None


def _scope(address: str, scope_of: Callable[[str], Scope]) -> Scope:
    """Return how near an address may lead; for an address through a relay, how near the relay's address
    may lead. A name may resolve to any address, so it counts as nearest."""
    try:
        direct = address if (circuit := split_circuit(address)) is None else circuit[0]
        target = parse_dial(direct)[0]
        if next(iter(target.protocols())).name in ("ip4", "ip6"):
            return scope_of(endpoint(target)[0])
    except ValueError:
        pass
    return Scope.MACHINE
