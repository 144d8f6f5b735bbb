"""Members that leave and come back in every round, a third of all, and disks of voters restored to
earlier states."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import Literal

import pytest
from distro_node.crypto.envelope import Envelope
from distro_node.protocol.member.inputs import LeaveRequested
from distro_node.protocol.wire.messages import Ballot
from seeds import seeds
from simulation.faults import Action, Schedule
from simulation.message_cache import read
from simulation.node import Node
from simulation.swarm import Swarm
from simulation.test_swarm import everybody_at, start
from simulation.whole.scenario import Outcome, Scenario, run

# An expired lease, and admission: the maximum cost of a killed member.
_PATIENCE_SECONDS = 600.0


def _leave(swarm: Swarm, node: Node, *, politely: bool) -> None:
    if politely:
        node.tell(LeaveRequested())
        swarm.run_for(1.0)
    node.stop()


@pytest.mark.parametrize("politely", [True, False])
@pytest.mark.parametrize("seed", seeds(2))
def test_three_of_ten_leave_and_come_back_in_every_round(seed: int, politely: bool) -> None:
    swarm, nodes = start(10, seed)
    swarm.run_until(everybody_at(swarm, 3), limit=60)
    for _ in range(12):
        before = max(node.member.view.round for node in swarm.alive)
        for node in swarm.random.sample(swarm.alive, 3):
            _leave(swarm, node, politely=politely)
            swarm.nodes.remove(node)
            swarm.add(node.index, node.disk)
        swarm.run_until(
            lambda before=before: max(n.member.view.round for n in swarm.alive) > before,
            limit=_PATIENCE_SECONDS,
        )
    target = max(node.member.view.round for node in swarm.alive) + 4
    swarm.run_until(everybody_at(swarm, target), limit=_PATIENCE_SECONDS)
    assert swarm.forks == 0
    assert set(swarm.alive[0].member.view.members) == {node.peer for node in nodes}


def two_of_seven(what: Literal["leave", "crash"]) -> Outcome:
    """Two of seven whole nodes leave every four seconds, about a round, and come back at once."""
    actions = tuple(
        Action(10.0 + 4.0 * number, what, 1 + (2 * number + other) % 6, 0.5)
        for number in range(12)
        for other in range(2)
    )
    return run(Scenario(1, "crash", 7, 12, "byzantine", (), Schedule(actions, cut_off=True)))


# `make test` has the same of members without their nodes, above, and of nodes a seed with all kinds of
# faults (`test_whole`).
@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", ["leave", "crash"])
def test_two_of_seven_whole_nodes_do_so(what: str) -> None:
    """In a process of its own with a fixed hash seed, so that a run is always the same."""
    program = (
        "from simulation.test_upheaval import two_of_seven\n"
        f"outcome = two_of_seven({what!r})\n"
        "assert outcome.failure is None, (outcome.failure.invariant, outcome.failure.text)\n"
        "assert outcome.starts > 20"
    )
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr


class Words:
    """Compares the ballots in a swarm with each other."""

    def __init__(self, swarm: Swarm) -> None:
        self.contradictions = 0
        self._said: dict[tuple[object, ...], object] = {}
        self._published = swarm.watch.published
        swarm.watch.published = self._note  # type: ignore[method-assign]

    def _note(self, node: Node, envelope: Envelope) -> None:
        self._published(node, envelope)
        message = read(envelope)
        if isinstance(message, Ballot):
            place = (envelope.kind, envelope.sender, message.round, message.parent, message.slot)
            said = self._said.setdefault(place, message.block)
            self.contradictions += said != message.block


def set_back(seed: int, back: int, times: int = 4) -> tuple[Swarm, Words]:
    """Kill three of ten at any moment, and start them from copies of their disks made `back` rounds
    before; repeatedly."""
    swarm, _ = start(10, seed)
    words = Words(swarm)
    swarm.run_until(everybody_at(swarm, 4), limit=60)
    for _ in range(times):
        chosen = swarm.random.sample(swarm.alive, 3)
        copies = {node.index: copy.deepcopy(node.disk) for node in chosen}
        target = max(node.member.view.round for node in swarm.alive) + back
        swarm.run_until(everybody_at(swarm, target), limit=_PATIENCE_SECONDS)
        swarm.run_for(swarm.random.random() * 2.0)
        for node in chosen:
            node.stop()
            swarm.watch.forgets(node)
            swarm.nodes.remove(node)
            swarm.add(node.index, copies[node.index])
        target = max(node.member.view.round for node in swarm.alive) + 3
        swarm.run_until(everybody_at(swarm, target), limit=_PATIENCE_SECONDS)
    return swarm, words


@pytest.mark.parametrize("back", [0, pytest.param(1, marks=pytest.mark.soak), 4])
@pytest.mark.parametrize("seed", seeds(2))
def test_voters_whose_disks_are_set_back_split_nothing_and_are_not_expelled(
    seed: int, back: int
) -> None:
    """The disk lacks what they have signed since; the others have it, and are asked."""
    swarm, words = set_back(seed, back)
    assert swarm.forks == 0
    ledger = swarm.alive[0].member.view.ledger
    assert not any(ledger[round_].record.evidence for round_ in range(len(ledger)))
    assert words.contradictions == 0
