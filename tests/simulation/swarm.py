"""A swarm in virtual time: the daemon's own state machines, a simple network, a toy model.

One seed is one run. Training is a hash of (peer, round) and the parameters are a running hash of what
was applied, so "identical parameters" is one comparison, made whenever two nodes stand at the same
height.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from distro_node.crypto.envelope import Envelope, signing_bytes
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import Identity, PeerId
from distro_node.protocol.effects import (
    Apply,
    AskSync,
    Effect,
    FetchUpdate,
    Fork,
    Keep,
    Note,
    Publish,
    Resync,
    Train,
)
from distro_node.protocol.errors import ProtocolError
from distro_node.protocol.fork import better_chain
from distro_node.protocol.ledger import Ledger
from distro_node.protocol.manifest import (
    DataSpec,
    Manifest,
    ParameterSpec,
    RoundSpec,
    ShardSpec,
)
from distro_node.protocol.member import Member
from distro_node.protocol.messages import Decided, SnapshotEntry

TICK = 0.25


def identity(index: int) -> Identity:
    return Identity.from_seed(content_id(b"simulated peer %d" % index))


def toy_manifest(**changes: Any) -> Manifest:
    shard = ShardSpec(blob=content_id(b"shard"), tokens=1_000_001)
    rounds = RoundSpec(
        sequences=64,
        start_members=changes.pop("start_members", 1),
        snapshot_interval=changes.pop("snapshot_interval", 5),
        min_seconds=changes.pop("min_seconds", 0.0),
        collect_min_seconds=0.5,
        collect_max_seconds=30.0,
        lease_min_seconds=6.0,
    )
    settings: dict[str, Any] = {
        "name": "toy",
        "model": {"model_type": "toy"},
        "parameters": (ParameterSpec(name="weight", shape=(64, 64)),),
        "initial": content_id(b"initial"),
        "data": DataSpec(
            sequence_length=100,
            token_bytes=1,
            vocabulary=256,
            shards=(shard,),
            heldout=shard,
            tokenizer=content_id(b"tokenizer"),
        ),
        "rounds": rounds,
        "founder": identity(0).peer,
    }
    return Manifest(**(settings | changes))


def next_parameters(parameters: int, updates: list[ContentId]) -> int:
    if not updates:
        return parameters
    digest = content_id(parameters.to_bytes(8, "big") + b"".join(sorted(updates)))
    return int.from_bytes(digest[:8], "big")


@dataclass
class Disk:
    """What survives a crash."""

    entries: list[Decided] = field(default_factory=list)
    said: list[Envelope] = field(default_factory=list)
    snapshots: dict[int, int] = field(default_factory=dict)
    blobs: set[ContentId] = field(default_factory=set)


class Node:
    """One simulated node: a member, its disk and its toy trainer."""

    def __init__(self, swarm: Swarm, index: int, disk: Disk | None = None) -> None:
        self.swarm = swarm
        self.index = index
        self.identity = identity(index)
        self.peer = self.identity.peer
        self.disk = disk or Disk()
        self.alive = True
        self.frozen = False
        self.training_seconds = 1.0
        self.refunds = 0
        self.counted: list[int] = []
        self.notes: list[Note] = []
        self.updates_seen: list[int] = []
        ledger = Ledger(swarm.manifest)
        for decided in self.disk.entries:
            ledger.append(decided)
        self.member = Member(
            manifest=swarm.manifest,
            me=self.peer,
            sign=self._sign,
            ledger=ledger,
            now=swarm.now,
            session=int(swarm.now),
        )
        self.member.restore(self.disk.said, swarm.now)
        self.parameters = 0

    def start(self) -> None:
        self._load()
        self._tick()

    def stop(self) -> None:
        self.alive = False

    def _load(self) -> None:
        """Load the newest snapshot, which for the toy model everybody always has."""
        entry = self.member.ledger.snapshot
        round_, self.parameters = -1, 1
        if entry is not None:
            round_, self.parameters = entry.round, self.swarm.snapshots[entry.round]
        snapshot = self._snapshot(round_) if self._due(round_) else None
        self.run(self.member.loaded(round_, self.parameters, snapshot, self.swarm.now))

    def _due(self, round_: int) -> bool:
        return round_ > 0 and round_ % self.swarm.manifest.rounds.snapshot_interval == 0

    def _snapshot(self, round_: int) -> SnapshotEntry:
        blob = content_id(b"snapshot" + self.parameters.to_bytes(8, "big"))
        return SnapshotEntry(round_, blob, 4 * self.swarm.manifest.elements)

    def _sign(self, kind: str, body: bytes) -> Envelope:
        swarm = self.swarm.manifest.swarm
        signature = self.identity.sign(signing_bytes(kind, swarm, body))
        return Envelope(kind=kind, swarm=swarm, sender=self.peer, body=body, signature=signature)

    def _tick(self) -> None:
        if self.frozen:
            self.swarm.at(TICK, self._tick)
        elif self.alive:
            self.run(self.member.tick(self.swarm.now))
            self.swarm.at(TICK, self._tick)

    def deliver(self, envelope: Envelope) -> None:
        self._guarded(lambda: self.member.receive(envelope, self.swarm.now))

    def deliver_decided(self, decided: Decided) -> None:
        self._guarded(lambda: self.member.receive_decided(decided, self.swarm.now))

    def _guarded(self, act: Callable[[], list[Effect]]) -> None:
        if self.frozen:
            self.swarm.at(1.0, lambda: self._guarded(act))
        elif self.alive:
            try:
                effects = act()
            except ProtocolError as error:
                self.swarm.rejected[error.reason] = self.swarm.rejected.get(error.reason, 0) + 1
            else:
                self.run(effects)

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._run_one(effect)

    def _run_one(self, effect: Effect) -> None:
        swarm, member = self.swarm, self.member
        match effect:
            case Publish(envelope, durable):
                if durable:
                    self.disk.said.append(envelope)
                swarm.gossip(self, envelope)
            case Train(round_, _, samples):
                update = content_id(self.peer + round_.to_bytes(8, "big"))
                self.disk.blobs.add(update)

                def done() -> None:
                    tokens = 100 * len(samples)
                    self._guarded(
                        lambda: member.trained(round_, update, 1000, tokens, 2.0, swarm.now)
                    )

                swarm.at(self.training_seconds, done)
            case FetchUpdate(_, _, update, _):
                swarm.fetch(self, update)
            case Apply(record, own_counted, snapshot_due):
                self.parameters = next_parameters(
                    self.parameters, [entry.update for entry in record.updates]
                )
                swarm.check(record.round, self.parameters)
                if own_counted:
                    self.counted.append(record.round)
                self.updates_seen.append(len(record.updates))
                snapshot = None
                if snapshot_due:
                    swarm.snapshots[record.round] = self.parameters
                    snapshot = self._snapshot(record.round)
                swarm.at(
                    0.05,
                    lambda: self._guarded(
                        lambda: member.applied(record.round, self.parameters, snapshot, swarm.now)
                    ),
                )
            case Keep(decided):
                self.disk.entries.append(decided)
            case AskSync(round_):
                swarm.sync(self, round_)
            case Resync():
                self._load()
            case Note():
                self.notes.append(effect)
            case Fork():
                swarm.settle(self)


class Swarm:
    """Virtual time, a network with latency and loss, and the nodes."""

    def __init__(self, manifest: Manifest, seed: int = 0, *, loss: float = 0.0) -> None:
        self.manifest = manifest
        self.random = random.Random(seed)
        self.now = 0.0
        self.loss = loss
        self.nodes: list[Node] = []
        self.rejected: dict[str, int] = {}
        self.snapshots: dict[int, int] = {}
        self.forks = 0
        self._parameters: dict[int, int] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = 0

    def add(self, index: int, disk: Disk | None = None) -> Node:
        node = Node(self, index, disk)
        self.nodes.append(node)
        node.start()
        return node

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.nodes if node.alive]

    def at(self, delay: float, act: Callable[[], None]) -> None:
        self._counter += 1
        heapq.heappush(self._queue, (self.now + delay, self._counter, act))

    def latency(self) -> float:
        return 0.02 + 0.03 * self.random.random()

    def gossip(self, sender: Node, envelope: Envelope) -> None:
        for node in self.alive:
            if node is not sender and self.random.random() >= self.loss:
                self.at(self.latency(), lambda node=node: node.deliver(envelope))

    def fetch(self, asker: Node, update: ContentId) -> None:
        def arrive() -> None:
            if not asker.alive:
                return
            if any(update in node.disk.blobs for node in self.alive):
                asker.disk.blobs.add(update)
                asker._guarded(lambda: asker.member.update_held(update, self.now))
            else:
                self.at(1.0, arrive)

        self.at(self.latency() * 2, arrive)

    def sync(self, asker: Node, round_: int) -> None:
        others = [node for node in self.alive if node is not asker]
        # As the daemon does: whoever is a member knows more.
        members = [node for node in others if node.peer in asker.member.members]
        if not others:
            return
        other = self.random.choice(members or others)
        ledger = other.member.ledger
        entries = [ledger[number] for number in range(round_, len(ledger))]
        envelopes = other.member.messages(max(round_, other.member.round))

        def arrive() -> None:
            for entry in entries:
                asker.deliver_decided(entry)
            for envelope in envelopes:
                asker.deliver(envelope)

        self.at(self.latency() * 2, arrive)

    def settle(self, node: Node) -> None:
        """Compare a node's chain with that of another; `forks` counts those who changed."""
        other = self.random.choice([other for other in self.alive if other is not node])
        ledger = other.member.ledger
        better = better_chain(node.member.ledger, [ledger[r] for r in range(len(ledger))])
        if better is not None:
            self.forks += 1
            node.disk.entries = [better[r] for r in range(len(better))]
            node.run(node.member.rebase(better, self.now))

    def check(self, round_: int, parameters: int) -> None:
        """Everybody's parameters after a round are the same, at whatever time they get there."""
        known = self._parameters.setdefault(round_, parameters)
        assert known == parameters, f"parameters differ after round {round_}"

    def run_until(self, done: Callable[[], bool], limit: float) -> None:
        """Run until `done`, at most `limit` virtual seconds."""
        deadline = self.now + limit
        while not done():
            assert self._queue, "the simulation ran dry"
            at, _, act = heapq.heappop(self._queue)
            assert at <= deadline, f"not done after {limit} virtual seconds: {self.describe()}"
            self.now = at
            act()

    def describe(self) -> str:
        return "; ".join(
            f"{node.member.round}/{node.member.applied_round} of {len(node.member.members)}"
            for node in self.alive
        )


def peers(nodes: list[Node]) -> set[PeerId]:
    return {node.peer for node in nodes}
