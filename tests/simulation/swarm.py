"""A swarm in virtual time: many nodes in one thread, a network between them, and one seed for a run.

It delivers messages, answers requests and serves updates, as the daemons' network code does, and reports
everything to the trace and to the watch (`invariants`), which ends the run at the first violation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from distro_node.crypto.envelope import Envelope, EnvelopeError
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.fork_search import ChainComparison
from distro_node.protocol.chain.initial_sync import InitialSync
from distro_node.protocol.chain.request_failover import PeerFailover
from distro_node.protocol.chain.sync import SyncAnswer, SyncQuery, answer_to
from distro_node.protocol.member.effects import FetchUpdate
from distro_node.protocol.member.inputs import Connected, Disconnected, Recalled
from distro_node.protocol.member.sync_ingest import AnswerIngest
from distro_node.protocol.member.update_fetch import UpdateDownloads
from distro_node.protocol.member.vote_recovery import RecallRequests
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.messages import SnapshotEntry
from simulation.clock import Clock
from simulation.invariants import Watch
from simulation.keys import Keys, SimulatedKeys, identity
from simulation.message_cache import shared_reading
from simulation.network import Links, Network
from simulation.node import BROKEN_SECONDS, UPDATE_BYTES, Disk, Node
from simulation.scores import Scores
from simulation.toy import toy_manifest
from simulation.trace import Trace

__all__ = ["Disk", "Node", "Swarm", "identity", "peers", "toy_manifest"]

# Delay after a crash until the others' connections break; the kernel resets them at once.
_RESET_SECONDS = 0.05


@dataclass(frozen=True)
class _Known(SyncAnswer):
    """An answer whose messages were never encoded."""

    messages: Sequence[Envelope] = field(default=(), repr=False)


class Swarm:
    """Virtual time, the network, the nodes, and their observers."""

    def __init__(
        self,
        manifest: Manifest,
        seed: int = 0,
        *,
        loss: float = 0.0,
        links: Links | None = None,
        keys: Keys | None = None,
        update_bytes: int = UPDATE_BYTES,
    ) -> None:
        self.manifest = manifest
        self.random = random.Random(seed)
        self.clock = Clock()
        self.keys = keys or SimulatedKeys()
        self.network = Network(links or Links(), random.Random(f"network {seed}"))
        self.network.loss = loss
        self.trace = Trace()
        self.scores = Scores()
        self.watch = Watch(self)
        self.nodes: list[Node] = []
        self.rejected: dict[str, int] = {}
        self.snapshots: dict[ContentId, int] = {}
        """The parameters in every snapshot ever made, by its id."""
        self.forks = 0
        """Number of changes of a node to another chain."""
        self.tick_seconds = 0.25
        self.training_seconds = 1.0
        self.update_bytes = update_bytes
        self._garbage: set[ContentId] = set()
        self._by_index: dict[int, Node] = {}
        self._numbers: dict[PeerId, int] = {}
        self._genuine: dict[Envelope, bool] = {}

    # Nodes

    def add(self, index: int, disk: Disk | None = None, kind: type[Node] = Node) -> Node:
        """Start a node, with its disk if it ran before."""
        node = self.prepare(index, disk, kind)
        node.start()
        for other in self.alive:
            if other is not node:
                other.tell(Connected(node.peer))
        return node

    def prepare(self, index: int, disk: Disk | None = None, kind: type[Node] = Node) -> Node:
        """Return a node that is connected, but not started yet."""
        node = kind(self, index, disk)
        self.nodes.append(node)
        self._by_index[index] = node
        self._numbers[node.peer] = index
        self.network.join(index)
        self.trace.note(self.now, index, "starts", len(node.disk.entries), len(node.disk.said))
        return node

    def gone(self, node: Node) -> None:
        """Note that a node has died: its connections break."""
        self.trace.note(self.now, node.index, "stops")
        self.network.part(node.index)
        self.clock.after(_RESET_SECONDS, self._broken, node)

    @property
    def alive(self) -> list[Node]:
        """The living nodes, suspended ones included."""
        return [node for node in self.nodes if node.alive]

    @property
    def now(self) -> float:
        return self.clock.now

    def node(self, index: int) -> Node | None:
        """Return the latest node with this number, if it lives."""
        node = self._by_index.get(index)
        return node if node is not None and node.alive else None

    def checkpoint(self, guest: Node) -> Checkpoint | None:
        """Return the checkpoint of a link that an honest member would give out now."""
        honest = [
            node for node in self.alive if node is not guest and node.index not in self.watch.liars
        ]
        return next(
            (node.member.view.ledger.bound for node in honest if node.member.view.ledger.binding),
            None,
        )

    def number(self, peer: PeerId | None) -> int | None:
        """Return the number of a peer."""
        return None if peer is None else self._numbers.get(peer)

    def at(self, delay: float, act: Callable[[], None]) -> None:
        """Schedule an event in `delay` seconds."""
        self.clock.after(delay, act)

    def reject(self, reason: str) -> None:
        """Count a member's rejection."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    # Messages

    def gossip(self, sender: Node, envelope: Envelope, targets: set[int] | None = None) -> None:
        """Deliver a message to all nodes, or only to these (relays drop what they dislike)."""
        deliveries = self.network.gossip(sender.index, 140 + len(envelope.body))
        if targets is None:
            self.watch.told(envelope)
        else:
            deliveries = [(delay, index) for delay, index in deliveries if index in targets]
        self.trace.note(self.now, sender.index, "says", *self.describe_message(envelope))
        if deliveries:
            begin = max(self.now, sender.busy_until)
            self.clock.at(begin + deliveries[0][0], self._deliver, envelope, begin, deliveries, 0)

    def describe_message(self, envelope: Envelope) -> tuple[object, ...]:
        """Describe a message for the trace."""
        return (envelope.kind, *self.watch.facts(envelope))

    def genuine(self, envelope: Envelope) -> bool:
        """Whether the signature is valid; verified once for all receivers."""
        known = self._genuine.get(envelope)
        if known is None:
            if len(self._genuine) > 50_000:
                self._genuine.clear()
            known = self._genuine[envelope] = self.keys.verify(
                envelope.kind,
                envelope.swarm,
                envelope.sender,
                envelope.body,
                envelope.signature,
            )
        return known

    # Requests

    def sync(self, asker: Node, round_: int) -> None:
        """Ask a random peer for what was missed, the next one if it does not answer."""
        others = [node for node in self.alive if node is not asker and self._connected(asker, node)]
        self.random.shuffle(others)
        asking = PeerFailover(
            [node.peer for node in others], set(asker.member.view.members), round_
        )

        def done() -> None:
            if asking.found is None:
                asker.answered()
            else:
                asker.take_in(self._taking_in(*asking.found), asker.answered)

        self._carry_out(asker, asking, asking.requests, done)

    def recall(self, asker: Node, round_: int) -> None:
        """Ask all other members for what they know of a round, and report when all have answered."""
        others = set(asker.member.view.members) - {asker.peer}
        recalling = RecallRequests(round_, others, asker.now)

        def take_in(then: Callable[[], None]) -> None:
            for peer, answer in recalling.drain():
                taking = self._taking_in(peer, answer)

                def heard(peer: PeerId = peer, taking: AnswerIngest[Envelope] = taking) -> None:
                    recalling.note_processed(peer, all_held=taking.all_held)
                    then()

                asker.take_in(taking, heard)

        def done() -> None:
            if recalling.complete:
                asker.tell(Recalled(round_))

        self._carry_out(asker, recalling, self._following(asker, recalling), done, take_in)

    def settle(self, asker: Node) -> None:
        """Compare a node's chain with those of its peers."""
        near = [node for node in self.alive if node is not asker and self._connected(asker, node)]
        self.random.shuffle(near)
        abandoned = asker.member.view.is_abandoned(asker.now)
        peers = [node.peer for node in near]
        ours = asker.member.view.ledger
        comparison = ChainComparison(ours, peers, asker.rests, me=asker.peer, abandoned=abandoned)
        self._carry_out(
            asker,
            comparison,
            comparison.requests,
            lambda: asker.compared(comparison.better_than(ours), alone=abandoned),
        )

    def catch_up(
        self,
        asker: Node,
        catching_up: InitialSync,
        keep: Callable[[], None],
        done: Callable[[], None],
    ) -> None:
        """Extend a starting node's ledger by what its peers have; `keep` follows each answer."""

        def kept(then: Callable[[], None]) -> None:
            keep()
            then()

        self._carry_out(asker, catching_up, self._following(asker, catching_up), done, kept)

    def _following(
        self, asker: Node, machine: InitialSync | RecallRequests
    ) -> Callable[[float], list[SyncQuery]]:
        """Return the machine's questions for the peers connected at the time."""

        def questions(now: float) -> list[SyncQuery]:
            near = [o for o in self.alive if o is not asker and self._connected(asker, o)]
            self.random.shuffle(near)
            return machine.requests([node.peer for node in near], now)

        return questions

    def _taking_in(self, peer: PeerId, answer: SyncAnswer) -> AnswerIngest[Envelope]:
        assert isinstance(answer, _Known)  # nodes answer nothing else
        return AnswerIngest(peer, answer.at_hand, answer.messages, self._opened)

    def _opened(self, envelope: Envelope) -> Envelope:
        if not self.genuine(envelope):
            raise EnvelopeError("bad_signature", "nobody signed that")
        return envelope

    # Updates and snapshots

    def store(self, node: Node, update: ContentId) -> None:
        """Note that a node has an update on its disk."""
        if update not in node.disk.blobs:
            node.disk.blobs.add(update)
            self.watch.holds(node, update)

    def make_garbage(self, update: ContentId) -> None:
        """Note that these bytes are not a valid update."""
        self._garbage.add(update)

    def is_garbage(self, update: ContentId) -> bool:
        """Whether the bytes with this id are not a valid update."""
        return update in self._garbage

    def download(
        self, asker: Node, wanted: FetchUpdate, fetching: UpdateDownloads
    ) -> tuple[float | None, bool]:
        """Start fetching an update. Return when it will be there, or None if no node serves it now; and
        whether all nodes that could have it report that they do not."""
        if wanted.update in asker.disk.blobs:
            return self.now, False
        # Most have it; all are asked only if a few do not.
        maker = self._by_index.get(self._numbers.get(wanted.peer, -1))
        few = self.random.sample(self.nodes, min(3, len(self.nodes)))
        for asked in (few if maker in few or maker is None else [*few, maker], self.nodes):
            near = {
                node.peer: node
                for node in asked
                if node.alive
                and node is not asker
                and self.network.connected(asker.index, node.index)
            }
            providers = fetching.providers(wanted, asker.member.view.ledger, near)
            there = [near[peer] for peer in providers if not near[peer].frozen]
            sources = [
                node.index
                for node in there
                if wanted.update in node.disk.blobs and node.serves(wanted.update, asker)
            ]
            if sources:
                break
        else:
            return None, len(providers) == len(there) > 0
        if self.network.fails():
            return None, False
        source = self.network.least_busy(sources)
        # A false size in the announcement does not make the transfer longer.
        size = self.update_bytes
        self.network.update_bytes += size
        return self.network.transfer(source, asker.index, size, self.now), False

    def snapshot(self, blob: ContentId) -> int:
        """Return the parameters in a snapshot."""
        return self.snapshots[blob]

    def has_snapshot(self, asker: Node, entry: SnapshotEntry) -> bool:
        """Whether a node can serve this snapshot to `asker`."""
        return any(
            node.disk.has_snapshot(entry) and self._connected(asker, node) for node in self.alive
        )

    # Running

    def run_until(self, done: Callable[[], bool], limit: float) -> None:
        """Run until `done`, at most `limit` virtual seconds."""
        deadline = self.now + limit
        with shared_reading():
            while not done():
                assert self.clock.next <= deadline, (
                    f"not done after {limit} virtual seconds: {self.describe()}"
                )
                self.clock.step()

    def run_for(self, seconds: float) -> None:
        """Run for this time."""
        end = self.now + seconds
        with shared_reading():
            while self.clock.next <= end:
                self.clock.step()
        self.clock.now = end

    def describe(self) -> str:
        """Describe all nodes: decided/applied rounds, members."""
        return "; ".join(
            f"{node.index}: {node.member.view.round}/{node.member.view.applied_round}"
            f" of {len(node.member.view.members)}" + " frozen" * node.frozen
            for node in self.alive
        )

    # Private helpers

    def _connected(self, one: Node, other: Node) -> bool:
        return not other.frozen and self.network.connected(one.index, other.index)

    def _deliver(
        self,
        envelope: Envelope,
        begin: float,
        deliveries: list[tuple[float, int]],
        place: int,
    ) -> None:
        # One entry of the queue per message, for any number of receivers.
        node = self._by_index.get(deliveries[place][1])
        if node is not None and node.alive:
            node.deliver(envelope)
        place += 1
        if place < len(deliveries):
            when = max(self.now, begin + deliveries[place][0])
            self.clock.at(when, self._deliver, envelope, begin, deliveries, place)

    def _broken(self, node: Node) -> None:
        if self.node(node.index) is None:
            for other in self.alive:
                other.tell(Disconnected(node.peer))

    def breaks(self, pairs: list[tuple[int, int]]) -> None:
        """Report to both ends of these links, whose packets no longer arrive, that they are broken."""

        def notice() -> None:
            for one, other in pairs:
                here, there = self.node(one), self.node(other)
                if here and there and (there.frozen or not self._connected(here, there)):
                    here.tell(Disconnected(there.peer))

        self.clock.after(BROKEN_SECONDS, notice)

    def heals(self) -> None:
        """Report to all nodes the links that carry packets again."""
        for one in self.alive:
            for other in self.alive:
                if one is not other and self._connected(one, other):
                    one.tell(Connected(other.peer))

    def _knows(self, other: Node, asker: Node, question: SyncQuery) -> tuple[SyncAnswer, int]:
        """Return a node's answer to another, and its size."""
        ledger, request = other.offers(asker), question.request(self.manifest.swarm)
        height, ids, rounds, envelopes = answer_to(request, ledger, other.member.view.messages)
        entries = [ledger[round_] for round_ in rounds]
        size = sum(200 * (len(e.record.updates) + len(e.certificate.ballots)) for e in entries)
        size += sum(140 + len(envelope.body) for envelope in envelopes) + 32 * len(ids)
        self.network.other_bytes += size
        known = _Known(height, ids, size=size, at_hand=entries, messages=envelopes)
        return other.twists(known), size

    def _carry_out(
        self,
        asker: Node,
        machine: PeerFailover | ChainComparison | InitialSync | RecallRequests,
        questions: Callable[[float], list[SyncQuery]],
        done: Callable[[], None],
        after: Callable[[Callable[[], None]], None] = lambda then: then(),
    ) -> None:
        """Ask the machine's questions until it is done or its node is dead; `after` is called for each
        answer with a callback for when it is through."""
        ended = False

        def step() -> None:
            nonlocal ended
            if ended or not asker.alive:
                return
            if asker.frozen:
                self.clock.after(1.0, step)
                return
            for question in questions(asker.now):
                self._send(asker, question, take)
            if machine.done:
                ended = True
                done()
                return
            wait = (machine.deadline(asker.now) - asker.now) / asker.clock_rate
            self.clock.after(max(0.0, wait) + 0.001, step)

        def take(peer: PeerId, answer: SyncAnswer | None) -> None:
            if asker.alive and not ended:
                if asker.frozen:
                    self.clock.after(1.0, take, peer, answer)
                    return
                blame = machine.on_answer(peer, answer, asker.now)
                if blame is not None:
                    self.reject(blame.reason)
                after(step)

        step()

    def _send(
        self, asker: Node, question: SyncQuery, take: Callable[[PeerId, SyncAnswer | None], None]
    ) -> None:
        """Carry a question to a peer and its answer back; for a dead peer, report failure once the
        connection breaks."""
        other = self.node(self._numbers[question.peer])
        if other is None or not self._connected(asker, other) or self.network.fails():
            self.clock.after(BROKEN_SECONDS, take, question.peer, None)
            return

        def answer() -> None:
            if not other.alive or other.frozen or not self._connected(asker, other):
                self.clock.after(BROKEN_SECONDS, take, question.peer, None)
                return
            if other.starting:
                # It does not use the protocol yet.
                take(question.peer, None)
                return
            known, size = self._knows(other, asker, question)
            when = self.network.transfer(other.index, asker.index, size, self.now)
            self.clock.at(when + other.dawdles(), take, question.peer, known)

        self.clock.after(self.network.latency(asker.index, other.index), answer)


def peers(nodes: list[Node]) -> set[PeerId]:
    """Return the ids of some nodes."""
    return {node.peer for node in nodes}
