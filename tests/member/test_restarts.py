"""Members that are killed at any instant, in virtual time, never contradict themselves.

The simulator's watch compares everything that a member ever sends; a contradiction ends the run.
"""

from __future__ import annotations

import random

import pytest
from seeds import seeds
from simulation.invariants import Violation
from simulation.node import Fuse
from simulation.swarm import Swarm, toy_manifest


@pytest.mark.parametrize("seed", seeds(12))
def test_a_member_killed_at_any_instant_never_equivocates(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(1, 6)
    swarm = Swarm(toy_manifest(start_members=count), seed, loss=chance.choice((0.0, 0.2)))
    for index in range(count):
        swarm.add(index)
    swarm.run_until(lambda: all(node.member.view.applied_round >= 3 for node in swarm.alive), 200)
    for _ in range(12):
        victim = chance.choice(swarm.nodes)
        victim.fuse = Fuse(chance.randrange(1, 9), chance.choice(("signed", "written", "sent")))
        swarm.run_until(lambda victim=victim: not victim.alive, 200)
        swarm.nodes.remove(victim)
        if chance.random() < 0.3 and victim.disk.entries:
            # The newest entry was still in the disk's cache.
            victim.disk.entries.pop()
        swarm.run_for(chance.choice((0.0, 1.0, 4.0)))
        swarm.add(victim.index, victim.disk)
    target = max(node.member.view.round for node in swarm.alive) + 5
    swarm.run_until(
        lambda: all(node.member.view.applied_round >= target for node in swarm.alive), 300
    )
    assert swarm.forks == 0


def test_contradictions_would_be_seen() -> None:
    swarm = Swarm(toy_manifest(start_members=2), 0)
    nodes = [swarm.add(index) for index in range(2)]
    swarm.run_until(lambda: nodes[0].member.view.applied_round >= 3, 60)
    # A node that forgets its messages: the same round again, without its memory.
    finalize = next(e for e in reversed(nodes[0].disk.said) if e.kind == "finalize")
    with pytest.raises(Violation, match="finalizes and skips"):
        nodes[0].publish(nodes[0].sign("skip", finalize.body))
