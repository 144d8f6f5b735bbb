"""Audit events for people: all about themselves, and those about others with consequences."""

from __future__ import annotations

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.reputation import EPOCH_ROUNDS, Audit, RecordedWork
from distro_node.protocol.audit.reputation_events import ReputationEvent
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.member.auditor import Auditor, notes_of_changes
from distro_node.protocol.member.effects import Note
from distro_node.protocol.member.inputs import EntryReceived
from distro_node.protocol.wire.manifest import AuditsSpec
from simulation.chain import Chain
from simulation.keys import identity

ME, *OTHERS = (PeerId(content_id(b"member %d" % number)) for number in range(7))
ANN = OTHERS[0]


def test_a_low_audit_is_reported_to_its_member() -> None:
    found = [ReputationEvent("audit_low", ME, "4"), ReputationEvent("audit_low", ANN, "5")]
    assert notes_of_changes(found, 3, 7, ME) == [Note("audit_low", 7, ME, "4")]


def test_who_is_left_out_is_reported_to_all() -> None:
    found = [ReputationEvent("excluded", ANN), ReputationEvent("contradicted", ANN, "5")]
    assert notes_of_changes(found, 3, 7, ME) == [
        Note("excluded", 7, ANN),
        Note("contradicted", 7, ANN, "5"),
    ]


def test_of_a_crowd_that_gets_votes_nobody_else_is_named() -> None:
    found = [ReputationEvent("votes_gained", peer) for peer in (*OTHERS, ME)]
    assert notes_of_changes(found[:3], 3, 7, ME) == [
        Note("votes_gained", 7, peer) for peer in OTHERS[:3]
    ]
    assert notes_of_changes(found, 9, 7, ME) == [
        Note("votes_gained", 7, ME),
        Note("voters", 7, None, "9"),
    ]


def test_a_member_reports_what_a_record_has_changed() -> None:
    chain = Chain(4, audits=AuditsSpec())
    founder, ann = identity(0).peer, identity(1).peer
    member = chain.member(2)
    members = chain.membership.peers
    for round_ in (1, 2):
        audit = Audit(founder, ann, 1, 4, 15_000)
        audits = (audit,) if round_ == 2 else ()
        member.view.ledger.index(AuditLedger).reputation.close(
            RecordedWork(round_, {ann: 4}, audits), members
        )
    told: list[Note] = []
    while chain.round < EPOCH_ROUNDS:
        effects = member.handle(EntryReceived(chain.grow(updates=())), 0.0)
        told += [each for each in effects if isinstance(each, Note) and each.kind != "decided"]
    # The founder has done nothing itself, and keeps its votes as long as only one other has any.
    assert told == [Note("votes_gained", EPOCH_ROUNDS - 1, ann)]


def test_without_audits_nothing_is_reported() -> None:
    chain = Chain(3)
    assert chain.ledger.find(AuditLedger) is None
    (auditor,) = (each for each in chain.member(0).parts.features if isinstance(each, Auditor))
    before = auditor.before_record(chain.ledger)
    assert before is None
    assert auditor.notes(before, 1, chain.ledger) == []
