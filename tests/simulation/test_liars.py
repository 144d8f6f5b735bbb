"""The liars do what their lies are named after, in runs where nothing else goes wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from distro_node.protocol.wire.messages import Ballot
from seeds import seeds
from simulation import clock
from simulation.faults import Action, Schedule
from simulation.liars import ABSTAINS, BOTH_SIDES, HISTORY, LEAVES, STRANGER, Liar, Liars
from simulation.message_cache import read
from simulation.network import LAN, Links
from simulation.scenario import Scenario, build, draw_scenario, run

QUIET = Schedule((), cut_off=False)


def scenario(
    members: int, liars: Liars, schedule: Schedule = QUIET, links: Links | None = None
) -> Scenario:
    family = "cut" if schedule.actions else "liars"
    links = links or Links()
    return Scenario(1, family, members, 8, "byzantine", liars, schedule, links)


class _Forgetful(set[Any]):
    def __contains__(self, item: object) -> bool:
        return False


def test_copycats_do_not_copy_each_other_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would stop the time for all: in a second some three hundred events happen here, and tens of
    thousands if they copied copies."""
    monkeypatch.setattr(clock, "MOST_STEPS", 5000)
    copycats = scenario(7, ((2, ("copycat",)), (5, ("copycat",))), links=LAN)
    assert run(copycats).failure is None
    made = Liar.__init__

    def forgets(self: Liar, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        self._copied = _Forgetful()

    monkeypatch.setattr(Liar, "__init__", forgets)
    failure = run(copycats).failure
    assert failure is not None
    assert failure.invariant == "standstill"


@pytest.mark.parametrize("seed", seeds(3))
def test_a_founder_that_rewrites_history_is_not_followed(seed: int) -> None:
    drawn = draw_scenario(seed, "liars")
    outcome = run(dataclasses.replace(drawn, liars=((0, (HISTORY,)),)))
    assert outcome.failure is None
    assert outcome.rounds >= 8


def sent_by(swarm: Any, index: int) -> list[Any]:
    return [read(envelope) for envelope in swarm.node(index).disk.said]


def test_who_signs_on_both_sides_signs_different_chains() -> None:
    """A cut of two and two with one liar that belongs to both: each side has more than half, and neither
    ever reverts what is final. The leaders who are drawn at this moment let both of them decide."""
    cut = Schedule((Action(11.0, "partition", -1, 25.0, 0.0, (0, 1)),), cut_off=True)
    swarm = build(scenario(5, ((4, (BOTH_SIDES,)),), cut))
    signed: list[tuple[float, Ballot]] = []
    sees = swarm.watch.signed

    def watched(node: Any, envelope: Any) -> None:
        if node.index == 4 and envelope.kind == "finalize":
            message = read(envelope)
            assert isinstance(message, Ballot)
            signed.append((swarm.now, message))
        sees(node, envelope)

    swarm.watch.signed = watched  # type: ignore[method-assign]
    swarm.run_for(35.0)
    one, other = (swarm.node(index).member.view.ledger for index in (0, 2))  # type: ignore[union-attr]
    assert one.head != other.head
    for ledger in (one, other):
        later = [ballot for at, ballot in signed if at > 21.0 and ballot.round < len(ledger)]
        assert any(ballot.block == ledger[ballot.round].record.id for ballot in later)
    assert run(scenario(5, ((4, (BOTH_SIDES,)),), cut)).failure is None


def test_a_liar_that_a_cut_makes_a_third_can_stop_a_side_and_do_no_more() -> None:
    """As docs/protocol.md describes: one of four, which stops signing when three are left."""
    cut = Schedule((Action(6.0, "partition", -1, 25.0, 0.0, (3,)),), cut_off=True)
    outcome = run(scenario(4, ((2, (ABSTAINS, BOTH_SIDES)),), cut))
    assert outcome.failure is None
    assert outcome.excused


def test_a_liar_that_deaths_make_a_third_stops_those_who_are_left() -> None:
    """One of four, when another is gone for longer than the lease."""
    deaths = Schedule((Action(6.0, "crash", 3, 300.0, 0.0, ()),), cut_off=True)
    drawn = scenario(4, ((2, (ABSTAINS,)),), deaths)
    outcome = run(dataclasses.replace(drawn, family="down"))
    assert outcome.failure is None
    assert outcome.excused


@pytest.mark.parametrize("lie", [STRANGER, LEAVES])
def test_who_is_no_member_answers_all_the_same(lie: str) -> None:
    index = 700 if lie == STRANGER else 2
    swarm = build(scenario(5, ((index, ("solo rounds", "false heights", "false chain", lie)),)))
    swarm.run_for(25.0)
    liar = swarm.node(index)
    assert liar is not None
    member = swarm.node(1).member  # type: ignore[union-attr]
    assert liar.peer not in member.view.members
    assert any(liar.peer in member.view.ledger.membership(n) for n in range(9)) == (lie == LEAVES)
    shown = liar.offers(swarm.node(1))  # type: ignore[arg-type]
    assert shown.head != member.view.ledger.head
    if lie == LEAVES:
        # Valid rounds of its own, from the time when it was a member.
        assert shown.membership(len(shown)).peers == (liar.peer,)
