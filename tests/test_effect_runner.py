"""The running member, with a network and a trainer made of lists: what peers cannot make it do."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.errors import ExitCode, UserError, leaves
from distro_node.node.network.exchange.blobs import FetchFailed
from distro_node.node.network.traffic import Traffic
from distro_node.node.session import effect_runner
from distro_node.node.session.effect_runner import Runner
from distro_node.node.session.update_exchange import RECENT_UPDATES
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import SwarmDir
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.audit.reputation import Audit
from distro_node.protocol.chain.sync import (
    MAX_ENTRIES,
    SYNC_PROTOCOL,
    SyncRequest,
    answer_to,
    compose_response,
    decode_request,
    decode_response,
)
from distro_node.protocol.codec.update import encode_update, update_layout
from distro_node.protocol.member import inputs
from distro_node.protocol.member.auditor import AuditScored, ReauditDone, RunReaudit, ScoreAudit
from distro_node.protocol.member.effects import (
    Apply,
    Publish,
    Train,
)
from distro_node.protocol.member.inputs import (
    EntryReceived,
    MessageReceived,
    Rebased,
)
from distro_node.protocol.util.bounded_dict import BoundedTable
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.messages import (
    NO_BLOCK,
    Announcement,
    AuditScore,
    Decided,
    Heartbeat,
    Proposal,
    decode_message,
)
from distro_node.protocol.wire.relay_requests import RelayRequest
from simulation.chain import FINGERPRINT, Chain
from simulation.swarm import identity
from trio.testing import MockClock

# Private here: `_dispatch`, `_perform`, `_validate`: what the tasks of a runner call, with inputs that
# the world would take rounds to bring about.
# Private here: `_updates`, `_kept`, `_comparing_chains`: what a node has let go, and when it is at rest,
# shows nowhere else.

ME, LIAR = 0, 1
SNAPSHOT_INTERVAL = 20


class World:
    """A swarm of four: a runner, and a liar whose messages a test puts into its network."""

    def __init__(self, tmp_path: Path) -> None:
        self.chain = Chain(4, snapshot_interval=SNAPSHOT_INTERVAL)
        self.liar = identity(LIAR).peer
        self.traffic = Traffic()
        self.offences: list[tuple[PeerId, str]] = []
        self.requests: list[PeerId] = []
        self.asked: list[SyncRequest] = []
        self.answer: Callable[[], bytes] = lambda: encode(compose_response(0, [], []))
        self.others: dict[ContentId, bytes] = {}
        self.applies: list[Apply] = []
        self.judged: list[ScoreAudit] = []
        self.again: list[RunReaudit] = []
        self.update_ids: BoundedTable[ContentId, None] = BoundedTable(RECENT_UPDATES)
        self.telemetry = Telemetry(identity(ME).peer)
        self.reloads = self.missed = 0
        self.offered: list[RelayRequest] = []
        self.served: dict[str, Callable[..., Any]] = {}
        self.published: list[bytes] = []
        self.store = BlobStore(tmp_path / "blobs")
        self.swarm_store = SwarmStore(SwarmDir(tmp_path / "swarm"), self.chain.manifest)
        self._to_runner, self._gossip = trio.open_memory_channel[tuple[PeerId, bytes]](100)

    def start(self) -> None:
        """Create the runner, at the end of the chain."""
        for round_ in range(len(self.chain.ledger)):
            self.swarm_store.keep(self.chain.ledger.raw(round_))
        self.swarm_store.write()
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
            start_number=1,
            ticket=b"",
            update_ids=self.update_ids,
        )

    @property
    def layout(self):
        optimizer = self.chain.manifest.optimizer
        return update_layout(self.chain.manifest.parameters, optimizer.chunk, optimizer.top_k)

    def body(self, number: int) -> bytes:
        """Return a valid update, a different one for each number."""
        positions = [
            np.arange(number, number + tensor.top_k, dtype=np.int32)[None].repeat(tensor.blocks, 0)
            for tensor in self.layout.tensors
        ]
        signs = [np.ones_like(places, dtype=np.int8) for places in positions]
        return encode_update(self.layout, positions, signs)

    async def say(self, kind: str, message: Any) -> None:
        """Send a message from the liar."""
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
        """Decide the next round at the runner, with every member's signature."""
        self.tell(self.chain.grow(**parts))

    def tell(self, decided: Decided) -> None:
        """Deliver a ledger entry to the runner."""
        self.runner._dispatch(EntryReceived(decided))

    # Stand-ins for the network, the fetcher and the trainer supervisor

    def serve(self, protocol: str, handler: Callable[..., Any], **_: object) -> None:
        self.served[protocol] = handler

    def connected(self) -> frozenset[PeerId]:
        return frozenset({self.liar})

    def penalise(self, peer: PeerId, reason: str) -> None:
        self.offences.append((peer, reason))

    def peer_events(self) -> trio.MemoryReceiveChannel[Any]:
        return trio.open_memory_channel[Any](0)[1]

    async def subscribe(self, topic: str, validate: object) -> Any:
        return self._gossip

    async def publish(self, topic: str, data: bytes) -> None:
        self.published.append(data)

    async def request(self, peer: PeerId, protocol: str, data: bytes, **_: object) -> bytes:
        await trio.sleep(0.01)
        self.requests.append(peer)
        if protocol == SYNC_PROTOCOL:
            self.asked.append(decode_request(data))
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

    def expect(self, round: int, update: ContentId) -> None:
        pass

    def stop_steps(self) -> None:
        pass

    async def forward_expected(self) -> None:
        await trio.lowlevel.checkpoint()

    async def report_starts(self) -> None:
        await trio.lowlevel.checkpoint()

    def train(self, effect: Train) -> None:
        pass

    def apply(self, effect: Apply) -> None:
        self.applies.append(effect)

    def judge(self, effect: ScoreAudit) -> None:
        self.judged.append(effect)

    def put(self, effect: RunReaudit) -> None:
        self.again.append(effect)

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
        await until(lambda: world.runner.member.view.at_tip)
        yield
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    # No limit of its own: pytest has one.
    while not condition():  # noqa: ASYNC110 - whatever ends the wait has no event
        await trio.sleep(0.01)


async def test_audits_are_for_the_trainer_and_for_reauditors(world: World) -> None:
    first = Audit(identity(2).peer, identity(3).peer, 1, 4, 100)
    judge, again = ScoreAudit(1, content_id(b"one")), RunReaudit(first, content_id(b"one"), (1,), 4)
    async with running(world):
        world.runner._perform([judge, again])
        assert (world.judged, world.again) == ([judge], [])
        second: Any = world
        world.runner.reaudits = second
        world.runner._perform([again])
        assert world.again == [again]
        # The member decides what follows from them: in this swarm work is not audited.
        world.runner.audited(AuditScored(1, 5, 4))
        world.runner.audited(ReauditDone(first, (AuditScore(5, 4),)))
        assert not world.published


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


@pytest.mark.parametrize("more", [-2, 2, 1 << 31])
async def test_a_size_that_was_announced_decides_nothing(world: World, more: int) -> None:
    """A liar announces another size of the same bytes to each member, and its record has yet another
    one."""
    body = world.body(0)
    async with running(world):
        said = await world.announce(body, size=len(body) + more)
        await until(lambda: said.update in world.update_ids)
        assert not world.offences
        applied = len(world.applies)
        size = len(body) + 2 * more if more < 0 else (1 << 32)
        world.decide(updates=[world.chain.update(LIAR, update=said.update, size=size)])
        await until(lambda: len(world.applies) > applied)
        assert said.update in {entry.update for entry in world.applies[-1].record.updates}


async def test_a_copycat_with_another_size_does_not_spoil_the_authors_update(world: World) -> None:
    body = world.body(0)
    copycat = identity(2).peer
    async with running(world):
        world.others[content_id(body)] = body
        copy = world.chain.announcement(copycat, update=content_id(body), size=len(body) - 1)
        world.runner._dispatch(MessageReceived(world.chain.envelope(copycat, "announcement", copy)))
        said = await world.announce(body)
        await until(lambda: said.update in world.update_ids)
        # The round's own account of it: both are held, and neither is bad.
        collection = world.runner.member.parts.round.collection
        assert len(collection.arrivals(0.0)) == 2
        assert not world.offences


async def test_an_update_that_missed_its_round_is_removed(world: World) -> None:
    async with running(world):
        said = await world.announce(world.body(0), fingerprint=FINGERPRINT + 1)
        await until(lambda: said.update in world.update_ids)
        world.decide(updates=[])
        await world.runner.applied(world.applies[-1].record.round, FINGERPRINT, 0.0, None)
        assert not world.store.has(said.update)


async def test_an_old_update_that_is_announced_again_stays_for_newcomers(world: World) -> None:
    body = world.body(0)
    async with running(world):
        said = await world.announce(body)
        await until(lambda: said.update in world.update_ids)
        world.decide(updates=[world.chain.update(LIAR, update=said.update, size=said.size)])
        await world.runner.applied(world.applies[-1].record.round, FINGERPRINT, 0.0, None)
        # Once more, from other parameters, so that it cannot count.
        await world.announce(body, fingerprint=FINGERPRINT + 1)
        await until(lambda: world.runner._updates._kept.of(world.chain.round))
        world.decide(updates=[])
        await world.runner.applied(world.applies[-1].record.round, FINGERPRINT, 0.0, None)
        assert world.store.has(said.update)


async def test_updates_that_nobody_has_are_not_waited_for_when_a_snapshot_contains_them(
    world: World,
) -> None:
    async with running(world):
        world.decide()
        await until(lambda: world.missed >= 8)
        # No snapshot contains them, so they must be fetched.
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
        world.runner._dispatch(Rebased(other.ledger.truncated(1)))
        await world.runner.applied(round_, FINGERPRINT, 0.0, None)
        assert world.reloads == 1
        assert not world.runner.member.view.at_tip
        assert not world.swarm_store.history.exists()


async def test_only_rounds_at_the_tip_are_measured_and_filtered_updates_are_counted(
    world: World,
) -> None:
    async with running(world):
        body = world.body(0)
        said = await world.announce(body)
        await until(lambda: said.update in world.update_ids)
        for _ in range(2):
            update = world.chain.update(LIAR, update=said.update, size=said.size)
            world.decide(updates=[update])
        last = world.chain.round - 1
        timed: list[bool] = []
        real = world.telemetry.applied

        def applied(*arguments: Any, at_tip: bool = True, **named: Any) -> None:
            timed.append(at_tip)
            real(*arguments, at_tip=at_tip, **named)

        world.telemetry.applied = applied
        for round_ in (last - 1, last):
            await until(lambda round_=round_: world.runner.member.view.awaits(round_))
            await world.runner.applied(round_, FINGERPRINT, 0.0, None, left_out=1)
        assert timed == [False, True]
        assert world.telemetry.counts.updates_filtered == 2


async def test_the_status_does_not_say_training_while_a_snapshot_is_fetched(world: World) -> None:
    async with running(world):
        assert world.telemetry.state == "training"
        other = world.chain.fork()
        world.decide(updates=[])
        other.grow(updates=[])
        other.grow(updates=[])
        world.runner._dispatch(Rebased(other.ledger.truncated(1)))
        assert world.telemetry.state == "syncing"


async def test_the_status_does_not_say_training_while_the_trainer_hangs(
    world: World, autojump_clock: MockClock
) -> None:
    async with running(world):
        world.decide(updates=[])
        await trio.sleep(10.0)
        # A large model's step takes a while.
        assert world.telemetry.state == "training"
        await trio.sleep(10.0)
        assert world.telemetry.state == "syncing"
        await world.runner.applied(world.applies[-1].record.round, FINGERPRINT, 0.0, None)
        assert (world.telemetry.state, world.telemetry.progress) == ("training", None)


async def test_a_node_that_always_comes_to_other_parameters_ends_and_reports_why(
    world: World,
) -> None:
    """It loaded them ten times a second, for ever."""

    async def err() -> None:
        async with running(world):
            world.decide(updates=[])
            for _ in range(3):
                round_ = world.applies[-1].record.round
                await world.runner.applied(round_, FINGERPRINT + 1, 0.0, None)
                world.decide(updates=[])
                world.runner.loaded(round_ - 1, FINGERPRINT, None)

    with pytest.raises(BaseExceptionGroup) as caught:
        await err()
    (error,) = leaves(caught.value)
    assert isinstance(error, UserError)
    assert error.code is ExitCode.NO_DEVICE
    assert "3 times in a row" in error.problem
    assert world.reloads == 2


async def test_many_signs_of_a_fork_make_one_comparison(world: World) -> None:
    other = world.chain.fork()
    for _ in range(3):
        world.chain.grow()
        other.grow(updates=[])
    entries = [other.ledger[r] for r in range(1, 4)]
    world.answer = lambda: encode(compose_response(4, map(encode, entries), []))
    async with running(world):
        for decided in entries * 10:
            world.tell(decided)
        await until(lambda: not world.runner._comparing_chains)
        assert 0 < len(world.requests) <= 3


async def test_a_chain_that_parts_before_what_is_final_is_reported_once(
    world: World, autojump_clock: MockClock
) -> None:
    """Before the fix, nothing reported that the others had diverged for good."""
    other = world.chain.fork()
    for _ in range(5):
        world.chain.grow()
        other.grow(updates=[])

    def answer() -> bytes:
        _, ids, _, _ = answer_to(world.asked[-1], other.ledger, lambda round_: [])
        return encode(compose_response(len(other.ledger), [], [], ids))

    world.answer = answer
    async with running(world):
        head = world.chain.ledger.head
        assert world.runner.diverged_peers() == frozenset()
        for _ in range(3):
            world.tell(other.ledger[4])
            # A comparison at most every ten seconds.
            await trio.sleep(11)
            await until(lambda: not world.runner._comparing_chains)
        assert world.runner.diverged_peers() == {world.liar}
        said = [event for event in world.telemetry.events if event.kind == "diverged"]
        assert len(said) == 1
        assert "on another chain" in said[0].text
        assert f"round {world.chain.ledger.final_round};" in said[0].text
        assert world.runner.ledger().head == head
        assert not world.offences


async def test_a_liar_cannot_feed_us_a_chain_for_ever(world: World) -> None:
    """The height that it claims does not matter, and nothing is requested after the first lie."""
    for _ in range(3):
        world.chain.grow()
    forged = world.chain.fork()
    forged.ledger = world.chain.ledger.truncated(2)
    decided = forged.decide(forged.record(updates=[]), signers=[world.liar])
    world.answer = lambda: encode(compose_response(1 << 40, [encode(decided)], []))
    async with running(world):
        world.tell(decided)
        await until(lambda: not world.runner._comparing_chains)
        assert len(world.requests) <= 6
        assert world.offences


async def test_who_forwards_what_nobody_signed_is_not_listened_to_any_further(world: World) -> None:
    """An answer of eight megabytes contains tens of thousands of messages; each takes time to check."""
    height = len(world.chain.ledger)
    good = world.chain.envelope(LIAR, "heartbeat", Heartbeat(height, 1)).encode()
    bad = good[:-1] + bytes([good[-1] ^ 1])
    world.answer = lambda: encode(compose_response(height, [], [bad] * 1000))
    async with running(world):
        await until(lambda: world.offences)
        assert world.offences[0] == (world.liar, "bad_signature")
        assert world.traffic.rejected["bad_signature"] <= len(world.offences)


async def test_only_a_leaders_proposal_is_passed_on(world: World) -> None:
    """Proposals are long: if any member could send one in every slot, gossip would multiply it."""
    async with running(world):
        member = world.runner.member
        leaders = world.chain.leaders
        record = world.chain.record(updates=[])
        for sender in leaders:
            proposal = world.chain.envelope(sender, "proposal", Proposal(1, record))
            reason = world.runner._validate(sender, proposal.encode())
            assert reason == (None if sender == leaders[0] else "not_leader")
        world.runner._dispatch(
            MessageReceived(world.chain.envelope(leaders[0], "proposal", Proposal(1, record)))
        )
        for number in range(3):
            other = world.chain.record(updates=[], fingerprint=number)
            again = world.chain.envelope(leaders[0], "proposal", Proposal(1, other)).encode()
            assert world.runner._validate(leaders[0], again) == "equivocation"
        assert len(member.view.messages(member.view.round)) >= 1


async def test_a_long_message_of_a_stranger_is_not_even_decoded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = 40
    updates = [world.chain.update(40, update=ContentId(bytes([n]) * 32)) for n in range(100)]
    record = dataclasses.replace(world.chain.record(updates=[]), updates=tuple(updates))
    words = world.chain.envelope(stranger, "proposal", Proposal(1, record)).encode()

    def never(envelope: object) -> None:
        raise AssertionError("it was decoded")

    async with running(world):
        monkeypatch.setattr(inputs, "decode_message", never)
        assert world.runner._validate(identity(stranger).peer, words) == "not_member"


async def test_a_gossip_message_is_opened_and_decoded_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validator opens it before it is forwarded; the reader takes over what the validator made."""
    opened: list[bytes] = []
    genuine = effect_runner.open_envelope

    def counting(data: bytes, **options: Any) -> Envelope:
        opened.append(data)
        return genuine(data, **options)

    monkeypatch.setattr(effect_runner, "open_envelope", counting)
    height = len(world.chain.ledger)
    skip = world.chain.envelope(LIAR, "skip", world.chain.ballot(NO_BLOCK))
    async with running(world):
        assert world.runner._validate(world.liar, skip.encode()) is None
        # Gossip passes on an equal message, which need not be the same object.
        await world._to_runner.send((world.liar, bytes(bytearray(skip.encode()))))
        await until(lambda: skip in world.runner.member.view.messages(height))
        assert opened == [skip.encode()]
        # Without the validator's (the reader is far behind) it is opened again.
        await world._to_runner.send((world.liar, skip.encode()))
        await until(lambda: len(opened) == 2)


async def test_a_node_that_is_expelled_ends(world: World) -> None:
    """Its identity is never admitted again, so it must stop asking."""
    proof = world.chain.evidence(ME)
    async with running(world):
        assert not world.runner.finished.is_set()
        world.decide(updates=[], evidence=(proof,))
        assert world.runner.member.view.is_expelled
        await until(world.runner.finished.is_set)


async def test_a_started_node_asks_for_its_own_messages_before_it_votes(world: World) -> None:
    skip = world.chain.envelope(ME, "skip", world.chain.ballot(NO_BLOCK, silent=[world.liar]))
    height = len(world.chain.ledger)
    world.answer = lambda: encode(compose_response(height, [], [skip.encode()]))
    async with running(world):
        await until(lambda: skip in world.runner.member.view.messages(height))
        await world.swarm_store.written()
        assert skip in world.swarm_store.signed()


async def test_messages_of_before_a_restart_stay_until_their_round_is_decided(world: World) -> None:
    """Before the fix, the next cleanup deleted them, whatever their round."""
    while len(world.chain.ledger) < 60:
        world.chain.grow(updates=[])
    ahead = world.chain.fork()
    while len(ahead.ledger) < 66:
        ahead.grow(updates=[])
    # The ledger's end is lost, but not the messages signed after it.
    words = [chain.envelope(ME, "skip", chain.ballot(NO_BLOCK)) for chain in (world.chain, ahead)]
    for word in words:
        world.swarm_store.sign(word.encode())
    world.swarm_store.write()
    async with running(world):
        while world.runner.member.view.round <= 64:
            world.decide(updates=[])
        await world.swarm_store.written()
        assert world.swarm_store.signed() == words[1:]


async def test_own_messages_reach_nobody_before_they_are_on_the_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by gossip nor in an answer to a peer's request for what it missed; meanwhile the loop
    goes on."""
    disk_is_ready, genuine = threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        assert disk_is_ready.wait(60)
        genuine(descriptor)

    skip = world.chain.envelope(ME, "skip", world.chain.ballot(NO_BLOCK, silent=[world.liar]))
    height = len(world.chain.ledger)
    answers: list[bytes] = []

    async def ask() -> None:
        request = encode(SyncRequest(world.chain.manifest.swarm, height, (), MAX_ENTRIES))
        answers.append(await world.served[SYNC_PROTOCOL](world.liar, request))

    async with running(world), trio.open_nursery() as nursery:
        await world.swarm_store.written()
        monkeypatch.setattr(os, "fsync", slow)
        world.runner._dispatch(MessageReceived(skip))
        world.runner._perform([Publish(skip, True, decode_message(skip))])
        assert skip in world.runner.member.view.messages(height)
        nursery.start_soon(ask)
        await trio.sleep(1)
        assert not answers
        assert skip.encode() not in world.published
        disk_is_ready.set()
        await until(lambda: answers and skip.encode() in world.published)
        assert skip in world.swarm_store.signed()
        assert skip.encode() in decode_response(answers[0]).envelopes


async def test_a_relay_learns_of_our_update_from_us(world: World) -> None:
    said = world.chain.announcement(ME)
    async with running(world):
        envelope = world.chain.envelope(ME, "announcement", said)
        world.runner._perform([Publish(envelope, True, decode_message(envelope))])
        await until(lambda: len(world.offered) == 1)
        assert world.offered[0].announcement == said
        assert world.offered[0].author == identity(ME).peer


async def test_an_announcement_is_timed_in_its_own_round(world: World) -> None:
    """A lone member has decided its round before the announcement is sent."""
    said = world.chain.announcement(ME)
    async with running(world):
        world.decide(updates=[])
        assert world.runner.member.view.round == said.round + 1
        envelope = world.chain.envelope(ME, "announcement", said)
        world.runner._perform([Publish(envelope, True, decode_message(envelope))])
        assert world.telemetry.times[said.round].announced is not None
        assert said.round + 1 not in world.telemetry.times


async def test_the_parameters_that_were_loaded_are_reported(world: World) -> None:
    async with running(world):
        told = world.telemetry.status()
        assert (told.round, told.fingerprint) == (
            len(world.chain.ledger) - 1,
            f"{FINGERPRINT:016x}",
        )
