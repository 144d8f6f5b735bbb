"""Rules of audits: which may be recorded, and what one member announces and keeps of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache

import pytest
from distro_node.crypto.envelope import Envelope, signing_bytes
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.disputes import DRAW_LAG_ROUNDS
from distro_node.protocol.audit.reputation import EPOCH_ROUNDS, Audit
from distro_node.protocol.chain import beacon
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.member.auditor import (
    Auditor,
    AuditScored,
    ReauditDone,
    RunReaudit,
    ScoreAudit,
)
from distro_node.protocol.member.beacon_secrets import BeaconSecrets
from distro_node.protocol.member.effects import Train
from distro_node.protocol.member.local_updates import Training
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import AuditEntry, AuditMessage, ReauditMessage, Record
from simulation.audited_chain import FIRST_DRAWN, GOOD, LOW, AuditedChain
from simulation.chain import Chain, identity

# Private here: `_kept`, `_drawn`, `_audits`: what is kept is counted; `_earned`, `_disputes`: they are
# made up.

FOUNDER = identity(0).peer
VOTED = 2 * EPOCH_ROUNDS + 1
"""A round in which all members have votes."""


def _refused(record: Callable[[], Record], chain: Chain) -> bool:
    try:
        chain.ledger.append(chain.decide(record()))
    except ProtocolError:
        return True
    return False


@cache
def _grown(count: int = 4) -> AuditedChain:
    return AuditedChain(count).check(VOTED)


def _chain() -> AuditedChain:
    """Return a new chain in which all members have votes."""
    grown = _grown()
    assert len(grown.work.reputation.votes) == 4
    chain = AuditedChain(0)
    chain.manifest, chain.ledger = grown.manifest, grown.ledger.truncated(len(grown.ledger))
    return chain


def _disputed() -> tuple[AuditedChain, Audit]:
    chain = _chain()
    return chain, chain.disputed()


# Records


def test_nobody_chooses_its_secret() -> None:
    chain = _chain()
    assert _refused(lambda: chain.record(audits=(chain.audit(FOUNDER, secret=bytes(16)),)), chain)


def test_who_was_not_drawn_audits_nobody() -> None:
    chain = AuditedChain(4, every=10_000).check(5)
    assert _refused(lambda: chain.record(audits=(chain.audit(FOUNDER),)), chain)


def test_what_does_not_count_is_not_audited() -> None:
    chain = _chain()
    drawn = chain.drawn(FOUNDER, chain.round)
    assert drawn is not None
    due = [p for p in chain.ledger.assignments.due(chain.round) if p != drawn.peer]
    chain.grow(updates=[chain.update(peer) for peer in due])
    assert _refused(lambda: chain.record(audits=(chain.audit(FOUNDER),)), chain)


def test_an_audit_is_of_a_decided_round() -> None:
    chain = _chain()
    assert _refused(lambda: chain.record(audits=(chain.audit(FOUNDER, chain.round),)), chain)


def test_an_audit_is_recorded_once() -> None:
    chain = _chain()
    audit = chain.audit(FOUNDER)
    chain.grow(audits=(audit,))
    assert _refused(lambda: chain.record(audits=(audit,)), chain)


def test_each_audit_is_proposed_once() -> None:
    chain = _chain()
    assert _refused(lambda: chain.record(audits=(chain.audit(FOUNDER),) * 2), chain)


def test_audits_are_signed() -> None:
    chain = _chain()
    audit = dataclasses.replace(chain.audit(FOUNDER), total=GOOD - 1)
    assert _refused(lambda: chain.record(audits=(audit,)), chain)


def test_reaudits_are_signed() -> None:
    chain, first = _disputed()
    (again,) = _reaudits(chain, first)[:1]
    again = dataclasses.replace(again, scores=again.scores[::-1], signature=bytes(64))
    assert _refused(lambda: chain.record(reaudits=(again,)), chain)


def test_reaudits_are_proposed_once() -> None:
    chain, first = _disputed()
    again = _reaudits(chain, first)[:1] * 2
    assert _refused(lambda: chain.record(reaudits=again), chain)


def test_without_audits_no_audit_is_valid() -> None:
    chain = Chain(4).grow_until(4)
    audit = AuditEntry(FOUNDER, 3, bytes(16), 1, 1, bytes(64))
    assert _refused(lambda: chain.record(audits=(audit,)), chain)


def test_all_bind_themselves() -> None:
    chain = _chain()
    assert _refused(lambda: chain.record(updates=[chain.update(FOUNDER, commitment=b"")]), chain)


def _reaudits(chain: AuditedChain, first: Audit) -> tuple:
    """Return the re-audits that the next record may hold."""
    found = []
    for peer in chain.membership.peers:
        entry = chain.again(peer, first)
        try:
            chain.work.reaudit_of(entry)
        except ProtocolError:
            continue
        found.append(entry)
    return tuple(found)


def test_reaudits_are_of_the_whole_share() -> None:
    chain, first = _disputed()
    (again,) = _reaudits(chain, first)[:1]
    fewer = chain.again(again.reauditor, first, [LOW] * (len(again.scores) - 1))
    assert _refused(lambda: chain.record(reaudits=(fewer,)), chain)


def test_some_of_a_large_share_are_reaudited() -> None:
    chain, first = _disputed()
    disputes = chain.work.reputation._disputes
    large = dataclasses.replace(first, share=64)
    disputes[large] = disputes[first]
    found = (chain.work.reaudit_sequences(peer, large) for peer in chain.membership.peers)
    assert max(len(numbers) for numbers in found if numbers) == 8


def test_who_is_not_drawn_does_not_reaudit() -> None:
    """Beside a member with nearly all votes the rest hardly ever have a seat."""
    chain = AuditedChain(20).grow_until(FIRST_DRAWN + 1)
    votes = {**dict.fromkeys(chain.membership.peers, 1), FOUNDER: 1 << 40}
    accounts = chain.work.reputation
    accounts.earned = accounts.votes = chain.work._earned[0] = votes
    first = chain.disputed()
    assert [entry.reauditor for entry in _reaudits(chain, first)] == [FOUNDER]


def test_old_reputation_tables_are_recomputed() -> None:
    chain = _chain()
    known = dict(chain.work.votes(EPOCH_ROUNDS + 3))
    short = chain.ledger.truncated(EPOCH_ROUNDS + 3)
    assert dict(short.index(AuditLedger).reputation.votes) == known
    assert len(short.index(AuditLedger)) == EPOCH_ROUNDS + 3


def test_few_reputation_tables_are_kept() -> None:
    chain = AuditedChain(1)
    while chain.round < 14 * EPOCH_ROUNDS:
        chain.grow(updates=[])
    assert len(chain.work._kept) <= 10


def test_some_old_reputation_tables_are_kept() -> None:
    chain = AuditedChain(1)
    while chain.round < 45 * EPOCH_ROUNDS:
        chain.grow(updates=[])
    assert sorted(chain.work._kept)[:2] == [0, 32 * EPOCH_ROUNDS]


def test_a_secret_is_too_long_to_be_tried() -> None:
    with pytest.raises(ValueError, match="secret"):
        beacon.commitment(bytes(2))


# One member


class _Founder:
    """The founder at work, reduced to its audits."""

    def __init__(self, chain: AuditedChain) -> None:
        self.chain = chain
        self.ledger = chain.ledger
        self.secrets = BeaconSecrets(FOUNDER, self._sign)
        self.auditor = Auditor(FOUNDER, self.secrets, Training(FOUNDER, overlap=False))

    def _sign(self, kind: str, body: bytes) -> Envelope:
        swarm = self.chain.manifest.swarm
        signature = identity(0).sign(signing_bytes(kind, swarm, body))
        return Envelope(kind=kind, swarm=swarm, sender=FOUNDER, body=body, signature=signature)

    def told(self, assigned: int | None = None) -> Train:
        """Return what it is asked to compute in the next round."""
        round_ = self.ledger_round
        samples = self.ledger.assignments.share(round_, FOUNDER) or (0,)
        effect = Train(round_, self.ledger.head, samples, round_ if assigned is None else assigned)
        return self.auditor.extend(effect, self.ledger)

    @property
    def ledger_round(self) -> int:
        return len(self.ledger)

    def judges(self) -> list[ScoreAudit]:
        """Decide and apply the next record; return what it is asked to score."""
        self.chain.grow()
        effects = self.auditor.applied(self.ledger_round - 1, self.ledger)
        return [effect for effect in effects if isinstance(effect, ScoreAudit)]

    def screens(self, sender: PeerId, message: AuditMessage | ReauditMessage) -> str:
        """Return why a message is refused; empty if it is not."""
        try:
            self.auditor.screen(sender, message, self.ledger)
        except ProtocolError as error:
            return error.reason
        return ""

    def receives(self, entry: AuditEntry) -> str:
        said = entry.message(self.ledger.parent(entry.round))
        refused = self.screens(entry.auditor, said)
        if not refused:
            self.auditor.put(entry.auditor, said, entry.signature)
        return refused


def _founder() -> _Founder:
    return _Founder(_chain())


def test_an_audit_is_computed_beside_training() -> None:
    founder = _founder()
    told, drawn = founder.told(), founder.chain.drawn(FOUNDER, founder.ledger_round)
    assert drawn is not None
    assigned = founder.ledger.assignments.share(founder.ledger_round, drawn.peer)
    assert assigned is not None
    assert (told.audit, told.audit_share) == (assigned[drawn.sequence], len(assigned))


def test_who_has_several_rounds_audits_nobody() -> None:
    founder = _founder()
    assert founder.told(assigned=founder.ledger_round - 1).audit is None


def test_a_restart_changes_no_secret() -> None:
    one, other = _founder(), _founder()
    place = one.ledger_round, one.ledger
    assert one.secrets.commitment(*place) == other.secrets.commitment(*place)


def test_what_is_decided_is_judged() -> None:
    founder = _founder()
    founder.told()
    drawn = founder.chain.drawn(FOUNDER, founder.ledger_round)
    assert drawn is not None
    (judge,) = founder.judges()
    record = founder.ledger[judge.round].record
    assert [judge.update] == [e.update for e in record.updates if e.peer == drawn.peer]


def test_nothing_seen_is_nothing_sent() -> None:
    founder = _founder()
    founder.told()
    (judge,) = founder.judges()
    assert founder.auditor.scored(AuditScored(judge.round, 0, 0), founder.ledger) == []


def test_what_was_seen_is_sent_once() -> None:
    founder = _founder()
    founder.told()
    (judge,) = founder.judges()
    seen = AuditScored(judge.round, GOOD, 1)
    said = [len(founder.auditor.scored(seen, founder.ledger)) for _ in range(2)]
    assert said == [1, 0]


def test_what_is_never_judged_is_forgotten() -> None:
    founder = _founder()
    for _ in range(40):
        founder.told()
        founder.judges()
    assert len(founder.auditor._drawn) < 20


def test_another_chain_drops_own_audits() -> None:
    founder = _founder()
    founder.told()
    founder.receives(founder.chain.audit(_other(founder.chain)))
    founder.auditor.start_over()
    assert not founder.auditor._drawn
    assert not founder.auditor._audits


def _other(chain: AuditedChain) -> PeerId:
    return next(peer for peer in chain.membership.peers if peer != FOUNDER)


def _called() -> tuple[_Founder, list[RunReaudit]]:
    """Return the founder, called to re-audit another member's audit."""
    chain = _chain()
    while True:
        audits = [e for e in chain.audits(LOW) if e.auditor != FOUNDER]
        chain.grow(audits=audits[:1])
        chain.grow_until(chain.round + DRAW_LAG_ROUNDS)
        founder = _Founder(chain)
        effects = [e for e in founder.auditor.decided(chain.ledger) if isinstance(e, RunReaudit)]
        if effects:
            return founder, effects


def test_who_is_drawn_reaudits_the_share() -> None:
    founder, (again,) = _called()
    share = founder.ledger.assignments.share(again.low_audit.round, again.low_audit.peer)
    record = founder.ledger[again.low_audit.round].record
    updates = [e.update for e in record.updates if e.peer == again.low_audit.peer]
    assert [again.update] == updates
    assert set(again.samples) <= set(share or ())


def test_who_is_called_is_called_once() -> None:
    founder, _ = _called()
    founder.chain.grow()
    assert founder.auditor.decided(founder.ledger) == []


def test_a_reaudit_is_sent_once() -> None:
    founder, (again,) = _called()
    scores = founder.chain.again(FOUNDER, again.low_audit).scores
    founder.auditor.on_input(ReauditDone(again.low_audit, scores), founder.ledger)
    assert [len(founder.auditor.messages_due(founder.ledger)) for _ in range(2)] == [1, 0]


def test_who_could_not_reaudit_sends_nothing() -> None:
    founder, (again,) = _called()
    founder.auditor.on_input(ReauditDone(again.low_audit, ()), founder.ledger)
    founder.chain.grow()
    assert founder.auditor.messages_due(founder.ledger) == []


def test_old_audits_are_not_passed_on() -> None:
    founder = _founder()
    entry = founder.chain.audit(_other(founder.chain), 12)
    assert founder.receives(entry) == "other_round"


def test_audits_on_other_chains_are_not_passed_on() -> None:
    founder = _founder()
    entry = founder.chain.audit(_other(founder.chain))
    said = dataclasses.replace(entry.message(founder.ledger.head), parent=bytes(32))
    assert founder.screens(entry.auditor, said) == "wrong_parent"


def test_another_message_is_not_passed_on() -> None:
    founder = _founder()
    peer = _other(founder.chain)
    first = founder.receives(founder.chain.audit(peer))
    assert (first, founder.receives(founder.chain.audit(peer, score=LOW))) == ("", "equivocation")


def test_what_is_recorded_is_not_sent_again() -> None:
    founder = _founder()
    entry = founder.chain.audit(_other(founder.chain))
    founder.receives(entry)
    founder.chain.grow(audits=(entry,))
    founder.auditor.forget(founder.ledger)
    assert not founder.auditor._audits


def test_a_bounded_number_of_audits_waits() -> None:
    founder = _founder()
    for number in range(1000):
        said = AuditMessage(number, founder.ledger.head, bytes(16), 1, 1)
        founder.auditor.put(FOUNDER, said, bytes(64))
    assert len(founder.auditor._audits) == 256


def test_a_bounded_number_of_audits_is_recorded() -> None:
    founder = _founder()
    founder.auditor.forget = lambda ledger: None  # type: ignore[method-assign]
    for number in range(100):
        said = AuditMessage(number, founder.ledger.head, bytes(16), 1, 1)
        founder.auditor.put(FOUNDER, said, bytes(64))
    firsts, _ = founder.auditor.entries(founder.ledger)
    assert [entry.round for entry in firsts] == list(range(64))


def test_a_bounded_number_of_reaudits_is_recorded() -> None:
    founder = _founder()
    founder.auditor.forget = lambda ledger: None  # type: ignore[method-assign]
    for number in range(100):
        said = ReauditMessage(number, founder.ledger.head, FOUNDER, ())
        founder.auditor.put(FOUNDER, said, bytes(64))
    _, seconds = founder.auditor.entries(founder.ledger)
    assert [entry.round for entry in seconds] == list(range(64))
