"""The power of liars that call nearly all others silent: three of ten, or one after a partition."""

from __future__ import annotations

import dataclasses

import pytest
from distro_node.crypto.envelope import Envelope
from seeds import seeds
from simulation.liars import CONSPIRACY
from simulation.scenario import draw_scenario, run
from simulation.swarm import Node, Swarm, toy_manifest


@pytest.mark.parametrize("seed", seeds(2))
def test_three_of_ten_who_call_all_but_one_silent_stop_nobody(seed: int) -> None:
    """Together with the one that they do not accuse they would be a quorum: it was led from slot to slot
    by what they alone had signed, and without it the others were no quorum."""
    scenario = draw_scenario(seed, "liars", members=10)
    liars = tuple((index, (CONSPIRACY,)) for index in (1, 4, 7))
    outcome = run(dataclasses.replace(scenario, liars=liars, model="byzantine"))
    assert outcome.failure is None
    assert outcome.forks == 0


class Idle(Node):
    """A node that sends heartbeats, and does nothing else."""

    def publish(self, envelope: Envelope) -> None:
        if envelope.kind in ("heartbeat", "join"):
            super().publish(envelope)


def test_who_went_on_alone_is_followed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two honest members and an idle one look like a quorum, which doubts what a single member decided
    while it was cut off; but they never decide anything."""
    swarm = Swarm(toy_manifest(start_members=4, fault_model="byzantine", collect_max_seconds=10.0))
    nodes = [swarm.add(index, kind=Idle if index == 3 else Node) for index in range(4)]
    swarm.watch.liars.add(3)
    # Wait until it has caught up, since before that it has another member object.
    swarm.run_until(lambda: not nodes[3].starting, 60)
    monkeypatch.setattr(nodes[3].member.view, "messages", lambda round: [])
    swarm.run_until(lambda: all(node.member.view.round >= 4 for node in nodes[:3]), 200)
    away = [(0, other) for other in (1, 2, 3)] + [(other, 0) for other in (1, 2, 3)]
    swarm.network.cut(away)
    swarm.breaks(away)
    start = nodes[0].member.view.round
    swarm.run_until(lambda: nodes[0].member.view.round >= start + 5, 200)
    swarm.run_until(lambda: nodes[0].member.view.members == (nodes[0].peer,), 60)
    assert nodes[1].member.view.round <= start + 1
    swarm.network.mend()
    swarm.heals()
    target = nodes[0].member.view.round
    # It takes 255 to 500 seconds, by who is drawn to lead: by the name of the swarm.
    swarm.run_until(lambda: all(node.member.view.round >= target for node in nodes), 600)
    assert len({node.member.view.ledger.parent(target) for node in nodes}) == 1
