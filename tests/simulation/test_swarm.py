"""Members that train, die, join and return, in virtual time."""

from __future__ import annotations

import pytest
from distro_node.protocol.member.inputs import LeaveRequested
from distro_node.protocol.wire.manifest import OptimizerSpec, UpdateWeightRule
from seeds import seeds
from simulation.swarm import Node, Swarm, peers, toy_manifest

SEEDS = seeds(12)


def everybody_at(swarm: Swarm, round_: int):
    return lambda: all(node.member.view.applied_round >= round_ for node in swarm.alive)


def start(count: int, seed: int = 0, **options) -> tuple[Swarm, list[Node]]:
    loss = options.pop("loss", 0.0)
    swarm = Swarm(toy_manifest(start_members=count, **options), seed, loss=loss)
    return swarm, [swarm.add(index) for index in range(count)]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_all_members_contribute_to_every_round(count: int) -> None:
    swarm, nodes = start(count)
    swarm.run_until(everybody_at(swarm, 12), limit=60)
    for node in nodes:
        assert node.counted[:12] == list(range(1, 13))


@pytest.mark.parametrize("model", ["byzantine", "crash"])
def test_a_member_dies_and_the_rest_go_on(model: str) -> None:
    swarm, nodes = start(4, fault_model=model)
    swarm.run_until(everybody_at(swarm, 5), limit=60)
    nodes[2].stop()
    swarm.run_until(everybody_at(swarm, 20), limit=120)
    assert set(nodes[0].member.view.members) == peers(swarm.alive)
    assert any(note.kind == "silent" for note in nodes[0].notes)


def test_half_the_members_vanish_at_once() -> None:
    swarm, nodes = start(6)
    swarm.run_until(everybody_at(swarm, 5), limit=60)
    for node in nodes[:3]:
        node.stop()
    swarm.run_until(everybody_at(swarm, 20), limit=180)
    assert set(nodes[5].member.view.members) == peers(swarm.alive)


def test_a_single_survivor_goes_on_and_others_join_it_again() -> None:
    swarm, nodes = start(4)
    swarm.run_until(everybody_at(swarm, 3), limit=60)
    for node in nodes[:3]:
        node.stop()
    swarm.run_until(everybody_at(swarm, 10), limit=120)
    assert nodes[3].member.view.members == (nodes[3].peer,)
    swarm.add(7)
    swarm.run_until(lambda: len(swarm.nodes[-1].counted) >= 3, limit=60)


def test_all_agree_whose_update_counts_twice_and_so_does_a_newcomer() -> None:
    """Of 16 sequences one of three members has six, and counts twice, or as the others do."""
    prints = set()
    says: tuple[UpdateWeightRule, ...] = ("equal", "share")
    for say in says:
        swarm, nodes = start(3, optimizer=OptimizerSpec(update_weight=say), sequences=16)
        swarm.run_until(everybody_at(swarm, 8), limit=60)
        newcomer = swarm.add(7)
        # The watch checks all along that all parameters are the same.
        swarm.run_until(lambda newcomer=newcomer: len(newcomer.counted) >= 3, limit=60)
        prints.add(nodes[0].member.view.ledger[8].record.fingerprint)
    assert len(prints) == 2


def test_a_newcomer_contributes_in_the_round_after_its_admission() -> None:
    swarm, _ = start(3)
    swarm.run_until(everybody_at(swarm, 8), limit=60)
    newcomer = swarm.add(9)
    swarm.run_until(lambda: len(newcomer.counted) >= 5, limit=60)
    first = newcomer.counted[0]
    admitted = newcomer.member.view.ledger.membership(first).since[newcomer.peer]
    assert first == admitted + 1
    assert newcomer.counted[:5] == list(range(first, first + 5))


def test_a_polite_leave_costs_no_lease() -> None:
    swarm, nodes = start(4)
    swarm.run_until(everybody_at(swarm, 5), limit=60)
    nodes[1].run(nodes[1].member.handle(LeaveRequested(), swarm.now))
    before = swarm.now
    swarm.run_until(lambda: not nodes[1].member.view.is_member, limit=10)
    nodes[1].stop()
    assert swarm.now - before < swarm.manifest.rounds.lease_min_seconds
    swarm.run_until(everybody_at(swarm, 12), limit=60)
    assert nodes[1].peer not in nodes[0].member.view.members


def test_a_restarted_member_resumes_as_the_same_peer() -> None:
    swarm, nodes = start(4)
    swarm.run_until(everybody_at(swarm, 5), limit=60)
    nodes[2].stop()
    swarm.run_until(everybody_at(swarm, 7), limit=60)
    again = swarm.add(2, nodes[2].disk)
    swarm.run_until(lambda: len(again.counted) >= 3, limit=120)
    assert again.peer in nodes[0].member.view.members


def test_a_frozen_member_that_wakes_up_is_admitted_again() -> None:
    swarm, nodes = start(4)
    swarm.run_until(everybody_at(swarm, 5), limit=60)
    nodes[2].frozen = True
    swarm.run_until(lambda: nodes[2].peer not in nodes[0].member.view.members, limit=120)
    swarm.run_until(lambda: nodes[0].member.view.round >= 20, limit=60)
    nodes[2].frozen = False
    contributed = len(nodes[2].counted)
    swarm.run_until(lambda: len(nodes[2].counted) > contributed + 2, limit=60)


@pytest.mark.parametrize("seed", SEEDS)
def test_gossip_that_loses_a_third_of_everything(seed: int) -> None:
    swarm, _ = start(5, seed, loss=0.33)
    swarm.run_until(everybody_at(swarm, 10), limit=300)


def test_a_slow_member_is_waited_for_or_refunded_but_never_stops_the_swarm() -> None:
    swarm, nodes = start(4)
    nodes[3].training_seconds = 20.0
    swarm.run_until(everybody_at(swarm, 10), limit=400)
