"""Silence is distinguished from slowness in virtual time, by members that have seen different rounds or
none."""

from __future__ import annotations

from simulation.swarm import Swarm, toy_manifest


def everybody_at(swarm: Swarm, round_: int):
    return lambda: all(node.member.view.applied_round >= round_ for node in swarm.alive)


def nobody_was_taken_for_gone(swarm: Swarm) -> bool:
    notes = [note.kind for node in swarm.nodes for note in node.notes]
    return swarm.forks == 0 and not {"silent", "presumed_gone"} & set(notes)


def test_a_newcomer_to_slow_rounds_takes_nobody_for_gone() -> None:
    """Rounds of twenty seconds cause leases of eighty; a newcomer does not know that yet."""
    swarm = Swarm(toy_manifest(start_members=3))
    for index in range(4):
        if index == 3:
            swarm.run_until(everybody_at(swarm, 6), limit=300)
        swarm.add(index).training_seconds = 20.0
    swarm.run_until(lambda: len(swarm.nodes[3].counted) >= 4, limit=300)
    assert nobody_was_taken_for_gone(swarm)


def test_waiting_for_the_first_members_is_no_measure_of_rounds() -> None:
    swarm = Swarm(toy_manifest(start_members=3))
    swarm.add(0)
    swarm.run_until(lambda: swarm.now > 600, limit=700)
    nodes = [swarm.add(index) for index in (1, 2)]
    swarm.run_until(everybody_at(swarm, 0), limit=30)
    nodes[0].stop()
    # The founder is given up after a lease of a few rounds, not of a few hours.
    swarm.run_until(lambda: nodes[0].peer not in swarm.nodes[0].member.view.members, limit=60)


def test_a_round_that_waits_for_silence_makes_nobody_more_patient() -> None:
    swarm = Swarm(toy_manifest(start_members=3))
    nodes = [swarm.add(index) for index in range(3)]
    swarm.run_until(everybody_at(swarm, 0), limit=30)
    # Without one of the three, nothing is decided before it counts as gone.
    for node in nodes[1:]:
        node.stop()
        swarm.run_until(lambda: len(nodes[0].member.view.members) == len(swarm.alive), limit=20)


def test_a_lone_fast_member_does_not_outrun_gossip() -> None:
    swarm = Swarm(toy_manifest(min_seconds=0.5))
    member = swarm.add(0)
    member.training_seconds = 0.001
    swarm.run_until(lambda: member.member.view.applied_round >= 1, limit=60)
    began, first = swarm.now, member.member.view.applied_round
    swarm.run_until(lambda: swarm.now >= began + 20, limit=60)
    assert 10 <= member.member.view.applied_round - first <= 40
