"""Downloads that a node needs before it can train: parameters, tokenizer, lists of its data.

Everything is named by content id and comes from any peer that has it; what is on disk already is not
fetched again, so an interrupted join resumes where it was. If no peer has an item at present, the node
reports that, and waits for a peer that has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

import trio

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ...protocol.util.backoff import BackoffTimer
from ...protocol.wire.blobs import CHUNK_BYTES, MAX_BLOB_BYTES, BlobList, decode_blob_list
from ...protocol.wire.errors import ProtocolError
from ..network.exchange.blobs import FetchFailed, Wanted
from ..network.exchange.chunks import ChunkFetcher, Fetcher
from ..storage.blob_store import BlobStore
from ..util.progress import Progress, ReportProgress

_log = logging.getLogger(__name__)

# For a list or the tokenizer, at most 16 MiB: at 1 Mbit/s it takes 134 s.
_TIMEOUT_SECONDS = 300.0
# Pause before peers that lack an item are asked again; a new connection ends it.
_PAUSE_SECONDS = 2.0
_MAX_PAUSE_SECONDS = 30.0
_CHECK_INTERVAL_SECONDS = 0.5
# A download in which nothing has arrived for this long, and that no peer can continue, is reported as
# waiting, and again at this interval.
_REPORT_SECONDS = 5.0


class Downloads:
    """Downloader that keeps trying until an item is there."""

    def __init__(
        self,
        store: BlobStore,
        fetcher: Fetcher,
        chunks: ChunkFetcher,
        providers: Callable[[], Sequence[PeerId]],
        report: ReportProgress,
    ) -> None:
        self._store = store
        self._fetcher = fetcher
        self._chunks = chunks
        self._providers = providers
        self._report = report

    @property
    def has_providers(self) -> bool:
        """Whether there is any peer to ask at present."""
        return bool(self._providers())

    async def fetch_blob(self, blob: ContentId, what: str) -> bytes:
        """Return one blob's bytes; progress reports call it `what`. Raises `DiskFull`."""
        data = await self._fetch_wanted(blob, what, lambda: True)
        assert data is not None  # it is wanted as long as it takes
        return data

    async def fetch_blob_list(
        self,
        blob: ContentId,
        size: int,
        what: str,
        wanted: Wanted = lambda: True,
    ) -> BlobList | None:
        """Return a snapshot's blob list after fetching all of its chunks, `size` bytes in all.

        Waits for a peer that has them. Returns None if there are connected peers, none of them has all
        of it, and `wanted` returns False.

        Raises `DiskFull`, and `ProtocolError` if the list is invalid, which no peer can cause: its
        content id comes from the manifest or from a certified record.
        """

        def still_wanted() -> bool:
            # The caller no longer wants a snapshot when there is a newer one. Without a connection the
            # newer one cannot be fetched either, so the download goes on: giving up would drop what has
            # arrived, which may be minutes' worth over a slow line.
            return wanted() or not self._providers()

        # A snapshot is reported before its first byte arrives, which may take long if no peer has it.
        # Otherwise the node would meanwhile show the previous item, which is done.
        self._report(Progress(what=what, total=size, kind="downloading"))
        data = await self._fetch_wanted(blob, what, still_wanted)
        if data is None:
            return None
        # In a thread, because the longest lists name 131,072 chunks.
        blobs = await trio.to_thread.run_sync(decode_blob_list, data, "snapshot", size)

        last = _LastReport()

        def progress(done: int, total: int) -> None:
            last.note()
            fetched = min(done * CHUNK_BYTES, blobs.size)
            self._report(Progress(what=what, done=fetched, total=blobs.size, kind="downloading"))

        complete = await self._chunks.fetch(
            blob,
            blobs,
            providers=self._providers,
            progress=progress,
            on_retry=lambda failure: self._log_waiting(what, failure),
            wanted=self._reporting(what, still_wanted, last),
        )
        return blobs if complete else None

    async def _fetch_wanted(self, blob: ContentId, what: str, wanted: Wanted) -> bytes | None:
        pauses = BackoffTimer(_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        while True:
            try:
                return await self._fetcher.fetch(
                    blob,
                    max_bytes=MAX_BLOB_BYTES,
                    providers=self._providers,
                    timeout=_TIMEOUT_SECONDS,
                    wanted=self._reporting(what, wanted, _LastReport()),
                )
            except FetchFailed as failure:
                if not wanted():
                    return None
                self._log_waiting(what, failure)
                await self._pause(pauses.after_failure(), wanted)

    def _reporting(self, what: str, wanted: Wanted, last: _LastReport) -> Wanted:
        """Return `wanted` for a fetcher, which calls it while no peer appears to have an item: that is
        reported."""

        def still_wanted() -> bool:
            if last.is_old():
                self._report_waiting(what)
            return wanted()

        return still_wanted

    async def _pause(self, seconds: float, wanted: Wanted) -> None:
        """Wait until another peer has connected, for `seconds` at most; stop if no longer `wanted`."""
        known_peers, checks = set(self._providers()), round(seconds / _CHECK_INTERVAL_SECONDS)
        for _ in range(checks):
            await trio.sleep(_CHECK_INTERVAL_SECONDS)
            if not wanted() or not set(self._providers()) <= known_peers:
                return

    def _log_waiting(self, what: str, failure: FetchFailed) -> None:
        _log.debug("no connected peer has %s: %s", what, failure.reason)
        self._report_waiting(what)

    def _report_waiting(self, what: str) -> None:
        self._report(Progress(what=f"waiting for a peer that has {what}", kind="waiting"))


class _LastReport:
    """When a download was last reported on."""

    def __init__(self) -> None:
        self._at = trio.current_time()

    def note(self) -> None:
        """Note a report."""
        self._at = trio.current_time()

    def is_old(self) -> bool:
        """Whether it is time for a new report, which counts as made."""
        if trio.current_time() - self._at < _REPORT_SECONDS:
            return False
        self.note()
        return True


def blob_list_at(
    store: BlobStore, kind: Literal["snapshot", "shard"], blob: ContentId, size: int
) -> BlobList | None:
    """Return a blob list from the store; None if it is missing or invalid, or if the store lacks any of
    its chunks."""
    data = store.get(blob)
    if data is None:
        return None
    try:
        blobs = decode_blob_list(data, kind, size)
    except ProtocolError:
        return None
    return blobs if all(store.has(chunk) for chunk in blobs.chunks) else None
