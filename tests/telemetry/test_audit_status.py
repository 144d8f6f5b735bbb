"""Audits in texts and numbers: the owner of a node that is left out reads why, and the remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from distro_node.node.control.status_rows import rows
from distro_node.node.telemetry import audit_metrics, audit_status
from distro_node.node.telemetry.audit_messages import is_trouble, own_audits_text
from distro_node.node.telemetry.audit_status import ExcludedMember
from distro_node.node.telemetry.health import verdict
from distro_node.node.telemetry.messages import event_sentence
from distro_node.node.telemetry.status import Status
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.audit import counts, reputation_events
from distro_node.protocol.audit.reputation import WINDOW
from distro_node.protocol.audit.reputation_events import ReputationEventKind
from distro_node.protocol.member.effects import NoteKind
from simulation.keys import identity
from statuses import CHECKS, LEFT_OUT, OBSERVING, OWN_CHECKS, SWARM, TRAINING, B, C

OF_CHECKS = {"your audits", "your updates", "your votes", "audits", "voters", "excluded"}


def checking(own: audit_status.OwnAudits | None = OWN_CHECKS, status: Status = TRAINING) -> Status:
    return replace(status, swarm=replace(SWARM, audits=replace(CHECKS, own=own)))


def shown(status: Status) -> dict[str, tuple[str, str]]:
    return {row.name: (row.value, row.note) for row in rows(status) if row.name in OF_CHECKS}


def test_keys_for_programs_are_those_of_the_protocol() -> None:
    assert get_args(audit_status.Why) == get_args(reputation_events.NoVotesReason)
    assert set(get_args(audit_metrics.DisputeOutcomeLabel)) == {
        *get_args(counts.DisputeEnding),
        "other",
    }


def test_without_audits_nothing_of_them_is_shown() -> None:
    assert shown(TRAINING) == {}
    assert shown(OBSERVING) == {}


def test_a_member_in_good_standing_reads_its_votes() -> None:
    said = shown(checking())
    assert said.keys() == OF_CHECKS - {"your updates"}
    assert said["your audits"][0] == "12, 1 low"
    assert said["your votes"] == (
        "1,024 of 8,192, 12.5%",
        "your votes are earned by work that other members have audited",
    )
    assert said["audits"][0] == "1,430, 12 low, 1 in dispute"
    assert said["voters"][0] == "2 with 8,192 votes"
    assert said["excluded"][0] == "CCCCCC: 3 of 14 checks of its work failed"
    assert verdict(checking()) == verdict(TRAINING)


def test_an_observer_reads_of_the_swarm_alone() -> None:
    assert shown(checking(None, OBSERVING)).keys() == {"audits", "voters", "excluded"}


def test_who_is_left_out_reads_why_and_what_helps() -> None:
    left_out = checking(LEFT_OUT)
    value, note = shown(left_out)["your updates"]
    assert value == "do not count"
    for part in (
        "recomputed your samples",
        "3 of 12 audits",
        "doctor",
        "after 63 passed audits in a row",
    ):
        assert part in note
    how = verdict(left_out)
    assert how.tone == "bad"
    assert how.sentence.startswith("your updates do not count: other members recomputed")
    assert "distro-node doctor" in how.remedy


@pytest.mark.parametrize(
    ("why", "part"), [("scores", "score lower in audits"), ("contradicted", "re-audits contradict")]
)
def test_who_loses_votes_alone_reads_that_updates_count(why: audit_status.Why, part: str) -> None:
    how = verdict(checking(replace(OWN_CHECKS, votes=0, reason=why)))
    assert how.tone == "warn"
    assert how.sentence.startswith("your updates count, but give no votes: ")
    assert part in how.sentence
    assert how.remedy


def test_who_is_turned_away_reads_why_it_is_not_let_in() -> None:
    away = replace(LEFT_OUT, reason="dismissed", passes_until_counted=0)
    how = verdict(checking(away, replace(TRAINING, state="joining")))
    assert how.tone == "bad"
    assert "none has confirmed" in how.sentence
    assert "distro-node doctor" in how.remedy
    assert f"{WINDOW:,} rounds" in how.remedy
    # Until the record that removes it.
    assert verdict(checking(away)).sentence.startswith("your updates do not count: ")
    # A node with a clean record waits as usual.
    waiting = replace(TRAINING, state="joining")
    assert verdict(checking(OWN_CHECKS, waiting)) == verdict(waiting)


def test_reports_of_records_are_whole_sentences() -> None:
    for kind in get_args(NoteKind):
        said = event_sentence(kind, 9, C, False, "")
        assert said or kind in ("decided", "admitted")


def test_a_newcomer_without_votes_has_nothing_to_do() -> None:
    new = replace(OWN_CHECKS, votes=0, audited=0, low=0, reason="unconfirmed")
    assert verdict(checking(new)).tone == "good"
    said = shown(checking(new))
    assert said["your audits"][0] == "0"
    assert said["your votes"][0] == "none yet"
    assert "once enough other members have audited" in said["your votes"][1]
    assert own_audits_text(new).remedy == ""


def test_there_is_a_remedy_where_there_is_trouble() -> None:
    for why in get_args(audit_status.Why):
        own = replace(OWN_CHECKS, reason=why)
        assert bool(own_audits_text(own).remedy) == is_trouble(why)
    assert not is_trouble(None)


def test_of_many_who_are_left_out_the_first_are_named() -> None:
    crowd = replace(CHECKS, excluded=tuple(ExcludedMember(peer=B, reason="x") for _ in range(9)))
    status = replace(TRAINING, swarm=replace(SWARM, audits=crowd))
    assert shown(status)["excluded"][0] == "BBBBBB: x; " * 4 + "+5"


def test_every_change_is_a_whole_sentence() -> None:
    for kind in (*get_args(ReputationEventKind), "dismissed", "voters"):
        detail = "failed" if kind in ("votes_lost", "excluded") else "7"
        mine = event_sentence(kind, 9, C, True, detail)
        theirs = event_sentence(kind, 9, C, False, detail)
        assert mine not in ("", detail)
        assert "{" not in mine + theirs
        assert kind == "voters" or ("this node" in mine and "peer CCCCCC" in theirs)
    for why in get_args(audit_status.Why):
        said = event_sentence("votes_lost", 9, C, False, why)
        assert said.startswith("peer CCCCCC has lost its votes: ")
        assert said != f"peer CCCCCC has lost its votes: {why}"


def test_an_event_states_what_became_of_a_member() -> None:
    telemetry = Telemetry(identity(0).peer)
    telemetry.event("votes_lost", 31, identity(0).peer, "contradicted")
    (event,) = telemetry.events
    assert event.kind == "votes_lost"
    assert event.text == ("this node has lost its votes: re-audits contradict its audits")
