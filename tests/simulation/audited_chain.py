"""A hand-made chain whose members audit each other's work."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.disputes import DRAW_LAG_ROUNDS, MAX_REAUDITED_SEQUENCES
from distro_node.protocol.audit.lottery import AuditTarget
from distro_node.protocol.audit.reputation import Audit
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import AuditsSpec
from distro_node.protocol.wire.messages import AuditEntry, AuditScore, ReauditEntry, Record
from simulation.chain import Chain

SURE, GOOD, LOW = 1000, 15, 0
"""Audit scores, in standard deviations of chance."""
FIRST_DRAWN = 2 + DRAW_LAG_ROUNDS
"""The first round in which a member audits, without overlap."""


class AuditedChain(Chain):
    """A chain with audits; by default they are an honest member's."""

    def __init__(self, count: int = 4, *, every: int = 1, **changes: Any) -> None:
        """With `every` 1 each member with votes audits in every round."""
        super().__init__(count, audits=AuditsSpec(interval=every), **changes)

    @property
    def work(self) -> AuditLedger:
        work = self.ledger.find(AuditLedger)
        assert work is not None
        return work

    @property
    def ahead(self) -> int:
        """Return the number of rounds from the one that draws an audit to the audited one."""
        return 1 + self.manifest.rounds.overlap

    def drawn(self, who: PeerId, round_: int) -> AuditTarget | None:
        """Return what a member audits in a round."""
        return self.work.drawn(who, self.audit_opening(who, round_), round_)

    def audit_opening(self, who: PeerId, round_: int) -> bytes:
        """Return what a member reveals with its audit of a round."""
        return self.secrets(who, max(0, self.work.commitment_round(round_))).opening("audit")

    def audit(
        self, who: PeerId, round_: int | None = None, score: int = GOOD, **changes: Any
    ) -> AuditEntry:
        """Return a member's audit of a round, by default the last one."""
        number = self.round - 1 if round_ is None else round_
        entry = AuditEntry(who, number, self.audit_opening(who, number), score, 1, b"")
        entry = dataclasses.replace(entry, **changes)
        parent = self.ledger.head if number >= self.round else self.ledger.parent(number)
        said = entry.message(parent)
        return dataclasses.replace(entry, signature=self.signature(who, "audit", said))

    def again(
        self, who: PeerId, first: Audit, scores: Sequence[int] | None = None, **changes: Any
    ) -> ReauditEntry:
        """Return a member's re-audit; by default all scores are low."""
        if scores is None:
            scores = [LOW] * min(first.share, MAX_REAUDITED_SEQUENCES)
        said = tuple(AuditScore(score, 1) for score in scores)
        entry = ReauditEntry(who, first.round, first.auditor, said, b"")
        entry = dataclasses.replace(entry, **changes)
        message = entry.message(self.ledger.parent(first.round))
        return dataclasses.replace(entry, signature=self.signature(who, "reaudit", message))

    def audits(self, score: int = GOOD) -> tuple[AuditEntry, ...]:
        """Return all audits of the last round that the next record may contain."""
        if self.round <= FIRST_DRAWN:
            return ()
        entries = [self.audit(peer, score=score) for peer in self.membership.peers]
        return tuple(entry for entry in entries if self._holds(entry))

    def check(self, rounds: int) -> Self:
        """Decide quiet rounds with all audits until there are `rounds` of them; return the same
        chain."""
        while self.round < rounds:
            self.grow(audits=self.audits())
        return self

    def disputed(self) -> Audit:
        """Record a low audit and let its re-auditors be drawn; return the dispute."""
        self.grow(audits=self.audits(LOW)[:1])
        (first,) = self.work.reputation.disputes
        self.grow_until(self.round + DRAW_LAG_ROUNDS)
        return first

    def _holds(self, entry: AuditEntry) -> bool:
        try:
            self.work.audit_of(entry, self.round)
        except ProtocolError:
            return False
        return True


class VouchedChain(AuditedChain):
    """Each record has all audits of the round before, and each fifth one all members' contributions."""

    def __init__(self, count: int = 4, **changes: Any) -> None:
        super().__init__(count, **({"snapshot_interval": 5} | changes))

    def record(self, **changes: Any) -> Record:
        settings: dict[str, Any] = {"audits": self.audits(SURE)}
        plain = super().record(**(settings | changes))
        if "contributions" in changes:
            return plain
        due = self.ledger.index(AuditLedger).root_due(plain.snapshot)
        return dataclasses.replace(plain, contributions=due)
