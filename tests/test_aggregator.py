"""Committees on a node: parts of sign votes from any holder, and an aggregate that the committee
agrees on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
from chain.committee_chain import AggregatedChain
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.network.exchange.blobs import FetchFailed
from distro_node.node.network.traffic import Traffic
from distro_node.node.session.aggregator_task import AggregatorTask, open_own_updates
from distro_node.node.session.sign_vote_exchange import SignVoteExchange
from distro_node.node.session.update_exchange import UpdateExchange
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.sign_vote_store import SignVotePartStore
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.node.training.client import TrainedUpdate
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.committee.aggregate import ABSTENTION, decode_aggregate
from distro_node.protocol.committee.aggregator_state import aggregator_bytes
from distro_node.protocol.committee.sections import sections
from distro_node.protocol.committee.sign_vote import encode_part, selected_count, step_of
from distro_node.protocol.committee.sign_vote_tree import part_name, sign_vote_id, with_proof
from distro_node.protocol.member.aggregation import AggregationPart, MakeAggregate
from distro_node.protocol.member.effects import FetchUpdate, Train
from distro_node.protocol.member.inputs import Trained
from distro_node.protocol.member.local_updates import Training
from distro_node.protocol.member.member_part import TipWork
from distro_node.protocol.util.bounded_dict import BoundedTable
from distro_node.protocol.wire.messages import RecordId
from simulation.keys import identity

PATIENCE = 2.0
MEMBERS = 6


class CommitteeNode:
    """A member's part in the committees, with a network made of all members' disks."""

    def __init__(self, world: World, number: int, root: Path) -> None:
        self.world = world
        self.peer = identity(number).peer
        self.root = root
        self.member: Any = SimpleNamespace(ledger=world.chain.ledger, me=self.peer)
        self.traffic = Traffic()
        self.offences: list[PeerId] = []
        self.withholds: Callable[[PeerId, ContentId], bool] = lambda asker, name: False
        self.slow = 0.0
        self.reports: list[Any] = []
        self.restart()

    def restart(self) -> None:
        """Start the process, for the first time or again."""
        network: Any = self
        self.store = BlobStore(self.root / "blobs")
        self.parts = SignVotePartStore(self.root / "sign-votes")
        manifest, telemetry = (
            self.world.chain.manifest,
            Telemetry(self.peer),
        )
        committees = manifest.committees
        assert committees is not None
        self.sign_votes = SignVoteExchange(
            manifest=manifest,
            committees=committees,
            member=self.member,
            network=network,
            store=self.parts,
            fetcher=network,
            telemetry=telemetry,
        )
        self.updates = UpdateExchange(
            manifest=manifest,
            member=self.member,
            network=network,
            store=self.store,
            fetcher=network,
            relays=network,
            telemetry=telemetry,
            ids=BoundedTable(1000),
            report=self.reports.append,
            expect=lambda *_: None,
            parts=self.sign_votes,
        )
        found = open_own_updates(
            *(manifest, self.store, self.updates, self.sign_votes),
            *(self.reports.append, lambda *_: None),
        )
        assert isinstance(found, AggregatorTask)
        self.task = found

    # Stand-ins for the network and the fetcher

    def connected(self) -> frozenset[PeerId]:
        return frozenset(node.peer for node in self.world.nodes if node is not self)

    def penalise(self, peer: PeerId, reason: str) -> None:
        self.offences.append(peer)

    async def fetch(self, name: ContentId, *, providers: Any, max_bytes: int, **_: Any) -> bytes:
        await trio.sleep(0.001)
        data = self.parts.get(name)
        asked = [self.world.node(peer) for peer in providers()] if data is None else []
        await trio.sleep(max((node.slow for node in asked), default=0.0))
        for peer in providers() if data is None else ():
            node = self.world.node(peer)
            found = None if node.withholds(self.peer, name) else node.parts.get(name)
            if found is not None and len(found) <= max_bytes and self.parts.keep(name, found):
                return found
        if data is None:
            await trio.sleep(0.05)
            raise FetchFailed(name, {})
        return data

    async def offer(self, wanted: object) -> None:
        raise AssertionError("a part of a sign vote is offered to a relay")

    # Actions

    def sign_vote(self, round_: int, seed: int = 0) -> bytes:
        """Return what its trainer makes."""
        (whole,), chance = sections(self.world.layout, 1), np.random.default_rng([round_, seed])
        committees = self.world.chain.manifest.committees
        assert committees is not None
        rotation_steps = committees.rotation_steps
        shapes = [
            (each.blocks, selected_count(each, rotation_steps, step_of(round_)))
            for each in whole.layout.tensors
        ]
        signs = [1 - 2 * chance.integers(0, 2, shape).astype(np.int8) for shape in shapes]
        return encode_part(whole, signs)

    async def send_sign_vote(self, round_: int, body: bytes | None = None) -> ContentId:
        what = Train(round_, RecordId(bytes(32)), (1,), round_)
        body = body or self.sign_vote(round_, self.world.nodes.index(self))
        await self.task.make_sign_vote(what, TrainedUpdate(body, 2.0, 10, 100, 1.0, 0.0))
        return self.reports.pop().update

    def requested_aggregate(self) -> MakeAggregate:
        """Return the aggregate that is requested of it now."""
        ledger = self.world.chain.ledger
        no_secrets: Any = None
        orders = AggregationPart(self.peer, no_secrets, Training(self.peer, overlap=False))
        at = TipWork(len(ledger), announced=False, collect_seconds=2 * PATIENCE)
        effect = (orders.work(at, ledger) or [])[0]
        assert isinstance(effect, MakeAggregate)
        return effect

    async def aggregate(self) -> ContentId:
        """Aggregate, and return the announced aggregate."""
        await self.task.make_aggregate(self.requested_aggregate())
        return self.reports.pop().update


class World:
    """Six members in two committees of three."""

    def __init__(self, root: Path, epoch: int = 3) -> None:
        self.chain = AggregatedChain(MEMBERS, epoch=epoch)
        optimizer = self.chain.manifest.optimizer
        self.layout = update_layout(
            self.chain.manifest.parameters, optimizer.chunk, optimizer.top_k
        )
        self.nodes: list[CommitteeNode] = []
        for number in range(MEMBERS):
            self.nodes.append(CommitteeNode(self, number, root / str(number)))

    def node(self, peer: PeerId) -> CommitteeNode:
        return next(node for node in self.nodes if node.peer == peer)

    def committee(self, section: int = 0) -> list[CommitteeNode]:
        return [
            self.node(peer)
            for peer in self.chain.committee_chain.committee(self.chain.round, section)
        ]

    async def announce_sign_votes(
        self,
        *,
        without: CommitteeNode | None = None,
        sign_votes: dict[PeerId, ContentId] | None = None,
    ) -> None:
        """Let all members announce their sign votes, and decide the round."""
        round_, entries = self.chain.round, []
        for node in self.nodes:
            if node is not without:
                sign_vote = (sign_votes or {}).get(node.peer) or await node.send_sign_vote(round_)
                entries.append(self.chain.update(node.peer, update=sign_vote, size=100))
        self.chain.grow(updates=entries)

    async def announce_aggregates(self, *silent: CommitteeNode) -> list[list[ContentId | None]]:
        """Return what each committee's members announce, and decide the round with all that they
        agree on."""
        committees = [[], []]
        for section, announced in enumerate(committees):
            for node in self.committee(section):
                announced.append((node, None if node in silent else await node.aggregate()))
        entries = [
            self.chain.update(node.peer, update=aggregate, size=100)
            for announced in committees
            for node, aggregate in announced
            if aggregate is not None
        ]
        self.chain.grow(updates=entries)
        # All members fetch what counts, to take the step.
        for node in self.nodes:
            for aggregate in self.chain.committee_chain.aggregates(
                self.chain.ledger[self.chain.round - 1].record
            ):
                found = (
                    other.store.get(aggregate) for other in self.nodes if aggregate is not None
                )
                body = next(filter(None, found), None)
                if body is not None:
                    node.store.put(body)
        return [[aggregate for _, aggregate in announced] for announced in committees]

    def counted_votes(self, node: CommitteeNode, aggregate: ContentId | None) -> tuple[bool, ...]:
        """Return which sign votes an aggregate counts."""
        assert aggregate is not None
        body = node.store.get(aggregate)
        assert body is not None
        return decode_aggregate(self.layout, body).counted


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_committee_makes_one_aggregate_in_each_step(world: World) -> None:
    for _ in range(4):
        await world.announce_sign_votes()
        committees = [world.committee(section) for section in (0, 1)]
        announced = await world.announce_aggregates()
        for committee, aggregates in zip(committees, announced, strict=True):
            assert len({*aggregates}) == 1
            assert world.counted_votes(committee[0], aggregates[0]) == (True,) * MEMBERS
        assert world.chain.committee_chain.aggregates(
            world.chain.ledger[world.chain.round - 1].record
        ) == (*(aggregates[0] for aggregates in announced),)


async def test_what_an_author_withholds_comes_from_the_committee(world: World) -> None:
    """It gives its sign vote to only one of the committee."""
    one, *others = world.committee()
    author = next(node for node in world.nodes if node not in (one, *others))
    author.withholds = lambda asker, name: asker != one.peer
    await world.announce_sign_votes()
    held = world.chain.ledger[world.chain.round - 1].record
    sign_vote = next(entry.update for entry in held.updates if entry.peer == author.peer)
    assert await one.sign_votes.get(FetchUpdate(held.round, author.peer, sign_vote, 9))
    ours, theirs = await world.announce_aggregates()
    assert len({*ours}) == 1
    assert world.counted_votes(one, ours[0]) == (True,) * MEMBERS
    # In its own committee no other member has received it, so it is alone, and that section gets no
    # aggregate.
    round_ = world.chain.round - 1
    announced = dict(zip(world.chain.committee_chain.committee(round_, 1), theirs, strict=True))
    alone = announced.pop(author.peer)
    assert len({*announced.values()}) == 1
    assert alone not in announced.values()
    aggregates = world.chain.committee_chain.aggregates(world.chain.ledger[round_].record)
    assert aggregates == (ours[0], None)


@pytest.mark.parametrize(("moment", "counted"), [(0.2, MEMBERS), (0.9, MEMBERS - 1)])
async def test_what_an_author_gives_one_aggregator_is_counted_by_all_or_none(
    world: World, moment: float, counted: int
) -> None:
    """It first refuses all of them. At the last moment, too late for the others to ask the one that
    has it, authors are no longer asked."""
    one, *_ = committee = world.committee()
    author = next(node for node in world.nodes if node not in committee)
    author.withholds = lambda asker, name: True
    await world.announce_sign_votes()
    announced: dict[PeerId, ContentId] = {}
    patience = 4.0

    async def aggregate(node: CommitteeNode) -> None:
        await node.task.make_aggregate(
            dataclasses.replace(node.requested_aggregate(), patience=patience)
        )
        announced[node.peer] = node.reports.pop().update

    async with trio.open_nursery() as nursery:
        for node in committee:
            nursery.start_soon(aggregate, node)
        await trio.sleep(moment * patience)
        author.withholds = lambda asker, name: asker != one.peer
    assert len({*announced.values()}) == 1
    assert world.counted_votes(one, announced[one.peer]).count(True) == counted


async def test_a_sign_vote_repeated_when_there_are_more_sections_has_no_parts(world: World) -> None:
    """A liar announces a sign vote of the previous epoch, of which others have parts."""
    committee, round_ = world.committee(), world.chain.round
    author = next(node for node in world.nodes if node not in committee)
    sign_vote = await author.send_sign_vote(round_)
    for count in (2, 3):
        for node in (author, *committee):
            part = await node.sign_votes.part(round_, author.peer, sign_vote, (0, count))
            assert (part is not None) == (count == 2)
            assert not node.offences


async def test_a_part_that_somebody_still_waits_for_is_not_forgotten(world: World) -> None:
    """Two tasks ask for it, and one of them gives up."""
    one, round_ = world.committee()[0], world.chain.round
    author = next(node for node in world.nodes if node not in world.committee())
    sign_vote = await author.send_sign_vote(round_)
    name = part_name(sign_vote, 0, 2)
    author.slow = 0.3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.sign_votes.part, round_, author.peer, sign_vote, (0, 2))
        await trio.sleep(0.01)
        with trio.move_on_after(0.1):
            await one.sign_votes.part(round_, author.peer, sign_vote, (0, 2))
        await one.sign_votes.sweep(round_ + 10)
    assert one.parts.has(name)
    await one.sign_votes.sweep(round_ + 10)
    assert not one.parts.has(name)


async def test_a_sign_vote_without_signs_counts_nowhere_and_is_its_authors_fault(
    world: World,
) -> None:
    """Its parts match its announcement, but contain no signs."""
    author, round_ = world.nodes[0], world.chain.round
    parts = [b"\1 no bits", b"\1 none either"]
    ids = [content_id(part) for part in parts]
    sign_vote = sign_vote_id(ids)
    for section, part in enumerate(parts):
        name = part_name(sign_vote, section, len(parts))
        author.parts.register(name, lambda data: True)
        author.parts.keep(name, with_proof(ids, section, part))
    await world.announce_sign_votes(sign_votes={author.peer: sign_vote})
    ours, _ = await world.announce_aggregates()
    assert len({*ours}) == 1
    aggregator = world.node(world.chain.committee_chain.committee(round_, 0)[0])
    record = world.chain.ledger[round_].record
    counted = dict(
        zip([e.peer for e in record.updates], world.counted_votes(aggregator, ours[0]), strict=True)
    )
    assert counted == {node.peer: node is not author for node in world.nodes}
    blamed = {peer for node in world.nodes for peer in node.offences}
    assert blamed == {author.peer}


async def test_what_is_no_part_is_not_kept(world: World) -> None:
    """A member of the committee passes on something else under the name of another's part."""
    liar, one, _ = world.committee()
    author = next(node for node in world.nodes if node not in world.committee())
    author.withholds = lambda asker, name: True
    sign_vote = await author.send_sign_vote(world.chain.round)
    name = part_name(sign_vote, 0, 2)
    liar.parts.register(name, lambda data: True)
    liar.parts.keep(name, b"\1" + bytes(100))
    assert not await one.sign_votes.get(FetchUpdate(world.chain.round, author.peer, sign_vote, 100))
    assert not one.parts.has(name)


async def test_an_aggregator_that_restarts_abstains_until_the_next_epoch(world: World) -> None:
    await world.announce_sign_votes()
    committee = world.committee()
    await world.announce_aggregates()
    committee[0].restart()
    for _ in range(2):
        await world.announce_sign_votes()
        ours, _ = await world.announce_aggregates()
        assert ours[0] == ABSTENTION
        assert ours[1] == ours[2] != ABSTENTION
    await world.announce_sign_votes()
    for aggregates in await world.announce_aggregates():
        assert len({*aggregates}) == 1
        assert aggregates[0] != ABSTENTION


async def test_an_aggregator_that_cannot_follow_abstains_without_waiting(world: World) -> None:
    await world.announce_sign_votes()
    committee = world.committee()
    await world.announce_aggregates()
    committee[0].restart()
    author = next(node for node in world.nodes if node not in committee)
    author.withholds = lambda asker, name: True
    await world.announce_sign_votes()
    patient = dataclasses.replace(committee[0].requested_aggregate(), patience=600.0)
    with trio.fail_after(60.0):
        await committee[0].task.make_aggregate(patient)
    assert committee[0].reports.pop().update == ABSTENTION


async def test_a_committee_starts_over_after_a_step_without_agreement(world: World) -> None:
    """All of it was restarted, or all but one: after a step without them they are back."""
    await world.announce_sign_votes()
    committee = world.committee()
    await world.announce_aggregates()
    for node in committee[1:]:
        node.restart()
    await world.announce_sign_votes()
    ours, _ = await world.announce_aggregates()
    assert ours[0] != ABSTENTION
    assert ours[1:] == [ABSTENTION, ABSTENTION]
    await world.announce_sign_votes()
    ours, _ = await world.announce_aggregates()
    assert len({*ours}) == 1
    assert ours[0] != ABSTENTION


async def test_a_late_aggregator_goes_on_if_it_has_what_counted(world: World) -> None:
    """Its aggregate would have been the same as the others'."""
    for late in (True, False, False):
        await world.announce_sign_votes()
        committee = world.committee()
        if late:
            await committee[0].task.make_aggregate(committee[0].requested_aggregate())
            committee[0].reports.clear()
        ours, _ = (
            await world.announce_aggregates(*committee[:1])
            if late
            else await world.announce_aggregates()
        )
        assert ours[1] not in (None, ABSTENTION)
        assert late or len({*ours}) == 1


async def test_an_aggregator_stops_waiting_for_a_sign_vote_before_the_next_step(
    world: World,
) -> None:
    """Its committee has agreed without it, while it still waits for a sign vote that is withheld."""
    committee = world.committee()
    author = next(node for node in world.nodes if node not in committee)
    author.withholds = lambda asker, name: True
    await world.announce_sign_votes()
    slow = dataclasses.replace(committee[0].requested_aggregate(), patience=60.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(committee[0].task.make_aggregate, slow)
        await trio.sleep(0.1)
        await world.announce_aggregates(*committee[:1])
        await world.announce_sign_votes(without=author)
        ours, _ = await world.announce_aggregates()
    assert len({*ours}) == 1
    assert ours[0] != ABSTENTION


async def test_an_aggregator_that_missed_a_step_abstains(world: World) -> None:
    for missed in (True, False):
        await world.announce_sign_votes()
        committee = world.committee()
        ours, _ = (
            await world.announce_aggregates(*committee[:1])
            if missed
            else await world.announce_aggregates()
        )
    assert ours[0] == ABSTENTION
    assert ours[1] == ours[2] != ABSTENTION


async def test_a_sign_vote_outlives_its_process(world: World) -> None:
    """All members that announced one were restarted before any part of it was fetched."""
    round_ = world.chain.round
    sign_votes = {node.peer: await node.send_sign_vote(round_) for node in world.nodes}
    for node in world.nodes:
        node.restart()
        assert await node.sign_votes.get(FetchUpdate(round_, node.peer, sign_votes[node.peer], 100))
    await world.announce_sign_votes(sign_votes=sign_votes)
    for section, aggregates in enumerate(await world.announce_aggregates()):
        assert len({*aggregates}) == 1
        aggregator = world.node(world.chain.committee_chain.committee(round_, section)[0])
        assert world.counted_votes(aggregator, aggregates[0]) == (True,) * MEMBERS


async def test_what_an_earlier_process_had_goes_when_it_is_of_no_use(world: World) -> None:
    node, round_ = world.nodes[0], world.chain.round
    await world.announce_sign_votes()
    node.restart()
    for applied in (round_, round_ + 1, round_ + 2):
        await node.updates.sweep(applied)
        assert list(node.parts.ids())
    await node.updates.sweep(round_ + 3)
    assert not list(node.parts.ids())


async def test_parts_go_when_their_step_is_over(world: World) -> None:
    round_ = world.chain.round
    await world.announce_sign_votes()
    await world.announce_aggregates()
    node = world.nodes[0]

    def sign_votes() -> list[ContentId]:
        return list(node.parts.ids())

    for applied in (round_, round_ + 1, round_ + 2):
        await node.updates.sweep(applied)
        assert sign_votes()
    await world.announce_sign_votes()
    await node.updates.sweep(round_ + 3)
    kept = {*sign_votes()}
    # Only those of the next step are here.
    assert len(kept) == 2
    await node.updates.sweep(round_ + 5)
    assert not sign_votes()


async def test_a_member_of_no_committee_needs_no_part(world: World) -> None:
    node = world.nodes[0]
    node.member.me = identity(9).peer
    wanted = FetchUpdate(world.chain.round, world.nodes[1].peer, content_id(b"a sign vote"), 100)
    assert await node.sign_votes.get(wanted)


async def test_a_sign_vote_waits_until_its_committees_are_drawn(world: World) -> None:
    """A member that needs several rounds for a sequence may be done an epoch before it is due."""
    node, due = world.nodes[0], 7
    assert not world.chain.committee_chain.sections(due)
    what = Train(due, RecordId(bytes(32)), (1,), 1)
    async with trio.open_nursery() as nursery:
        made = TrainedUpdate(node.sign_vote(due), 2.0, 10, 100, 1.0, 0.0)
        nursery.start_soon(node.task.make_sign_vote, what, made)
        await trio.sleep(0.5)
        assert not node.reports
        while world.chain.round < due:
            world.chain.grow()
    (report,) = node.reports
    assert isinstance(report, Trained)
    assert node.parts.has(part_name(report.update, 1, 2))


async def test_an_aggregator_without_memory_abstains_until_its_committee_starts_over(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = world.committee()[0]
    needed = aggregator_bytes(-(-world.chain.manifest.elements // 2))
    free = needed
    make_aggregate = AggregatorTask.make_aggregate

    async def on_its_machine(task: AggregatorTask, effect: MakeAggregate) -> None:
        """One aggregates at a time; the others have enough memory."""
        memory = free if task is one.task else 1 << 40
        monkeypatch.setattr(
            "distro_node.node.session.aggregator_task.free_main_memory", lambda: memory
        )
        await make_aggregate(task, effect)

    monkeypatch.setattr(AggregatorTask, "make_aggregate", on_its_machine)

    async def aggregates_like_others() -> bool:
        """Whether it announces the same as the others of its committee in a step, and does not
        abstain."""
        await world.announce_sign_votes()
        committees = [world.committee(section) for section in (0, 1)]
        mine = next(number for number, committee in enumerate(committees) if one in committee)
        announced = dict(
            zip(committees[mine], (await world.announce_aggregates())[mine], strict=True)
        )
        ours = announced.pop(one)
        (theirs,) = {*announced.values()}
        assert theirs != ABSTENTION
        return ours == theirs

    assert await aggregates_like_others()
    # Memory that it already holds is not required again.
    free = needed - 1
    assert await aggregates_like_others()
    free = 0
    assert not await aggregates_like_others()
    assert "0.0 GB are free" in caplog.text

    # The next epoch. For a new section it must hold everything, and later it cannot follow.
    free = needed - 1
    assert not await aggregates_like_others()
    free = needed
    assert not await aggregates_like_others()
    assert not await aggregates_like_others()

    assert await aggregates_like_others()
