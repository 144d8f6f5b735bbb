"""A download that nobody can provide is asked for more and more seldom, until somebody new comes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.content.downloads import Downloads
from distro_node.node.network.exchange.blobs import BlobFetcher, FetchFailed, serve_blobs
from distro_node.node.network.exchange.chunks import ChunkFetcher
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.util.progress import Progress
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList
from network.support import star

BLOB = ContentId(content_id(b"x"))


class Nobody:
    """A fetcher whose peers lack everything until `HAVES` is among them."""

    HAVES = PeerId(b"b" * 32)

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def fetch(self, cid: ContentId, *, providers: Any, **options: Any) -> bytes:
        await trio.lowlevel.checkpoint()
        self.asked.append(trio.current_time())
        if self.HAVES in providers():
            return b"x"
        raise FetchFailed(cid, {})


def test_nobody_is_asked_every_other_second_for_ever(tmp_path: Path) -> None:
    peers: list[PeerId] = [PeerId(b"a" * 32)]
    told: list[str] = []
    fetcher = Nobody()

    def providers() -> Sequence[PeerId]:
        return peers

    async def main() -> float:
        downloads = Downloads(
            BlobStore(tmp_path),
            fetcher,
            None,  # type: ignore[arg-type]  # nothing here is in chunks
            providers,
            lambda progress: told.append(progress.what),
        )
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def comes() -> None:
                await trio.sleep(600)
                peers.append(Nobody.HAVES)

            nursery.start_soon(comes)
            assert await downloads.fetch_blob(BLOB, "the state of round 9") == b"x"
        return trio.current_time() - began

    took = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(fetcher.asked) < 30
    assert took == pytest.approx(600, abs=1)
    assert told[0].startswith("waiting for a peer that has the state of round 9")


async def test_that_nobody_has_an_item_is_reported_soon(tmp_path: Path) -> None:
    """Before: after five minutes for a list, and after an hour for a part of a snapshot."""
    told: list[Progress] = []
    listed = BlobList("snapshot", CHUNK_BYTES, (content_id(b"nobody has this"),))
    async with star(2) as (a, b):
        store, theirs = BlobStore(tmp_path / "a"), BlobStore(tmp_path / "b")
        theirs.put(listed.encode())
        serve_blobs(b, theirs)
        fetcher = BlobFetcher(a, store)
        downloads = Downloads(
            store,
            fetcher,
            ChunkFetcher(a, store, fetcher),
            lambda: list(a.connected()),
            told.append,
        )
        for fetch in (
            partial(downloads.fetch_blob, BLOB, "the tokenizer"),
            partial(
                downloads.fetch_blob_list, *(content_id(listed.encode()), CHUNK_BYTES, "the state")
            ),
        ):
            told.clear()
            with trio.move_on_after(8.0):
                await fetch()
            assert told[-1].kind == "waiting"
            assert len(told) <= 4
        # The list of a snapshot's parts has a size, which is one in bytes.
        assert told[0] == Progress(what="the state", total=CHUNK_BYTES, kind="downloading")
