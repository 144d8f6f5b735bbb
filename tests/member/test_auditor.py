"""One member's audits: what it computes, what it announces, and what it accepts from others."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from functools import cache
from typing import TypeVar

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.disputes import DRAW_LAG_ROUNDS, OPEN_ROUNDS
from distro_node.protocol.audit.reputation import EPOCH_ROUNDS, FRESH, Audit
from distro_node.protocol.chain.leaders import Leaders
from distro_node.protocol.member.auditor import (
    Auditor,
    AuditScored,
    ReauditDone,
    RunReaudit,
    ScoreAudit,
)
from distro_node.protocol.member.beacon_secrets import BeaconSecrets
from distro_node.protocol.member.effects import (
    Effect,
    Publish,
    Train,
)
from distro_node.protocol.member.inputs import (
    Applied,
    EntryReceived,
    Loaded,
    MessageReceived,
    Trained,
    UpdateHeld,
)
from distro_node.protocol.member.local_updates import Training
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import (
    MAX_AUDITS,
    Announcement,
    AuditMessage,
    AuditScore,
    Message,
    Proposal,
    ReauditMessage,
    RecordId,
    decode_message,
)
from simulation.audited_chain import GOOD, LOW, AuditedChain
from simulation.chain import FINGERPRINT, Chain, update_of

# Private here: `_audits`, `_reaudits`: how much waits for a record is not exposed.

E = TypeVar("E")


def of(kind: type[E], effects: Iterable[Effect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def said(kind: type[E], effects: Iterable[Effect]) -> list[E]:
    words = [decode_message(effect.envelope) for effect in of(Publish, effects)]
    return [word for word in words if isinstance(word, kind)]


@cache
def _grown() -> AuditedChain:
    return AuditedChain().check(3 * EPOCH_ROUNDS + 2)


def grown() -> AuditedChain:
    """Return a chain of four members with votes."""
    known = _grown()
    chain = copy.copy(known)
    chain.ledger = known.ledger.truncated(len(known.ledger))
    return chain


class Seat:
    """Member of a chain that the others continue."""

    def __init__(self, chain: Chain, me: PeerId | None = None) -> None:
        self.chain = chain
        self.me = chain.membership.peers[0] if me is None else me
        self.member = chain.member(self.me, load=False)

    def loads(self) -> list[Effect]:
        return self.member.handle(Loaded(self.chain.round - 1, FINGERPRINT, None), 0.0)

    def trains(self) -> list[Effect]:
        round_ = self.chain.round
        made = Trained(round_, round_, update_of(self.me, round_), 1000, 500, 2.5)
        return self.member.handle(made, 0.0)

    def decides(self, **parts: object) -> list[Effect]:
        """Deliver and apply the next record."""
        decided = self.chain.grow(**parts)  # type: ignore[arg-type]
        effects = self.member.handle(EntryReceived(decided), 0.0)
        for entry in decided.record.updates:
            effects += self.member.handle(UpdateHeld(entry.update), 0.0)
        return effects + self.member.handle(Applied(decided.record.round, FINGERPRINT, None), 0.0)

    def receives(self, who: PeerId, kind: str, message: Message) -> list[Effect]:
        return self.member.handle(MessageReceived(self.chain.envelope(who, kind, message)), 0.0)

    def refuses(self, who: PeerId, kind: str, message: Message) -> str:
        with pytest.raises(ProtocolError) as caught:
            self.receives(who, kind, message)
        return caught.value.reason


def drawn_auditor(chain: AuditedChain, *but: PeerId) -> PeerId:
    """Return a member that audits in this round."""
    return next(
        peer
        for peer in chain.membership.peers
        if peer not in but and chain.drawn(peer, chain.round) is not None
    )


def check_of(chain: AuditedChain, who: PeerId, score: int = GOOD) -> AuditMessage:
    """Return a member's message about its audit of the last round."""
    entry = chain.audit(who, score=score)
    return entry.message(chain.ledger.parent(entry.round))


# Audits


def test_a_restarted_member_is_bound_to_the_same_secrets() -> None:
    chain = grown()
    for _ in range(2):
        seat = Seat(chain)
        seat.loads()
        (announcement,) = said(Announcement, seat.trains())
        assert announcement.commitment == chain.secrets(seat.me).commitment


def test_an_audit_from_its_draw_to_the_next_proposal() -> None:
    chain = grown()
    swarm = chain.manifest.swarm
    while True:
        votes = chain.ledger.votes(chain.round)
        me = Leaders(swarm, chain.round + 1, chain.membership, votes)[1]
        audit = chain.drawn(me, chain.round)
        if audit is not None:
            break
        chain.grow()
    round_, seat = chain.round, Seat(chain, me)
    (train,) = of(Train, seat.loads())
    share = chain.ledger.assignments.share(round_, audit.peer)
    assert share is not None
    assert (train.audit, train.audit_share) == (share[audit.sequence], len(share))
    assert train.audit not in train.samples
    seat.trains()
    effects = seat.decides()
    assert of(ScoreAudit, effects) == [ScoreAudit(round_, update_of(audit.peer, round_))]
    (check,) = said(AuditMessage, seat.member.handle(AuditScored(round_, GOOD, 1), 0.0))
    assert check == check_of(chain, me)
    # Announced once.
    assert not said(AuditMessage, seat.member.handle(AuditScored(round_, GOOD, 1), 0.0))
    effects = seat.trains()
    for peer in chain.membership.peers:
        if peer != me:
            announcement = chain.announcement(peer)
            effects += seat.receives(peer, "announcement", announcement)
            effects += seat.member.handle(UpdateHeld(announcement.update), 0.0)
    (proposal,) = said(Proposal, effects)
    assert proposal.record.audits == (chain.audit(me),)


def test_what_was_seen_of_a_beginning_is_sent_and_recorded() -> None:
    chain = grown()
    seat = Seat(chain, drawn_auditor(chain))
    seat.loads()
    (judge,) = of(ScoreAudit, seat.decides())
    judged = AuditScored(judge.round, GOOD, 1, AuditScore(LOW, 1))
    (check,) = said(AuditMessage, seat.member.handle(judged, 0.0))
    assert check.first_half == AuditScore(LOW, 1)
    entry = chain.audit(seat.me, first_half=AuditScore(LOW, 1))
    chain.grow(audits=(entry,))
    (seen,) = {
        audit
        for peer in chain.membership.peers
        for audit in chain.work.reputation[peer].scores
        if audit.first_half is not None
    }
    assert (seen.score, seen.first_half) == (1000 * GOOD, 1000 * LOW)
    # It is covered by the signature.
    for other in (None, AuditScore(LOW + 1, 1)):
        forged = dataclasses.replace(entry, first_half=other)
        assert forged.message(chain.ledger.parent(entry.round)) != check


def test_an_audit_of_an_update_that_does_not_count_is_dropped() -> None:
    chain = grown()
    me = drawn_auditor(chain)
    audit = chain.drawn(me, chain.round)
    assert audit is not None
    seat = Seat(chain, me)
    assert of(Train, seat.loads())[0].audit is not None
    others = [chain.update(peer) for peer in chain.membership.peers if peer != audit.peer]
    assert not of(ScoreAudit, seat.decides(updates=others))


def test_nothing_is_sent_where_there_was_nothing_to_compare() -> None:
    chain = grown()
    seat = Seat(chain, drawn_auditor(chain))
    seat.loads()
    (judge,) = of(ScoreAudit, seat.decides())
    assert not said(AuditMessage, seat.member.handle(AuditScored(judge.round, 0, 0), 0.0))


# Re-audits


def low_audit(chain: AuditedChain) -> tuple[Audit, int]:
    """Record a low audit; return it and the round whose record holds it."""
    auditor = drawn_auditor(chain)
    chain.grow()
    chain.grow(audits=(chain.audit(auditor, score=LOW),))
    (first,) = chain.work.reputation.disputes
    return first, chain.round - 1


def test_a_reaudit_from_its_draw_to_its_message() -> None:
    chain = grown()
    first, since = low_audit(chain)
    # The first auditor covers the whole share as well.
    for me in (first.auditor, next(p for p in chain.membership.peers if p != first.peer)):
        other = copy.copy(chain)
        other.ledger = chain.ledger.truncated(chain.round)
        seat = Seat(other, me)
        effects = seat.loads()
        while other.round < since + DRAW_LAG_ROUNDS:
            effects += seat.decides()
        assert not of(RunReaudit, effects)
        (again,) = of(RunReaudit, seat.decides())
        share = other.ledger.assignments.share(first.round, first.peer)
        assert share is not None
        assert (again.low_audit, again.update) == (first, update_of(first.peer, first.round))
        assert (len(again.samples), again.share_size) == (8, len(share))
        assert set(again.samples) <= set(share)
        scores = tuple(AuditScore(LOW, 1) for _ in again.samples)
        (recheck,) = said(ReauditMessage, seat.member.handle(ReauditDone(first, scores), 0.0))
        assert recheck == other.again(me, first).message(other.ledger.parent(first.round))
        # Announced once, and no member is called twice.
        effects = seat.decides()
        assert not said(ReauditMessage, effects)
        assert not of(RunReaudit, effects)


def test_who_was_audited_is_not_drawn() -> None:
    chain = grown()
    first, since = low_audit(chain)
    chain.grow_until(since + DRAW_LAG_ROUNDS)
    seat = Seat(chain, first.peer)
    seat.loads()
    assert not of(RunReaudit, seat.decides())


def test_a_reaudit_is_accepted_while_the_dispute_lasts() -> None:
    """However late the audit was recorded."""
    chain = grown()
    auditor = drawn_auditor(chain)
    at = chain.round
    chain.grow_until(at + FRESH - 1)
    chain.grow(audits=(chain.audit(auditor, at, LOW),))
    (first,) = chain.work.reputation.disputes
    chain.grow_until(at + FRESH + OPEN_ROUNDS - 1)
    who, me, _ = sorted(chain.work.reputation.pending_reauditors(first))
    seat = Seat(chain, me)
    seat.loads()
    seat.receives(who, "reaudit", chain.again(who, first).message(chain.ledger.parent(at)))


# Audits of others


def test_junk_is_refused() -> None:
    chain = grown()
    auditor = drawn_auditor(chain)
    chain.grow()
    me = next(peer for peer in chain.membership.peers if peer != auditor)
    seat = Seat(chain, me)
    seat.loads()
    check = check_of(chain, auditor)
    committed = chain.secrets(auditor, chain.work.commitment_round(check.round))
    wrong = {
        "audit": [{"opening": bytes(48)}, {"opening": committed.opening("beacon")}],
        "other_round": [{"round": chain.round}, {"round": chain.round - FRESH}],
        "wrong_parent": [{"parent": RecordId(content_id(b"another"))}],
    }
    for reason, changes in wrong.items():
        for change in changes:
            junk = dataclasses.replace(check, **change)
            assert seat.refuses(auditor, "audit", junk) == reason
    # Another member's secret is refused.
    other = next(peer for peer in chain.membership.peers if peer not in (me, auditor))
    assert seat.refuses(other, "audit", check) == "audit"
    seat.receives(auditor, "audit", check)
    seat.receives(auditor, "audit", check)
    twice = dataclasses.replace(check, total=GOOD + 1)
    assert seat.refuses(auditor, "audit", twice) == "equivocation"
    first = Audit(auditor, me, check.round, 16, LOW)
    recheck = chain.again(auditor, first).message(check.parent)
    assert seat.refuses(auditor, "reaudit", recheck) == "audit"


def test_an_announcement_that_binds_nobody_is_refused() -> None:
    """Otherwise the leader would propose what no member may vote for."""
    chain = grown()
    me, other, *_ = chain.membership.peers
    seat = Seat(chain, me)
    seat.loads()
    for bound in (b"", bytes(31)):
        announcement = chain.announcement(other, commitment=bound)
        assert seat.refuses(other, "announcement", announcement) == "audit"
    seat.receives(other, "announcement", chain.announcement(other))
    without = Seat(Chain().grow_until(3))
    without.loads()
    who = without.chain.membership.peers[1]
    announcement = without.chain.announcement(who, commitment=bytes(32))
    assert without.refuses(who, "announcement", announcement) == "audit"


def auditor_of(chain: AuditedChain) -> Auditor:
    """Return the auditor of a member that announces nothing itself."""

    def sign(kind: str, body: bytes) -> object:
        raise AssertionError("it has nothing to sign")

    me = chain.membership.peers[0]
    secrets = BeaconSecrets(me, sign)  # type: ignore[arg-type]
    return Auditor(me, secrets, Training(me, overlap=False))


def test_what_waits_is_bounded() -> None:
    chain = grown()
    auditor = auditor_of(chain)
    parent = chain.ledger.head
    check = AuditMessage(3, parent, bytes(48), GOOD, 1)
    recheck = ReauditMessage(3, parent, chain.manifest.founder, (AuditScore(LOW, 1),))
    for number in range(8 * MAX_AUDITS):
        sender = PeerId(content_id(b"%d" % number))
        auditor.put(sender, check, bytes(64))
        auditor.put(sender, recheck, bytes(64))
    assert len(auditor._audits) == len(auditor._reaudits) == 256
    # None of them fits into a record.
    assert auditor.entries(chain.ledger) == ((), ())
    assert not auditor._audits
    assert not auditor._reaudits


def test_what_was_received_waits_for_the_next_record_of_this_chain() -> None:
    chain = grown()
    auditor = auditor_of(chain)
    entries = chain.audits()
    for entry in reversed(entries):
        auditor.put(entry.auditor, check_of(chain, entry.auditor), entry.signature)
    assert auditor.entries(chain.ledger) == (entries, ())
    shorter = chain.ledger.truncated(len(chain.ledger))
    chain.grow(audits=entries)
    auditor.forget(chain.ledger)
    assert auditor.entries(chain.ledger) == ((), ())
    for entry in entries:
        message = entry.message(shorter.parent(entry.round))
        auditor.put(entry.auditor, message, entry.signature)
    auditor.start_over()
    assert auditor.entries(shorter) == ((), ())


def test_without_audits_nothing_happens() -> None:
    chain = Chain().grow_until(4)
    seat = Seat(chain)
    (train,) = of(Train, seat.loads())
    assert (train.audit, train.audit_share) == (None, 0)
    (announcement,) = said(Announcement, seat.trains())
    assert announcement.commitment == b""
    effects = seat.decides()
    assert not of(ScoreAudit, effects)
    assert not of(RunReaudit, effects)
    assert not said(AuditMessage, seat.member.handle(AuditScored(4, GOOD, 1), 0.0))
    first = Audit(seat.me, chain.membership.peers[1], 4, 16, LOW)
    assert not said(
        ReauditMessage, seat.member.handle(ReauditDone(first, (AuditScore(LOW, 1),)), 0.0)
    )
    check = AuditMessage(4, chain.ledger.parent(4), bytes(48), GOOD, 1)
    assert seat.refuses(chain.membership.peers[1], "audit", check) == "audit"
