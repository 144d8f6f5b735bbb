"""A leader affects the step of its round by no more than its own update, and costs little time."""

from __future__ import annotations

import functools

import pytest
from simulation.liars import Liar
from simulation.network import HOME, Links
from simulation.node import Node
from simulation.swarm import Swarm
from simulation.toy import toy_manifest

SECONDS = 90.0


@functools.cache
def ran(members: int, *lies: str, loss: float = 0.0, links: Links | None = None) -> Swarm:
    """Run a swarm with the maximum number of liars for a while; the same one once."""

    class Lying(Liar):
        tells = frozenset(lies)

    liars = (members - 1) // 3 if lies else 0
    manifest = toy_manifest(start_members=members, collect_max_seconds=20.0, snapshot_interval=50)
    size = 20_000 if links is HOME else 2_800_000
    swarm = Swarm(manifest, 1, loss=loss, links=links, update_bytes=size)
    swarm.network.failing = loss / 2
    swarm.watch.liars = set(range(members - liars, members))
    swarm.watch.forks_explained = False
    for index in range(members):
        swarm.add(index, kind=Lying if index in swarm.watch.liars else Node)
    swarm.run_for(SECONDS)
    return swarm


def counted(swarm: Swarm) -> list[int]:
    """Return in how many records the update of each honest node counts, after the first three."""
    nodes = [node for node in swarm.nodes if node.index not in swarm.watch.liars]
    ledger = nodes[0].member.view.ledger
    records = [ledger[round_].record for round_ in range(3, len(ledger))]
    return [sum(any(e.peer == n.peer for e in r.updates) for r in records) for n in nodes]


def rounds(swarm: Swarm) -> int:
    return swarm.nodes[0].member.view.round


@pytest.mark.parametrize("members", [4, pytest.param(7, marks=pytest.mark.soak)])
@pytest.mark.parametrize("lie", ["censors", "leaves one out", "varies its entry"])
def test_no_record_of_a_leading_liar_lacks_an_honest_update(members: int, lie: str) -> None:
    """One of four that lists only its own update wrote a quarter of all records, and the others kept
    less than a thousandth of their weights."""
    swarm, control = ran(members, lie), ran(members)
    assert set(counted(swarm)) == {rounds(swarm) - 3}
    assert rounds(swarm) >= 0.8 * rounds(control)
    ledger, own = swarm.nodes[0].member.view.ledger, control.nodes[0].member.view.ledger
    least, usual = (
        min(
            chain.assignments.shares(len(chain)).weights[node.peer].value
            for node in swarm.nodes[:3]
        )
        for chain in (ledger, own)
    )
    assert least >= 0.9 * usual


@pytest.mark.parametrize("lie", ["withhold from some", "announces to some", "abstains from others"])
def test_who_would_have_honest_leaders_fail_holds_up_nobody_for_long(lie: str) -> None:
    swarm, control = ran(7, lie), ran(7)
    assert rounds(swarm) >= 0.4 * rounds(control)
    assert min(counted(swarm)) >= 0.9 * (rounds(swarm) - 3)


def test_who_changes_its_announcement_after_the_others_is_expelled() -> None:
    swarm = ran(4, "varies its entry")
    ledger = swarm.nodes[0].member.view.ledger
    liar = swarm.nodes[3].peer
    assert liar in ledger.membership(len(ledger)).expelled
    (proof,) = [e for n in range(len(ledger)) for e in ledger[n].record.evidence]
    assert proof.peer == liar
    one, other = (said.announcement for said in proof.announcements)
    assert one.update == other.update
    assert one.tokens != other.tokens


def test_a_leader_whose_slots_come_to_nothing_is_passed_over() -> None:
    swarm = ran(4, "censors")
    ledger, liar = swarm.nodes[0].member.view.ledger, swarm.nodes[3].peer
    over = [liar in ledger.leaders(number).passed_over for number in range(4, len(ledger))]
    assert sum(over) > len(over) / 2
    # No honest member is that has not just joined, and from time to time the liar gets another try.
    assert all(ledger.leaders(number).passed_over <= {liar} for number in range(8, len(ledger)))
    wasted = [ledger[number].record.slot > 1 for number in range(4, len(ledger))]
    assert 2 < sum(wasted) < len(wasted) / 8
