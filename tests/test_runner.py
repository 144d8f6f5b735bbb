"""The member at work, with a network and a trainer made of lists: what peers cannot make it do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.network.exchange.blobs import FetchFailed
from distro_node.node.network.traffic import Traffic
from distro_node.node.runner import Runner
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import SwarmDir
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.node.telemetry.metrics import Metrics
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.chain.sync import compose_response
from distro_node.protocol.codec.update import encode_update, update_layout
from distro_node.protocol.member.effects import Apply, Publish
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.messages import NO_BLOCK, Announcement, Decided
from distro_node.protocol.wire.relay_requests import RelayRequest
from simulation.chain import FINGERPRINT, Chain
from simulation.swarm import identity

ME, LIAR = 0, 1
SNAPSHOT_INTERVAL = 20


class World:
    """A swarm of four: a runner, and a liar whose words a test puts into its network."""

    def __init__(self, tmp_path: Path) -> None:
        self.chain = Chain(4, snapshot_interval=SNAPSHOT_INTERVAL)
        self.liar = identity(LIAR).peer
        self.traffic = Traffic()
        self.offences: list[tuple[PeerId, str]] = []
        self.requests: list[PeerId] = []
        self.answer: Callable[[], bytes] = lambda: encode(compose_response(0, [], []))
        self.others: dict[ContentId, bytes] = {}
        self.applies: list[Apply] = []
        self.telemetry = Telemetry(identity(ME).peer, Metrics(version="test"))
        self.reloads = self.missed = 0
        self.offered: list[RelayRequest] = []
        self.store = BlobStore(tmp_path / "blobs")
        self.swarm_store = SwarmStore(SwarmDir(tmp_path / "swarm"), self.chain.manifest)
        self._to_runner, self._gossip = trio.open_memory_channel[tuple[PeerId, bytes]](100)

    def start(self) -> None:
        """Make the runner, at the end of the chain."""
        for round_ in range(len(self.chain.ledger)):
            self.swarm_store.keep(self.chain.ledger[round_])
        self.telemetry.keep_history(self.swarm_store.history)
        world: Any = self
        self.runner = Runner(
            manifest=self.chain.manifest,
            identity=identity(ME),
            network=world,
            store=self.store,
            fetcher=world,
            relays=world,
            swarm_store=self.swarm_store,
            ledger=self.swarm_store.load_ledger(),
            telemetry=self.telemetry,
            session=1,
            ticket=b"",
            update_ids={},
        )

    @property
    def layout(self):
        optimizer = self.chain.manifest.optimizer
        return update_layout(self.chain.manifest.parameters, optimizer.chunk, optimizer.top_k)

    def body(self, number: int) -> bytes:
        """A sound update, another one for each number."""
        positions = [
            np.arange(number, number + tensor.top_k, dtype=np.int32)[None].repeat(tensor.blocks, 0)
            for tensor in self.layout.tensors
        ]
        signs = [np.ones_like(places, dtype=np.int8) for places in positions]
        return encode_update(self.layout, positions, signs)

    async def say(self, kind: str, message: Any) -> None:
        """Let the liar say something."""
        words = self.chain.envelope(LIAR, kind, message).encode()
        await self._to_runner.send((self.liar, words))

    async def announce(self, body: bytes, **changes: Any) -> Announcement:
        self.others[content_id(body)] = body
        said = self.chain.announcement(
            LIAR, **({"update": content_id(body), "size": len(body)} | changes)
        )
        await self.say("announcement", said)
        return said

    def decide(self, **parts: Any) -> None:
        """Decide the next round at the runner, with everybody's signature."""
        self.tell(self.chain.grow(**parts))

    def tell(self, decided: Decided) -> None:
        """Let a ledger entry arrive at the runner."""
        self.runner._dispatch(lambda now: self.runner.member.receive_decided(decided, now))

    # In the place of the network, of the fetcher and of the trainer_supervisor

    def serve(self, *_: object, **__: object) -> None:
        pass

    def connected(self) -> frozenset[PeerId]:
        return frozenset({self.liar})

    def penalise(self, peer: PeerId, reason: str) -> None:
        self.offences.append((peer, reason))

    def peer_events(self) -> trio.MemoryReceiveChannel[Any]:
        return trio.open_memory_channel[Any](0)[1]

    async def subscribe(self, topic: str, validate: object) -> Any:
        return self._gossip

    async def publish(self, topic: str, data: bytes) -> None:
        pass

    async def request(self, peer: PeerId, *_: object, **__: object) -> bytes:
        await trio.sleep(0.01)
        self.requests.append(peer)
        return self.answer()

    async def fetch(self, cid: ContentId, **_: object) -> bytes:
        data = self.store.get(cid) or self.others.get(cid)
        if data is None:
            self.missed += 1
            await trio.sleep(0.1)
            raise FetchFailed(cid, {self.liar: "not found"})
        self.store.put(data)
        return data

    async def offer(self, update: RelayRequest) -> None:
        self.offered.append(update)

    async def run(self, reports: Runner) -> None:
        reports.loaded(len(self.chain.ledger) - 1, FINGERPRINT, None)

    def train(self, round: int, samples: object) -> None:
        pass

    def apply(self, effect: Apply) -> None:
        self.applies.append(effect)

    def reload(self) -> None:
        self.reloads += 1


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    world.start()
    shop: Any = world
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.runner.run, shop)
        await until(lambda: world.runner.member.at_tip)
        yield
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - whatever ends the wait has no event
            await trio.sleep(0.01)


pytestmark = pytest.mark.usefixtures("autojump_clock")


async def test_garbage_that_was_announced_does_not_stay_on_the_disk(world: World) -> None:
    async with running(world):
        said = await world.announce(b"no update")
        await until(lambda: world.offences)
        assert world.offences[0][0] == world.liar
        assert not world.store.has(said.update)


async def test_a_liar_that_announces_what_we_need_does_not_make_us_delete_it(world: World) -> None:
    precious = world.store.put(b"a chunk of the training data")
    async with running(world):
        await world.announce(b"a chunk of the training data")
        await until(lambda: world.offences)
        assert world.store.has(precious)


async def test_an_update_that_missed_its_round_is_removed(world: World) -> None:
    async with running(world):
        said = await world.announce(world.body(0), fingerprint=FINGERPRINT + 1)
        await until(lambda: said.update in world.runner._updates._ids)
        world.decide(updates=[])
        world.runner.applied(world.applies[-1].record.round, FINGERPRINT, 0.0, None)
        assert not world.store.has(said.update)


async def test_an_old_update_that_is_announced_again_stays_for_newcomers(world: World) -> None:
    body = world.body(0)
    async with running(world):
        said = await world.announce(body)
        await until(lambda: said.update in world.runner._updates._ids)
        world.decide(updates=[world.chain.update(LIAR, update=said.update, size=said.size)])
        world.runner.applied(world.applies[-1].record.round, FINGERPRINT, 0.0, None)
        # Once more, from other parameters, so that it cannot count.
        held = len(world.runner._updates._kept)
        await world.announce(body, fingerprint=FINGERPRINT + 1)
        await until(lambda: len(world.runner._updates._kept) > held)
        world.decide(updates=[])
        world.runner.applied(world.applies[-1].record.round, FINGERPRINT, 0.0, None)
        assert world.store.has(said.update)


async def test_updates_that_nobody_has_are_not_waited_for_when_a_snapshot_contains_them(
    world: World,
) -> None:
    async with running(world):
        world.decide()
        await until(lambda: world.missed >= 8)
        # No snapshot contains them, so they have to be had.
        assert world.reloads == 0
        while world.chain.round <= SNAPSHOT_INTERVAL + 1:
            world.decide(updates=[])
        await until(lambda: world.reloads)
        assert world.reloads == 1


async def test_what_the_trainer_applied_of_a_chain_that_was_left_is_passed_over(
    world: World,
) -> None:
    async with running(world):
        other = world.chain.fork()
        world.decide(updates=[])
        other.grow(updates=[])
        other.grow(updates=[])
        round_ = world.applies[-1].record.round
        world.runner._dispatch(
            lambda now: world.runner.member.rebase(other.ledger.truncated(1), now)
        )
        world.runner.applied(round_, FINGERPRINT, 0.0, None)
        assert world.reloads == 1
        assert not world.runner.member.at_tip
        assert not world.swarm_store.history.exists()


async def test_many_signs_of_a_fork_make_one_comparison(world: World) -> None:
    other = world.chain.fork()
    for _ in range(3):
        world.chain.grow()
        other.grow(updates=[])
    entries = [other.ledger[r] for r in range(1, 4)]
    world.answer = lambda: encode(compose_response(4, entries, []))
    async with running(world):
        for decided in entries * 10:
            world.tell(decided)
        await until(lambda: not world.runner._settling)
        assert 0 < len(world.requests) <= 3


async def test_a_liar_cannot_feed_us_a_chain_for_ever(world: World) -> None:
    """What it says of its height does not matter, and nothing after the first lie is asked for."""
    for _ in range(3):
        world.chain.grow()
    forged = world.chain.fork()
    forged.ledger = world.chain.ledger.truncated(2)
    decided = forged.decide(forged.record(updates=[]), signers=[world.liar])
    world.answer = lambda: encode(compose_response(1 << 40, [decided], []))
    async with running(world):
        world.tell(decided)
        await until(lambda: not world.runner._settling)
        assert len(world.requests) <= 6
        assert world.offences


async def test_a_node_that_is_expelled_ends(world: World) -> None:
    """Its identity is never admitted again, so it must not go on asking."""
    proof = world.chain.evidence(ME)
    async with running(world):
        assert not world.runner.finished.is_set()
        world.decide(updates=[], evidence=(proof,))
        assert world.runner.member.is_expelled
        await until(world.runner.finished.is_set)


async def test_a_node_that_was_started_asks_what_it_said_before_it_votes(world: World) -> None:
    skip = world.chain.envelope(ME, "skip", world.chain.ballot(NO_BLOCK, silent=[world.liar]))
    height = len(world.chain.ledger)
    world.answer = lambda: encode(compose_response(height, [], [skip.encode()]))
    async with running(world):
        await until(lambda: skip in world.runner.member.messages(height))
        assert skip in world.swarm_store.signed()


async def test_a_relay_hears_of_our_update_from_us(world: World) -> None:
    said = world.chain.announcement(ME)
    async with running(world):
        envelope = world.chain.envelope(ME, "announcement", said)
        world.runner._perform([Publish(envelope, durable=True)])
        await until(lambda: len(world.offered) == 1)
        assert world.offered[0].announcement == said
        assert world.offered[0].author == identity(ME).peer


async def test_an_announcement_is_timed_in_its_own_round(world: World) -> None:
    """Alone, a member has decided its round before the announcement is on its way."""
    said = world.chain.announcement(ME)
    async with running(world):
        world.decide(updates=[])
        assert world.runner.member.round == said.round + 1
        envelope = world.chain.envelope(ME, "announcement", said)
        world.runner._perform([Publish(envelope, durable=True)])
        assert world.telemetry.times[said.round].announced is not None
        assert said.round + 1 not in world.telemetry.times


async def test_the_parameters_that_were_loaded_are_told(world: World) -> None:
    async with running(world):
        told = world.telemetry.status()
        assert (told.round, told.fingerprint) == (
            len(world.chain.ledger) - 1,
            f"{FINGERPRINT:016x}",
        )
