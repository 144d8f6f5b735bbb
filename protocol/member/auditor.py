"""Auditor of one member: which audits it makes, and which audits of others it has received.

With each announcement a member commits to a secret for its audit (`beacon_secrets`). A few rounds later
the secret draws whether the member audits another one (`chain/audits`). The member computes the audited
sequence in addition to its own share; once the other's update is decided and held, it scores the update
and announces the result. If an audit finds another member's work low, this member may be called to
re-audit it.

Announced results wait until a leader puts them into a record. The memory for everything is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..audit.disputes import DRAW_LAG_ROUNDS, OPEN_ROUNDS
from ..audit.lottery import AuditTarget
from ..audit.reputation import FRESH, Audit
from ..audit.reputation_events import (
    ReputationEvent,
    ReputationSnapshot,
    reputation_events,
    take_snapshot,
)
from ..chain.audits import AuditLedger
from ..chain.ledger import Ledger
from ..wire.errors import ProtocolError
from ..wire.messages import (
    MAX_AUDITS,
    MAX_REAUDITS,
    AuditEntry,
    AuditMessage,
    AuditScore,
    ReauditEntry,
    ReauditMessage,
)
from .beacon_secrets import BeaconSecrets
from .effects import Effect, FeatureEffect, Note, Train
from .inputs import FeatureInput
from .local_updates import Training
from .member_part import MemberPart, Outgoing

# Maximum number of results that wait for a record: more than honest members send while they are fresh.
_MAX_WAITING = 4 * MAX_AUDITS

# Maximum number of members named when votes change. An epoch may give votes to a thousand at once.
_NAMED = 4


@dataclass(frozen=True)
class ScoreAudit(FeatureEffect):
    """Score how well this update agrees with the sample audited in `round`; report `AuditScored`."""

    round: int
    update: ContentId


@dataclass(frozen=True)
class RunReaudit(FeatureEffect):
    """Re-audit: rebuild the parameters as they were before `low_audit.round`, and score how well the
    update agrees with each of `samples`, out of a share of `share_size` samples; then report
    `ReauditDone`. There is time for it until several rounds later. `low_audit` opened the
    dispute."""

    low_audit: Audit
    update: ContentId
    samples: tuple[int, ...]
    share_size: int


@dataclass(frozen=True)
class AuditScored(FeatureInput):
    """Result of an audit (`ScoreAudit`), in integers (`audit/sign_score`); `squares` is 0 if there was
    nothing to compare. `first_half` is the score of the sequence's first half alone, if it has one."""

    round: int
    total: int
    squares: int
    first_half: AuditScore | None = None


@dataclass(frozen=True)
class ReauditDone(FeatureInput):
    """Result of a re-audit (`RunReaudit`): the score of each sample, in order. `low_audit` opened
    the dispute."""

    low_audit: Audit
    scores: tuple[AuditScore, ...]


class Auditor(MemberPart):
    """Audits of one member. In a swarm without audits it does nothing."""

    kinds = frozenset({"audit", "reaudit"})

    def __init__(self, me: PeerId, secrets: BeaconSecrets, training: Training) -> None:
        super().__init__(me, secrets, training)
        # Audits that the trainer computes, by the round that assigns the sequence, until they are
        # scored.
        self._drawn: dict[int, AuditTarget] = {}
        # Re-audits that are done but not announced yet, with their scores.
        self._finished_reaudits: dict[Audit, tuple[AuditScore, ...]] = {}
        # Received audits and re-audits that no record holds yet.
        self._audits: dict[tuple[PeerId, int], AuditEntry] = {}
        self._reaudits: dict[tuple[PeerId, PeerId, int], ReauditEntry] = {}

    # What to do

    def extend(self, training: Train, ledger: Ledger) -> Train:
        """Return the training with the drawn audit added, if there is one."""
        work = ledger.find(AuditLedger)
        if work is None or training.long or not training.samples:
            return training
        base = work.commitment_round(training.round)
        if base < 1:
            return training
        opening = self._secrets.opening("audit", base, ledger)
        target = work.drawn(self._me, opening, training.round)
        share = None if target is None else ledger.assignments.share(training.round, target.peer)
        if target is None or share is None:
            return training
        self._drawn[training.round] = target
        return replace(training, audit=share[target.sequence], audit_share=len(share))

    def applied(self, round: int, ledger: Ledger) -> list[Effect]:
        """Return the audits to score now that the record of `round` is applied: its updates are held."""
        for old in [number for number in self._drawn if number <= round - FRESH]:
            del self._drawn[old]
        target = self._drawn.get(round)
        if target is None:
            return []
        entry = ledger[round].record.update_by(target.peer)
        if entry is not None:
            return [ScoreAudit(round, entry.update)]
        del self._drawn[round]
        return []

    def on_input(self, what: FeatureInput, ledger: Ledger) -> list[Outgoing]:
        """Take the result of an audit or a re-audit."""
        if isinstance(what, AuditScored):
            return self.scored(what, ledger)
        if isinstance(what, ReauditDone):
            self.note_reaudit(what, ledger)
        return []

    def scored(self, what: AuditScored, ledger: Ledger) -> list[Outgoing]:
        """Return the message that announces a scored audit, if there is anything to announce."""
        target, work = self._drawn.pop(what.round, None), ledger.find(AuditLedger)
        if target is None or work is None or what.squares == 0 or what.round >= len(ledger):
            return []
        base = work.commitment_round(what.round)
        opening = self._secrets.opening("audit", base, ledger)
        parent = ledger.parent(what.round)
        message = AuditMessage(
            what.round, parent, opening, what.total, what.squares, what.first_half
        )
        return [("audit", message)]

    def decided(self, ledger: Ledger) -> list[Effect]:
        """Return the re-audits for which the beacon of the last record draws this member."""
        work, now = ledger.find(AuditLedger), len(ledger)
        if work is None:
            return []
        disputes = work.reputation.disputes
        self._finished_reaudits = {
            low_audit: scores
            for low_audit, scores in self._finished_reaudits.items()
            if low_audit in disputes
        }
        effects: list[Effect] = []
        for low_audit, dispute in disputes.items():
            if dispute.since + DRAW_LAG_ROUNDS != now - 1 or not work.reputation.may_reaudit(
                self._me, low_audit
            ):
                continue
            numbers = work.reaudit_sequences(self._me, low_audit)
            share = ledger.assignments.share(low_audit.round, low_audit.peer)
            entry = ledger[low_audit.round].record.update_by(low_audit.peer)
            if numbers is None or share is None or entry is None:
                continue
            samples = tuple(share[number] for number in numbers)
            effects.append(RunReaudit(low_audit, entry.update, samples, len(share)))
        return effects

    def note_reaudit(self, what: ReauditDone, ledger: Ledger) -> None:
        """Note the scores of a finished re-audit."""
        work = ledger.find(AuditLedger)
        if work is not None and what.low_audit in work.reputation.disputes and what.scores:
            self._finished_reaudits[what.low_audit] = what.scores

    def messages_due(self, ledger: Ledger) -> list[Outgoing]:
        """Return the finished re-audits to announce, once each."""
        messages: list[Outgoing] = []
        for low_audit, scores in self._finished_reaudits.items():
            parent = ledger.parent(low_audit.round)
            messages.append(
                ("reaudit", ReauditMessage(low_audit.round, parent, low_audit.auditor, scores))
            )
        self._finished_reaudits.clear()
        return messages

    # Audits of others

    def screen(
        self, sender: PeerId, message: AuditMessage | ReauditMessage, ledger: Ledger
    ) -> None:
        """Check an audit or re-audit before it is forwarded. Raises `ProtocolError`."""
        work, now = ledger.find(AuditLedger), len(ledger)
        if work is None:
            raise ProtocolError("audit", "an audit in a swarm that does not audit work")
        # A dispute may begin with an audit that is barely fresh, and stays open for some rounds more.
        window = FRESH if isinstance(message, AuditMessage) else FRESH + OPEN_ROUNDS
        if not now - window < message.round < now:
            raise ProtocolError("other_round", f"an audit of round {message.round} in round {now}")
        if message.parent != ledger.parent(message.round):
            raise ProtocolError("wrong_parent", "an audit on another chain")
        if isinstance(message, AuditMessage):
            entry = _audit_entry(sender, message, bytes(64))
            work.audit_of(entry, now)
            known = self._audits.get((sender, message.round))
        else:
            entry = _reaudit_entry(sender, message, bytes(64))
            work.reaudit_of(entry)
            known = self._reaudits.get((sender, message.auditor, message.round))
        if known is not None and replace(known, signature=entry.signature) != entry:
            # Otherwise a member could send every peer any number of messages with one secret, each with
            # another score.
            raise ProtocolError("equivocation", "a second, different message about the same audit")

    def put(self, sender: PeerId, message: AuditMessage | ReauditMessage, signature: bytes) -> None:
        """Keep a screened audit or re-audit, the first from this sender about the same share."""
        if isinstance(message, AuditMessage):
            if len(self._audits) < _MAX_WAITING:
                entry = _audit_entry(sender, message, signature)
                self._audits.setdefault((sender, message.round), entry)
        elif len(self._reaudits) < _MAX_WAITING:
            key = sender, message.auditor, message.round
            self._reaudits.setdefault(key, _reaudit_entry(sender, message, signature))

    def record_fields(self, ledger: Ledger) -> dict[str, Any]:
        """Return the audits and re-audits for the next record."""
        audits, reaudits = self.entries(ledger)
        return {"audits": audits, "reaudits": reaudits}

    def entries(self, ledger: Ledger) -> tuple[tuple[AuditEntry, ...], tuple[ReauditEntry, ...]]:
        """Return the audits for the next record; if they are too many, the oldest ones."""
        self.forget(ledger)
        audits = sorted(self._audits.values(), key=lambda e: (e.round, e.auditor))[:MAX_AUDITS]
        reaudits = sorted(self._reaudits.values(), key=lambda e: (e.round, e.reauditor, e.auditor))
        return (
            tuple(sorted(audits, key=lambda e: (e.auditor, e.round))),
            tuple(sorted(reaudits[:MAX_REAUDITS], key=lambda e: (e.reauditor, e.auditor, e.round))),
        )

    def forget(self, ledger: Ledger) -> None:
        """Drop audits that are recorded, or cannot be recorded on this chain any more."""
        work, now = ledger.find(AuditLedger), len(ledger)
        if work is None:
            return
        self._audits = {
            key: entry
            for key, entry in self._audits.items()
            if _holds(partial(work.audit_of, entry, now))
        }
        self._reaudits = {
            key: entry
            for key, entry in self._reaudits.items()
            if _holds(partial(work.reaudit_of, entry))
        }

    def before_record(self, ledger: Ledger) -> ReputationSnapshot | None:
        """Return everyone's reputation; None in a swarm without audits."""
        work = ledger.find(AuditLedger)
        return None if work is None else take_snapshot(work.reputation)

    def notes(self, before: ReputationSnapshot | None, round: int, ledger: Ledger) -> list[Note]:
        """Return the reputation events of the record of `round`, since `before`."""
        work = ledger.find(AuditLedger)
        if before is None or work is None:
            return []
        found = reputation_events(before, work.reputation, round)
        return notes_of_changes(found, len(work.reputation.votes), round, self._me)

    def start_over(self) -> None:
        """Drop everything after a change of the chain: an audit is signed for one chain."""
        self._drawn.clear()
        self._finished_reaudits.clear()
        self._audits.clear()
        self._reaudits.clear()


def notes_of_changes(
    found: list[ReputationEvent], voters: int, round: int, me: PeerId
) -> list[Note]:
    """Return the events to show: all about this node, and those about others that have consequences.

    `voters`: number of members with votes now.
    """
    notes: list[Note] = []
    votes: list[Note] = []
    for change in found:
        note = Note(change.kind, round, change.peer, change.detail)
        if change.peer == me:
            notes.append(note)
        elif change.kind in ("votes_gained", "votes_lost"):
            votes.append(note)
        elif change.kind != "audit_low":
            # A low audit alone accuses no member.
            notes.append(note)
    if len(votes) > _NAMED:
        votes = [Note("voters", round, None, str(voters))]
    return notes + votes


def _audit_entry(auditor: PeerId, message: AuditMessage, signature: bytes) -> AuditEntry:
    score = message.total, message.squares
    return AuditEntry(
        auditor, message.round, message.opening, *score, signature, message.first_half
    )


def _reaudit_entry(reauditor: PeerId, message: ReauditMessage, signature: bytes) -> ReauditEntry:
    return ReauditEntry(reauditor, message.round, message.auditor, message.scores, signature)


def _holds(check: Callable[[], object]) -> bool:
    try:
        check()
    except ProtocolError:
        return False
    return True
