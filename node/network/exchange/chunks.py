"""Download of all chunks of a blob list from several providers at once, the rarest chunk first.

Chunks on the disk are checked and never fetched again, so an interruption costs only the chunks in
transfer. The memory that a download takes does not depend on its length.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from ....crypto.hashing import ContentId, content_id
from ....crypto.identity import PeerId
from ....protocol.wire.blobs import (
    CHUNK_BYTES,
    MAX_BLOB_LIST_BYTES,
    MAX_CHUNKS,
    BlobList,
    decode_any_blob_list,
)
from ....protocol.wire.errors import ProtocolError
from ...storage.blob_store import BlobStore
from ..errors import RequestError
from ..network import Network
from .blobs import FetchFailed, Wanted

_log = logging.getLogger(__name__)

PROTOCOL = "/distro/chunks/1"
"""Request: the content id of a blob list. Answer: one bit per chunk in order, from the highest bit of
the first byte on, set if the chunk is here; empty if the list is not."""

_CONTENT_ID_BYTES = 32

MAX_UNDER_WAY = 8
"""Chunks fetched at the same time. Two from each of four members keep the members' connections busy
while the next request is on its way."""

# On a slow connection fewer chunks are fetched at the same time, so that one takes about this long and
# not minutes.
_CHUNK_SECONDS = 20.0
_FEWEST_UNDER_WAY = 2
# A chunk that has not arrived after this time is queued again: 4 MiB take about an hour at 10 kbit/s.
_TIMEOUT_SECONDS = 3600.0
# Timeout for asking a peer which chunks it has.
_REQUEST_TIMEOUT_SECONDS = 15.0
# The interval at which a peer that lacks some chunks (most likely another newcomer) is asked again …
_INCOMPLETE_INTERVAL_SECONDS = 15.0
# … and the interval for one that has them all, which keeps a snapshot for as long as it is requested
# (`content/snapshot_holds`).
_COMPLETE_INTERVAL_SECONDS = 60.0
_PAUSE_SECONDS = 2.0

OnRetry = Callable[[FetchFailed], None]


class Fetcher(Protocol):
    """Fetches one blob: a `BlobFetcher`, or a wrapper around one."""

    async def fetch(
        self,
        cid: ContentId,
        *,
        max_bytes: int,
        providers: Callable[[], Sequence[PeerId]],
        timeout: float,
        wanted: Wanted,
    ) -> bytes:
        """Fetch as `BlobFetcher.fetch` does."""
        ...


def serve_chunks(
    network: Network,
    store: BlobStore,
    on_request: Callable[[PeerId, ContentId], None] = lambda peer, blob: None,
) -> None:
    """Tell connected peers on request which chunks of a blob list are in `store`. `on_request` is called
    with every request."""

    def holdings(blob: ContentId) -> bytes:
        data = store.get(blob) if (store.size(blob) or 0) <= MAX_BLOB_LIST_BYTES else None
        if data is None:
            return b""
        try:
            return _bits([store.has(chunk) for chunk in decode_any_blob_list(data).chunks])
        except ProtocolError:
            # A blob of another kind. Requesting it is odd, but no offence.
            return b""

    async def answer(peer: PeerId, request: bytes) -> bytes:
        if len(request) != _CONTENT_ID_BYTES:
            raise ProtocolError("malformed", f"a content id has 32 bytes, not {len(request)}")
        on_request(peer, ContentId(request))
        return await trio.to_thread.run_sync(holdings, ContentId(request))

    # Only two at a time: a list for 512 GiB names 131,072 chunks, each of them a file to look up.
    network.serve(PROTOCOL, answer, max_request=_CONTENT_ID_BYTES, max_concurrent=2)


async def ask_holdings(
    network: Network, peer: PeerId, blob: ContentId, count: int
) -> list[bool] | None:
    """Return which of the `count` chunks of the list `blob` a peer has; None if it gives no valid
    answer."""
    most = (MAX_CHUNKS + 7) // 8
    try:
        answer = await network.request(
            peer, PROTOCOL, blob, max_response=most, timeout=_REQUEST_TIMEOUT_SECONDS
        )
    except RequestError as error:
        _log.debug("a peer did not report which chunks it has: %s", error)
        return None
    if answer and len(answer) != (count + 7) // 8:
        network.penalise(peer, "malformed")
        return None
    return [
        bool(answer) and answer[number // 8] & (0x80 >> number % 8) != 0 for number in range(count)
    ]


class ChunkFetcher:
    """Fetches all chunks of blob lists."""

    def __init__(self, network: Network, store: BlobStore, fetcher: Fetcher) -> None:
        self.network = network
        self.store = store
        self.fetcher = fetcher

    async def fetch(
        self,
        blob: ContentId,
        blobs: BlobList,
        *,
        providers: Callable[[], Sequence[PeerId]],
        progress: Callable[[int, int], None],
        on_retry: OnRetry,
        wanted: Wanted,
    ) -> bool:
        """Fetch all chunks of the list `blob` into the store; return whether that succeeded.

        It goes on until all are in the store, or until no peer has one of them and `wanted` returns
        False. `progress(done, total)` counts chunks, `on_retry` is called with each failure after which
        a chunk is tried again. Raises `DiskFull` if a chunk cannot be stored.
        """
        download = _ListDownload(self, blob, blobs, providers, progress, on_retry, wanted)
        await download.run()
        return not download.missing


@dataclass(eq=False)
class _ListDownload:
    """One blob list being fetched."""

    chunks: ChunkFetcher
    blob: ContentId
    blobs: BlobList
    providers: Callable[[], Sequence[PeerId]]
    progress: Callable[[int, int], None]
    on_retry: OnRetry
    wanted: Wanted

    def __post_init__(self) -> None:
        self._network, self._store = self.chunks.network, self.chunks.store
        self._count = len(self.blobs.chunks)
        # The chunks not fetched yet, each with its position; a chunk may occur twice in a list.
        self.missing = {chunk: number for number, chunk in enumerate(self.blobs.chunks)}
        self._total = len(self.missing)
        self._holdings: dict[PeerId, list[bool]] = {}
        # By position: how many providers have the chunk; and whether the queue is sorted by it.
        self._counts = [0] * self._count
        self._sorted = True
        # The next chunk is the last entry. Each node begins with different chunks, so that newcomers who
        # start together can exchange them.
        own = self._network.peer
        self._queue = sorted(self.missing, key=lambda chunk: content_id(own + chunk))
        self._under_way = 0
        self._room = trio.Event()
        self._begun: float | None = None
        self._fetched = 0
        self._failure: OSError | None = None

    async def run(self) -> None:
        """Fetch until nothing is missing, or until a chunk cannot be had and is no longer wanted. Raises
        `OSError` if a chunk cannot be stored."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_all)
            async with trio.open_nursery() as workers:
                for _ in range(min(MAX_UNDER_WAY, self._total)):
                    workers.start_soon(self._work, workers.cancel_scope)
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _work(self, workers_scope: trio.CancelScope) -> None:
        while self._queue:
            if self._under_way >= self._transfer_limit():
                await self._room.wait()
                continue
            chunk = self._queue.pop()
            self._under_way += 1
            try:
                new = not self._store.has(chunk)
                if new and self._begun is None:
                    self._begun = trio.current_time()
                data = await self.chunks.fetcher.fetch(
                    chunk,
                    max_bytes=CHUNK_BYTES,
                    providers=lambda chunk=chunk: self._holders(chunk),
                    timeout=_TIMEOUT_SECONDS,
                    wanted=lambda chunk=chunk: not self._is_in_the_way(chunk) and self.wanted(),
                )
                self._fetched += len(data) * new
                del data, self.missing[chunk]
                self.progress(self._total - len(self.missing), self._total)
            except FetchFailed as failure:
                if not self.wanted():
                    workers_scope.cancel()
                    return
                is_in_the_way = self._is_in_the_way(chunk)
                self._queue.insert(0, chunk)
                if not is_in_the_way:
                    self.on_retry(failure)
                    await trio.sleep(_PAUSE_SECONDS)
            except OSError as error:
                self._failure = error
                workers_scope.cancel()
                return
            finally:
                self._under_way -= 1
                self._room.set()
                self._room = trio.Event()

    def _is_in_the_way(self, chunk: ContentId) -> bool:
        """Whether no connected peer is known to have a chunk, while one has another that is missing."""
        if self._counts[self.missing[chunk]] or not self._queue:
            return False
        return self._counts[self.missing[self._queue[-1]]] > 0

    def _transfer_limit(self) -> int:
        """Return how many chunks may be in transfer at the measured rate of this line."""
        if self._begun is None or not self._fetched:
            return MAX_UNDER_WAY // 2
        rate = self._fetched / (trio.current_time() - self._begun)
        return max(_FEWEST_UNDER_WAY, min(MAX_UNDER_WAY, int(rate * _CHUNK_SECONDS / CHUNK_BYTES)))

    # Holdings

    async def _ask_all(self) -> None:
        """Ask providers again and again which chunks they have: incomplete ones, to follow what they
        fetch; complete ones, so that they keep what is being fetched."""
        asked_at: dict[PeerId, float] = {}
        async with trio.open_nursery() as nursery:
            while True:
                now = trio.current_time()
                connected = self._network.connected()
                for peer in self._holdings.keys() - connected:
                    # It may come back without them, and until then it delivers none.
                    self._note_holdings(peer, [False] * self._count)
                    del self._holdings[peer], asked_at[peer]
                for peer in self.providers():
                    complete = all(self._holdings.get(peer, [False]))
                    interval = (
                        _COMPLETE_INTERVAL_SECONDS if complete else _INCOMPLETE_INTERVAL_SECONDS
                    )
                    due = now - asked_at.get(peer, float("-inf")) >= interval
                    if peer in connected and due:
                        asked_at[peer] = now
                        nursery.start_soon(self._ask, peer)
                self._sort()
                await trio.sleep(_PAUSE_SECONDS)

    async def _ask(self, peer: PeerId) -> None:
        has = await ask_holdings(self._network, peer, self.blob, self._count)
        if has is None:
            # It may still have all chunks: a program older than this query does not answer it.
            return
        if peer in self._network.connected():
            self._note_holdings(peer, has)

    def _note_holdings(self, peer: PeerId, has: list[bool]) -> None:
        had = self._holdings.get(peer, [False] * self._count)
        for number in range(self._count):
            self._counts[number] += has[number] - had[number]
        self._holdings[peer] = has
        self._sorted = False

    def _holders(self, chunk: ContentId) -> list[PeerId]:
        """Return the providers that have a chunk, or may have it; all providers if none do."""
        number = self.missing.get(chunk, 0)
        providers = list(self.providers())
        lacking = {peer for peer, held in self._holdings.items() if not held[number]}
        return [peer for peer in providers if peer not in lacking] or providers

    def _sort(self) -> None:
        """Sort the queue so that the rarest chunk comes first, and those last that nobody is known to
        have."""
        if not self._sorted:
            self._queue.sort(key=lambda chunk: -(self._counts[self.missing[chunk]] or math.inf))
            self._sorted = True


def _bits(flags: Sequence[bool]) -> bytes:
    packed = bytearray((len(flags) + 7) // 8)
    for number, flag in enumerate(flags):
        packed[number // 8] |= flag * (0x80 >> number % 8)
    return bytes(packed)
