"""Retention: which snapshots must stay for a while, because peers are fetching them or the updates after
them.

Any peer may ask for any blob, so the hold of these readers on snapshots is bounded: each holds one at a
time, only the latest readers count, and no snapshot is held for ever, however often it is requested.

A reader asks every holder of a snapshot which chunks it has, and again every minute (`exchange/chunks`),
so that each of the holders keeps it, whichever sends the chunks.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ...protocol.chain.ledger import Ledger
from ...protocol.util.bounded_dict import BoundedTable
from ..storage.swarm_store import LocalSnapshot

# A chunk of 4 MiB takes 35 s at 1 Mbit/s; a reader without a request for this long is gone.
_READER_TIMEOUT_SECONDS = 120.0
# The 280 GB of a large model take five days at 5 Mbit/s; a slower reader would not arrive anyway.
_MAX_HOLD_SECONDS = 7 * 86_400.0
_MAX_READERS = 64


class Retention:
    """Times of each peer's last request for a part of a snapshot, or for an update after it."""

    def __init__(self) -> None:
        # Time of each reader's last request, by snapshot, on trio's clock.
        self._readers: BoundedTable[PeerId, dict[LocalSnapshot, float]] = BoundedTable(_MAX_READERS)
        # Time of the first request for each snapshot by any peer.
        self._first_requests: dict[LocalSnapshot, float] = {}
        # The snapshots that contain a blob, the oldest first: an unchanged chunk is in several.
        self._owners: dict[ContentId, tuple[LocalSnapshot, ...]] = {}
        self._owned: set[LocalSnapshot] = set()
        # The round of each update that was read from the ledger, and the first round not read yet.
        self._rounds: dict[ContentId, int] = {}
        self._next_round = 0

    def is_registered(self, snapshot: LocalSnapshot) -> bool:
        """Whether the snapshot is registered with `register`."""
        return snapshot in self._owned

    def register(self, snapshot: LocalSnapshot, blobs: Iterable[ContentId]) -> None:
        """Register a snapshot that is kept from now on and consists of these blobs."""
        self._owned.add(snapshot)
        self._owners |= {blob: (*self._owners.get(blob, ()), snapshot) for blob in blobs}

    def is_of_snapshot(self, blob: ContentId) -> bool:
        """Whether a registered snapshot contains this blob."""
        return blob in self._owners

    def note_request(
        self, peer: PeerId, blob: ContentId, kept: list[LocalSnapshot], ledger: Ledger
    ) -> None:
        """Note a peer's request for a blob while the snapshots in `kept` are on disk."""
        if not kept:
            return
        # No peer needs updates from before the oldest kept snapshot from us, and in a long ledger those
        # are far back.
        first = max(self._next_round, min(each.round for each in kept) + 1)
        for round_ in range(first, len(ledger)):
            self._rounds |= {entry.update: round_ for entry in ledger[round_].record.updates}
        self._next_round = len(ledger)
        now = trio.current_time()
        owners, reads = self._owners.get(blob), self._readers.get(peer, {})
        snapshot: LocalSnapshot | None = None
        if owners is not None:
            snapshot = next((each for each in owners if each in reads), owners[-1])
            # The peer starts from this snapshot, and needs nothing older any more.
            reads = {each: last for each, last in reads.items() if each.round > snapshot.round}
        elif blob in self._rounds:
            # A node that fetches this update replays from the snapshot before it, and needs all later
            # updates, too.
            before = [each for each in kept if each.round < self._rounds[blob]]
            snapshot = before[-1] if before else None
        if snapshot is not None:
            self._first_requests.setdefault(snapshot, now)
            self._readers[peer] = {**reads, snapshot: now}

    def holds(self, snapshot: LocalSnapshot) -> bool:
        """Whether any peer is fetching this snapshot, or the updates after it."""
        now = trio.current_time()
        if now - self._first_requests.get(snapshot, now) > _MAX_HOLD_SECONDS:
            return False
        for reads in self._readers.values():
            current = [
                each for each, last in reads.items() if now - last <= _READER_TIMEOUT_SECONDS
            ]
            # A peer holds only the oldest: it may fetch updates of the newest rounds meanwhile.
            if current and min(current, key=lambda each: each.round) == snapshot:
                return True
        return False

    def forget(self, before: int, kept: list[LocalSnapshot]) -> None:
        """Drop the rounds up to `before` and the snapshots that are not `kept`."""
        self._rounds = {blob: round_ for blob, round_ in self._rounds.items() if round_ > before}
        self._owned &= set(kept)
        left = {
            blob: tuple(each for each in owners if each in self._owned)
            for blob, owners in self._owners.items()
        }
        self._owners = {blob: owners for blob, owners in left.items() if owners}
        for times in (self._first_requests, *self._readers.values()):
            for gone in times.keys() - self._owned:
                del times[gone]
