"""The watch's account of votes and reputation can fail: members that have them without work are
noticed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from distro_node.protocol.audit.reputation import ReputationTable
from simulation import audit_invariants
from simulation.freeloaders import OTHER_DATA
from simulation.scenario import Failure, draw_scenario, run

# Private here: `_settle`: broken on purpose.


def failure_of_freeloaders() -> Failure | None:
    """Return the failure of a run in which nothing else goes wrong."""
    drawn = draw_scenario(36, "audits")
    quiet = dataclasses.replace(drawn.schedule, actions=())
    liars = tuple((index, (OTHER_DATA,)) for index, _ in drawn.liars)
    return run(dataclasses.replace(drawn, liars=liars, schedule=quiet)).failure


def noticed(failure: Failure | None) -> str:
    assert failure is not None
    assert failure.invariant == "accounts"
    return failure.text


def test_who_idles_and_stays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReputationTable, "_settle", lambda *_: None)
    # The run is a short one.
    monkeypatch.setattr(audit_invariants, "IDLE_ROUNDS", 30)
    assert "count that are no work" in noticed(failure_of_freeloaders())


def test_votes_for_what_nobody_saw_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every audit passes."""
    monkeypatch.setattr(ReputationTable, "bound", lambda *_: -(1 << 60))
    assert "votes for 0 sequences" in noticed(failure_of_freeloaders())


def test_an_honest_member_that_is_accused_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every audit fails."""
    settles: Any = ReputationTable._settle
    monkeypatch.setattr(ReputationTable, "bound", lambda *_: 1 << 60)
    monkeypatch.setattr(
        ReputationTable, "_settle", lambda self, first, _: settles(self, first, "failed")
    )
    assert "an honest member is accused" in noticed(failure_of_freeloaders())


def test_without_faults_there_is_nothing_to_notice() -> None:
    assert failure_of_freeloaders() is None
