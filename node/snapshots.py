"""Which snapshots a node has, which one to start from, and which to throw away.

A node keeps its two newest snapshots and the updates since the older of them: enough to restart without
the network and to serve newcomers. Before the first there is the manifest's initial one, which is kept.
"""

from __future__ import annotations

from collections.abc import Callable

from ..crypto.hashing import ContentId
from ..protocol.blobs import BlobList
from ..protocol.ledger import Ledger
from ..protocol.manifest import Manifest
from ..protocol.messages import SnapshotEntry
from .blobstore import BlobStore
from .provisions import Provisions, blob_list_at
from .records import LocalSnapshot, Records, blob_of

_KEPT = 2


class Snapshots:
    """The snapshots of one swarm on this node's disk."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        store: BlobStore,
        records: Records,
        provisions: Provisions,
        ledger: Callable[[], Ledger],
    ) -> None:
        self._manifest = manifest
        self._store = store
        self._records = records
        self._provisions = provisions
        self._ledger = ledger
        self._size = 4 * manifest.elements
        self._kept = records.snapshots()
        # What lies before the older of two snapshots was removed when the newer was made.
        self._swept = self._kept[0].round if len(self._kept) == _KEPT else -1

    async def best(self, *, certified_only: bool) -> LocalSnapshot:
        """The newest snapshot that fits our ledger, brought to this disk if need be.

        An own one that is not certified (yet) will do after a restart, since what follows it is
        held against the record's fingerprint; not after a mismatch. Raises `DiskFull`.
        """
        self._forget_left_chain()
        while True:
            ledger = self._ledger()
            certified = self._certified(ledger)
            if not certified_only:
                for own in reversed(self._kept):
                    if own.round <= certified.round:
                        break
                    if own.round < len(ledger) and self._at_hand(own) is not None:
                        return own
            name = (
                "the parameters" if certified.round < 0 else f"the state of round {certified.round}"
            )

            # The others keep two snapshots only: there is no use in waiting for an older one.
            def newest(certified: LocalSnapshot = certified) -> bool:
                return self._certified(self._ledger()) == certified

            blobs = await self._provisions.listed(
                "snapshot", blob_of(certified), certified.size, name, wanted=newest
            )
            if blobs is not None and newest():
                if certified.round >= 0:
                    self._keep(certified)
                return certified

    def chunks(self, snapshot: LocalSnapshot) -> tuple[ContentId, ...]:
        """The chunks of a snapshot that `best` returned."""
        blobs = self._at_hand(snapshot)
        assert blobs is not None  # `best` saw to it
        return blobs.chunks

    def entry(self, snapshot: LocalSnapshot) -> SnapshotEntry | None:
        """What the next record must say of this snapshot; None for the initial one."""
        if snapshot.round <= 0:
            return None
        return SnapshotEntry(snapshot.round, blob_of(snapshot), snapshot.size)

    def keep(self, entry: SnapshotEntry) -> None:
        """Remember a new snapshot, and remove what only older ones needed."""
        self._keep(LocalSnapshot(entry.round, entry.blob.hex(), entry.size))

    def _keep(self, new: LocalSnapshot) -> None:
        older = [old for old in self._kept if old.round < new.round]
        self._replace([*older, new][-_KEPT:])
        if len(self._kept) == _KEPT:
            self._sweep_updates(self._kept[0].round)

    def _replace(self, kept: list[LocalSnapshot]) -> None:
        dropped = [old for old in self._kept if old not in kept]
        self._kept = kept
        # First the list, then the files: a crash in between wastes space and breaks nothing.
        self._records.keep_snapshots(kept)
        self._remove(dropped)

    def _forget_left_chain(self) -> None:
        """The list on disk is emptied with a change to another chain."""
        self._replace([own for own in self._kept if own in self._records.snapshots()])

    def _certified(self, ledger: Ledger) -> LocalSnapshot:
        entry = ledger.snapshot
        if entry is None:
            return LocalSnapshot(-1, self._manifest.initial.hex(), self._size)
        return LocalSnapshot(entry.round, entry.blob.hex(), entry.size)

    def _at_hand(self, snapshot: LocalSnapshot) -> BlobList | None:
        return blob_list_at(self._store, "snapshot", blob_of(snapshot), snapshot.size)

    def _remove(self, dropped: list[LocalSnapshot]) -> None:
        needed: set[ContentId] = {self._manifest.initial}
        initial = LocalSnapshot(-1, self._manifest.initial.hex(), self._size)
        for snapshot in (initial, *self._kept):
            blobs = self._at_hand(snapshot)
            needed |= set(blobs.chunks) if blobs is not None else set()
            needed.add(blob_of(snapshot))
        for snapshot in dropped:
            blobs = self._at_hand(snapshot)
            for blob in (*(blobs.chunks if blobs is not None else ()), blob_of(snapshot)):
                if blob not in needed:
                    self._store.remove(blob)

    def _sweep_updates(self, before: int) -> None:
        """Remove the updates of rounds up to `before`: a snapshot contains them."""
        ledger = self._ledger()
        # The same bytes may count again: those of a member without momentum, or a replay.
        needed = updates_from(ledger, before + 1)
        for round_ in range(max(0, self._swept + 1), min(before + 1, len(ledger))):
            for entry in ledger[round_].record.updates:
                if entry.update not in needed:
                    self._store.remove(entry.update)
        self._swept = before


def updates_from(ledger: Ledger, first: int) -> set[ContentId]:
    """The updates that count in round `first` or later."""
    return {
        entry.update
        for round_ in range(max(0, first), len(ledger))
        for entry in ledger[round_].record.updates
    }
