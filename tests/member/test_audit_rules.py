"""Rules of audits: which may be recorded, and what one member announces and keeps of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache

from distro_node.crypto.envelope import Envelope, signing_bytes
from distro_node.protocol.audit.disputes import DRAW_LAG_ROUNDS
from distro_node.protocol.audit.reputation import EPOCH_ROUNDS, Audit, EpochVotes
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
from distro_node.protocol.wire.messages import AuditMessage, ReauditMessage, Record
from simulation.audited_chain import FIRST_DRAWN, GOOD, LOW, AuditedChain
from simulation.chain import Chain, identity

# Private here: `_kept`, `_drawn`: what is kept is counted; `_epochs`, `_disputes`: they are made up.

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


def test_reaudits_are_signed() -> None:
    chain, first = _disputed()
    (again,) = _reaudits(chain, first)[:1]
    again = dataclasses.replace(again, scores=again.scores[::-1], signature=bytes(64))
    assert _refused(lambda: chain.record(reaudits=(again,)), chain)


def test_reaudits_are_proposed_once() -> None:
    chain, first = _disputed()
    again = _reaudits(chain, first)[:1] * 2
    assert _refused(lambda: chain.record(reaudits=again), chain)


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
    accounts.epoch = chain.work._epochs[0] = EpochVotes(votes)
    accounts.votes = votes
    first = chain.disputed()
    assert [entry.reauditor for entry in _reaudits(chain, first)] == [FOUNDER]


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


def _founder() -> _Founder:
    return _Founder(_chain())


def test_who_has_several_rounds_audits_nobody() -> None:
    founder = _founder()
    assert founder.told(assigned=founder.ledger_round - 1).audit is None


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


def test_who_could_not_reaudit_sends_nothing() -> None:
    founder, (again,) = _called()
    founder.auditor.on_input(ReauditDone(again.low_audit, ()), founder.ledger)
    founder.chain.grow()
    assert founder.auditor.messages_due(founder.ledger) == []


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
