"""Members that all leave at once, come back, or have damaged parameters, in virtual time."""

from __future__ import annotations

import pytest
from distro_node.protocol.member.inputs import LeaveRequested, Rebased
from distro_node.protocol.wire.messages import Announcement, decode_message
from seeds import seeds
from simulation.node import Fuse
from simulation.swarm import Node, Swarm, toy_manifest


def everybody_at(swarm: Swarm, round_: int):
    return lambda: all(node.member.view.applied_round >= round_ for node in swarm.alive)


def start(count: int, seed: int = 0, **options) -> tuple[Swarm, list[Node]]:
    swarm = Swarm(toy_manifest(start_members=count, **options), seed)
    return swarm, [swarm.add(index) for index in range(count)]


@pytest.mark.parametrize("model", ["byzantine", "crash"])
@pytest.mark.parametrize("seed", seeds(8))
def test_members_that_all_leave_at_once_make_no_two_chains(model: str, seed: int) -> None:
    swarm, nodes = start(3, seed, fault_model=model)
    swarm.run_until(everybody_at(swarm, 5), limit=60)
    # At some instant of a round, which takes a second and a half.
    until = swarm.now + 1.5 * swarm.random.random()
    swarm.run_until(lambda: swarm.now >= until, limit=10)
    for node in nodes:
        node.run(node.member.handle(LeaveRequested(), swarm.now))
    until = swarm.now + 8.0
    swarm.run_until(lambda: swarm.now >= until, limit=20)
    ledgers = [node.member.view.ledger for node in nodes]
    for round_ in range(min(map(len, ledgers))):
        assert len({ledger[round_].record.id for ledger in ledgers}) == 1


@pytest.mark.parametrize("seed", seeds(8))
def test_a_swarm_that_all_have_left_resumes(seed: int) -> None:
    swarm, nodes = start(3, seed)
    swarm.run_until(everybody_at(swarm, 5), limit=60)
    for node in nodes:
        node.run(node.member.handle(LeaveRequested(), swarm.now))
    until = swarm.now + 4.0
    swarm.run_until(lambda: swarm.now >= until, limit=20)
    for node in nodes:
        node.stop()
    again = []
    for node in nodes:
        until = swarm.now + swarm.random.random()
        again.append(swarm.add(node.index, node.disk))
        swarm.run_until(lambda until=until: swarm.now >= until, limit=5)
    swarm.run_until(lambda: all(len(node.counted) >= 3 for node in again), limit=120)
    assert swarm.forks == 0
    # No member had left for good: no round removed one from the membership.
    assert not any(note.kind in ("left", "silent") for node in again for note in node.notes)


def damage(node: Node) -> None:
    """Make a node's parameters differ from the others', as bad memory would."""
    node.parameters += 1
    node.member.parts.replica.fingerprint = node.parameters


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_member_with_wrong_parameters_mends_itself(count: int) -> None:
    """Without its vote two or three members decide nothing, so no other member would reveal it."""
    swarm, nodes = start(count)
    swarm.run_until(lambda: everybody_at(swarm, 7)() and nodes[1].member.view.at_tip, limit=60)
    damage(nodes[1])
    contributed = len(nodes[1].counted)
    target = nodes[0].member.view.round + 6
    swarm.run_until(everybody_at(swarm, target), limit=120)
    assert any(note.kind == "mismatch" and note.peer == nodes[1].peer for note in nodes[1].notes)
    assert len(nodes[1].counted) > contributed


def test_a_minority_cannot_talk_a_member_out_of_its_parameters() -> None:
    swarm, nodes = start(5)
    swarm.run_until(
        lambda: everybody_at(swarm, 7)() and all(node.member.view.at_tip for node in nodes),
        limit=60,
    )
    for node in nodes[:2]:
        damage(node)
    swarm.run_until(everybody_at(swarm, 14), limit=120)
    for node in nodes[2:]:
        assert not any(note.peer == node.peer for note in node.notes if note.kind == "mismatch")


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_a_member_killed_right_after_its_announcement_goes_on(count: int, lost: bool) -> None:
    """Its update counts if it is still there; if the disk lost it, the round does without."""
    swarm, nodes = start(count)
    swarm.run_until(everybody_at(swarm, 5), limit=60)
    for node in nodes[1:]:
        # Too busy to have received it.
        node.frozen = True
    node = nodes[0]
    node.fuse = Fuse(1, "sent", "announcement")
    swarm.run_until(lambda: not node.alive, limit=60)
    announcement = decode_message(node.disk.said[-1])
    assert isinstance(announcement, Announcement)
    if lost:
        node.disk.blobs.discard(announcement.update)
    again = swarm.add(0, node.disk)
    for other in nodes[1:]:
        other.frozen = False
    swarm.run_until(everybody_at(swarm, announcement.round + 2), limit=20)
    assert (announcement.round in again.counted) == (not lost)


# Each of three leads in one of these.
@pytest.mark.parametrize("round_", range(4, 7))
def test_who_has_seen_no_round_yet_follows_those_who_know_the_pace(round_: int) -> None:
    """A member without a measurement of its own would wait for the slowest as long as allowed, also as a
    leader."""
    swarm, nodes = start(3)
    swarm.run_until(everybody_at(swarm, round_), limit=60)
    nodes[2].training_seconds = 1000.0
    swarm.run_until(everybody_at(swarm, round_ + 2), limit=60)
    nodes[1].stop()
    swarm.add(1, nodes[1].disk)
    target = nodes[0].member.view.round + 3
    swarm.run_until(everybody_at(swarm, target), limit=25)


@pytest.mark.parametrize("seed", seeds(4))
def test_sides_that_change_to_each_others_chain_meet_again(seed: int) -> None:
    """This can happen: the signers are read from certificates, which may differ between nodes."""
    swarm, nodes = start(4, seed, fault_model="crash")
    swarm.run_until(everybody_at(swarm, 5), limit=60)
    sides = nodes[:2], nodes[2:]
    between = [
        (a.index, b.index) for a in nodes for b in nodes if (a in sides[0]) != (b in sides[0])
    ]
    swarm.network.cut(between)
    swarm.breaks(between)

    def apart() -> bool:
        first, second = (side[0].member.view.ledger for side in sides)
        parted = next(
            (r for r in range(min(len(first), len(second))) if first[r].record != second[r].record),
            None,
        )
        return parted is not None and min(len(first), len(second)) >= parted + 3

    swarm.run_until(apart, limit=120)
    swarm.network.mend()
    swarm.heals()
    chains = [
        side[0].member.view.ledger.truncated(len(side[0].member.view.ledger)) for side in sides
    ]
    for side, chain in zip(sides, reversed(chains), strict=True):
        for node in side:
            node.disk.entries = [chain[r] for r in range(len(chain))]
            node.tell(Rebased(chain.truncated(len(chain))))
    assert not any(node.member.view.is_member for node in nodes)
    swarm.run_until(lambda: all(node.member.view.is_member for node in nodes), limit=120)
    swarm.run_until(everybody_at(swarm, max(map(len, chains)) + 3), limit=60)
    assert len({node.member.view.ledger.parent(max(map(len, chains))) for node in nodes}) == 1
