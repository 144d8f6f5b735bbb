"""Which snapshots and updates a node keeps, and which one it starts from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.node.content import snapshots
from distro_node.node.content.downloads import Downloads
from distro_node.node.content.snapshot_holds import Retention
from distro_node.node.content.snapshots import Snapshots
from distro_node.node.network.exchange.blobs import FetchFailed
from distro_node.node.storage.atomic_write import write_atomically
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import SwarmDir
from distro_node.node.storage.swarm_store import LocalSnapshot, SwarmStore, blob_of
from distro_node.node.storage.unlisted_chunks import UnlistedChunks
from distro_node.protocol.chain import retention
from distro_node.protocol.wire.blobs import BlobList
from distro_node.protocol.wire.messages import SnapshotEntry
from distro_node.protocol.wire.swarm_id import swarm_text
from simulation.chain import Chain
from simulation.swarm import identity

INTERVAL = 5
VISITOR = identity(100).peer


class World(Chain):
    """Chain with existing snapshots: `others` is what other members can send."""

    def __init__(self, tmp_path: Path) -> None:
        self.others: dict[ContentId, bytes] = {}
        super().__init__(2, snapshot_interval=INTERVAL)
        self.store = BlobStore(tmp_path / "blobs")
        self.writer = UnlistedChunks(self.store.root, self.manifest.swarm)
        self.directory = SwarmDir(tmp_path / "swarm")
        self.swarm_store = SwarmStore(self.directory, self.manifest)
        self.connected = [VISITOR]
        self.on_failure: Callable[[], None] = lambda: None
        self.on_fetch: Callable[[], None] = lambda: None
        self.on_ask: Callable[[], None] = lambda: None
        self.start()

    def start(self) -> None:
        """Start like a node that knows what is on its disk."""
        self.swarm_store.write()
        self.swarm_store = SwarmStore(self.directory, self.manifest)
        fetcher: Any = self
        self.chunks: Any = self.Chunks(self)
        self.snapshots = Snapshots(
            manifest=self.manifest,
            store=self.store,
            swarm_store=self.swarm_store,
            downloads=Downloads(
                self.store, fetcher, self.chunks, lambda: self.connected, lambda *_: None
            ),
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
            self.grow(updates=[])

    async def own(self, round_: int) -> SnapshotEntry:
        """Make the snapshot of a round here, as the trainer does."""
        entry = self.snapshot(round_)
        listed, *chunks = self.parts(entry)
        for chunk in chunks:
            self.writer.put(chunk)
        self.store.put(listed)
        await self.snapshots.keep(entry)
        return entry

    def has(self, entry: SnapshotEntry) -> bool:
        return all(self.store.has(content_id(data)) for data in self.parts(entry))

    def parts(self, entry: SnapshotEntry) -> list[bytes]:
        listed = self.others[entry.blob]
        return [listed, *(d for c, d in self.others.items() if c in listed)]

    async def interrupted(self) -> None:
        """Look for the best snapshot, and stop when the first piece of it is requested."""
        with trio.move_on_after(math.inf) as scope:
            self.on_ask = scope.cancel
            await self.snapshots.best(certified_only=False)
        assert scope.cancelled_caught
        self.on_ask = lambda: None

    # Substitute for a BlobFetcher

    async def fetch(self, cid: ContentId, **_: object) -> bytes:
        if (here := self.store.get(cid)) is not None:
            return here
        if cid not in self.others:
            self.on_failure()
            raise FetchFailed(cid, {})
        self.on_ask()
        await trio.lowlevel.checkpoint()
        self.store.put(self.others[cid])
        self.on_fetch()
        return self.others[cid]

    # Substitute for a ChunkFetcher

    class Chunks:
        def __init__(self, world: World) -> None:
            self.world = world

        async def fetch(self, blob: ContentId, blobs: BlobList, **options: Any) -> bool:
            while True:
                try:
                    for cid in blobs.chunks:
                        await self.world.fetch(cid)
                    return True
                except FetchFailed:
                    if not options["wanted"]():
                        return False
                    await trio.sleep(1)


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
        await world.own(multiple * INTERVAL)
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
    found = await world.snapshots.best(certified_only=True)
    assert found.round == 2 * INTERVAL


async def test_what_is_half_fetched_when_the_line_breaks_is_finished(
    world: World, autojump_clock: object
) -> None:
    """Without a connection nobody has a newer snapshot either, and over a slow line the parts that are
    here may be minutes' worth."""
    world.grow_to(INTERVAL + 1)
    begun = world.ledger.snapshot
    assert begun is not None
    listed, chunk = world.parts(begun)
    failures = 0

    def lose_line() -> None:
        if world.store.has(content_id(listed)):
            world.connected = []
            del world.others[content_id(chunk)]
            world.on_fetch = lambda: None

    def reconnect() -> None:
        nonlocal failures
        failures += 1
        world.grow_to(2 * INTERVAL + 1)
        if failures == 3:
            world.others[content_id(chunk)] = chunk

    world.on_fetch, world.on_failure = lose_line, reconnect
    found = await world.snapshots.best(certified_only=True)
    assert found.round == INTERVAL
    assert failures == 3


async def test_an_update_that_counts_again_outlives_its_first_round(world: World) -> None:
    """Members without samples or momentum send the same bytes in every other round."""
    world.grow_to(INTERVAL - 1)
    body = b"the same again"
    update = world.store.put(body)
    peer, size = identity(0).peer, 4 * world.manifest.elements
    world.grow(updates=[world.update(peer, update=update, size=size)])
    world.grow_to(2 * INTERVAL)
    world.grow(updates=[world.update(peer, update=update, size=size)])
    await world.own(INTERVAL)
    await world.own(2 * INTERVAL)
    assert world.store.get(update) == body


async def test_updates_that_a_snapshot_contains_are_removed_where_they_are_more(
    world: World,
) -> None:
    world.grow_to(2 * INTERVAL + 1)
    bodies = {r: world.store.put(b"%d" % r) for r in range(world.round)}
    world.ledger = world.fork().ledger.truncated(1)
    for round_ in range(1, 2 * INTERVAL + 2):
        large = {"update": bodies[round_], "size": 4 * world.manifest.elements}
        world.grow(updates=[world.update(identity(0).peer, **large)])
    await world.own(INTERVAL)
    await world.own(2 * INTERVAL)
    assert [r for r, cid in bodies.items() if r and world.store.has(cid)] == list(
        range(INTERVAL + 1, 2 * INTERVAL + 2)
    )


async def test_a_long_sweep_lets_the_node_work_in_between(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_SWEPT_AT_ONCE", 2)
    world.grow_to(2 * INTERVAL + 1)
    bodies = {r: world.store.put(b"%d" % r) for r in range(world.round)}
    world.ledger = world.fork().ledger.truncated(1)
    for round_ in range(1, 2 * INTERVAL + 2):
        large = {"update": bodies[round_], "size": 4 * world.manifest.elements}
        world.grow(updates=[world.update(identity(0).peer, **large)])
    sizes = []
    set_aside = world.store.set_aside

    def counting(cids: Iterable[ContentId]) -> list[Path]:
        files = set_aside(cids)
        sizes.append(len(files))
        return files

    monkeypatch.setattr(world.store, "set_aside", counting)
    await world.own(INTERVAL)
    await world.own(2 * INTERVAL)
    assert sizes == [2, 2, 1]


async def test_snapshots_of_a_chain_that_was_left_are_not_loaded(world: World) -> None:
    world.grow_to(2 * INTERVAL)
    left = await world.own(2 * INTERVAL - 1)
    heavier = world.ledger.truncated(INTERVAL + 2)
    world.ledger = heavier
    world.grow_to(3 * INTERVAL - 1)
    world.swarm_store.replace_chain(world.ledger)
    found = await world.snapshots.best(certified_only=False)
    assert found.round == 2 * INTERVAL
    assert world.snapshots.entry(found) != left


async def test_who_leaves_a_chain_can_come_back_though_nobody_else_has_its_snapshots(
    world: World,
) -> None:
    """All may come back to it: then its only state would be lost for good."""
    world.grow_to(2 * INTERVAL + 2)
    await world.own(INTERVAL)
    chain, data = world.ledger, world.parts(await world.own(2 * INTERVAL))
    for kind in ("at once", "after a restart", "another time"):
        world.ledger = chain.truncated(INTERVAL + 2)
        world.swarm_store.replace_chain(world.ledger)
        assert (await world.snapshots.best(certified_only=True)).round == INTERVAL
        world.others.clear()
        if kind == "after a restart":
            world.start()
        world.ledger = chain
        world.swarm_store.replace_chain(world.ledger)
        with trio.fail_after(10):
            found = await world.snapshots.best(certified_only=True)
        assert found.round == 2 * INTERVAL
        assert all(world.store.has(content_id(part)) for part in data)


async def test_a_snapshot_that_is_added_after_its_chain_was_left_is_not_one_to_start_from(
    world: World,
) -> None:
    """The trainer may be making it while the node switches to another chain."""
    world.grow_to(2 * INTERVAL + 2)
    await world.own(INTERVAL)
    chain, other = world.ledger, world.ledger.truncated(INTERVAL + 2)
    world.swarm_store.replace_chain(other)
    left = await world.own(2 * INTERVAL)
    world.ledger = other
    assert not any(each.whole for each in world.swarm_store.snapshots())
    await world.snapshots.best(certified_only=True)
    assert [each.round for each in world.swarm_store.snapshots() if each.whole] == [INTERVAL]
    # All may come back to the chain that was left.
    world.ledger = chain
    world.swarm_store.replace_chain(chain)
    world.others.clear()
    with trio.fail_after(10):
        assert (await world.snapshots.best(certified_only=True)).round == 2 * INTERVAL
    assert left.blob == blob_of(world.swarm_store.snapshots()[0])


async def test_what_a_left_chain_needed_goes_with_the_next_snapshot(world: World) -> None:
    world.grow_to(2 * INTERVAL + 2)
    left = [await world.own(INTERVAL), await world.own(2 * INTERVAL)]
    world.ledger = world.ledger.truncated(INTERVAL + 2)
    world.swarm_store.replace_chain(world.ledger)
    await world.snapshots.best(certified_only=True)
    assert all(map(world.has, left))
    world.grow_to(3 * INTERVAL)
    await world.own(3 * INTERVAL)
    assert [world.has(entry) for entry in left] == [True, False]


async def test_what_was_left_before_a_start_goes_with_the_next_snapshot(world: World) -> None:
    world.grow_to(2 * INTERVAL + 2)
    left = [await world.own(INTERVAL), await world.own(2 * INTERVAL)]
    world.ledger = world.ledger.truncated(INTERVAL + 2)
    world.swarm_store.replace_chain(world.ledger)
    world.start()
    await world.snapshots.best(certified_only=True)
    world.grow_to(3 * INTERVAL)
    await world.own(3 * INTERVAL)
    assert [world.has(entry) for entry in left] == [True, False]


@pytest.mark.parametrize("round_", [INTERVAL, 2 * INTERVAL])
async def test_what_was_incomplete_at_a_start_goes_with_the_first_own_snapshot(
    world: World, round_: int
) -> None:
    """The node begins with the initial parameters, so it fetches no state, this one or another."""
    chunk = b"state of another chain".ljust(4 * world.manifest.elements)
    listed = BlobList(kind="snapshot", size=len(chunk), chunks=(content_id(chunk),)).encode()
    left = [world.store.put(data) for data in (chunk, listed)]
    row = LocalSnapshot(round_, content_id(listed).hex(), len(chunk), whole=False)
    world.swarm_store.keep_snapshots([row])
    world.start()
    world.grow_to(INTERVAL + 1)
    own = await world.own(INTERVAL)
    assert not any(map(world.store.has, left))
    assert world.has(own)
    assert [each.blob for each in world.swarm_store.snapshots()] == [own.blob.hex()]


@pytest.mark.parametrize("dies", ["the node", "the trainer"])
async def test_the_chunks_of_a_snapshot_that_was_never_listed_are_removed(
    world: World, dies: str
) -> None:
    world.grow_to(INTERVAL + 1)
    own = await world.own(INTERVAL)
    assert not world.writer.noted()
    _, chunk = world.parts(own)
    new = [b"a chunk of the next snapshot", b"another one"]
    # One chunk is the same as in the snapshot before.
    _, *left = map(world.writer.put, [chunk, *new])
    assert world.writer.noted() == set(left)
    if dies == "the node":
        world.start()
    await world.snapshots.best(certified_only=False)
    assert not any(map(world.store.has, left))
    assert world.has(own)
    assert not world.writer.noted()
    # The next one stays.
    world.grow_to(2 * INTERVAL + 1)
    later = await world.own(2 * INTERVAL)
    world.start()
    await world.snapshots.best(certified_only=False)
    assert world.has(own)
    assert world.has(later)


class Killed(BaseException):
    """The process ends here."""


def kill_at(world: World, monkeypatch: pytest.MonkeyPatch, method: str, call: int) -> None:
    """Let the process end at this call of a method of the blob store, from now on."""
    calls = 0
    original = getattr(world.store, method)

    def dying(argument: Any) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return original(argument)

    monkeypatch.setattr(world.store, method, dying)


@pytest.mark.parametrize("call", [1, 2])
async def test_a_snapshot_whose_removal_was_interrupted_is_removed_later(
    world: World, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    made = []
    for multiple in (1, 2):
        world.grow_to(multiple * INTERVAL + 1)
        made.append(await world.own(multiple * INTERVAL))
    world.grow_to(3 * INTERVAL + 1)
    with monkeypatch.context() as patched:
        kill_at(world, patched, "remove", call)
        with pytest.raises(Killed):
            await world.own(3 * INTERVAL)
    world.start()
    found = await world.snapshots.best(certified_only=False)
    assert found.round == 3 * INTERVAL
    world.grow_to(4 * INTERVAL + 1)
    await world.own(4 * INTERVAL)
    left = [part for entry in made for part in world.parts(entry)]
    assert not any(world.store.has(content_id(part)) for part in left)
    assert [each.round for each in world.swarm_store.snapshots()] == [3 * INTERVAL, 4 * INTERVAL]


async def test_a_snapshot_that_a_leaving_node_did_not_remove_is_removed_later(world: World) -> None:
    for multiple in (1, 2):
        world.grow_to(multiple * INTERVAL + 1)
        await world.own(multiple * INTERVAL)
    world.grow_to(3 * INTERVAL + 1)
    entry = world.snapshot(3 * INTERVAL)
    with trio.move_on_after(math.inf) as scope:
        # The node leaves while the snapshot is being added.
        scope.cancel()
        await world.own(3 * INTERVAL)
    assert world.has(entry)
    world.start()
    await world.snapshots.best(certified_only=False)
    world.grow_to(4 * INTERVAL + 1)
    await world.own(4 * INTERVAL)
    oldest = world.snapshot(INTERVAL)
    assert not any(world.store.has(content_id(part)) for part in world.parts(oldest))


async def test_updates_whose_removal_was_interrupted_are_removed_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.grow_to(4 * INTERVAL + 1)
    bodies = {r: world.store.put(b"%d" % r) for r in range(world.round)}
    world.ledger = world.fork().ledger.truncated(1)

    def grow_to(round_: int) -> None:
        while world.round <= round_:
            large = {"update": bodies[world.round], "size": 4 * world.manifest.elements}
            world.grow(updates=[world.update(identity(0).peer, **large)])

    for multiple in (1, 2):
        grow_to(multiple * INTERVAL + 1)
        await world.own(multiple * INTERVAL)
    grow_to(3 * INTERVAL + 1)
    with monkeypatch.context() as patched:
        kill_at(world, patched, "set_aside", 1)
        with pytest.raises(Killed):
            await world.own(3 * INTERVAL)
    world.start()
    await world.snapshots.best(certified_only=False)
    grow_to(4 * INTERVAL + 1)
    await world.own(4 * INTERVAL)
    kept = [r for r, cid in bodies.items() if r and world.store.has(cid)]
    # The snapshot that was not listed when the node was killed is gone: it replayed these rounds.
    assert kept == list(range(2 * INTERVAL + 1, 4 * INTERVAL + 2))


async def test_readers_that_began_before_a_start_hold_their_snapshot(
    world: World, autojump_clock: object
) -> None:
    for multiple in (1, 2):
        world.grow_to(multiple * INTERVAL + 1)
        await world.own(multiple * INTERVAL)
    fetched = world.snapshot(INTERVAL)
    world.start()
    await world.snapshots.best(certified_only=False)
    assert world.snapshots.note_request(VISITOR, fetched.blob)
    world.grow_to(3 * INTERVAL + 1)
    await world.own(3 * INTERVAL)
    assert world.has(fetched)


@pytest.mark.parametrize("certified_only", [False, True])
async def test_a_lone_node_that_lost_its_newest_snapshot_goes_on_from_the_one_before(
    world: World, certified_only: bool
) -> None:
    """Nobody else has it, and replaying the rounds since takes no other node."""
    for multiple in (1, 2):
        while world.round <= multiple * INTERVAL + 1:
            body = world.store.put(b"%d" % world.round)
            large = {"update": body, "size": 4 * world.manifest.elements}
            world.grow(updates=[world.update(identity(0).peer, **large)])
        entry = await world.own(multiple * INTERVAL)
    _, chunk = world.parts(entry)
    world.store.remove(content_id(chunk))
    world.others.clear()
    world.connected = []
    world.start()
    with trio.fail_after(10):
        found = await world.snapshots.best(certified_only=certified_only)
    assert found.round == INTERVAL


async def test_a_snapshot_stays_while_somebody_fetches_it(
    world: World, autojump_clock: object
) -> None:
    """With snapshots more often than a download lasts, a newcomer would never have a whole one."""
    world.grow_to(INTERVAL)
    fetched = await world.own(INTERVAL)
    _, chunk = world.parts(fetched)
    for multiple in range(2, 12):
        world.snapshots.note_request(VISITOR, content_id(chunk))
        world.grow_to(multiple * INTERVAL)
        await world.own(multiple * INTERVAL)
        assert world.has(fetched)
    await trio.sleep(3600)
    world.grow_to(13 * INTERVAL)
    await world.own(13 * INTERVAL)
    assert not world.has(fetched)


async def test_who_replays_keeps_what_it_will_need(world: World, autojump_clock: object) -> None:
    world.grow_to(INTERVAL)
    oldest = await world.own(INTERVAL)
    bodies = {}
    for multiple in range(2, 5):
        while world.round <= multiple * INTERVAL:
            body = b"%d" % world.round
            bodies[world.round] = world.store.put(body)
            size = {"update": bodies[world.round], "size": 1}
            world.grow(updates=[world.update(identity(0).peer, **size)])
        # It asks for the updates of round after round.
        world.snapshots.note_request(VISITOR, bodies[INTERVAL + multiple])
        await world.own(multiple * INTERVAL)
        assert world.has(oldest)
    assert all(world.store.has(body) for body in bodies.values())
    # Past a newer snapshot it does not need the oldest any more.
    await trio.sleep(3600)
    world.snapshots.note_request(VISITOR, bodies[3 * INTERVAL + 1])
    world.grow_to(5 * INTERVAL)
    await world.own(5 * INTERVAL)
    assert not world.has(oldest)


async def test_readers_cannot_fill_the_disk(
    world: World, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of large ones.
    monkeypatch.setattr(retention, "_HELD_BYTES", 0)
    made = []
    for multiple in range(1, 9):
        world.grow_to(multiple * INTERVAL)
        made.append(await world.own(multiple * INTERVAL))
        for number, entry in enumerate(made):
            world.snapshots.note_request(identity(100 + number).peer, entry.blob)
    # Two for ourselves, and the two that have been fetched for longest.
    assert [world.has(entry) for entry in made] == [True, True, *[False] * 4, True, True]


@pytest.mark.parametrize(("last", "held"), [("oldest", True), ("newest", False)])
async def test_one_reader_holds_one_snapshot(
    world: World, autojump_clock: object, last: str, held: bool
) -> None:
    """The one that it began with last."""
    made = []
    for multiple in range(1, 9):
        world.grow_to(multiple * INTERVAL)
        made.append(await world.own(multiple * INTERVAL))
        for entry in made if last == "newest" else reversed(made):
            world.snapshots.note_request(VISITOR, entry.blob)
    assert [world.has(entry) for entry in made] == [held, *[False] * 5, True, True]


async def test_a_reader_that_begins_with_a_newer_snapshot_holds_that_one(
    world: World, autojump_clock: object
) -> None:
    """It held the older one for two minutes more, and all that it fetched meanwhile were dropped under
    it."""
    world.grow_to(INTERVAL)
    _, chunk = world.parts(await world.own(INTERVAL))
    world.snapshots.note_request(VISITOR, content_id(chunk))
    world.grow_to(2 * INTERVAL)
    fetched = await world.own(2 * INTERVAL)
    world.snapshots.note_request(VISITOR, fetched.blob)
    for multiple in range(3, 7):
        world.grow_to(multiple * INTERVAL)
        await world.own(multiple * INTERVAL)
        assert world.has(fetched)


async def test_updates_of_the_newest_rounds_let_go_of_no_snapshot(
    world: World, autojump_clock: object
) -> None:
    """Who fetches a state asks for what is announced as well."""
    world.grow_to(INTERVAL)
    fetched = await world.own(INTERVAL)
    for multiple in range(2, 6):
        world.snapshots.note_request(VISITOR, fetched.blob)
        update = world.store.put(b"update of round %d" % world.round)
        world.grow(updates=[world.update(identity(0).peer, update=update, size=1)])
        world.grow_to(multiple * INTERVAL)
        await world.own(multiple * INTERVAL)
        world.snapshots.note_request(VISITOR, update)
        assert world.has(fetched)


async def test_a_part_that_two_snapshots_share_is_of_the_one_that_is_read(
    world: World, autojump_clock: object
) -> None:
    """What did not change from one to the other is the same bytes."""
    retention, shared = Retention(), content_id(b"a chunk")
    old, new = (LocalSnapshot(round_, f"{round_:02x}" * 32, 1) for round_ in (5, 10))
    for each in (old, new):
        retention.register(each, [blob_of(each), shared])
    for blob in (blob_of(old), shared):
        retention.note_request(VISITOR, blob, [old, new], world.ledger)
    assert [retention.holds(each) for each in (old, new)] == [True, False]
    for blob in (blob_of(new), shared):
        retention.note_request(VISITOR, blob, [old, new], world.ledger)
    assert [retention.holds(each) for each in (old, new)] == [False, True]
    retention.forget(0, [new])
    assert retention.is_of_snapshot(shared)


async def test_of_small_snapshots_more_may_stay(world: World, autojump_clock: object) -> None:
    """Five members that come back one after the other are each at another one."""
    made = []
    for multiple in range(1, 9):
        world.grow_to(multiple * INTERVAL)
        made.append(await world.own(multiple * INTERVAL))
        for number, entry in enumerate(made):
            world.snapshots.note_request(identity(100 + number).peer, entry.blob)
    assert all(map(world.has, made))


async def test_no_snapshot_is_held_for_ever(world: World, autojump_clock: object) -> None:
    world.grow_to(INTERVAL)
    old = await world.own(INTERVAL)
    multiple, days = 1, 0
    while world.has(old):
        assert days < 9
        for _ in range(24 * 60):
            await trio.sleep(60)
            reader = identity(100 + days).peer
            world.snapshots.note_request(reader, old.blob)
        days, multiple = days + 1, multiple + 1
        world.grow_to(multiple * INTERVAL)
        await world.own(multiple * INTERVAL)
    assert days >= 7


async def test_of_a_crowd_of_readers_the_latest_count(world: World, autojump_clock: object) -> None:
    world.grow_to(INTERVAL)
    old = await world.own(INTERVAL)
    world.snapshots.note_request(VISITOR, old.blob)
    world.grow_to(2 * INTERVAL)
    newer = await world.own(2 * INTERVAL)
    for number in range(1, 100):
        world.snapshots.note_request(identity(100 + number).peer, newer.blob)
    world.grow_to(3 * INTERVAL)
    await world.own(3 * INTERVAL)
    assert not world.has(old)


async def test_nothing_is_kept_for_whom_a_newer_snapshot_serves_better(world: World) -> None:
    world.grow_to(INTERVAL)
    old = await world.own(INTERVAL)
    world.snapshots.note_request(VISITOR, old.blob)
    large = {"update": world.store.put(b"body"), "size": old.size + 1}
    world.grow(updates=[world.update(identity(0).peer, **large)])
    for multiple in (2, 3):
        world.grow_to(multiple * INTERVAL)
        await world.own(multiple * INTERVAL)
    assert not world.has(old)


async def test_who_was_away_fetches_the_updates_since_unless_a_snapshot_is_less(
    world: World,
) -> None:
    world.grow_to(INTERVAL)
    own = await world.own(INTERVAL)
    world.grow_to(3 * INTERVAL + 1)
    newest = world.snapshot(3 * INTERVAL)
    found = await world.snapshots.best(certified_only=False)
    assert blob_of(found) == own.blob
    assert not world.has(newest)
    # Not after a mismatch: then it is known to be wrong.
    assert blob_of(await world.snapshots.best(certified_only=True)) == newest.blob
    world.swarm_store.keep_snapshots([LocalSnapshot(own.round, own.blob.hex(), own.size)])
    world.start()
    large = {"update": content_id(b"body"), "size": own.size + 1}
    world.grow(updates=[world.update(identity(0).peer, **large)])
    assert blob_of(await world.snapshots.best(certified_only=False)) == newest.blob


async def _update_of_each_round(world: World, last: int, size: int) -> dict[int, ContentId]:
    """Return the counted updates of the rounds up to `last`, with the snapshots due on the way."""
    made = {}
    while world.round <= last:
        round_ = world.round
        made[round_] = world.store.put(b"update of round %d" % round_)
        entry = world.update(identity(0).peer, update=made[round_], size=size)
        world.grow(updates=[entry])
        if round_ and round_ % INTERVAL == 0:
            await world.own(round_)
    return made


async def test_updates_are_kept_for_who_was_away_while_they_are_less_than_a_snapshot(
    world: World,
) -> None:
    """A killed node fetches no snapshot for lack of updates, however short the interval is."""
    size = 4 * world.manifest.elements // 20
    last = 8 * INTERVAL
    updates = await _update_of_each_round(world, last, size)
    kept = [round_ for round_, update in updates.items() if world.store.has(update)]
    assert kept == list(range(last - 19, last + 1))
    # Those kept before a restart are not forgotten either.
    world.start()
    updates |= await _update_of_each_round(world, last + INTERVAL, size)
    kept = [round_ for round_, update in updates.items() if world.store.has(update)]
    assert kept == list(range(last - 19 + INTERVAL, last + INTERVAL + 1))


async def test_who_was_killed_before_its_first_snapshot_begins_with_the_initial_one(
    world: World,
) -> None:
    world.grow_to(3 * INTERVAL + 1)
    newest = world.snapshot(3 * INTERVAL)
    initial = BlobList(kind="snapshot", size=newest.size, chunks=(content_id(b"chunk"),)).encode()
    world.manifest = replace(world.manifest, initial=content_id(initial))
    world.start()
    world.store.put(initial)
    world.store.put(b"chunk")
    assert (await world.snapshots.best(certified_only=False)).round == -1
    # A newcomer does not have it.
    world.store.remove(content_id(b"chunk"))
    assert blob_of(await world.snapshots.best(certified_only=False)) == newest.blob


async def test_a_snapshot_that_grew_old_while_it_was_fetched_will_do(world: World) -> None:
    world.grow_to(INTERVAL + 1)
    world.on_fetch = lambda: world.grow_to(world.round + INTERVAL)
    with trio.fail_after(60):
        found = await world.snapshots.best(certified_only=True)
    assert found.round == INTERVAL
    assert world.ledger.snapshot is not None
    assert world.ledger.snapshot.round > 2 * INTERVAL


@pytest.mark.parametrize("use", ["initial", "snapshot"])
async def test_what_another_swarm_needs_stays_when_the_own_one_drops_it(
    world: World, tmp_path: Path, use: str
) -> None:
    """As when a swarm goes on from the export of another one in the same data directory."""
    world.grow_to(INTERVAL + 1)
    shared = await world.own(INTERVAL)
    other = replace(world.manifest, name="another", initial=shared.blob)
    if use == "snapshot":
        other = replace(other, initial=world.manifest.initial)
    directory = SwarmDir(tmp_path / swarm_text(other.swarm))
    store = SwarmStore(directory, other)
    write_atomically(directory.manifest, other.encode())
    if use == "snapshot":
        store.keep_snapshots([LocalSnapshot(3, shared.blob.hex(), shared.size)])
        store.write()
    later = []
    for number in range(2, 8):
        world.grow_to(number * INTERVAL + 1)
        later.append(await world.own(number * INTERVAL))
    assert world.has(shared)
    assert not world.has(later[0])


async def test_an_interrupted_fetch_goes_on_where_it_was(world: World) -> None:
    world.grow_to(INTERVAL + 1)
    begun = world.ledger.snapshot
    assert begun is not None
    listed, chunk = world.parts(begun)
    world.store.put(listed)
    await world.interrupted()
    world.grow_to(2 * INTERVAL + 1)
    world.start()
    found = await world.snapshots.best(certified_only=False)
    assert found.round == INTERVAL
    assert world.store.has(content_id(chunk))
    assert found in world.swarm_store.snapshots()


async def test_what_was_fetched_of_a_snapshot_in_vain_is_removed(
    world: World, autojump_clock: object
) -> None:
    """Also if the node was killed in between."""
    world.grow_to(INTERVAL + 1)
    old = world.ledger.snapshot
    assert old is not None
    listed, chunk = world.parts(old)
    world.store.put(listed)
    await world.interrupted()
    for data in (listed, chunk):
        del world.others[content_id(data)]
    world.store.put(chunk[:100])
    world.grow_to(2 * INTERVAL + 1)
    world.start()
    found = await world.snapshots.best(certified_only=False)
    assert found.round == 2 * INTERVAL
    assert not world.store.has(old.blob)


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
        b'["[]"]',
        b'[{"round": -5, "blob": "' + b"00" * 32 + b'", "size": 1}]',
        b'[{"round": 9e999, "blob": "' + b"00" * 32 + b'", "size": 1}]',
        b"\xff\xfe",
    ],
)
async def test_a_damaged_list_of_snapshots_costs_nothing_but_the_list(
    world: World, damage: bytes
) -> None:
    world.grow_to(INTERVAL + 1)
    world.swarm_store.keep_snapshots([LocalSnapshot(3, "00" * 32, 1)])
    world.swarm_store.write()
    (world.swarm_store.history.parent / "snapshots.json").write_bytes(damage)
    world.start()
    assert (await world.snapshots.best(certified_only=False)).round == INTERVAL
