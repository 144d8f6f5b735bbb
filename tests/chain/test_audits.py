"""Audits in records: only those that were drawn, each once; and the reputation that follows at any
length."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import cache

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.disputes import DRAW_LAG_ROUNDS, JURY_SEATS, OPEN_ROUNDS
from distro_node.protocol.audit.reputation import EPOCH_ROUNDS, FRESH, Audit, EpochVotes
from distro_node.protocol.chain import audits
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.chain.beacon import Beacon
from distro_node.protocol.chain.record_checks import check_record
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import AuditEntry, ReauditEntry, Record
from simulation.audited_chain import FIRST_DRAWN, GOOD, LOW, AuditedChain
from simulation.chain import Chain
from simulation.swarm import identity

SINCE_ALL_VOTE = 3 * EPOCH_ROUNDS


@cache
def _grown() -> AuditedChain:
    chain = AuditedChain().check(SINCE_ALL_VOTE + 2)
    assert chain.work.reputation.votes.keys() == set(chain.membership.peers)
    return chain


@pytest.fixture
def chain() -> AuditedChain:
    """Four members with votes."""
    grown = _grown()
    chain = copy.copy(grown)
    chain.ledger = grown.ledger.truncated(len(grown.ledger))
    return chain


def refused(chain: Chain, record: Record) -> str:
    with pytest.raises(ProtocolError) as caught:
        check_record(record, chain.ledger, chain.ledger.verify)
    assert caught.value.reason in ("audit", "record")
    return str(caught.value)


def refused_audit(chain: AuditedChain, *audits: AuditEntry) -> str:
    return refused(chain, chain.record(audits=audits))


def refused_again(chain: AuditedChain, *audits: ReauditEntry) -> str:
    return refused(chain, chain.record(reaudits=audits))


# Audits


def test_an_audit_is_recorded_and_vouches() -> None:
    """Of all members only the founder has votes, and so it audits alone."""
    chain = AuditedChain().grow_until(FIRST_DRAWN + 1)
    (entry,) = chain.audits()
    assert entry.auditor == chain.manifest.founder
    audit = chain.drawn(entry.auditor, FIRST_DRAWN)
    assert audit is not None
    chain.grow(audits=(entry,))
    account = chain.work.reputation[audit.peer]
    assert account.audited == 1
    (seen,) = chain.work.reputation[entry.auditor].scores
    assigned = [chain.work.share_sizes(round_)[audit.peer] for round_ in range(1, FIRST_DRAWN + 1)]
    assert (seen.score, seen.share) == (1000 * GOOD, assigned[-1])
    # All work up to the audited round.
    assert account.work == sum(assigned)


def test_who_was_vouched_for_votes_and_audits(chain: AuditedChain) -> None:
    votes = chain.work.reputation.votes
    assert len(chain.audits()) == sum(
        chain.drawn(peer, chain.round - 1) is not None for peer in votes
    )
    assert min(votes.values()) > 1
    chain.grow(audits=chain.audits())


def _opening(chain: AuditedChain, who: PeerId) -> AuditEntry:
    return chain.audit(who, opening=bytes(48))


def _opening_of_another_round(chain: AuditedChain, who: PeerId) -> AuditEntry:
    return chain.audit(who, opening=chain.audit_opening(who, chain.round - 2))


def _opening_for_the_beacon(chain: AuditedChain, who: PeerId) -> AuditEntry:
    committed = chain.secrets(who, chain.work.commitment_round(chain.round - 1))
    return chain.audit(who, opening=committed.opening("beacon"))


def _too_old(chain: AuditedChain, who: PeerId) -> AuditEntry:
    while not (chain.round > SINCE_ALL_VOTE + FRESH and chain.drawn(who, chain.round - FRESH)):
        chain.grow()
    return chain.audit(who, chain.round - FRESH)


def _to_come(chain: AuditedChain, who: PeerId) -> AuditEntry:
    return chain.audit(who, chain.round)


def _twice(chain: AuditedChain, who: PeerId) -> AuditEntry:
    entry = chain.audit(who)
    chain.grow(audits=(entry,))
    return entry


def _of_an_update_that_does_not_count(chain: AuditedChain, who: PeerId) -> AuditEntry:
    while (audit := chain.drawn(who, chain.round)) is None:
        chain.grow()
    chain.grow(
        updates=[chain.update(peer) for peer in chain.membership.peers if peer != audit.peer]
    )
    return chain.audit(who)


def _of_somebody_who_went(chain: AuditedChain, who: PeerId) -> AuditEntry:
    chain.grow(departed=[chain.leave(who)])
    return chain.audit(who, chain.round - 2)


def _unsigned(chain: AuditedChain, who: PeerId) -> AuditEntry:
    return dataclasses.replace(chain.audit(who), signature=bytes(64))


def _another_score(chain: AuditedChain, who: PeerId) -> AuditEntry:
    return dataclasses.replace(chain.audit(who), total=GOOD + 1)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (_opening, "was not drawn"),
        (_opening_of_another_round, "was not drawn"),
        (_opening_for_the_beacon, "was not drawn"),
        (_too_old, "too old"),
        (_to_come, "an audit of round"),
        (_twice, "is recorded already"),
        (_of_an_update_that_does_not_count, "does not count"),
        (_of_somebody_who_went, "without a vote"),
        (_unsigned, "did not sign"),
        (_another_score, "did not sign"),
    ],
)
def test_a_record_holds_no_other_audit(
    chain: AuditedChain, made: Callable[[AuditedChain, PeerId], AuditEntry], words: str
) -> None:
    entry = made(chain, chain.audits()[0].auditor)
    assert words in refused_audit(chain, entry)


def test_an_audit_that_its_secret_does_not_draw_is_refused() -> None:
    """The founder has the only vote and audits once in ten thousand rounds."""
    chain = AuditedChain(every=10_000).grow_until(FIRST_DRAWN + 1)
    assert chain.drawn(chain.manifest.founder, FIRST_DRAWN) is None
    assert "was not drawn" in refused_audit(chain, chain.audit(chain.manifest.founder))


def test_who_has_no_votes_audits_nobody() -> None:
    chain = AuditedChain().grow_until(FIRST_DRAWN + 2)
    for peer in chain.membership.peers:
        if peer != chain.manifest.founder:
            assert "was not drawn" in refused_audit(chain, chain.audit(peer))


def test_audits_are_sorted_and_unique(chain: AuditedChain) -> None:
    first, second, *_ = chain.audits()
    assert "not sorted" in refused_audit(chain, second, first)
    assert "not sorted" in refused_audit(chain, first, first)
    check_record(chain.record(audits=(first, second)), chain.ledger, chain.ledger.verify)


def test_every_update_binds_its_author_to_secrets(chain: AuditedChain) -> None:
    peers = chain.membership.peers
    for bound in (b"", bytes(31)):
        updates = [chain.update(peers[0], commitment=bound), *map(chain.update, peers[1:])]
        assert "with a commitment of" in refused(chain, chain.record(updates=updates))


# Re-audits


def reauditors(chain: AuditedChain, first: Audit) -> list[PeerId]:
    return sorted(chain.work.reputation.pending_reauditors(first))


def test_reaudits_settle_a_dispute(chain: AuditedChain) -> None:
    first = chain.disputed()
    again = tuple(chain.again(who, first) for who in reauditors(chain, first))
    # All but the audited member.
    assert len(again) == 3
    chain.grow(reaudits=again)
    assert not chain.work.reputation.disputes
    assert chain.work.reputation[first.peer].sums.work.sum > 0


def test_reaudits_contradict_a_liar(chain: AuditedChain) -> None:
    before = chain.work.reputation.copy()
    first = chain.disputed()
    fine = [GOOD] * 8
    others = [peer for peer in reauditors(chain, first) if peer != first.auditor]
    chain.grow(reaudits=tuple(chain.again(who, first, fine) for who in others))
    assert not chain.work.reputation.disputes
    word = chain.work.reputation[first.auditor].sums.own_audits
    assert word.sum > before[first.auditor].sums.own_audits.sum
    assert chain.work.reputation[first.peer].sums.work.sum <= 0


def test_nobody_is_called_before_the_beacon_of_a_later_round(chain: AuditedChain) -> None:
    """The leader decides what its record holds, and does not know that beacon."""
    chain.grow(audits=chain.audits(LOW)[:1])
    (first,) = chain.work.reputation.disputes
    peers = [peer for peer in chain.membership.peers if peer not in (first.auditor, first.peer)]
    for _ in range(DRAW_LAG_ROUNDS):
        assert reauditors(chain, first) == []
        assert "not drawn" in refused_again(chain, chain.again(peers[0], first))
        chain.grow()
    record = chain.record(reaudits=(chain.again(peers[0], first),))
    check_record(record, chain.ledger, chain.ledger.verify)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": [LOW] * 7}, "other sequences"),
        ({"scores": [LOW] * 1}, "other sequences"),
        ({"round": 3}, "without an open dispute"),
    ],
)
def test_a_reaudit_is_what_was_drawn(
    chain: AuditedChain, changes: dict[str, object], words: str
) -> None:
    first = chain.disputed()
    assert first.share >= 8
    entry = chain.again(reauditors(chain, first)[0], first, **changes)  # type: ignore[arg-type]
    assert words in refused_again(chain, entry)


def test_whose_reaudits_do_not_count(chain: AuditedChain) -> None:
    first = chain.disputed()
    who, other, _ = reauditors(chain, first)
    assert "has no vote" in refused_again(chain, chain.again(first.peer, first))
    unsigned = dataclasses.replace(chain.again(who, first), signature=bytes(64))
    assert "did not sign" in refused_again(chain, unsigned)
    assert "not sorted" in refused_again(chain, chain.again(other, first), chain.again(who, first))
    said = chain.again(who, first)
    chain.grow(reaudits=(said,))
    assert "has no vote" in refused_again(chain, said)


def test_where_votes_are_many_sixteen_seats_are_drawn() -> None:
    chain = AuditedChain(30).grow_until(FIRST_DRAWN + 1)
    accounts, votes = chain.work.reputation, dict.fromkeys(chain.membership.peers, 1)
    # Votes are reported by epoch; the first one is not over.
    accounts.epoch = chain.work._epochs[0] = EpochVotes(votes)
    accounts.votes = votes
    first = chain.disputed()
    called = reauditors(chain, first)
    assert JURY_SEATS - 1 <= len(called) <= JURY_SEATS
    for who in set(chain.membership.peers) - set(called):
        assert "not drawn" in refused_again(chain, chain.again(who, first))


def test_no_leader_can_vary_who_reaudits_what(
    chain: AuditedChain,
) -> None:
    """The draw depends neither on the record that holds the audit nor on any later one, whatever its
    leader states about itself."""
    (audit, *_) = chain.audits(LOW)
    other = copy.copy(chain)
    other.ledger = chain.ledger.truncated(len(chain.ledger))
    found = []
    for number, each in enumerate((chain, other)):
        for recorded in ((audit,), *[()] * DRAW_LAG_ROUNDS):
            updates = [
                each.update(peer, tokens=500 + number * (peer == each.leaders[0]))
                for peer in each.membership.peers
            ]
            each.grow(audits=recorded, updates=updates)
        (first,) = each.work.reputation.disputes
        who = reauditors(each, first)
        found.append([each.work.reaudit_sequences(peer, first) for peer in who])
    assert chain.ledger.head != other.ledger.head
    assert found[0] == found[1]


def test_a_dispute_ends(chain: AuditedChain) -> None:
    first = chain.disputed()
    since = chain.work.reputation.disputes[first].since
    chain.grow_until(since + OPEN_ROUNDS)
    # The last record that may hold one.
    said = chain.again(reauditors(chain, first)[0], first)
    check_record(chain.record(reaudits=(said,)), chain.ledger, chain.ledger.verify)
    chain.grow()
    assert "without an open dispute" in refused_again(chain, said)


# Updates that cannot be audited


def test_what_nobody_can_audit_does_not_count_and_earns_nothing() -> None:
    """A member that states that it needs several rounds for a sequence."""
    chain = AuditedChain(4)
    slow = next(peer for peer in chain.membership.peers if peer != chain.manifest.founder)
    little = 4_000_000 // (3 * chain.manifest.rounds.sequences)
    seen = 0
    while chain.round < 60:
        due = chain.ledger.assignments.due(chain.round).intersection(chain.membership.peers)
        stated = {peer: little if peer == slow else 1_000_000 for peer in due}
        updates = [chain.update(peer, capacity=stated[peer]) for peer in due]
        record = chain.record(updates=updates, audits=chain.audits())
        weights = dict(
            zip((e.peer for e in record.updates), chain.ledger.update_weights(record), strict=True)
        )
        if slow in weights and slow not in chain.work.share_sizes(chain.round):
            seen += 1
            assert weights[slow] == 0
            # And it is hardly ever lent a stream.
            assert len(chain.ledger.assignments.shares(chain.round).lent_streams) <= 2
        before = chain.work.contributions[slow]
        chain.ledger.append(chain.decide(record))
        if weights.get(slow) == 0:
            assert chain.work.contributions[slow] == before
    assert seen


# At any length


def known(work: AuditLedger | None) -> object:
    """Return the whole reputation state, to be compared later."""
    assert work is not None
    accounts = work.reputation.copy()
    peers = sorted(identity(number).peer for number in range(4))
    disputes = {first: dict(dispute.reaudits) for first, dispute in accounts.disputes.items()}
    scores = [accounts.baseline_score(share) for share in (1, 16, 64)]
    return [accounts[peer] for peer in peers], disputes, dict(accounts.votes), scores


def test_what_is_known_at_any_length_is_what_was_known_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A chain as long as the real bound takes minutes.
    monkeypatch.setattr(audits, "_SPACING", 2 * EPOCH_ROUNDS)
    monkeypatch.setattr(audits, "_LATEST", EPOCH_ROUNDS)
    chain = AuditedChain()
    then, votes = [known(chain.work)], [dict(chain.work.votes(1))]
    while chain.round < 5 * EPOCH_ROUNDS + 3:
        gone = [chain.leave(3)] if chain.round == 40 else []
        back = [chain.admission(3)] if chain.round == 45 else []
        made = chain.audits(LOW if chain.round % 20 == 19 else GOOD)
        chain.grow(audits=made, departed=gone, admitted=back)
        then.append(known(chain.work))
        votes.append(dict(chain.work.votes(chain.round)))
    assert len({str(sorted(each.items())) for each in votes}) > 4
    for length in range(1, chain.round + 1):
        shorter = chain.ledger.truncated(length)
        assert known(shorter.find(AuditLedger)) == then[length - 1]
        for round_ in range(1, length + 1):
            assert dict(shorter.index(AuditLedger).votes(round_)) == votes[round_ - 1]
    # And it continues like the other one.
    shorter = chain.ledger.truncated(2 * EPOCH_ROUNDS + 5)
    for round_ in range(2 * EPOCH_ROUNDS + 5, chain.round):
        shorter.append(chain.ledger[round_])
        assert known(shorter.find(AuditLedger)) == then[round_]
    assert known(chain.work) == then[-1]


# Without audits


def test_without_audits_records_hold_none(chain: AuditedChain) -> None:
    without = Chain().grow_until(3)
    assert without.ledger.find(AuditLedger) is None
    assert without.ledger.find(Beacon) is None
    assert "does not audit work" in refused(without, without.record(audits=chain.audits()))
    first = chain.disputed()
    again = chain.again(reauditors(chain, first)[0], first)
    assert "does not audit work" in refused(without, without.record(reaudits=(again,)))
    peers = without.membership.peers
    bound = [without.update(peers[0], commitment=bytes(32)), *map(without.update, peers[1:])]
    assert "with a commitment of" in refused(without, without.record(updates=bound))
