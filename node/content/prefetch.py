"""Prefetch of training data: the chunks of a member's next samples, before it trains on them.

A node does not wait until it has the whole corpus. It fetches the chunks of its share of the next
rounds, and no more unless the members are the corpus's only source: then it also fetches and keeps
chunks that too few others have, as long as it lacks none of its own and the disk has room.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import trio

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ...protocol.chain.ledger import Ledger
from ...protocol.chain.retention import most_kept
from ...protocol.chain.shares import upcoming
from ...protocol.sampling.assignment import samples_of
from ...protocol.wire.blobs import CHUNK_BYTES, BlobList, decode_blob_list
from ...protocol.wire.manifest import DataSpec, Manifest, ShardSpec
from ..errors import ExitCode, UserError
from ..network.exchange.blobs import FetchFailed
from ..network.exchange.chunks import Fetcher
from ..storage.blob_files import DiskFull
from ..storage.blob_store import BlobStore
from .downloads import Downloads

_log = logging.getLogger(__name__)

# How far ahead to fetch: a minute or more. All of a member's streams reach new chunks in the same rounds
# (`sampler`), and sixteen of 4 MiB take a minute at 10 Mbit/s.
_ROUNDS_AHEAD = 32
# Rounds after which the chunks to fetch are determined again, though a member's streams stay the same:
# with many streams this takes seconds of processor time.
_ROUNDS_BETWEEN = 8
_MAX_PARALLEL_FETCHES = 4
# After all shards were scanned for scarce chunks there is no scan for a minute, because other members
# fetch some as well. At most this many chunks are fetched after the scan of a shard, because peers that
# have the others may come back.
_CHECK_INTERVAL_SECONDS = 60.0
_SPARE_CHUNKS = 64
_TIMEOUT_SECONDS = 600.0
_PAUSE_SECONDS = 1.0
_DISK_FULL_WAIT_SECONDS = 60.0
# Disk space for updates, ledger and logs.
_OTHER_BYTES = 256 << 20
# Least disk space for training data: it holds the shares of one round and the next.
_MIN_DATA_BYTES = 16 * CHUNK_BYTES
# The part of the held-out data that an evaluation reads (`TrainerSupervisor`).
_HELDOUT_SAMPLES = 128

_Samples = Sequence[int] | npt.NDArray[np.int64]

Upcoming = Callable[[int], Callable[[], Sequence[int]]]
"""(rounds) → a function that computes, in a thread, the most likely samples of that many next rounds."""

Scarce = Callable[[ContentId, BlobList], Awaitable[Sequence[ContentId]]]
"""(list id, list) → its chunks that too few peers have, the scarcest first (`Replication.scarce`)."""


class Prefetch:
    """Training data of one swarm on this node's disk."""

    def __init__(
        self,
        *,
        data: DataSpec,
        store: BlobStore,
        downloads: Downloads,
        fetcher: Fetcher,
        providers: Callable[[], Sequence[PeerId]],
        budget: int | None,
        scarce: Scarce | None,
        has_originals: bool = False,
    ) -> None:
        """`budget` is the maximum number of bytes of shards on the disk, None if unlimited; `scarce`
        finds chunks with too few copies; None if none need to be kept for others. `has_originals`:
        whether what is on the disk may be the only copy, so that a budget for less is refused."""
        self._data = data
        self._store = store
        self._downloads = downloads
        self._fetcher = fetcher
        self._providers = providers
        self._budget = budget
        self._scarce = scarce
        self._has_originals = has_originals
        # ends[s] is the first sample after shard s.
        self._ends = np.cumsum([data.samples_in(shard) for shard in data.shards], dtype=np.int64)
        self._lists: dict[ContentId, BlobList] = {}
        # Chunks to keep for others (the next to fetch is last); the index of the shard to scan next, and
        # the earliest time of that scan.
        self._spare: list[ContentId] = []
        self._next_shard = 0
        self._next_scan_time = -math.inf
        # Chunks on the disk, the least recently needed first.
        self._held: dict[ContentId, None] = {}
        # Chunks that stay: for the round being trained, for the next ones, and for evaluation.
        self._pinned: dict[ContentId, None] = {}
        self._ahead: dict[ContentId, None] = {}
        self._heldout: dict[ContentId, None] = {}
        # Samples to audit; their chunks, once known; and those of the chunks that were not tried yet.
        self._audit_samples: tuple[int, ...] = ()
        self._audit_chunks: dict[ContentId, None] | None = None
        self._untried: list[ContentId] = []
        # Chunks for a re-audit.
        self._reaudit_chunks: dict[ContentId, None] = {}
        self._audit_requested = trio.Event()
        # Chunks of the next rounds, and the value of `as_of` for which they were computed.
        self._upcoming: list[ContentId] = []
        self._as_of: object = None

    async def begin(self) -> None:
        """Fetch what every member needs: the tokenizer, and the evaluation data. Raises `DiskFull`, and
        `UserError` (`DISK_FULL`) if the budget is less than the originals that are here."""
        await self._downloads.fetch_blob(self._data.tokenizer, "the tokenizer")
        if self._data.tokenizer_settings is not None:
            await self._downloads.fetch_blob(self._data.tokenizer_settings, "the tokenizer")
        heldout = self._data.heldout
        samples = range(min(_HELDOUT_SAMPLES, self._data.samples_in(heldout)))
        blob_list = await self._blob_list(heldout)
        numbers = self._chunk_numbers(samples, np.zeros(len(samples), np.int64))
        self._heldout = {blob_list.chunks[chunk]: None for _, chunk in numbers}
        await self._fetch(self._heldout)
        await self._count_held()

    async def ready(self, samples: Sequence[int]) -> None:
        """Return when all chunks of these training samples are on the disk.

        Raises `DiskFull`.
        """
        self._pinned = await self._chunks_with(samples)
        await self._fetch(self._pinned)

    async def fetch_for_reaudit(self, samples: Sequence[int]) -> None:
        """Fetch like `ready` the chunks of samples that no round waits for; they stay until the next
        call. Raises `DiskFull`."""
        self._reaudit_chunks = await self._chunks_with(samples)
        await self._fetch(self._reaudit_chunks)

    def want_for_audit(self, samples: tuple[int, ...]) -> None:
        """Fetch the chunks of these samples before all other prefetching; those of an earlier call
        are dropped."""
        self._audit_samples, self._audit_chunks, self._untried = samples, None, []
        self._audit_requested.set()

    def has(self, samples: tuple[int, ...]) -> bool:
        """Whether the chunks of these samples are on the disk; False unless they are those of the last
        `want_for_audit`."""
        known = self._audit_chunks if samples == self._audit_samples else None
        return known is not None and all(map(self._store.has, known))

    async def run(
        self,
        upcoming: Upcoming,
        as_of: Callable[[], object] = lambda: "always",
    ) -> None:
        """Fetch ahead until cancelled. The `upcoming` samples are computed again when the value of
        `as_of()` changes."""
        while True:
            try:
                await self._fetch_next(upcoming, as_of())
            except DiskFull as error:
                # If a round lacks data, `ready` raises; all other data can wait for disk space.
                _log.warning("training data cannot be fetched ahead: %s", error)
                await trio.sleep(_DISK_FULL_WAIT_SECONDS)

    async def _fetch_next(self, upcoming: Upcoming, as_of: object) -> None:
        # Fetch one chunk per call: each new round may make others more urgent.
        if self._audit_samples and self._audit_chunks is None:
            want_for_audit = self._audit_samples
            chunks = await self._chunks_with(want_for_audit)
            if want_for_audit == self._audit_samples:
                self._audit_chunks, self._untried = chunks, list(chunks)
            return
        if as_of != self._as_of:
            samples = await trio.to_thread.run_sync(upcoming(_ROUNDS_AHEAD))
            self._upcoming = list(await self._chunks_with(samples))
            self._as_of = as_of
        self._ahead = dict.fromkeys(self._upcoming[: self._room_ahead()])
        # `begin` has fetched the evaluation data, but the disk may have lost some since.
        needed = (*self._ahead, *self._heldout)
        chunk = next((each for each in needed if not self._store.has(each)), None)
        if self._untried:
            # Each is tried only once: an audit is not worth waiting for.
            chunk = self._untried.pop()
        if chunk is None and self._scarce is not None and self._has_room():
            chunk = await self._spare_chunk(self._scarce)
        if chunk is not None:
            await self._fetch({chunk: None}, patient=False)
        elif self._audit_chunks is not None or not self._audit_samples:
            self._audit_requested = trio.Event()
            with trio.move_on_after(_PAUSE_SECONDS):
                await self._audit_requested.wait()

    # Selection

    async def _chunks_with(self, samples: Sequence[int]) -> dict[ContentId, None]:
        """Return the chunks of the samples, each once, in the order of the samples."""
        if self._data.private is not None:
            # Private samples are in no chunk.
            return {}
        # There may be two million samples: 32 rounds of a swarm of one.
        numbers = await trio.to_thread.run_sync(self._training_chunk_numbers, samples)
        chunks: dict[ContentId, None] = {}
        for shard, chunk in numbers:
            blob_list = await self._blob_list(self._data.shards[shard])
            chunks[blob_list.chunks[chunk]] = None
        return chunks

    def _training_chunk_numbers(self, samples: Sequence[int]) -> list[tuple[int, int]]:
        """Return the `_chunk_numbers` of samples of the training data."""
        numbers = np.array(samples, np.int64)
        shards = np.searchsorted(self._ends, numbers, side="right")
        before = np.concatenate([[0], self._ends])[shards]
        return self._chunk_numbers(numbers - before, shards)

    def _chunk_numbers(
        self, samples: _Samples, shards: npt.NDArray[np.int64]
    ) -> list[tuple[int, int]]:
        """Return the chunks of samples of these shards, each once, in their order, as (shard, number in
        its list). A sample covers one token more than the sequence length."""
        length, width = self._data.sequence_length, self._data.token_bytes
        starts = np.asarray(samples, np.int64) * (length * width)
        first, last = starts // CHUNK_BYTES, (starts + (length + 1) * width - 1) // CHUNK_BYTES
        most = int((last - first).max(initial=0)) + 1
        chunks = first[:, np.newaxis] + np.arange(most)
        pairs = np.stack([np.broadcast_to(shards[:, np.newaxis], chunks.shape), chunks], axis=-1)
        wanted = pairs[chunks <= last[:, np.newaxis]]
        _, first_seen = np.unique(wanted, axis=0, return_index=True)
        return [(int(shard), int(chunk)) for shard, chunk in wanted[np.sort(first_seen)]]

    async def _blob_list(self, shard: ShardSpec) -> BlobList:
        # The trainer reads the list from the disk, so a list that the disk has lost is fetched again.
        if shard.blob not in self._lists or not self._store.has(shard.blob):
            data = await self._downloads.fetch_blob(shard.blob, "a list of training data")
            size = shard.tokens * self._data.token_bytes
            # In a thread, because the longest lists name 131,072 chunks.
            blob_list = await trio.to_thread.run_sync(decode_blob_list, data, "shard", size)
            self._lists[shard.blob] = blob_list
        return self._lists[shard.blob]

    async def _spare_chunk(self, scarce: Scarce) -> ContentId | None:
        """Return a chunk to keep because it has too few copies; scans at most one shard per call."""
        if not self._spare and trio.current_time() >= self._next_scan_time:
            shards = (*self._data.shards, self._data.heldout)
            shard = shards[self._next_shard]
            self._next_shard = (self._next_shard + 1) % len(shards)
            if self._next_shard == 0:
                self._next_scan_time = trio.current_time() + _CHECK_INTERVAL_SECONDS
            blob_list = await self._blob_list(shard)
            lacking = await self._lacking(blob_list)
            if lacking:
                found = await scarce(shard.blob, blob_list)
                self._spare = [chunk for chunk in found if chunk in lacking][:_SPARE_CHUNKS][::-1]
        return self._spare.pop() if self._spare else None

    async def _lacking(self, blob_list: BlobList) -> set[ContentId]:
        lacking = set()
        for number, chunk in enumerate(blob_list.chunks):
            if not self._store.has(chunk):
                lacking.add(chunk)
            # Half a terabyte has too many chunks to look for without letting other tasks run.
            if number % 1000 == 0:
                await trio.lowlevel.checkpoint()
        return lacking

    # Fetching

    async def _fetch(self, chunks: Iterable[ContentId], *, patient: bool = True) -> None:
        """Fetch chunks to the disk; if not `patient`, make one attempt."""
        missing = []
        for chunk in chunks:
            self._held.pop(chunk, None)
            self._held[chunk] = None
            if not self._store.has(chunk):
                missing.append(chunk)
        if not missing:
            return
        self._make_room()
        limit = trio.CapacityLimiter(_MAX_PARALLEL_FETCHES)
        failures: list[OSError] = []

        async def fetch(chunk: ContentId, scope: trio.CancelScope) -> None:
            try:
                async with limit:
                    await self._fetch_one(chunk, patient=patient)
            except OSError as error:
                failures.append(error)
                scope.cancel()

        async with trio.open_nursery() as nursery:
            for chunk in missing:
                nursery.start_soon(fetch, chunk, nursery.cancel_scope)
        if failures:
            raise failures[0]

    async def _fetch_one(self, chunk: ContentId, *, patient: bool) -> None:
        while True:
            try:
                await self._fetcher.fetch(
                    chunk,
                    max_bytes=CHUNK_BYTES,
                    providers=self._providers,
                    timeout=_TIMEOUT_SECONDS,
                    wanted=lambda: patient,
                )
                return
            except FetchFailed as failure:
                _log.info(
                    "no peer has a chunk of training data that is needed soon (%s)", failure.reason
                )
                await trio.sleep(_PAUSE_SECONDS)
                if not patient:
                    return

    # Disk space

    async def _count_held(self) -> None:
        """Find the chunks that earlier processes left on the disk, if space is limited."""
        if self._budget is None:
            return
        for shard in self._data.shards:
            data = self._store.get(shard.blob)
            if data is None:
                continue
            blob_list = await self._blob_list(shard)
            self._held = {c: None for c in blob_list.chunks if self._store.has(c)} | self._held
        excess = len(self._held) * CHUNK_BYTES - self._budget
        if excess > 0 and self._has_originals:
            raise UserError(
                ExitCode.DISK_FULL,
                "this node founded the swarm, and perhaps no other node has all of the training data: "
                f"with this disk limit, up to {excess / 1e9:.2f} GB of it would be removed",
                f"allow {math.ceil(excess / 1e7) / 100:.2f} GB more with --max-disk, or leave it out",
            )
        self._make_room()

    def _has_room(self) -> bool:
        return self._budget is None or (len(self._held) + 1) * CHUNK_BYTES <= self._budget

    def _room_ahead(self) -> int | None:
        """Return how many chunks may be held for the next rounds; None if space is unlimited."""
        if self._budget is None:
            return None
        needed = (self._pinned, self._heldout, self._audit_chunks or {}, self._reaudit_chunks)
        return max(0, self._budget // CHUNK_BYTES - sum(map(len, needed)))

    def _make_room(self) -> None:
        """Remove the least recently needed chunks until all held and pending ones fit."""
        if self._budget is None:
            return
        for chunk in list(self._held):
            if len(self._held) * CHUNK_BYTES <= self._budget:
                return
            needed = (
                self._pinned,
                self._ahead,
                self._heldout,
                self._audit_chunks or {},
                self._reaudit_chunks,
            )
            if not any(chunk in each for each in needed):
                self._store.remove(chunk)
                del self._held[chunk]


def data_budget(max_disk: int | None, manifest: Manifest) -> int | None:
    """Return how many bytes a disk limit leaves for training data; None without a limit.

    Raises `UserError` (`DISK_FULL`) if that is not enough to take part.
    """
    if max_disk is None:
        return None
    # Besides the snapshots that are kept, one may be in the making or arriving.
    snapshots = most_kept(manifest) + 1
    needed_bytes = 4 * (snapshots * manifest.elements + manifest.frozen_elements) + _OTHER_BYTES
    if max_disk < needed_bytes + _MIN_DATA_BYTES:
        raise UserError(
            ExitCode.DISK_FULL,
            f"a disk limit of {max_disk / 1e9:.2f} GB is too low for this swarm's model",
            f"allow at least {(needed_bytes + _MIN_DATA_BYTES) / 1e9:.2f} GB with --max-disk",
        )
    return max_disk - needed_bytes


def outlook(ledger: Ledger, me: PeerId) -> object:
    """Return a value that changes when `upcoming_samples` should be computed again: every few rounds,
    and as soon as `me` has other streams."""
    now = len(ledger)
    return now // _ROUNDS_BETWEEN, ledger.assignments.assignment(now).streams_of(me)


def upcoming_samples(ledger: Ledger, me: PeerId, rounds: int) -> list[int]:
    """Return the samples of `me` in the next rounds if no member fails, joins or leaves."""
    now = len(ledger)
    samples = [
        sample for _, _, own_samples in ledger.assignments.open_work(me) for sample in own_samples()
    ]
    members, shares = ledger.membership(now), ledger.assignments.shares(now)
    cursors, streams = ledger.assignments.last, ledger.assignments.order.streams
    for assigned in upcoming(ledger.assignments.rules, shares, members, me, rounds):
        if assigned.round > cursors.round:
            cursors = cursors.next_cursors(cursors, [], streams)
        samples += samples_of(ledger.assignments.order, [cursors], [assigned.streams_of(me)])
    return samples
