"""Fetching blobs: the right bytes or an honest failure, whatever the providers do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.network import requests
from distro_node.node.network.cancel_scopes import open_scope
from distro_node.node.network.exchange import blobs, quarantine
from distro_node.node.network.exchange.attempt import TransferAttempt
from distro_node.node.network.exchange.blobs import (
    PART_PROTOCOL,
    PROTOCOL,
    BlobFetcher,
    FetchFailed,
    serve_blobs,
    serve_parts,
)
from distro_node.node.network.network import Network
from distro_node.node.storage.blob_files import DiskFull
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.sign_vote_store import SignVotePartStore
from distro_node.protocol.wire.blobs import MAX_BLOB_BYTES
from distro_node.protocol.wire.errors import ProtocolError
from hypothesis import given
from hypothesis import strategies as st
from network.support import PATIENCE_SECONDS, muxers, networks, requests_open, star, until

# Private here: `_downloads`, `_busy`: leftovers show nowhere else.
# Private here: `_frozen`: a peer in quarantine.
# Private here: `_parse_request`: the decoder of strangers' requests.

DATA = bytes(range(256)) * 1000
CID = content_id(DATA)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    """The fetching side's store."""
    return BlobStore(tmp_path / "mine")


@pytest.fixture
def seeded(tmp_path: Path) -> BlobStore:
    """A store that holds DATA."""
    seeded = BlobStore(tmp_path / "theirs")
    seeded.put(DATA)
    return seeded


async def fetch(
    network: Network, store: BlobStore, *providers: Network, timeout: float = 20.0
) -> bytes:
    peers = [provider.peer for provider in providers]
    return await BlobFetcher(network, store).fetch(
        CID, max_bytes=len(DATA), providers=lambda: peers, timeout=timeout
    )


def lie(network: Network) -> None:
    """Serve wrong content under every id."""

    async def answer(peer: PeerId, request: bytes) -> bytes:
        return b"\0" + DATA[::-1]

    network.serve(PROTOCOL, answer, max_request=32, max_concurrent=4)


def freeze(network: Network) -> None:
    """Never answer."""

    async def answer(peer: PeerId, request: bytes) -> bytes:
        await trio.sleep_forever()
        return b""

    network.serve(PROTOCOL, answer, max_request=32, max_concurrent=4)


async def test_a_blob_is_fetched_checked_and_kept(store: BlobStore, seeded: BlobStore) -> None:
    async with star(2) as (a, b):
        serve_blobs(b, seeded, kind_of=lambda cid: "update" if cid == CID else "blob")
        assert await fetch(a, store, b) == DATA
        assert store.get(CID) == DATA
        assert a.traffic.received["blob"] == b.traffic.sent["update"] == len(DATA) + 1
        # Now it is here, and no provider needs to be asked.
        assert await fetch(a, store) == DATA
        assert b.traffic.sent["update"] == len(DATA) + 1
        await until(lambda: requests_open(a) == requests_open(b) == 0)


async def test_who_sends_the_name_of_a_part_in_the_place_of_an_id_harms_nobody(
    store: BlobStore, seeded: BlobStore
) -> None:
    """Otherwise a peer that has the part would send bytes that do not hash to it, and be penalised."""
    name, part = content_id(b"a name"), DATA[:100]
    theirs, mine = (SignVotePartStore(store.root.parent / whose) for whose in ("parts", "my parts"))
    for parts in (theirs, mine):
        parts.register(name, lambda data: data == part)
    theirs.keep(name, part)
    async with star(2) as (a, b):
        serve_blobs(b, seeded)
        serve_parts(b, theirs)
        with pytest.raises(FetchFailed) as failed:
            await BlobFetcher(a, store).fetch(
                name, max_bytes=100, providers=lambda: [b.peer], timeout=20, wanted=lambda: False
            )
        assert failed.value.outcomes == {b.peer: "not found"}
        found = await BlobFetcher(a, mine, protocol=PART_PROTOCOL).fetch(
            name, max_bytes=100, providers=lambda: [b.peer], timeout=20
        )
        assert found == part
        assert mine.get(name) == part
        assert b.traffic.sent["update"] == len(part) + 1
        assert not a.traffic.rejected


async def test_what_nobody_has_is_not_waited_for_once_it_is_not_wanted(
    store: BlobStore, seeded: BlobStore
) -> None:
    """While a provider sends it, though, it is accepted."""
    async with star(3) as (a, b, c):
        serve_blobs(b, BlobStore(store.root / "empty"))
        serve_blobs(c, seeded)
        asked: list[float] = []

        def wanted() -> bool:
            asked.append(trio.current_time())
            return len(asked) < 3

        for providers, found in (([b.peer], False), ([b.peer, c.peer], True), ([], False)):
            asked.clear()
            with trio.fail_after(60):
                try:
                    data = await BlobFetcher(a, store).fetch(
                        CID,
                        max_bytes=len(DATA),
                        providers=lambda providers=providers: providers,
                        timeout=3600,
                        wanted=wanted,
                    )
                    assert found
                    assert data == DATA
                except FetchFailed:
                    assert not found
            store.remove(CID)


@pytest.mark.parametrize("answer", ["too long", "wrong", "busy", "none"])
async def test_one_liar_does_not_keep_us_waiting_for_what_nobody_has(
    store: BlobStore, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a node that lags would request old updates for ever, instead of a newer snapshot."""
    monkeypatch.setattr(blobs, "_BUSY_SECONDS", 2.0)
    async with star(3) as (a, b, c):
        serve_blobs(b, BlobStore(store.root / "empty"))

        async def lie(peer: PeerId, request: bytes) -> bytes:
            return bytes(2 * len(DATA)) if answer == "too long" else b"\0" + DATA[::-1]

        if answer != "none":
            c.serve(PROTOCOL, lie, max_request=32, max_concurrent=4 * (answer != "busy"))
        with trio.fail_after(60), pytest.raises(FetchFailed) as failed:
            await BlobFetcher(a, store).fetch(
                CID,
                max_bytes=len(DATA),
                providers=lambda: [b.peer, c.peer],
                timeout=3600,
                wanted=lambda: False,
            )
        assert failed.value.is_hopeless


async def test_who_takes_questions_and_answers_none_has_nothing(store: BlobStore) -> None:
    """It is asked all the same, as it may have recovered; but nobody waits for it."""
    async with star(3) as (a, b, c):
        serve_blobs(b, BlobStore(store.root / "empty"))
        freeze(c)
        fetcher = BlobFetcher(a, store)
        fetcher._frozen.add(c.peer)
        with trio.fail_after(PATIENCE_SECONDS), pytest.raises(FetchFailed) as failed:
            await fetcher.fetch(
                CID,
                max_bytes=len(DATA),
                providers=lambda: [b.peer, c.peer],
                timeout=3600,
                wanted=lambda: False,
            )
        assert failed.value.is_hopeless


async def test_a_busy_peer_may_have_it(store: BlobStore) -> None:
    """Many that come back at once ask the same few: who was told "busy" three times took a snapshot for
    an update that was there."""
    async with star(3) as (a, b, c):
        serve_blobs(b, BlobStore(store.root / "empty"))

        async def answer(peer: PeerId, request: bytes) -> bytes:
            await trio.lowlevel.checkpoint()
            return b"\0" + DATA

        c.serve(PROTOCOL, answer, max_request=32, max_concurrent=0)
        fetcher = BlobFetcher(a, store)

        async def make_room() -> None:
            failures = fetcher._downloads[CID].failures
            await until(lambda: failures[c.peer] >= blobs._MOST_FAILURES)
            assert not fetcher._downloads[CID].is_hopeless
            c.serve(PROTOCOL, answer, max_request=32, max_concurrent=4)

        async with trio.open_nursery() as nursery:

            async def fetch_it() -> None:
                found = await fetcher.fetch(
                    CID,
                    max_bytes=len(DATA),
                    providers=lambda: [b.peer, c.peer],
                    timeout=3600,
                    wanted=lambda: False,
                )
                assert found == DATA

            nursery.start_soon(fetch_it)
            await until(lambda: CID in fetcher._downloads)
            await make_room()


async def test_the_largest_and_the_empty_blob(store: BlobStore, seeded: BlobStore) -> None:
    async with star(2) as (a, b):
        serve_blobs(b, seeded)
        fetcher = BlobFetcher(a, store)
        for data in (b"", bytes(MAX_BLOB_BYTES)):
            assert data == await fetcher.fetch(
                seeded.put(data), max_bytes=len(data), providers=lambda: [b.peer], timeout=60
            )


async def test_liars_frozen_and_dead_providers_are_overcome(
    store: BlobStore, seeded: BlobStore
) -> None:
    async with star(6) as (a, liar, frozen, dead, empty, good):
        lie(liar)
        freeze(frozen)
        serve_blobs(empty, BlobStore(store.root.parent / "empty"))
        serve_blobs(good, seeded)
        await dead.disconnect(a.peer)
        await until(lambda: dead.peer not in a.connected())
        # In any order that the hashes give.
        for _ in range(3):
            store.remove(CID)
            assert await fetch(a, store, liar, frozen, dead, empty, good) == DATA
        await until(lambda: requests_open(a) == 0)
        assert good.peer in a.connected()


async def test_who_takes_questions_and_answers_none_is_left_alone_and_counted(
    monkeypatch: pytest.MonkeyPatch, store: BlobStore, seeded: BlobStore
) -> None:
    monkeypatch.setattr(quarantine, "_PATIENCE_SECONDS", 2.0)
    # Longer than the test takes.
    monkeypatch.setattr(quarantine, "_FIRST_SECONDS", 1000.0)
    cids = [seeded.put(bytes([number]) * 1000) for number in range(40)]
    asked = 0

    async def answer(peer: PeerId, request: bytes) -> bytes:
        nonlocal asked
        asked += 1
        await trio.sleep_forever()
        return b""

    async with star(3) as (a, frozen, good):
        frozen.serve(PROTOCOL, answer, max_request=32, max_concurrent=100)
        serve_blobs(good, seeded)
        fetcher = BlobFetcher(a, store)
        providers = [frozen.peer, good.peer]
        for cid in cids:
            # An update: of two that have it the hash alone decides which to ask.
            await fetcher.fetch(
                cid, max_bytes=1000, providers=lambda: providers, timeout=60, kind="update"
            )
        assert a.traffic.rejected["frozen"] == 1
        # A few times for a second or so, and not for each blob.
        assert 1 <= asked < 10
        # Without any other provider it is asked all the same.
        with pytest.raises(FetchFailed):
            await fetcher.fetch(
                CID, max_bytes=1000, providers=lambda: providers[:1], timeout=0.2, kind="update"
            )
        await until(lambda: requests_open(a) == 0)


def test_patience_grows_with_every_time_and_ends_with_a_sign_of_life() -> None:
    clock = trio.testing.MockClock()

    async def check() -> None:
        peer, left_alone = PeerId(bytes(32)), quarantine.Quarantine()
        assert not left_alone.note_wait(peer, 6.0)
        for pause in (30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0):
            assert left_alone.note_wait(peer, 10.0)
            assert peer in left_alone
            clock.jump(pause - 1.0)
            assert peer in left_alone
            clock.jump(1.0)
            assert peer not in left_alone
        left_alone.note_wait(peer, 9.0)
        left_alone.release(peer)
        assert not left_alone.note_wait(peer, 9.0)
        crowd = [PeerId(number.to_bytes(32, "big")) for number in range(2 * quarantine.MAX_PEERS)]
        for each in crowd:
            left_alone.note_wait(each, 9.0)
        # The waits for the first ones have been dropped from the table.
        assert [each for each in crowd if left_alone.note_wait(each, 1.0)] == []
        for each in crowd:
            left_alone.add(each)
        assert [each for each in crowd if each in left_alone] == crowd[quarantine.MAX_PEERS :]

    trio.run(check, clock=clock)


async def fetch_until_tried(
    fetcher: BlobFetcher, count: int, max_bytes: int, providers: Sequence[PeerId]
) -> FetchFailed:
    """Fetch CID in vain, and give up once `count` providers have been tried."""

    async def give_up() -> None:
        await until(lambda: CID in fetcher._downloads)
        download = fetcher._downloads[CID]
        await until(lambda: len(download.outcomes) == count)
        # As at a timeout.
        download.done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up)
        with pytest.raises(FetchFailed) as caught:
            await fetcher.fetch(
                CID, max_bytes=max_bytes, providers=lambda: providers, timeout=PATIENCE_SECONDS
            )
    return caught.value


async def test_a_liar_alone_is_found_out(store: BlobStore) -> None:
    async with star(2) as (a, liar):
        lie(liar)
        for _ in range(2):
            failed = await fetch_until_tried(BlobFetcher(a, store), 1, len(DATA), [liar.peer])
            assert failed.outcomes == {liar.peer: "wrong content"}
        assert not store.has(CID)
        assert a.traffic.rejected["bad_hash"] == 2
        assert a.refuses(liar.peer)
        await until(lambda: not a.connected())


async def test_failures_name_what_came_of_whom(store: BlobStore, seeded: BlobStore) -> None:
    async with star(4) as (a, frozen, empty, good):
        freeze(frozen)
        serve_blobs(empty, store)
        serve_blobs(good, seeded)
        absent = PeerId(bytes(32))
        failed = await fetch_until_tried(
            BlobFetcher(a, store),
            3,
            len(DATA) - 1,
            [frozen.peer, empty.peer, good.peer, absent],
        )
        # The frozen one had not failed yet.
        assert failed.outcomes == {
            empty.peer: "not found",
            good.peer: "too large",
            absent: "not connected",
        }
        assert "1 × not found" in str(failed)
        with pytest.raises(FetchFailed, match="no peer to ask"):
            await fetch(a, store, timeout=0.1)
        await until(lambda: requests_open(a) == 0)


async def test_a_provider_that_appears_later_is_found(store: BlobStore, seeded: BlobStore) -> None:
    async with networks(2) as (a, b):
        serve_blobs(b, seeded)
        providers: list[PeerId] = []
        got: list[bytes] = []

        async def wait_for_it() -> None:
            fetcher = BlobFetcher(a, store)
            got.append(
                await fetcher.fetch(
                    CID, max_bytes=len(DATA), providers=lambda: providers, timeout=30
                )
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_it)
            await a.connect(b.addresses[0])
            providers.append(b.peer)
        assert got == [DATA]


async def test_one_download_serves_all_who_want_it(store: BlobStore, seeded: BlobStore) -> None:
    async with star(2) as (a, b):
        gate, asked = trio.Event(), Counter[ContentId]()

        async def answer(peer: PeerId, request: bytes) -> bytes:
            asked[ContentId(request)] += 1
            await gate.wait()
            return b"\0" + DATA

        b.serve(PROTOCOL, answer, max_request=32, max_concurrent=8)
        fetcher = BlobFetcher(a, store)
        results: list[bytes] = []

        async def want(scope: trio.CancelScope) -> None:
            with scope:
                results.append(
                    await fetcher.fetch(
                        CID, max_bytes=len(DATA), providers=lambda: [b.peer], timeout=20
                    )
                )

        scopes = [open_scope() for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for scope in scopes:
                nursery.start_soon(want, scope)
            await until(lambda: asked[CID] == 1)
            # The caller that started it cancels; the others do not have to start over.
            scopes[0].cancel()
            await until(lambda: scopes[0].cancelled_caught)
            gate.set()
        assert results == [DATA] * 3
        assert asked == Counter({CID: 1})
        assert fetcher._downloads == {}


@pytest.mark.parametrize("first", ["small", "elsewhere", "unwanted"])
async def test_who_waits_for_a_blob_first_does_not_bound_the_others(
    store: BlobStore, seeded: BlobStore, tmp_path: Path, first: str
) -> None:
    async with star(3) as (mine, theirs, empty), trio.open_nursery() as nursery:
        serve_blobs(theirs, seeded)
        serve_blobs(empty, BlobStore(tmp_path / "empty"))
        fetcher = BlobFetcher(mine, store)
        joined = trio.Event()

        async def fetch_first() -> None:
            await fetcher.fetch(
                CID,
                max_bytes=100 if first == "small" else len(DATA),
                providers=lambda: [theirs.peer if first == "small" else empty.peer],
                timeout=1000.0,
                wanted=lambda: first != "unwanted" or not joined.is_set(),
            )

        nursery.start_soon(fetch_first)
        outcome = "too large" if first == "small" else "not found"
        await until(
            lambda: (
                CID in fetcher._downloads and outcome in fetcher._downloads[CID].outcomes.values()
            )
        )

        def providers() -> list[PeerId]:
            joined.set()
            return [theirs.peer]

        data = await fetcher.fetch(
            CID, max_bytes=len(DATA), providers=providers, timeout=PATIENCE_SECONDS
        )
        assert data == DATA


async def test_cancelled_fetches_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, store: BlobStore
) -> None:
    # The handlers' own timeout must not be what ends them.
    monkeypatch.setattr(requests, "_HANDLER_SECONDS", 1000.0)
    async with star(2) as (a, frozen):
        freeze(frozen)
        before = muxers(a)
        fetcher = BlobFetcher(a, store)
        for _ in range(60):
            with trio.move_on_after(0.002):
                await fetcher.fetch(CID, max_bytes=1, providers=lambda: [frozen.peer], timeout=20)
        await until(lambda: requests_open(a) == requests_open(frozen) == 0)
        assert fetcher._downloads == {}
        assert not fetcher._busy
        assert muxers(a) == before


async def test_a_full_disk_is_reported(
    store: BlobStore, seeded: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(data: bytes) -> ContentId:
        raise DiskFull(28, "no room")

    monkeypatch.setattr(store, "put", full)
    async with star(2) as (a, b):
        serve_blobs(b, seeded)
        with pytest.raises(DiskFull):
            await fetch(a, store, b)
        assert a.connected() == {b.peer}


async def test_few_uploads_at_a_time(
    store: BlobStore, seeded: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "MAX_UPLOADS", 2)
    pieces = [b"%d" % number * 1000 for number in range(12)]
    cids = [seeded.put(piece) for piece in pieces]
    async with star(4) as (b, *others):
        serve_blobs(b, seeded)
        async with trio.open_nursery() as nursery:
            for number, other in enumerate(others):
                fetcher = BlobFetcher(other, BlobStore(store.root / str(number)))
                for cid in cids:

                    async def want(fetcher: BlobFetcher = fetcher, cid: ContentId = cid) -> None:
                        await fetcher.fetch(
                            cid, max_bytes=9999, providers=lambda: [b.peer], timeout=60
                        )

                    nursery.start_soon(want)
        assert b.traffic.sent["blob"] == 3 * sum(len(piece) + 1 for piece in pieces)


def test_a_line_on_which_everybody_is_slow_is_no_reason_to_ask_others() -> None:
    """Otherwise every chunk would arrive two or three times over the slowest lines."""
    attempt = TransferAttempt(
        PeerId(bytes(32)), 0.0, stall=1.0, total=2.0, size=4_000_000, is_relay=False
    )
    assert attempt.is_overdue(5.0, typical_rate=4_000_000)
    assert not attempt.is_overdue(5.0, typical_rate=10_000)
    assert attempt.is_overdue(1 + 4 * 65_536 / 10_000, typical_rate=10_000)


@given(st.binary(max_size=100).filter(lambda data: len(data) != 32))
def test_a_request_is_a_content_id_or_refused(data: bytes) -> None:
    assert blobs._parse_request(CID) == CID
    with pytest.raises(ProtocolError, match="32 bytes"):
        blobs._parse_request(data)
