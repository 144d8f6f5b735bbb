"""A run ends: all members stop after the same record, which certifies the result."""

from __future__ import annotations

from typing import Any

import pytest
from distro_node.protocol.member.inputs import MessageReceived
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import CLOSING_ROUNDS, ScheduleSpec
from seeds import seeds
from simulation.chain import Chain
from simulation.swarm import Node, Swarm, toy_manifest

LAST = 6
CLOSING = LAST + 1
END = LAST + CLOSING_ROUNDS


def schedule(**changes: Any) -> ScheduleSpec:
    settings: dict[str, Any] = {"warmup_rounds": 1, "total_rounds": LAST}
    return ScheduleSpec(**(settings | changes))


def start(count: int, seed: int = 0, **options) -> tuple[Swarm, list[Node]]:
    loss = options.pop("loss", 0.0)
    manifest = toy_manifest(start_members=count, schedule=schedule(), **options)
    swarm = Swarm(manifest, seed, loss=loss)
    return swarm, [swarm.add(index) for index in range(count)]


def all_finished(swarm: Swarm):
    return lambda: all(node.member.view.is_finished for node in swarm.alive)


def check_ending(swarm: Swarm) -> None:
    ends = {node.member.view.ledger.head for node in swarm.alive}
    assert len(ends) == 1
    for node in swarm.alive:
        ledger = node.member.view.ledger
        assert len(ledger) == END + 1
        assert ledger.finished
        closing = ledger[CLOSING].record
        assert closing.updates == ledger[END].record.updates == ()
        assert ledger[LAST].record.updates
        assert closing.snapshot is not None
        assert closing.snapshot.round == LAST
        assert ledger.snapshot == closing.snapshot
        assert closing.fingerprint == node.parameters
        assert node.member.view.state == "finished"


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_end_after_the_same_record(count: int, overlap: bool) -> None:
    swarm, nodes = start(count, overlap=overlap)
    swarm.run_until(all_finished(swarm), limit=60)
    assert all(node.member.view.ledger.outcome_is_final for node in nodes)
    # Everything under way is finished, and nothing follows.
    swarm.run_until(lambda: all(node.member.view.may_end(node.now) for node in nodes), limit=5)
    check_ending(swarm)
    for node in nodes:
        assert max(node.counted) == LAST


@pytest.mark.parametrize("seed", seeds(8))
def test_losses_and_a_death_move_nobodys_end(seed: int) -> None:
    swarm, nodes = start(5, seed, loss=0.2)
    swarm.run_until(lambda: nodes[0].member.view.round > LAST - 2, limit=200)
    nodes[1 + seed % 4].stop()
    swarm.run_until(all_finished(swarm), limit=400)
    check_ending(swarm)


def test_who_was_away_at_the_end_catches_up_and_is_waited_for() -> None:
    swarm, nodes = start(4)
    swarm.run_until(lambda: nodes[0].member.view.round >= LAST, limit=60)
    nodes[3].frozen = True
    others = nodes[:3]
    swarm.run_until(lambda: all(node.member.view.is_finished for node in others), limit=200)
    nodes[3].frozen = False
    swarm.run_until(all_finished(swarm), limit=60)
    check_ending(swarm)


def test_who_says_goodbye_when_nobody_waits_any_more_leaves_nobody_behind() -> None:
    """As in the daemon: a process ends as soon as all others have reported that they have everything."""
    swarm, nodes = start(5, 3, loss=0.2)

    def leave_when_done() -> bool:
        for node in swarm.alive:
            if node.member.view.may_end(node.now):
                node.stop()
        return not swarm.alive

    swarm.run_until(leave_when_done, limit=300)
    assert {len(node.member.view.ledger) for node in nodes} == {END + 1}
    assert len({node.member.view.ledger.head for node in nodes}) == 1


def test_a_newcomer_gets_what_came_out_and_asks_for_nothing_more() -> None:
    swarm, _ = start(3)
    swarm.run_until(all_finished(swarm), limit=60)
    newcomer = swarm.add(9)
    swarm.run_until(all_finished(swarm), limit=60)
    check_ending(swarm)
    assert not newcomer.member.view.is_member
    assert newcomer.counted == []


def test_a_member_that_is_started_again_finds_the_end_on_its_own_disk() -> None:
    swarm, nodes = start(1)
    swarm.run_until(all_finished(swarm), limit=60)
    nodes[0].stop()
    swarm.add(0, nodes[0].disk)
    swarm.run_until(all_finished(swarm), limit=20)
    check_ending(swarm)


def test_with_continue_it_goes_on() -> None:
    manifest = toy_manifest(start_members=2, schedule=schedule(at_end="continue"))
    swarm = Swarm(manifest, 0)
    nodes = [swarm.add(index) for index in range(2)]
    swarm.run_until(lambda: all(LAST + 4 in node.counted for node in nodes), limit=60)
    assert not nodes[0].member.view.ledger.finished


def test_the_chain_forbids_updates_in_the_closing_record_and_records_after_it() -> None:
    chain = Chain(2, schedule=schedule(total_rounds=1, warmup_rounds=0))
    assert [chain.manifest.schedule.trains(round_) for round_ in range(4)] == [0, 1, 0, 0]
    chain.grow()
    said = [chain.update(peer) for peer in chain.membership.peers]
    wrongs: list[dict[str, Any]] = [{"updates": said}, {"snapshot": None, "updates": []}]
    for wrong in wrongs:
        with pytest.raises(ProtocolError) as refused:
            chain.grow(**wrong)
        assert refused.value.reason == "record"
    assert not chain.ledger.finished
    chain.grow(snapshot=chain.snapshot(1), updates=[])
    for _ in range(CLOSING_ROUNDS - 1):
        assert not chain.ledger.finished
        chain.grow(updates=[])
    assert chain.ledger.finished
    assert chain.ledger.snapshot == chain.snapshot(1)
    with pytest.raises(ProtocolError, match="after the end"):
        chain.grow(updates=[])


def test_a_member_takes_no_update_in_the_closing_round() -> None:
    chain = Chain(2, schedule=schedule(total_rounds=1, warmup_rounds=0))
    chain.grow()
    said = chain.announcement(1)
    member = chain.member(0, load=False)
    with pytest.raises(ProtocolError) as refused:
        member.handle(MessageReceived(chain.envelope(1, "announcement", said)), 0.0)
    assert refused.value.reason == "other_round"


def test_who_ends_alone_follows_the_others_end() -> None:
    """Cut off before the end, one member goes on alone and reaches an end that is not final."""
    swarm, nodes = start(4, fault_model="byzantine")
    swarm.run_until(lambda: nodes[0].member.view.round >= 3, limit=60)
    cut = [(3, other) for other in range(3)]
    swarm.network.cut([*cut, *((other, one) for one, other in cut)])
    swarm.run_until(all_finished(swarm), limit=900)
    lone, others = nodes[3].member.view, nodes[0].member.view
    assert lone.ledger.head != others.ledger.head
    assert not lone.ledger.outcome_is_final
    swarm.network.mend()
    swarm.run_until(lambda: lone.is_finished and lone.ledger.head == others.ledger.head, 120)
    check_ending(swarm)
