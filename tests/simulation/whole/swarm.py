"""Whole node processes in one swarm, and their observers.

Inputs and effects of the members are observed where the runner calls its state machine; messages, where
they leave the process. They go to the same watch as in the fast simulation (`simulation.invariants`),
and to two more checks: nothing is sent before it is on the disk, and a process ends only with an error
that users are shown.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import trio
from distro_node.crypto.envelope import Envelope, open_envelope
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.node.network.cancel_scopes import open_scope
from distro_node.node.network.requests import Handler
from distro_node.node.session.aggregator_task import AggregatorTask
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.protocol.chain.sync import SYNC_PROTOCOL, read_answer
from distro_node.protocol.committee.aggregate import ABSTAIN
from distro_node.protocol.member.aggregation import MakeAggregate
from distro_node.protocol.member.effects import (
    Apply,
    Effect,
    Note,
    Publish,
    StoreEntry,
    Train,
)
from distro_node.protocol.member.inputs import Applied, Input, Rebased, Trained, UpdateHeld
from distro_node.protocol.member.member import Member
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.messages import RecordId
from simulation.invariants import Violation, Watch
from simulation.keys import RealKeys
from simulation.scores import Scores
from simulation.trace import Trace
from simulation.whole.disk import Disks
from simulation.whole.network import SimulatedNetwork
from simulation.whole.process import Machine
from simulation.whole.trainer import USUAL_SECONDS, toy_swarm, twisted
from simulation.whole.wires import Wires

# Private here: `_aggregate`, `_sign_votes`, `_member`: a liar's aggregate for a section comes from no
# trainer, and from nothing that its network sees made. More steps of tasks without any time passing are
# an endless loop.
_MOST_STEPS = 100_000
# The others never count a repeated audit, and a restarted node repeats none.
_FLEETING = ("heartbeat", "join", "evidence", "audit", "reaudit")
_LENGTH_BYTES = 4


class _Standstill(trio.abc.Instrument):
    """Detects tasks that wake each other for ever while the time does not advance."""

    def __init__(self, swarm: WholeSwarm) -> None:
        self._swarm = swarm
        self._time = 0.0
        self._steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        now = trio.current_time()
        self._steps = self._steps + 1 if now == self._time else 0
        self._time = now
        if self._steps == _MOST_STEPS:
            text = f"at {now:.3f} s tasks wake each other for ever, {task.name} among them"
            self._swarm.stop(Violation("standstill", text))


class WholeSwarm:
    """All machines of a run. Created inside `loop.run`."""

    def __init__(self, seed: int, base: Path, **manifest: Any) -> None:
        self.seed = seed
        self.chance = random.Random(f"swarm {seed}")
        self.manifest, self._blobs, initial = toy_swarm(**manifest)
        self.wires = Wires(seed)
        self.disks = Disks(base, seed)
        self.trace = Trace()
        self.keys = RealKeys()
        self.scores = Scores()
        self.training_seconds = USUAL_SECONDS
        """Seconds for a gradient on a new machine."""
        self.watch = Watch(self)  # type: ignore[arg-type]  # replaces the fast simulation's swarm
        # The watch has the initial parameters of the fast simulation.
        self.watch._parameters = {RecordId(self.manifest.swarm): initial}
        self.machines: dict[int, Machine] = {}
        self.bootstrap = (0, 1)
        self.network_of: dict[int, Callable[..., SimulatedNetwork]] = {}
        """Network classes that differ from the normal one: those of liars."""
        self.problem: BaseException | None = None
        self.decided: list[str] = []
        """Every record that an honest member decided, in the order of events."""
        self._deciders: dict[RecordId, set[int]] = {}
        self._numbers: dict[PeerId, int] = {}
        self._written: dict[int, set[bytes]] = {}
        self._sizes: dict[int, dict[str, int]] = {}
        self._scope = open_scope()

    # The interface for the watch

    @property
    def now(self) -> float:
        return trio.current_time()

    @property
    def nodes(self) -> list[Machine]:
        return list(self.machines.values())

    @property
    def alive(self) -> list[Machine]:
        return [machine for machine in self.nodes if machine.alive]

    def number(self, peer: PeerId | None) -> int | None:
        return None if peer is None else self._numbers.get(peer)

    def is_garbage(self, update: ContentId) -> bool:
        return any(update in machine.workshop.rubbish for machine in self.nodes)

    def describe(self) -> str:
        """Describe all nodes: decided/applied rounds, members."""
        return "; ".join(
            f"{m.index}: {m.member.view.round}/{m.member.view.applied_round}"
            f" of {len(m.member.view.members)} {m.member.view.state}"
            if m.member is not None
            else f"{m.index}: joining"
            for m in self.alive
        )

    # Running

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Observe the members' inputs and effects, and the disks' writes."""
        handle = Member.handle

        def watched(member: Member, what: Input, now: float) -> list[Effect]:
            machine = self.machines[self._numbers[member.view.me]]
            if not machine.alive:
                # What a dying process does reaches no other node.
                return handle(member, what, now)
            try:
                self._before(machine, member, what)
                effects = handle(member, what, now)
                self._after(machine, what, effects)
            except Violation as violation:
                self.stop(violation)
                return []
            return effects

        make_body = AggregatorTask._aggregate

        async def aggregate_or_twist(task: AggregatorTask, effect: MakeAggregate) -> bytes:
            body = await make_body(task, effect)
            workshop = self.machines[self._numbers[task._sign_votes._member.me]].workshop
            if body == ABSTAIN or not workshop.twists:
                return body
            return twisted(self.manifest, body, workshop.chance)

        with (
            patch.object(Member, "handle", watched),
            patch.object(AggregatorTask, "_aggregate", aggregate_or_twist),
            self.disks.mounted(),
        ):
            yield

    def add(self, index: int) -> Machine:
        """Return a new machine; nothing runs on it yet."""
        machine = Machine(self, index)
        self.machines[index] = machine
        self._numbers[machine.peer] = index
        return machine

    def checkpoint(self, guest: Machine) -> Checkpoint | None:
        """Return the checkpoint in a newcomer's link, as an honest member would give it out now."""
        if guest.starts > 1 or guest.index == self.bootstrap[0]:
            return None
        honest = (m for m in self.alive if m is not guest and m.index not in self.watch.liars)
        ledgers = (machine.member.view.ledger for machine in honest if machine.member is not None)
        return next((ledger.bound for ledger in ledgers if ledger.binding), None)

    def dies(self, machine: Machine) -> None:
        """Note that a process is about to die. A record that it decided by a ballot of its own that is
        not on its disk yet was sent to no other node: if no other node has decided it, it was not
        decided."""
        if machine.member is None or machine.index in self.watch.liars:
            return
        ledger, kept = machine.member.view.ledger, self._durable(machine, "ledger")
        signed = b"".join(self._durable(machine, "votes"))
        for round_ in reversed(range(len(ledger))):
            decided = ledger[round_]
            ballots = decided.certificate.ballots
            own = [ballot.signature for ballot in ballots if ballot.peer == machine.peer]
            alone = self._deciders.get(decided.record.id) == {machine.index}
            if not own or not alone or own[0] in signed or ledger.raw(round_) in kept:
                break
            self.watch.undecided(decided.record)

    def make_network(self, machine: Machine) -> SimulatedNetwork:
        """Return the network of a new process."""
        kind = self.network_of.get(machine.index, SimulatedNetwork)
        network = kind(self.wires, machine.index, machine.peer)
        if machine.index not in self.watch.liars:
            network.on_publish = lambda data: self._told(machine, data)
            network.on_serve = lambda protocol, handler: self._served(machine, protocol, handler)
        return network

    def fill(self, machine: Machine, data: DataDir) -> None:
        """Store what the founder has before it starts: everything that `create` made."""
        if machine.index == 0 and machine.starts == 1:
            store = BlobStore(data.blobs)
            for blob in self._blobs:
                store.put(blob)

    async def run(self, main: Any) -> None:
        """Run the lines and `main`, which is given a nursery for machines.

        Raises `Violation` for the first violation.
        """
        standstill = _Standstill(self)
        trio.lowlevel.add_instrument(standstill)
        try:
            with self.watched(), self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.wires.run)
                    await main(nursery)
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            text = "".join(traceback.format_exception(group))
            found = group.subgroup(Violation)
            problem = self.problem or Violation("exception", text)
            raise (found.exceptions[0] if found is not None else problem) from None
        finally:
            trio.lowlevel.remove_instrument(standstill)
        if self.problem is not None:
            raise self.problem

    def note(self, machine: Machine | None, what: str, *details: object) -> None:
        """Record an event."""
        index = machine.index if machine is not None else -1
        self.trace.note(trio.current_time(), index, what, *details)

    def failed(self, machine: Machine, error: BaseException) -> None:
        """Stop the run, because a process ended with an unexpected error."""
        text = "".join(traceback.format_exception(error))
        self.stop(Violation("exception", f"node {machine.index}: {error!r}\n{text}"))

    def stop(self, violation: BaseException) -> None:
        """Stop the run because of a violation."""
        if self.problem is None:
            self.problem = violation
            self._scope.cancel()

    # Inputs and effects of members

    def _before(self, machine: Machine, member: Member, what: Input) -> None:
        watch = self.watch
        honest = machine.index not in watch.liars
        if machine.member is not member:
            machine.member = member
            self._meet(machine, member)
        if not honest:
            return
        match what:
            case UpdateHeld(update):
                watch.holds(machine, update)  # type: ignore[arg-type]
            case Trained(update=update):
                # A sign vote is named by its parts, and aggregates are made by no trainer.
                machine.workshop.made.add(update)
                watch.holds(machine, update)  # type: ignore[arg-type]
            case Rebased(ledger):
                self.note(machine, "rebases", len(ledger), ledger.head)
                watch.rebased(machine, ledger)  # type: ignore[arg-type]
            case Applied(round_, fingerprint):
                record = member.view.ledger[round_].record
                watch.applied(machine, record, fingerprint)  # type: ignore[arg-type]

    def _meet(self, machine: Machine, member: Member) -> None:
        """Note that a process takes part: the records that it has caught up with were decided before."""
        self.note(machine, "takes part", len(member.view.ledger))
        for number in range(len(member.view.ledger)):
            decided = member.view.ledger[number]
            if decided.record.id not in self.watch.chains.records:
                self.watch.fetched(machine, decided)  # type: ignore[arg-type]

    def _after(self, machine: Machine, what: Input, effects: list[Effect]) -> None:
        watch, node = self.watch, machine
        machine.notes += [effect for effect in effects if isinstance(effect, Note)]
        for effect in effects:
            match effect:
                case Publish(envelope):
                    if envelope.sender == machine.peer:
                        watch.signed(node, envelope)  # type: ignore[arg-type]
                case StoreEntry(decided):
                    watch.kept(node, decided)  # type: ignore[arg-type]
                    record = decided.record
                    if node.index not in watch.liars:
                        self._deciders.setdefault(record.id, set()).add(node.index)
                        self.decided.append(f"{node.index} {record.round} {record.id.hex()}")
                        self.note(node, "decides", record.round, record.id)
                case Train():
                    watch.samples.told(node.peer, effect)
                case Apply():
                    watch.applying(node, effect)  # type: ignore[arg-type]
                case Note(kind, round_, peer, text) if kind != "decided":
                    self.note(node, kind, round_, self.number(peer), text)
        watch.stirred(node)  # type: ignore[arg-type]

    # Messages

    def _told(self, machine: Machine, data: bytes) -> None:
        envelope = open_envelope(data, swarm=self.manifest.swarm)
        try:
            self.watch.told(envelope)
            self.watch.published(machine, envelope)  # type: ignore[arg-type]
            self.note(machine, "says", envelope.kind, *self.watch.facts(envelope))
            self._check_written(machine, envelope, "gossip")
        except Violation as violation:
            self.stop(violation)

    def _served(self, machine: Machine, protocol: str, handler: Handler) -> Handler:
        if protocol != SYNC_PROTOCOL:
            return handler

        async def answer(peer: PeerId, request: bytes) -> Any:
            response = await handler(peer, request)
            if machine.alive and isinstance(response, bytes):
                try:
                    self._check_answer(machine, response)
                except Violation as violation:
                    self.stop(violation)
            return response

        return answer

    def _check_answer(self, machine: Machine, response: bytes) -> None:
        answer = read_answer(response)
        for raw in answer.envelopes:
            envelope = open_envelope(raw, swarm=self.manifest.swarm)
            if envelope.sender == machine.peer:
                self._check_written(machine, envelope, "an answer")
        kept = self._durable(machine, "ledger")
        for decided in answer.entries():
            raw = machine.member.view.ledger.raw(decided.record.round)
            if raw not in kept:
                raise Violation(
                    "durable",
                    f"node {machine.index} tells of round {decided.record.round} before it is on "
                    "its disk",
                    decided.record.id,
                )

    def _check_written(self, machine: Machine, envelope: Envelope, where: str) -> None:
        if envelope.kind in _FLEETING:
            return
        if envelope.encode() not in self._durable(machine, "votes"):
            raise Violation(
                "durable",
                f"node {machine.index} tells its {envelope.kind} in {where} before it is on its disk",
                machine.index,
            )

    def _durable(self, machine: Machine, file: str) -> set[bytes]:
        """Return all entries that a machine's file has ever durably held."""
        known = self._written.setdefault(machine.index, set())
        data = machine.storage.durable(machine.swarm_folder / file)
        place = 0
        while place + _LENGTH_BYTES <= len(data):
            length = int.from_bytes(data[place : place + _LENGTH_BYTES], "big")
            known.add(data[place + _LENGTH_BYTES : place + _LENGTH_BYTES + length])
            place += _LENGTH_BYTES + length
        return known
