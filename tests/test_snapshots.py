"""Which snapshots and updates a node keeps, and which one it starts from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.node.blobstore import BlobStore
from distro_node.node.datadir import SwarmDir
from distro_node.node.network.blobs import FetchFailed
from distro_node.node.provisions import Provisions
from distro_node.node.records import LocalSnapshot, Records
from distro_node.node.snapshots import Snapshots
from distro_node.protocol.blobs import BlobList
from distro_node.protocol.messages import SnapshotEntry
from simulation.chain import Chain
from simulation.swarm import identity

INTERVAL = 5


class World(Chain):
    """A chain whose snapshots exist: `others` is what other members have to give."""

    def __init__(self, tmp_path: Path) -> None:
        self.others: dict[ContentId, bytes] = {}
        super().__init__(2, snapshot_interval=INTERVAL)
        self.store = BlobStore(tmp_path / "blobs")
        self.records = Records(SwarmDir(tmp_path / "swarm"), self.manifest)
        self.on_failure: Callable[[], None] = lambda: None
        self.start()

    def start(self) -> None:
        """As a node does at its start, knowing what is on its disk."""
        fetcher: Any = self
        self.snapshots = Snapshots(
            manifest=self.manifest,
            store=self.store,
            records=self.records,
            provisions=Provisions(self.store, fetcher, list, lambda *_: None),
            ledger=lambda: self.ledger,
        )

    def snapshot(self, round_: int) -> SnapshotEntry:
        chunk = b"state after round %d" % round_ + bytes(4 * self.manifest.elements)
        chunk = chunk[: 4 * self.manifest.elements]
        blobs = BlobList(kind="snapshot", size=len(chunk), chunks=(content_id(chunk),)).encode()
        self.others |= {content_id(chunk): chunk, content_id(blobs): blobs}
        return SnapshotEntry(round_, content_id(blobs), len(chunk))

    def grow_to(self, round_: int) -> None:
        while self.round <= round_:
            self.grow()

    def own(self, round_: int) -> SnapshotEntry:
        """Make the snapshot of a round here, as the trainer does."""
        entry = self.snapshot(round_)
        for data in self._parts(entry):
            self.store.put(data)
        self.snapshots.keep(entry)
        return entry

    def has(self, entry: SnapshotEntry) -> bool:
        return all(self.store.has(content_id(data)) for data in self._parts(entry))

    def _parts(self, entry: SnapshotEntry) -> list[bytes]:
        listed = self.others[entry.blob]
        return [listed, *(d for c, d in self.others.items() if c in listed)]

    # In the place of a BlobFetcher

    async def fetch(self, cid: ContentId, **_: object) -> bytes:
        if (here := self.store.get(cid)) is not None:
            return here
        if cid not in self.others:
            self.on_failure()
            raise FetchFailed(cid, {})
        self.store.put(self.others[cid])
        return self.others[cid]

    async def fetch_many(self, cids: tuple[ContentId, ...], **options: object) -> None:
        for cid in cids:
            await self.fetch(cid)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_certified_snapshot_that_was_fetched_is_removed_when_it_is_old(
    world: World,
) -> None:
    world.grow_to(INTERVAL + 1)
    fetched = world.ledger.snapshot
    assert fetched is not None
    found = await world.snapshots.best(certified_only=False)
    assert found.round == INTERVAL
    assert world.has(fetched)
    for multiple in (2, 3):
        world.grow_to(multiple * INTERVAL + 1)
        world.own(multiple * INTERVAL)
    assert not world.has(fetched)


async def test_a_snapshot_that_nobody_has_any_more_is_not_waited_for(
    world: World, autojump_clock: object
) -> None:
    """The swarm goes on while a newcomer fetches; members keep two snapshots."""
    world.grow_to(INTERVAL + 1)
    old = world.ledger.snapshot
    assert old is not None
    del world.others[old.blob]
    world.on_failure = lambda: world.grow_to(2 * INTERVAL + 1)
    with trio.fail_after(3600):
        found = await world.snapshots.best(certified_only=True)
    assert found.round == 2 * INTERVAL


async def test_an_update_that_counts_again_outlives_its_first_round(world: World) -> None:
    """Members without samples or momentum send the same bytes in every other round."""
    world.grow_to(INTERVAL - 1)
    body = b"the same again"
    update = world.store.put(body)
    peer = identity(0).peer
    world.grow(updates=[world.update(peer, update=update)])
    world.grow_to(2 * INTERVAL)
    world.grow(updates=[world.update(peer, update=update)])
    world.own(INTERVAL)
    world.own(2 * INTERVAL)
    assert world.store.get(update) == body


async def test_updates_that_a_snapshot_contains_are_removed(world: World) -> None:
    world.grow_to(2 * INTERVAL + 1)
    bodies = {r: world.store.put(b"%d" % r) for r in range(world.round)}
    world.ledger = world.fork().ledger.truncated(1)
    for round_ in range(1, 2 * INTERVAL + 2):
        world.grow(updates=[world.update(identity(0).peer, update=bodies[round_])])
    world.own(INTERVAL)
    world.own(2 * INTERVAL)
    assert [r for r, cid in bodies.items() if r and world.store.has(cid)] == list(
        range(INTERVAL + 1, 2 * INTERVAL + 2)
    )


async def test_snapshots_of_a_chain_that_was_left_are_not_loaded(world: World) -> None:
    world.grow_to(2 * INTERVAL)
    left = world.own(2 * INTERVAL - 1)
    heavier = world.ledger.truncated(INTERVAL + 2)
    world.ledger = heavier
    world.grow_to(3 * INTERVAL - 1)
    world.records.keep_instead(world.ledger)
    found = await world.snapshots.best(certified_only=False)
    assert found.round == 2 * INTERVAL
    assert not world.has(left)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[" * 60_000,
        b"{}",
        b"[1]",
        b'[{"round": 6, "blob": "zz", "size": 1}]',
        b'[{"round": 6, "blob": "00", "size": 1}]',
        b'[{"round": -5, "blob": "' + b"00" * 32 + b'", "size": 1}]',
        b'[{"round": 9e999, "blob": "' + b"00" * 32 + b'", "size": 1}]',
        b"\xff\xfe",
    ],
)
async def test_a_damaged_list_of_snapshots_costs_nothing_but_the_list(
    world: World, damage: bytes
) -> None:
    world.grow_to(INTERVAL + 1)
    world.records.keep_snapshots([LocalSnapshot(3, "00" * 32, 1)])
    (world.records.history.parent / "snapshots.json").write_bytes(damage)
    world.start()
    assert (await world.snapshots.best(certified_only=False)).round == INTERVAL
