"""Re-audits, with a fake trainer that records its calls: which update, on which parameters, and when
they are given up."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from distro_node.node.settings.components import TrainerSettings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.swarm_store import LocalSnapshot
from distro_node.node.training import reaudit
from distro_node.node.training.client import StepApplied, TrainerDied, TrainerFailed, TrainerSpec
from distro_node.node.training.reaudit import ReauditWorker, assigned_to_others
from distro_node.protocol.audit.disputes import Jury
from distro_node.protocol.audit.reputation import Audit, Dispute
from distro_node.protocol.audit.sign_score import SignSums
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.member.auditor import ReauditDone, RunReaudit
from distro_node.protocol.wire.blobs import BlobList
from distro_node.protocol.wire.messages import AuditScore
from simulation.chain import FINGERPRINT, Chain
from simulation.swarm import identity

ME, CHECKER, IDLE = (identity(n).peer for n in range(3))
ROUND = 4
CALLED = Jury({ME: 1, CHECKER: 1, IDLE: 1})

pytestmark = pytest.mark.virtual_time


class World:
    """A node whose ledger has some rounds of four members, and the trainers that it starts."""

    def __init__(self, tmp_path: Path, *, overlap: bool = False) -> None:
        self.chain = Chain(4, overlap=overlap)
        self.store = BlobStore(tmp_path)
        self.bodies = 0
        while self.chain.round < 8:
            entries = []
            for peer in self.chain.membership.peers:
                self.bodies += 1
                update = self.store.put(b"update %d" % self.bodies)
                entries.append(self.chain.update(peer, update=update))
            self.chain.grow(updates=entries)
        self.first = Audit(CHECKER, IDLE, ROUND, 3, 100)
        self.disputes = {self.first: Dispute(5, 3000, CALLED)}
        body = BlobList("snapshot", 4, (self.store.put(b"1234"),)).encode()
        self.snapshots = [LocalSnapshot(-1, self.store.put(body).hex(), 4)]
        self.did: list[str] = []
        self.specs: list[TrainerSpec] = []
        self.brought: list[int] = []
        self.heard: list[ReauditDone] = []
        self.reauditing: Callable[[], Any] = trio.lowlevel.checkpoint
        self.found = [SignSums(30, 9), SignSums(-1, 4)]
        self.open = 0
        self.starting: Exception | None = None
        self.hangs = False
        # Only the attributes with the same names here are used of each.
        world: Any = self
        self.reaudits = ReauditWorker(
            manifest=self.chain.manifest,
            spec=TrainerSpec(b"", tmp_path, TrainerSettings(device="cuda", micro_batch=8)),
            store=self.store,
            snapshots=world,
            momentum=tmp_path / "state" / "momentum",
            me=ME,
            fetch_samples=self.fetch_samples,
            start=world.start,
        )

    @property
    def effect(self) -> RunReaudit:
        entries = self.chain.ledger[self.first.round].record.updates
        update = next(entry.update for entry in entries if entry.peer == self.first.peer)
        return RunReaudit(self.first, update, (1, 2), 3)

    def ledger(self) -> Any:
        accounts = SimpleNamespace(
            disputes=self.disputes,
            may_reaudit=lambda _me, first: first in self.disputes,
            updates_count=lambda _peer: True,
            pending_reauditors=lambda first: {ME, CHECKER} - self.disputes[first].reaudits.keys(),
        )
        return _Ledger(self.chain.ledger, SimpleNamespace(reputation=accounts))

    def dispute_rounds(self, rounds: list[int], since: int) -> None:
        """Open a dispute about the work of each of these rounds, and call for a re-audit."""
        for round_ in rounds:
            self.first = Audit(CHECKER, IDLE, round_, 3, 100)
            self.disputes[self.first] = Dispute(since, 3000, CALLED)
            self.reaudits.put(self.effect)

    async def at_hand(self) -> list[LocalSnapshot]:
        return self.snapshots

    async def fetch_samples(self, samples: Any) -> None:
        self.brought += samples

    def audited(self, what: ReauditDone) -> None:
        self.heard.append(what)

    @asynccontextmanager
    async def start(self, spec: TrainerSpec) -> AsyncIterator[World]:
        self.specs.append(spec)
        if self.starting is not None:
            raise self.starting
        if self.hangs:
            await trio.sleep_forever()
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    async def load(self, chunks: object) -> int:
        self.did.append("load")
        return FINGERPRINT

    async def apply(
        self, round_: int, bodies: list[bytes], *_: object, **__: object
    ) -> StepApplied:
        self.did.append(f"apply {round_}")
        return StepApplied(FINGERPRINT, 0.0, 0)

    async def load_momentum(self, path: Path) -> bool:
        self.did.append("momentum")
        return False

    async def run_reaudit(
        self, round_: int, body: bytes, samples: Any, others: Any, share: int
    ) -> list[SignSums]:
        await self.reauditing()
        self.others = others
        self.did.append(f"reaudit {round_}: {samples} of {share}")
        return self.found

    async def run(self, seconds: float = 600.0) -> None:
        with trio.move_on_after(seconds):
            await self.reaudits.run(self)


class _Ledger:
    """A ledger with the test's own disputes."""

    def __init__(self, ledger: Any, audits: Any) -> None:
        self._ledger, self._audits = ledger, audits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def find(self, kind: type) -> Any:
        return self._audits if kind is AuditLedger else self._ledger.find(kind)

    def __len__(self) -> int:
        return len(self._ledger)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_it_recomputes_the_parameters_and_reaudits(world: World) -> None:
    world.reaudits.put(world.effect)
    await world.run()
    assert world.did == [
        *("load", "apply 0", "apply 1", "apply 2", "apply 3", "momentum"),
        "reaudit 4: (1, 2) of 3",
    ]
    assert world.heard == [ReauditDone(world.first, (AuditScore(30, 9), AuditScore(-1, 4)))]
    (spec,) = world.specs
    # Without disturbing the training trainer.
    assert (spec.settings.device, spec.settings.micro_batch) == ("cpu", 1)
    assert spec.nice > 0
    assert spec.settings.memory is not None
    # Compared with what others were assigned, the own samples first.
    ledger = world.chain.ledger
    mine, theirs = (ledger.assignments.share(ROUND, peer) or () for peer in (ME, IDLE))
    others = assigned_to_others(ledger, ROUND, IDLE, ME)
    assert mine
    assert others[: len(mine)] == mine
    assert set(world.others) <= set(others)
    assert not set(others) & set(theirs)
    assert set(world.brought) == {1, 2, *world.others}


async def test_with_overlap_the_parameters_are_those_of_a_round_before(tmp_path: Path) -> None:
    world = World(tmp_path, overlap=True)
    world.reaudits.put(world.effect)
    await world.run()
    assert world.did[:-2] == ["load", "apply 0", "apply 1", "apply 2"]
    assert len(world.heard) == 1


async def test_a_state_that_cannot_be_made_again_is_let_go(tmp_path: Path) -> None:
    late, poor, without = (World(tmp_path / str(number)) for number in range(3))
    late.snapshots = [LocalSnapshot(6, late.snapshots[0].blob, 4)]
    # Updates of an earlier round, or the update itself, are gone.
    poor.store.remove(poor.chain.ledger[2].record.updates[0].update)
    without.store.remove(without.effect.update)
    for world in (late, poor, without):
        world.reaudits.put(world.effect)
        await world.run()
        assert (world.did, world.heard) == ([], [])
    assert (late.specs, poor.specs) == ([], [])


async def test_a_trainer_goes_on_from_the_state_that_it_has_and_then_goes(world: World) -> None:
    world.dispute_rounds([4, 6], 5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.run)
        await trio.sleep(1.0)
        assert world.did == [
            *("load", "apply 0", "apply 1", "apply 2", "apply 3", "momentum"),
            "reaudit 4: (1, 2) of 3",
            *("apply 4", "apply 5", "momentum"),
            "reaudit 6: (1, 2) of 3",
        ]
        # An older state is reconstructed from the snapshot.
        world.did.clear()
        world.dispute_rounds([3], 5)
        await trio.sleep(reaudit._KEEP_ALIVE_SECONDS / 2)
        assert world.did[:2] == ["load", "apply 0"]
        assert (world.open, len(world.specs)) == (1, 1)
        await trio.sleep(reaudit._KEEP_ALIVE_SECONDS)
        assert world.open == 0
        world.reaudits.put(world.effect)
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    assert len(world.specs) == 2
    assert len(world.heard) == 4


@pytest.mark.parametrize(
    ("problem", "trainers"),
    [
        (TrainerFailed("internal", "an update does not decode"), 1),
        (OSError(errno.EMFILE, "too many open files"), 1),
        (TrainerDied("killed"), 2),
    ],
)
async def test_a_trainer_that_refuses_or_dies_costs_the_reaudit_alone(
    world: World, problem: Exception, trainers: int
) -> None:
    problems = [problem]

    async def fail_once() -> None:
        if problems:
            raise problems.pop()

    world.reauditing = fail_once
    world.dispute_rounds([4, 6], 5)
    await world.run()
    assert len(world.heard) == 1
    # A trainer that died is replaced.
    assert len(world.specs) == trainers


@pytest.mark.parametrize(
    "error",
    [
        TrainerDied("killed"),
        TrainerFailed("model_too_large", "it takes too much"),
        OSError(errno.EAGAIN, "no process can be started"),
    ],
)
async def test_where_no_trainer_starts_nothing_waits(world: World, error: Exception) -> None:
    world.starting = error
    world.dispute_rounds([4, 6], 5)
    await world.run()
    # Otherwise each of them would cost another start.
    assert (world.heard, len(world.specs)) == ([], 1)
    world.starting, world.found = None, [SignSums(30, 9), SignSums(0, 0)]
    world.reaudits.put(world.effect)
    await world.run()
    # Nothing is reported where there was nothing to compare.
    assert (world.heard, world.did[-1]) == ([], "reaudit 6: (1, 2) of 3")


async def test_a_trainer_that_hangs_as_it_starts_does_not_end_all_reaudits(world: World) -> None:
    world.hangs = True
    world.dispute_rounds([4], 5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.run, 30_000.0)
        await trio.sleep(10_000.0)
        assert (world.heard, len(world.specs)) == ([], 1)
        world.hangs = False
        world.dispute_rounds([6], 5)
        await trio.sleep(600.0)
        assert len(world.heard) == 1
        nursery.cancel_scope.cancel()


async def test_it_ends_with_the_dispute_and_after_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.reauditing = trio.sleep_forever
    world.reaudits.put(world.effect)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.run)
        await trio.sleep(10.0)
        assert len(world.specs) == 1
        world.disputes.clear()
        # A dispute that ends before its turn is not started.
        world.reaudits.put(world.effect)
    assert len(world.specs) == 1
    monkeypatch.setattr(reaudit, "_MAX_SECONDS", 5.0)
    world.disputes[world.first] = Dispute(5, 3000, CALLED)
    world.reaudits.put(world.effect)
    await world.run(20.0)
    assert len(world.specs) == 2
    assert world.heard == []


async def test_what_others_have_reaudited_comes_first_and_never_too_much_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaudit, "_MAX_WAITING", 3)
    last: Audit | None = None
    for number in range(2):
        world = World(tmp_path / str(number))
        world.dispute_rounds([2, 3, 4, 5, 6], 5)
        del world.disputes[world.first]
        if last is not None:
            world.disputes[last].reaudits[CHECKER] = "low"
        await world.run()
        heard = [each.low_audit for each in world.heard]
        # The oldest was dropped, and the newest is over.
        assert sorted(each.round for each in heard) == [4, 5]
        assert last in (None, heard[0])
        last = heard[-1]
