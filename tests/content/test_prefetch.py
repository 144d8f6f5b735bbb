"""Prefetch of training data: the chunks of a share, within the disk limit, and then the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.node.content.prefetch import Prefetch, data_budget, outlook, upcoming_samples
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.network.exchange.blobs import FetchFailed
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList
from distro_node.protocol.wire.manifest import DataSpec, ShardSpec
from simulation.chain import Chain
from simulation.swarm import identity
from trio.testing import MockClock

LENGTH = 1 << 20
# Four samples per chunk, and the last token of a chunk's last sample is in the next.
PER_CHUNK = CHUNK_BYTES // LENGTH
SHARDS, CHUNKS = 3, 4


class World:
    """Corpus held by peers, and a node that prefetches it. Chunks are short, but have real names."""

    def __init__(
        self,
        folder: Path,
        *,
        budget: int | None = None,
        scarce: set[bytes] | None = None,
        has_originals: bool = False,
    ) -> None:
        """`scarce`: chunks that too few peers have, permanently."""
        self.store = BlobStore(folder / "blobs")
        self.others: dict[ContentId, bytes] = {}
        self.fetched: list[ContentId] = []
        self.lists: list[BlobList] = []
        self.wanting = {content_id(body) for body in scarce or ()}
        self.reads = 0
        specs = [self._shard(number) for number in range(SHARDS + 1)]
        self.data = DataSpec(
            sequence_length=LENGTH,
            token_bytes=1,
            vocabulary=256,
            shards=tuple(specs[:-1]),
            heldout=specs[-1],
            tokenizer=self._other(b"tokenizer"),
        )
        fetcher: Any = self
        self.prefetch = Prefetch(
            data=self.data,
            store=self.store,
            downloads=fetcher,
            fetcher=fetcher,
            providers=list,
            budget=budget,
            scarce=None if scarce is None else self.scarce,
            has_originals=has_originals,
        )

    def _other(self, data: bytes) -> ContentId:
        self.others[content_id(data)] = data
        return content_id(data)

    def _shard(self, number: int) -> ShardSpec:
        chunks = tuple(self._other(b"%d %d" % (number, chunk)) for chunk in range(CHUNKS))
        listed = BlobList("shard", CHUNKS * CHUNK_BYTES, chunks)
        self.lists.append(listed)
        return ShardSpec(blob=self._other(listed.encode()), tokens=CHUNKS * CHUNK_BYTES)

    def has(self) -> set[tuple[int, int]]:
        """Return the chunks on the disk, as (shard, place)."""
        return {
            (shard, place)
            for shard, listed in enumerate(self.lists)
            for place, chunk in enumerate(listed.chunks)
            if self.store.has(chunk)
        }

    async def scarce(self, blob: ContentId, listed: BlobList) -> list[ContentId]:
        self.reads += 1
        return [chunk for chunk in reversed(listed.chunks) if chunk in self.wanting]

    # Substitutes for downloads and a fetcher

    async def fetch_blob(self, cid: ContentId, what: str) -> bytes:
        return await self.fetch(cid)

    async def fetch(self, cid: ContentId, **options: Any) -> bytes:
        if (here := self.store.get(cid)) is not None:
            return here
        await trio.sleep(0.5)
        if cid not in self.others:
            raise FetchFailed(cid, {})
        self.fetched.append(cid)
        self.store.put(self.others[cid])
        return self.others[cid]


async def run(world: World, samples: list[int], until: Callable[[], bool]) -> None:
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.prefetch.run, lambda rounds: lambda: samples)
            while not until():  # noqa: ASYNC110 (files appear on a disk without an event)
                await trio.sleep(1.0)
            await trio.sleep(30.0)
            nursery.cancel_scope.cancel()


async def test_a_node_begins_with_what_everybody_needs(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    await world.prefetch.begin()
    assert world.store.has(world.data.tokenizer)
    # All of the held-out part is evaluated on here; no other chunk is needed yet.
    assert world.has() == {(SHARDS, place) for place in range(CHUNKS)}


async def test_a_share_brings_what_it_lies_in_and_no_more(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    # The first sample of the first shard, and the last of a chunk of the second.
    per_shard = world.data.samples_in(world.data.shards[0])
    await world.prefetch.ready([0, per_shard + PER_CHUNK - 1])
    assert world.has() == {(0, 0), (1, 0), (1, 1)}
    before = list(world.fetched)
    await world.prefetch.ready([1])
    assert world.fetched == before


ALL = {b"%d %d" % (shard, chunk) for shard in range(SHARDS + 1) for chunk in range(CHUNKS)}


async def test_what_comes_next_is_fetched_ahead_and_no_more(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    await run(world, [0], lambda: (0, 0) in world.has())
    assert world.has() == {(0, 0)}


async def test_what_too_few_have_is_kept_when_nothing_else_is_missing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path, scarce={b"0 3", b"1 0", b"2 2"})
    await run(world, [PER_CHUNK * 2 - 2], lambda: len(world.has()) == 4)
    assert world.has() == {(0, 1), (0, 3), (1, 0), (2, 2)}
    assert world.others[world.fetched[1]] == b"0 1"
    # Every shard is scanned, and then not for a minute, whatever others lack by then.
    assert world.reads == SHARDS + 1
    world.wanting = {content_id(b"1 3")}
    await run(world, [PER_CHUNK * 2 - 2], lambda: (1, 3) in world.has())
    assert world.reads >= SHARDS + 3


async def test_of_what_is_scarce_and_gone_nothing_else_suffers(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path, scarce={b"0 2", b"0 1"})
    body = world.others.pop(content_id(b"0 2"))
    await run(world, [0], lambda: len(world.has()) == 2)
    assert world.has() == {(0, 0), (0, 1)}
    # Its owner comes back.
    world.others[content_id(b"0 2")] = body
    await run(world, [0], lambda: (0, 2) in world.has())


async def test_the_disk_holds_what_it_may(tmp_path: Path, autojump_clock: MockClock) -> None:
    world = World(tmp_path, budget=8 * CHUNK_BYTES, scarce=ALL)
    await world.prefetch.begin()
    per_shard = world.data.samples_in(world.data.shards[0])
    for sample in range(0, SHARDS * per_shard, 2):
        await world.prefetch.ready([sample])
        assert len(world.has()) <= 8
        # Needed chunks are there, and those that every member needs stay.
        assert {(SHARDS, place) for place in range(CHUNKS)} <= world.has()
    assert len(world.has()) == 8
    # After a restart, it continues to count what is there.
    again = World(tmp_path, budget=6 * CHUNK_BYTES, scarce=ALL)
    await again.prefetch.begin()
    assert len(again.has()) == 6
    await run(again, [0], lambda: (0, 0) in again.has())
    assert len(again.has()) == 6


async def test_the_only_copy_of_the_data_is_not_removed(tmp_path: Path) -> None:
    """A founder may give its node less disk space than the data takes."""
    founding = World(tmp_path, budget=None)
    for body in founding.others.values():
        founding.store.put(body)
    everything = founding.has()
    chunks = len(everything)
    again = World(tmp_path, budget=(chunks - 2) * CHUNK_BYTES, has_originals=True)
    with pytest.raises(UserError, match=r"up to 0.01 GB of it would be removed") as caught:
        await again.prefetch.begin()
    assert caught.value.code == ExitCode.DISK_FULL
    assert again.has() == everything
    enough = World(tmp_path, budget=chunks * CHUNK_BYTES, has_originals=True)
    await enough.prefetch.begin()
    assert enough.has() == everything


async def test_data_that_nobody_has_is_waited_for(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    lost = world.lists[0].chunks[0]
    body = world.others.pop(lost)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.prefetch.ready, [0])
        await trio.sleep(100.0)
        assert not world.store.has(lost)
        world.others[lost] = body
    assert world.store.has(lost)


async def test_what_comes_next_is_reckoned_once_a_round(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """With the maximum number of streams in a manifest it takes seconds of processor time."""
    world = World(tmp_path)
    reckoned, round_ = [], 1

    def upcoming(rounds: int) -> Callable[[], list[int]]:
        reckoned.append(round_)
        return lambda: [0]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.prefetch.run, upcoming, lambda: round_)
        await trio.sleep(100.0)
        assert reckoned == [1]
        round_ = 2
        await trio.sleep(100.0)
        assert reckoned == [1, 2]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("overlap", [False, True])
def test_what_comes_next_is_what_a_round_will_assign(overlap: bool) -> None:
    """With overlap, that is the round after the one being decided."""
    chain = Chain(3, overlap=overlap)
    me = identity(1).peer
    ahead = upcoming_samples(chain.ledger, me, 5)
    assigned: list[int] = []
    for _ in range(6 + overlap):
        assigned += chain.ledger.assignments.share(chain.round, me) or ()
        chain.grow()
    # What is assigned already, and five rounds more.
    assert ahead == assigned
    # A newcomer includes itself.
    assert upcoming_samples(chain.ledger, identity(9).peer, 3)


def test_samples_are_computed_again_for_other_streams_and_else_seldom() -> None:
    chain = Chain(3)
    me, known, changes = identity(1).peer, [], []
    for _ in range(40):
        known.append((outlook(chain.ledger, me), chain.ledger.assignments.assignment(chain.round)))
        chain.grow()
    for (before, had), (now, has) in itertools.pairwise(known):
        if before != now:
            changes.append(has.round)
        if had.streams_of(me) != has.streams_of(me):
            assert before != now
    assert {8, 16, 24, 32} <= {*changes}
    assert len(changes) < 20


def test_a_limit_on_the_disk_has_to_leave_room_to_take_part() -> None:
    manifest = replace(Chain(1).manifest)
    assert data_budget(None, manifest) is None
    with pytest.raises(UserError, match="too low") as caught:
        data_budget(100_000_000, manifest)
    assert caught.value.code == ExitCode.DISK_FULL
    least = float(caught.value.remedy.split()[3]) * 1e9
    assert (data_budget(int(least) + 10_000_000, manifest) or 0) >= 16 * CHUNK_BYTES


async def test_what_an_audit_needs_is_fetched_while_others_wait(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    per_shard = world.data.samples_in(world.data.shards[0])
    audited, ahead = 2 * per_shard, [0, per_shard]
    assert not world.prefetch.has((audited,))
    world.prefetch.want_for_audit((audited,))

    await run(world, ahead, lambda: world.prefetch.has((audited,)))
    chunk = world.lists[2].chunks[0]
    fetched = [each for each in world.fetched if each in {c for b in world.lists for c in b.chunks}]
    assert fetched[0] == chunk
    assert world.has() >= {(0, 0), (1, 0), (2, 0)}
    # Only that one sample is here.
    assert not world.prefetch.has((audited + 1,))
    world.prefetch.want_for_audit((audited + 1,))
    assert not world.prefetch.has((audited,))


async def test_a_request_is_served_at_once_and_what_nobody_has_is_not_waited_for(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    per_shard = world.data.samples_in(world.data.shards[0])
    for sample in (per_shard, 2 * per_shard):
        await world.prefetch.fetch_for_reaudit([sample])
    del world.others[world.lists[0].chunks[0]]
    ahead: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            world.prefetch.run, lambda rounds: lambda: list(ahead), lambda: len(ahead)
        )
        await trio.sleep(10.3)
        world.prefetch.want_for_audit((2 * per_shard,))
        await trio.sleep(0.1)
        assert world.prefetch.has((2 * per_shard,))
        # The list of the first shard is not here yet, and then no peer has the chunk.
        world.prefetch.want_for_audit((0,))
        await trio.sleep(10.0)
        assert not world.prefetch.has((0,))
        # The next rounds are fetched all the same.
        ahead.append(per_shard + PER_CHUNK)
        await trio.sleep(10.0)
        nursery.cancel_scope.cancel()
    assert (1, 1) in world.has()


async def test_where_the_disk_is_limited_what_audits_need_stays_for_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path, budget=6 * CHUNK_BYTES)
    await world.prefetch.begin()
    world.prefetch.want_for_audit((0,))
    await run(world, [], lambda: world.prefetch.has((0,)))
    for place in (1, 2):
        await world.prefetch.fetch_for_reaudit([place * PER_CHUNK])
    heldout = {(SHARDS, place) for place in range(CHUNKS)}
    assert world.has() == heldout | {(0, 0), (0, 2)}
    world.prefetch.want_for_audit(())
    await world.prefetch.fetch_for_reaudit([3 * PER_CHUNK])
    assert world.has() == heldout | {(0, 2), (0, 3)}
