"""Members that are killed at any instant, in virtual time: they contradict themselves in nothing."""

from __future__ import annotations

import random

import pytest
from distro_node.crypto.envelope import Envelope
from distro_node.protocol.effects import Effect, Keep, Publish
from distro_node.protocol.messages import Ballot, Proposal, decode_message
from simulation.swarm import Disk, Node, Swarm, toy_manifest


class FragileNode(Node):
    """A node that is killed between two effects, after so many that write to its disk."""

    writes_left = 1 << 30

    def _run_one(self, effect: Effect) -> None:
        writes = isinstance(effect, Keep) or (isinstance(effect, Publish) and effect.durable)
        if writes:
            self.writes_left -= 1
            if self.writes_left == 0:
                # On the disk, and no word of it on the wire.
                if isinstance(effect, Publish):
                    self.disk.said.append(effect.envelope)
                else:
                    assert isinstance(effect, Keep)
                    self.disk.entries.append(effect.decided)
                self.stop()
        if self.alive:
            super()._run_one(effect)


class Heard(Swarm):
    """Keeps everything that was ever said."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.letters: list[Envelope] = []

    def gossip(self, sender: Node, envelope: Envelope) -> None:
        self.letters.append(envelope)
        super().gossip(sender, envelope)

    def start(self, index: int, writes: int, disk: Disk | None = None) -> FragileNode:
        node = FragileNode(self, index, disk)
        node.writes_left = writes
        self.nodes.append(node)
        node.start()
        return node


def contradictions(letters: list[Envelope]) -> list[tuple]:
    """Two different ballots or proposals of one member for a slot, or a skip beside a finalize."""
    found: list[tuple] = []
    blocks: dict[tuple, object] = {}
    for letter in letters:
        message = decode_message(letter)
        if isinstance(message, Ballot):
            slot = (letter.sender, message.round, message.parent, message.slot)
            block: object = message.block
        elif isinstance(message, Proposal):
            record = message.record
            slot = (letter.sender, record.round, record.parent, message.slot)
            block = record.id
        else:
            continue
        if blocks.setdefault((letter.kind, *slot), block) != block:
            found.append((letter.kind, *slot))
        opposite = {"skip": "finalize", "finalize": "skip"}.get(letter.kind)
        if (opposite, *slot) in blocks:
            found.append((letter.kind, opposite, *slot))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_member_killed_at_any_instant_says_nothing_twofold(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(1, 6)
    swarm = Heard(toy_manifest(start_members=count), seed, loss=chance.choice((0.0, 0.2)))
    for index in range(count):
        swarm.start(index, 1 << 30)
    swarm.run_until(lambda: all(node.member.applied_round >= 3 for node in swarm.alive), 200)
    for _ in range(12):
        victim = chance.choice(swarm.nodes)
        assert isinstance(victim, FragileNode)
        victim.writes_left = chance.randrange(1, 9)
        swarm.run_until(lambda victim=victim: not victim.alive, 200)
        swarm.nodes.remove(victim)
        if chance.random() < 0.3 and victim.disk.entries:
            # The newest entry was still in the disk's cache.
            victim.disk.entries.pop()
        pause = swarm.now + chance.choice((0.0, 1.0, 4.0))
        swarm.run_until(lambda pause=pause: not swarm.alive or swarm.now >= pause, 10)
        swarm.start(victim.index, 1 << 30, victim.disk)
    target = max(node.member.round for node in swarm.alive) + 5
    swarm.run_until(lambda: all(node.member.applied_round >= target for node in swarm.alive), 300)
    assert contradictions(swarm.letters) == []
    assert swarm.forks == 0


def test_contradictions_would_be_seen() -> None:
    swarm = Heard(toy_manifest(start_members=2), 0)
    nodes = [swarm.start(index, 1 << 30) for index in range(2)]
    swarm.run_until(lambda: nodes[0].member.applied_round >= 3, 60)
    assert contradictions(swarm.letters) == []
    # A node that forgets what it said: the same round again, without its memory.
    letter = next(e for e in swarm.letters if e.kind == "finalize" and e.sender == nodes[0].peer)
    ballot = decode_message(letter)
    assert isinstance(ballot, Ballot)
    other = nodes[0]._sign("skip", letter.body)
    assert contradictions([letter, other]) != []
