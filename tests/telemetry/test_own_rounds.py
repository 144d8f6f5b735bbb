"""A node's part in a round: counted, late, left out, without work, or not needed."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from distro_node.node.control.status_rows import rows
from distro_node.node.session.attendance import attendance_of
from distro_node.node.telemetry.health import verdict
from distro_node.node.telemetry.own_rounds import (
    OWN_ROUNDS,
    OwnRound,
    OwnRoundCounts,
    RoundAttendance,
)
from distro_node.node.telemetry.telemetry import OwnUpdate, Telemetry
from scraping import sample, told_by
from simulation.chain import Chain
from statuses import TRAINING


def swarm_with_a_slow_member() -> Chain:
    """Return a chain of four, in which the last member has less than one stream."""
    chain = Chain(4, sequences=16, max_share=0.5)
    slow = chain.membership.peers[-1]
    while slow in (due := chain.ledger.assignments.due(chain.round)) or not chain.round:
        chain.grow(
            updates=[chain.update(p, capacity=10 if p == slow else 1000) for p in sorted(due)]
        )
    return chain


def test_who_has_no_work_is_not_late() -> None:
    chain = swarm_with_a_slow_member()
    *others, slow = chain.membership.peers
    round_ = chain.round
    chain.grow(updates=[chain.update(peer, capacity=1000) for peer in others[1:]])
    record = chain.ledger[round_].record
    assert attendance_of(chain.ledger, record, slow) == RoundAttendance("no_work", (others[0],))
    assert attendance_of(chain.ledger, record, others[0]).own == "late"
    assert attendance_of(chain.ledger, record, others[1]).own == "counted"
    # Not yet a member.
    assert attendance_of(chain.ledger, record, chain._key(9).peer).own == "no_work"


def test_an_update_without_weight_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(2).grow_until(3)
    record, me = chain.ledger[2].record, chain.membership.peers[0]
    weights = [0 if entry.peer == me else 1 for entry in record.updates]
    monkeypatch.setattr(type(chain.ledger), "update_weights", lambda *_: tuple(weights))
    assert attendance_of(chain.ledger, record, me).own == "left_out"


def test_a_round_in_which_committees_aggregate_needs_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = swarm_with_a_slow_member()
    *others, slow = chain.membership.peers
    chain.grow(updates=[chain.update(peer, capacity=1000) for peer in others])
    monkeypatch.setattr(type(chain.manifest), "aggregates_in", lambda *_: True)
    record = chain.ledger[chain.round - 1].record
    assert attendance_of(chain.ledger, record, slow).own == "not_needed"


def test_each_part_is_reported_everywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the log, the status, its rows, the metrics and the history from which the page is made."""
    chain = Chain(2).grow_until(6)
    me, other = chain.membership.peers
    telemetry = Telemetry(me)
    telemetry.keep_history(tmp_path / "history.jsonl")
    parts: list[OwnRound] = ["counted", "late", "left_out", "no_work", "not_needed"]
    with caplog.at_level(logging.INFO):
        for round_, own in enumerate(parts, start=1):
            telemetry.own[round_] = OwnUpdate(size=10, coefficients=10, tokens=10)
            telemetry.applied(
                chain.ledger[round_].record,
                2,
                9,
                0.1,
                float(round_),
                attendance=RoundAttendance(own, (other,) if own == "late" else ()),
            )
    told = [line for line in caplog.messages if "updates of 2 members" in line]
    assert [line.split("; ")[1] for line in told] == [OWN_ROUNDS[own] for own in parts]
    assert len(set(OWN_ROUNDS.values())) == 5
    # Only what the late one held is sent again.
    assert sum("but is not lost" in line for line in caplog.messages) == 1
    own = telemetry.status().own
    found = (own.counted, own.late, own.left_out, own.no_work, own.not_needed)
    assert (found, own.missed_in_a_row) == ((1, 1, 1, 1, 1), 2)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["own"] for line in lines] == parts
    assert [len(line["late"]) for line in lines] == [0, 1, 0, 0, 0]
    for part in parts:
        assert sample(told_by(telemetry), "own_rounds_total", own=part) == 1
    status = replace(TRAINING, training=telemetry.status())
    (row,) = [row for row in rows(status) if row.name == "your rounds"]
    assert row.value == "1 counted since round 1"
    assert row.note == (
        "1 late, 1 left out, 1 without an assignment, 1 that needed no update of yours"
    )


def test_only_late_updates_are_trouble() -> None:
    counts = OwnRoundCounts()
    for _ in range(80):
        counts.add("no_work")
        counts.add("not_needed")
    assert counts.missed_in_a_row == 0
    training = replace(TRAINING.training, round=900)
    own = replace(training.own, last_round=17, no_work=800)
    quiet = replace(TRAINING, training=replace(training, own=own))
    assert "late" not in verdict(quiet).sentence
    late = replace(TRAINING, training=replace(training, own=replace(own, missed_in_a_row=7)))
    swarm = late.swarm
    assert swarm is not None
    late = replace(late, swarm=replace(swarm, awaited=(), audits=None))
    assert (verdict(late).tone, "last 7 updates" in verdict(late).sentence) == ("warn", True)
