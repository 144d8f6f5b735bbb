"""Swarms in which only the founder has votes: its absence and its return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest.mock import MagicMock

import pytest
from seeds import seeds
from simulation.chain import voting
from simulation.swarm import Node, Swarm, identity, toy_manifest

FOUNDER = identity(0).peer


@pytest.fixture(autouse=True)
def founder_alone_votes() -> Iterator[None]:
    with voting({FOUNDER: 3}):
        yield


def start(count: int, seed: int) -> tuple[Swarm, list[Node]]:
    swarm = Swarm(toy_manifest(start_members=count), seed)
    # The oracle counts heads.
    swarm.watch = MagicMock(liars=set(), facts=lambda envelope: ())
    return swarm, [swarm.add(index) for index in range(count)]


def at(nodes: list[Node], round_: int) -> Callable[[], bool]:
    return lambda: all(node.member.view.applied_round >= round_ for node in nodes)


@pytest.mark.parametrize("seed", seeds(4))
def test_newcomers_go_on_without_the_founder_and_it_follows_them(seed: int) -> None:
    swarm, nodes = start(4, seed)
    swarm.run_until(at(nodes, 5), limit=120)
    # At some instant of a round.
    until = swarm.now + 1.5 * swarm.random.random()
    swarm.run_until(lambda: swarm.now >= until, limit=10)
    nodes[0].stop()
    reached = max(node.member.view.round for node in nodes)
    swarm.run_until(at(nodes[1:], reached + 3), limit=300)
    back = swarm.add(0, nodes[0].disk)
    everybody = [back, *nodes[1:]]
    target = max(node.member.view.round for node in nodes) + 5
    swarm.run_until(at(everybody, target), limit=600)
    assert len({node.member.view.ledger.parent(target) for node in everybody}) == 1
    assert swarm.forks == 0
    assert any(note.kind == "silent" and note.peer == FOUNDER for note in nodes[1].notes)
    assert all(FOUNDER in node.member.view.members for node in everybody)


@pytest.mark.parametrize("seed", seeds(4))
def test_a_founder_that_was_away_for_a_moment_is_waited_for(seed: int) -> None:
    """It listens for a lease, and the others learn that it is there."""
    swarm, nodes = start(4, seed)
    swarm.run_until(at(nodes, 5), limit=120)
    nodes[0].stop()
    back = swarm.add(0, nodes[0].disk)
    everybody = [back, *nodes[1:]]
    target = max(node.member.view.round for node in nodes) + 5
    swarm.run_until(at(everybody, target), limit=600)
    assert len({node.member.view.ledger.parent(target) for node in everybody}) == 1
    assert swarm.forks == 0
    assert not any(note.kind == "silent" for node in everybody for note in node.notes)
