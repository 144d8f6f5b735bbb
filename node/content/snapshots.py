"""Snapshots on disk: which a node has, which one to start from, and which to delete.

`protocol/chain` makes these decisions (`replay_start`, `retention`); this module carries them out. An
older snapshot stays while any peer fetches it, so that a newcomer can complete a download that takes
longer than the swarm takes to make new snapshots. The manifest's initial snapshot is always kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import trio

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ...protocol.chain.ledger import Ledger
from ...protocol.chain.replay_start import choose_state
from ...protocol.chain.retention import (
    KEPT_SNAPSHOTS,
    dispensable_updates,
    kept_with,
    last_dispensable,
    most_held,
    put_aside,
    rebuilt_rounds,
    updates_from,
    worth_holding,
)
from ...protocol.wire.blobs import BlobList, decode_blob_list
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.messages import SnapshotEntry
from ..storage.blob_store import BlobStore
from ..storage.other_swarms import needed_by_others
from ..storage.swarm_store import LocalSnapshot, SwarmStore, blob_of
from ..storage.unlisted_chunks import UnlistedChunks
from .downloads import Downloads, blob_list_at
from .snapshot_holds import Retention

# Number of updates renamed at a time before they are deleted, while no other task of the node runs: a
# rename takes a tenth of a millisecond, and the updates of hundreds of rounds may be removed together.
_SWEPT_AT_ONCE = 32


class Snapshots:
    """Snapshots of one swarm on this node's disk."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        store: BlobStore,
        swarm_store: SwarmStore,
        downloads: Downloads,
        ledger: Callable[[], Ledger],
        keeps_for_readers: bool = True,
    ) -> None:
        """`keeps_for_readers`: whether older snapshots are kept for newcomers that are fetching them."""
        self._store = store
        self._unlisted = UnlistedChunks(store.root, manifest.swarm)
        self._swarm_store = swarm_store
        self._downloads = downloads
        self._ledger = ledger
        self._keeps_for_readers = keeps_for_readers
        # How many rounds back a state may have to be rebuilt for an audit.
        self._audit_history = rebuilt_rounds(manifest)
        self._initial = LocalSnapshot(-1, manifest.initial.hex(), 4 * manifest.elements)
        known = swarm_store.snapshots()
        # The chain to which the kept snapshots belong, by `SwarmStore.chains_left`.
        self._chain = swarm_store.chains_left
        self._kept = [each for each in known if each.whole]
        # On disk, an interrupted download and snapshots of an abandoned chain look alike; the download
        # comes first. Without a download, the first of the others is treated as one.
        incomplete = [each for each in known if not each.whole]
        self._partial: LocalSnapshot | None = incomplete[0] if incomplete else None
        # Snapshots of an abandoned chain, kept until the current chain has one of its own.
        self._abandoned = incomplete[1:]
        # Snapshots whose removal has begun. They stay listed until it is complete, so that a crash
        # leaves no part of them for ever.
        self._leaving: list[LocalSnapshot] = []
        # The last round whose updates were removed; None if not determined yet.
        self._swept_round: int | None = None
        self._retention = Retention()

    async def best(self, *, certified_only: bool) -> LocalSnapshot:
        """Return a recent snapshot that fits our ledger, fetching it if necessary.

        Unless `certified_only`, a snapshot of our own is good enough even if it is not certified (yet),
        because each later step is checked against the fingerprint in its record. After a mismatch, use
        `certified_only`. A snapshot that became old while it was fetched is good enough, too: other
        nodes keep the later updates for those that fetch it. Raises `DiskFull`.
        """
        await self._put_abandoned_chain_aside()
        await self._register()
        # A trainer or node that died while it made a snapshot may have left chunks of it.
        await self._remove([])
        while True:
            ledger = self._ledger()
            certified = self._certified(ledger)
            # From which of the snapshots that are here it may replay.
            starts: list[LocalSnapshot] = []
            if not certified_only:
                # A node killed before its first snapshot still has the one that it started from.
                starts = [self._initial, *self._kept]
                own = await trio.to_thread.run_sync(self._complete_rounds, starts)
                chosen = choose_state(own, ledger)
                if chosen is not None:
                    return {each.round: each for each in starts}[chosen]
            elif not self._downloads.has_providers:
                valid = [each for each in self._kept if self._is_certified(each, ledger)]
                starts = [self._initial, *valid]
            if starts:
                # What is here already costs no download.
                earlier = await trio.to_thread.run_sync(self._replayable, ledger, starts)
                if earlier is not None:
                    return earlier
            wanted = await self._interrupted(ledger) or certified
            if await self._fetch(wanted):
                return wanted

    async def _fetch(self, snapshot: LocalSnapshot) -> bool:
        """Fetch a certified snapshot; return False if no peer has it and there is a newer one, or if it
        turned out to belong to an abandoned chain."""
        if snapshot.round < 0:
            name = "the parameters"
        else:
            name = f"the state of round {snapshot.round}"
            await self._begin(snapshot)

        def newest() -> bool:
            return self._certified(self._ledger()) == snapshot

        blobs = await self._downloads.fetch_blob_list(
            blob_of(snapshot), snapshot.size, name, wanted=newest
        )
        certified = self._is_certified(snapshot, self._ledger())
        if blobs is not None and certified:
            if snapshot.round >= 0:
                # It was this one, if any.
                self._partial = None
                await self._keep(snapshot)
            return True
        await self._drop_partial()
        return False

    def note_request(self, peer: PeerId, blob: ContentId) -> bool:
        """Note a peer's request for this blob: the snapshot that contains it, or that precedes it if it
        is an update, is still needed. Return whether the blob belongs to a snapshot."""
        self._retention.note_request(peer, blob, self._kept, self._ledger())
        return self._retention.is_of_snapshot(blob)

    async def at_hand(self) -> list[LocalSnapshot]:
        """Return the snapshots on disk from which a state can be rebuilt, the oldest first."""
        candidates = [self._initial, *self._kept]
        complete = await trio.to_thread.run_sync(self._complete_rounds, candidates)
        return [each for each in candidates if each.round in complete]

    def chunks(self, snapshot: LocalSnapshot) -> tuple[ContentId, ...]:
        """Return the chunks of a snapshot that `best` returned."""
        blobs = self._complete_list(snapshot)
        assert blobs is not None  # ensured by `best`
        return blobs.chunks

    def entry(self, snapshot: LocalSnapshot) -> SnapshotEntry | None:
        """Return this snapshot as an entry for the next record; None up to round 0, whose parameters are
        the initial ones."""
        if snapshot.round <= 0:
            return None
        return SnapshotEntry(snapshot.round, blob_of(snapshot), snapshot.size)

    async def keep(self, entry: SnapshotEntry) -> None:
        """Add a new snapshot, made here, and remove what only older ones needed."""
        # The current chain has a snapshot of its own now, so those of an abandoned one can go, and what
        # is here of one whose download was interrupted.
        incomplete, self._partial, self._abandoned = self._incomplete(), None, []
        self._leaving += incomplete
        await self._keep(LocalSnapshot(entry.round, entry.blob.hex(), entry.size))
        await self._remove(incomplete)

    async def _keep(self, new: LocalSnapshot) -> None:
        if self._swept_round is None:
            # With enough snapshots, an earlier process removed the updates that were dispensable when
            # it made the newest snapshot, or more, before it listed that; with fewer, it removed none.
            had_enough = len(self._kept) >= KEPT_SNAPSHOTS
            first_unknown = self._kept[-1].round + 1 if had_enough else 0
            self._swept_round = (
                last_dispensable(self._ledger(), self._kept, first_unknown) if had_enough else -1
            )
        most = most_held(new.size) if self._keeps_for_readers else 0
        kept = kept_with(
            self._kept, new, held=self._is_retained, most_held=most, back=self._audit_history
        )
        if len(kept) >= KEPT_SNAPSHOTS:
            await self._sweep_updates(self._swept_round, kept)
        await self._replace(kept)

    def _is_retained(self, snapshot: LocalSnapshot) -> bool:
        """Whether a peer is fetching this snapshot, or the updates after it, and is better off with it
        than with the newest one."""
        return self._retention.holds(snapshot) and worth_holding(self._ledger(), snapshot)

    async def _interrupted(self, ledger: Ledger) -> LocalSnapshot | None:
        """Return the snapshot whose download was interrupted, if it is still worth completing."""
        partial = self._partial
        if partial is None:
            return None
        if self._is_certified(partial, ledger) and worth_holding(ledger, partial):
            return replace(partial, whole=True)
        await self._drop_partial()
        return None

    async def _begin(self, snapshot: LocalSnapshot) -> None:
        """Record a download on disk, so that its parts can be removed even after a crash."""
        partial = replace(snapshot, whole=False)
        if self._partial != partial and snapshot not in self._kept:
            self._partial = partial
            self._save()
            await self._swarm_store.written()

    async def _drop_partial(self) -> None:
        """Remove the parts of the snapshot that was being fetched."""
        partial, self._partial = self._partial, None
        if partial is not None:
            self._leaving.append(partial)
            self._save()
            await self._remove([partial])

    async def _replace(self, kept: list[LocalSnapshot]) -> None:
        dropped = [old for old in self._kept if old not in (*kept, *self._abandoned)]
        self._leaving += dropped
        self._kept = kept
        self._save()
        await self._register()
        await self._remove(dropped)

    async def _register(self) -> None:
        """Let requests of peers hold the snapshots that are kept."""
        new = [each for each in self._kept if not self._retention.is_registered(each)]
        # Read in a thread: the lists of large models are long, and requests for chunks should not wait.
        lists = await trio.to_thread.run_sync(lambda: [*map(self._blobs_of, new)])
        for each, blobs in zip(new, lists, strict=True):
            self._retention.register(each, blobs)

    def _save(self) -> None:
        # After a restart, a snapshot of an abandoned chain, or one whose removal was interrupted, is
        # treated like an interrupted download.
        leaving = [replace(each, whole=False) for each in self._leaving]
        kept, others = self._kept, [*self._incomplete(), *leaving]
        if self._chain != self._swarm_store.chains_left:
            # The chain was replaced meanwhile, so these will be set aside.
            others += [replace(each, whole=False) for each in kept]
            kept = []
        self._swarm_store.keep_snapshots([*kept, *others])

    def _incomplete(self) -> list[LocalSnapshot]:
        """Return the snapshots that the node cannot start from and must not remove yet."""
        partial = [self._partial] if self._partial is not None else []
        return [*partial, *(replace(abandoned, whole=False) for abandoned in self._abandoned)]

    async def _put_abandoned_chain_aside(self) -> None:
        """Set aside the snapshots of an abandoned chain: those missing from the list on disk, which is
        emptied when the node switches to another chain."""
        listed = self._swarm_store.snapshots()
        self._chain = self._swarm_store.chains_left
        if all(own in listed for own in self._kept):
            return
        self._retention = Retention()
        kept, self._abandoned, to_remove = put_aside(
            self._kept, self._abandoned, listed, lambda old: self._is_certified(old, self._ledger())
        )
        self._leaving += to_remove
        await self._replace(kept)
        await self._remove(to_remove)

    def _certified(self, ledger: Ledger) -> LocalSnapshot:
        entry = ledger.snapshot
        if entry is None:
            return self._initial
        return LocalSnapshot(entry.round, entry.blob.hex(), entry.size)

    def _is_certified(self, snapshot: LocalSnapshot, ledger: Ledger) -> bool:
        """Whether our chain certifies this snapshot, whether or not it is the newest."""
        if snapshot.round < 0:
            return self._certified(ledger) == snapshot
        if snapshot.round + 1 >= len(ledger):
            return False
        entry = ledger[snapshot.round + 1].record.snapshot
        return entry is not None and (entry.blob, entry.size) == (blob_of(snapshot), snapshot.size)

    def _complete_rounds(self, snapshots: list[LocalSnapshot]) -> set[int]:
        return {each.round for each in snapshots if self._complete_list(each) is not None}

    def _replayable(self, ledger: Ledger, snapshots: list[LocalSnapshot]) -> LocalSnapshot | None:
        """Return the latest of these snapshots that is complete and whose later updates are all on this
        disk, so that nothing has to be fetched; None if there is none. One that is more than an interval
        behind the newest certified one is none, because a member would drop it (`Replica.next`)."""
        known = ledger.truncated(len(ledger))
        first = self._certified(known).round - known.manifest.rounds.snapshot_interval
        for each in sorted(snapshots, key=lambda each: each.round, reverse=True):
            if first <= each.round < len(known) and self._complete_list(each) is not None:
                later = updates_from(known, each.round + 1)
                return each if all(map(self._store.has, later)) else None
        return None

    def _complete_list(self, snapshot: LocalSnapshot) -> BlobList | None:
        return blob_list_at(self._store, "snapshot", blob_of(snapshot), snapshot.size)

    def _blobs_of(self, snapshot: LocalSnapshot) -> tuple[ContentId, ...]:
        """Return the blobs of a snapshot, its list included, as far as the list is on disk."""
        data = self._store.get(blob_of(snapshot))
        if data is None:
            return ()
        try:
            blobs = decode_blob_list(data, "snapshot", snapshot.size)
        except ProtocolError:
            return (blob_of(snapshot),)
        return (*blobs.chunks, blob_of(snapshot))

    async def _remove(self, dropped: list[LocalSnapshot]) -> None:
        """Remove what only these snapshots, all of them `_leaving`, need, and chunks that no snapshot
        needs. The trainer makes none meanwhile."""
        unlisted = await trio.to_thread.run_sync(self._unlisted.noted)
        if not dropped and not unlisted:
            return
        # First the list says that they are incomplete, then the files go, then they leave the list.
        await self._swarm_store.written()
        kept = (self._initial, *self._kept, *self._incomplete())

        def remove() -> None:
            needed = {blob for each in kept for blob in self._blobs_of(each)}
            needed |= needed_by_others(self._swarm_store.directory, self._store)
            for snapshot in dropped:
                # The blob list last: without it a crash in between would leave untraceable chunks.
                for blob in self._blobs_of(snapshot):
                    if blob not in needed:
                        self._store.remove(blob)
            for chunk in unlisted:
                if chunk not in needed:
                    self._store.remove(chunk)
            self._unlisted.forget()

        # In a thread: long lists and large files take time.
        await trio.to_thread.run_sync(remove)
        if dropped:
            self._leaving = [each for each in self._leaving if each not in dropped]
            self._save()

    async def _sweep_updates(self, swept: int, kept: list[LocalSnapshot]) -> None:
        """Remove the updates of rounds so old that peers load one of the `kept` snapshots instead of
        replaying them (`last_dispensable`); those up to round `swept` are removed already."""
        ledger = self._ledger()
        last = last_dispensable(ledger, kept, len(ledger))
        known = ledger.truncated(len(ledger))
        found = await trio.to_thread.run_sync(dispensable_updates, known, swept, last)
        for start in range(0, len(found), _SWEPT_AT_ONCE):
            if self._ledger() is not ledger:
                # They belong to a chain that was abandoned meanwhile.
                return
            # An update may count again in a round decided meanwhile.
            counted_again = updates_from(ledger, len(known))
            portion = found[start : start + _SWEPT_AT_ONCE]
            files = self._store.set_aside(each for each in portion if each not in counted_again)
            await trio.to_thread.run_sync(self._store.delete_files, files)
        if self._ledger() is not ledger:
            return
        self._swept_round = last
        self._retention.forget(last, kept)
