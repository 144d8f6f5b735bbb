"""Transfers that break off: the rest is fetched from any provider, and no wrong beginning does harm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trio
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.network.errors import RequestError
from distro_node.node.network.exchange import blobs
from distro_node.node.network.exchange.blobs import (
    FOUND,
    PROTOCOL,
    REST_PROTOCOL,
    BlobFetcher,
    FetchFailed,
    serve_blobs,
)
from distro_node.node.network.exchange.partial_blobs import LEAST_BYTES, PartialBlob, PartialBlobs
from distro_node.node.network.traffic import Traffic
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.wire.blobs import CHUNK_BYTES, MAX_BLOB_BYTES
from network.support import star
from trio.testing import MockClock
from virtual_time import jumping_clock

DATA = bytes(range(251)) * (CHUNK_BYTES // 251)
CID = content_id(DATA)
WRONG = DATA[::-1]
A, B, C = (PeerId(bytes([number]) * 32) for number in (1, 2, 3))


class Peer:
    """A provider of `data` that breaks off after each of these numbers of bytes, then never."""

    def __init__(self, data: bytes = DATA, *breaks: int, knows_rests: bool = True) -> None:
        self.data = data
        self.breaks = list(breaks)
        self.knows_rests = knows_rests
        self.offsets: list[int] = []
        self.connected = True


class BadLine:
    """The network of a node whose line drops."""

    peer = PeerId(bytes(32))

    def __init__(self, nursery: trio.Nursery, peers: dict[PeerId, Peer]) -> None:
        self._nursery = nursery
        self.peers = peers
        self.traffic = Traffic()
        self.sent = 0
        self.offences: list[tuple[PeerId, str]] = []

    def connected(self) -> list[PeerId]:
        return [peer for peer, each in self.peers.items() if each.connected]

    def penalise(self, peer: PeerId, reason: str) -> None:
        self.offences.append((peer, reason))

    def spawn(self, task: Callable[..., Awaitable[object]], *arguments: object) -> None:
        self._nursery.start_soon(task, *arguments)

    async def request(
        self,
        peer: PeerId,
        protocol: str,
        request: bytes,
        *,
        max_response: int,
        progress: Callable[[int], None],
        into: bytearray,
        **_: object,
    ) -> bytes:
        await trio.sleep(0.1)
        each = self.peers[peer]
        if protocol == REST_PROTOCOL and not each.knows_rests:
            raise RequestError("refused", "no such protocol")
        assert ContentId(request[:32]) == CID
        assert (protocol == PROTOCOL) == (len(request) == 32)
        offset = int.from_bytes(request[32:], "big")
        each.offsets.append(offset)
        answer = FOUND + each.data[offset:]
        assert len(answer) <= max_response
        if each.breaks:
            into += answer[: each.breaks.pop(0)]
            self.sent += len(into)
            progress(len(into))
            await trio.sleep(0.1)
            raise RequestError("closed", "the line dropped")
        into += answer
        self.sent += len(answer)
        progress(len(answer))
        return answer


@pytest.fixture
def clock() -> Iterator[MockClock]:
    """Time that passes as soon as nobody has anything to do."""
    with jumping_clock() as clock:
        yield clock


async def fetched(folder: Path, peers: dict[PeerId, Peer], **options: Any) -> BadLine:
    """Fetch the blob over a bad line. Raises `FetchFailed`."""
    failure: FetchFailed | None = None
    async with trio.open_nursery() as nursery:
        line: Any = BadLine(nursery, peers)
        settings = {"max_bytes": CHUNK_BYTES, "providers": lambda: list(peers), "timeout": 3600.0}
        try:
            data = await BlobFetcher(line, BlobStore(folder)).fetch(CID, **(settings | options))
            assert data == DATA
            assert BlobStore(folder).get(CID) == DATA
        except FetchFailed as error:
            failure = error
    if failure is not None:
        raise failure
    return line


async def test_a_transfer_that_breaks_off_goes_on_where_it_was(
    tmp_path: Path, clock: MockClock
) -> None:
    step = 500_001
    peer = Peer(DATA, *[step] * 7)
    line = await fetched(tmp_path, {A: peer})
    # The byte before the blob comes each time.
    assert peer.offsets == [(step - 1) * number for number in range(8)]
    assert line.sent == len(DATA) + 8
    assert not line.offences


async def test_a_line_that_drops_often_is_no_proof_that_nobody_has_it(
    tmp_path: Path, clock: MockClock
) -> None:
    """Nobody wants it for its own sake any more, so the download ends as soon as nobody has it."""
    peers = {A: Peer(DATA, *[400_001] * 9), B: Peer(DATA, *[3] * 2)}
    await fetched(tmp_path, peers, wanted=lambda: False)


async def test_a_peer_that_breaks_off_without_progress_has_nothing(
    tmp_path: Path, clock: MockClock
) -> None:
    peer = Peer(DATA, *[LEAST_BYTES] * 1000)
    with pytest.raises(FetchFailed) as failed:
        await fetched(tmp_path, {A: peer}, wanted=lambda: False)
    assert failed.value.outcomes == {A: "closed"}
    assert peer.offsets == [0, 0, 0]


async def test_breaking_off_does_not_hold_a_download_for_ever(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A liar that always adds a bit could keep a newcomer from a newer snapshot."""
    # 55 seconds for a chunk.
    monkeypatch.setattr(blobs, "_LINE_FAULT_FACTOR", 0.1)
    began = trio.current_time()
    tries: list[int] = []

    peer = Peer(DATA, *[LEAST_BYTES + 1] * 1000)

    class Dripping(BadLine):
        async def request(self, *arguments: Any, **options: Any) -> bytes:
            await trio.sleep(20)
            tries.append(1)
            return await super().request(*arguments, **options)

    async with trio.open_nursery() as nursery:
        line: Any = Dripping(nursery, {A: peer})
        with pytest.raises(FetchFailed):
            await BlobFetcher(line, BlobStore(tmp_path)).fetch(
                CID,
                max_bytes=CHUNK_BYTES,
                providers=lambda: [A],
                timeout=1e6,
                wanted=lambda: False,
            )
    assert trio.current_time() - began < 300
    assert len(tries) < 10


async def test_a_lost_connection_is_a_fault_of_the_line(tmp_path: Path, clock: MockClock) -> None:
    peer = Peer()

    class Dropping(BadLine):
        drops = 5

        async def request(self, *arguments: Any, **options: Any) -> bytes:
            if not self.drops:
                return await super().request(*arguments, **options)
            await trio.sleep(0.1)
            self.drops -= 1
            peer.connected = False
            self._nursery.start_soon(self.reconnect)
            raise RequestError("closed", "the connection is gone")

        async def reconnect(self) -> None:
            await trio.sleep(5)
            peer.connected = True

    async with trio.open_nursery() as nursery:
        line: Any = Dropping(nursery, {A: peer})
        data = await BlobFetcher(line, BlobStore(tmp_path)).fetch(
            CID, max_bytes=CHUNK_BYTES, providers=lambda: [A], timeout=600, wanted=lambda: False
        )
    assert data == DATA


async def test_another_provider_sends_the_rest(tmp_path: Path, clock: MockClock) -> None:
    peers = {A: Peer(DATA, 1_000_001, *[1] * 99), B: Peer(DATA, 1_000_001, *[1] * 99), C: Peer()}
    line = await fetched(tmp_path, peers)
    assert line.sent < len(DATA) + 100
    assert max(peers[C].offsets, default=0) >= 1_000_000
    assert not line.offences


async def test_a_wrong_beginning_does_not_spoil_the_blob(tmp_path: Path, clock: MockClock) -> None:
    """Who completed it is not blamed for it; the liar is, once all bytes are its own."""
    liar = Peer(WRONG, 2_000_001)
    honest = Peer(DATA, 300_001)
    peers = {A: liar, B: honest}
    asked: list[str] = []

    def providers() -> list[PeerId]:
        # First the liar alone, so that it sends the beginning; then the honest one alone.
        asked.append("")
        return [A] if not liar.offsets else [B] if len(honest.offsets) < 3 else [A, B]

    line = await fetched(tmp_path, peers, providers=providers)
    assert liar.offsets == [0]
    assert honest.offsets[0] == 2_000_000
    assert 0 in honest.offsets
    assert line.offences == []


async def test_a_liar_that_sent_every_byte_is_penalised(tmp_path: Path, clock: MockClock) -> None:
    liar, honest = Peer(WRONG, 1_000_001), Peer()
    peers = {A: liar, B: honest}
    line = await fetched(
        tmp_path, peers, providers=lambda: [A] if len(liar.offsets) < 2 else [A, B]
    )
    assert liar.offsets == [0, 1_000_000]
    assert line.offences == [(A, "bad_hash")]
    assert honest.offsets == [0]


async def test_a_peer_that_cannot_send_a_rest_sends_the_whole(
    tmp_path: Path, clock: MockClock
) -> None:
    peer = Peer(DATA, 1_000_001, 1_000_001, knows_rests=False)
    line = await fetched(tmp_path, {A: peer}, wanted=lambda: False)
    assert peer.offsets == [0, 0, 0]
    assert not line.offences


async def test_a_later_fetch_goes_on_with_what_came(tmp_path: Path, clock: MockClock) -> None:
    """However soon it begins: here the attempts of the first are still ending."""

    async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    peer = Peer(DATA, 3_000_001, *[1] * 5)
    with patch.object(trio.to_thread, "run_sync", at_once):
        async with trio.open_nursery() as nursery:
            line: Any = BadLine(nursery, {A: peer})
            fetcher = BlobFetcher(line, BlobStore(tmp_path))
            fetch = partial(fetcher.fetch, CID, max_bytes=len(DATA), providers=lambda: [A])
            with pytest.raises(FetchFailed):
                await fetch(timeout=1.0)
            peer.breaks.clear()
            assert await fetch(timeout=60.0) == DATA
    assert peer.offsets[-1] == 3_000_000


async def test_a_rest_comes_over_real_connections(tmp_path: Path) -> None:
    seeded = BlobStore(tmp_path / "theirs")
    seeded.put(DATA)
    async with star(2) as (a, b):
        serve_blobs(b, seeded)
        for offset, rest in ((0, DATA), (7, DATA[7:]), (len(DATA), b""), (1 << 63, b"")):
            answer = await a.request(
                b.peer,
                REST_PROTOCOL,
                CID + offset.to_bytes(8, "big"),
                max_response=1 + len(DATA),
                timeout=60,
            )
            assert answer == FOUND + rest
        missing = await a.request(
            b.peer, REST_PROTOCOL, bytes(40), max_response=1 + len(DATA), timeout=60
        )
        assert missing == b"\1"
        for malformed in (b"", CID, CID + bytes(7)):
            with pytest.raises(RequestError, match="malformed"):
                await a.request(b.peer, REST_PROTOCOL, malformed, max_response=1, timeout=60)


def test_what_is_kept_has_a_bound() -> None:
    partials = PartialBlobs()
    piece = bytes(MAX_BLOB_BYTES // 4)
    cids = [content_id(bytes([number])) for number in range(6)]
    for cid in cids:
        partial = partials.take(cid)
        assert partial.keep(A, partial.beginning(A), piece)
        partials.put(cid, partial)
    sizes = [partials.take(cid).size for cid in cids]
    assert sizes == [0, 0] + [len(piece)] * 4


def test_after_a_mismatch_a_few_peers_continue_their_own_bytes_alone() -> None:
    partial, piece = PartialBlob(), bytes(LEAST_BYTES)
    assert partial.keep(A, partial.beginning(A), piece)
    mixed = partial.beginning(B)
    assert mixed.sources == {A}
    assert not partial.note_mismatch(B, mixed)
    assert partial.size == 0
    # An attempt that began before is of no use now.
    assert not partial.keep(C, mixed, piece)
    for peer in (A, B):
        assert partial.keep(peer, partial.beginning(peer), piece)
        assert partial.keep(peer, partial.beginning(peer), piece)
    assert partial.beginning(A).sources == {A}
    assert partial.beginning(C).data == b""
    assert partial.note_mismatch(A, partial.beginning(A))
    assert partial.beginning(A).data == b""
    assert len(partial.beginning(B).data) == 2 * len(piece)
    for number in range(10, 20):
        assert partial.keep(PeerId(bytes([number]) * 32), partial.beginning(C), piece)
    assert partial.size == 3 * len(piece)
