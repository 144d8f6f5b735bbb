"""Auditor of one member: which audits it makes, and which audits of others it has received.

With each announcement a member commits to a secret, which it derives from its key: no peer without the
key can foresee it, and a restarted member derives the same one. A few rounds later the secret draws
whether the member audits another one (`chain/audits`). When the member leads a round, it reveals such a
secret (`chain/beacon`). The member computes the audited sequence in addition to its own share; once the
other's update is decided and held, it scores the update and announces the result. If an audit finds
another member's work low, this member may be called to re-audit it.

Announced results wait until a leader puts them into a record. The memory for everything is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...crypto.envelope import Envelope
from ...crypto.hashing import content_id
from ...crypto.identity import PeerId
from ..audit.disputes import DRAW_LAG_ROUNDS, OPEN_ROUNDS
from ..audit.lottery import SECRET_BYTES, AuditTarget, commitment
from ..audit.reputation import FRESH, Audit
from ..chain.beacon import REVEALED_AFTER
from ..chain.ledger import Ledger
from ..wire.encoding import encode
from ..wire.errors import ProtocolError
from ..wire.messages import (
    MAX_AUDITS,
    MAX_REAUDITS,
    AuditEntry,
    AuditMessage,
    AuditScore,
    Message,
    ReauditEntry,
    ReauditMessage,
    RecordId,
)
from .effects import Effect, RunReaudit, ScoreAudit, Train
from .inputs import AuditScored, ReauditDone

# Maximum number of results that wait for a record: more than honest members send while they are fresh.
_MAX_WAITING = 4 * MAX_AUDITS

Sign = Callable[[str, bytes], Envelope]


class Auditor:
    """Audits of one member. In a swarm without audits it only derives the secrets for a beacon."""

    def __init__(self, me: PeerId, sign: Sign) -> None:
        self._me = me
        self._sign = sign
        # Audits that the trainer computes, by the round that assigns the sequence, until they are
        # scored.
        self._drawn: dict[int, AuditTarget] = {}
        # Re-audits that are done but not announced yet, with their scores.
        self._again: dict[Audit, tuple[AuditScore, ...]] = {}
        # Received audits and re-audits that no record holds yet.
        self._firsts: dict[tuple[PeerId, int], AuditEntry] = {}
        self._seconds: dict[tuple[PeerId, PeerId, int], ReauditEntry] = {}

    def commitment(self, round: int, parent: RecordId) -> bytes:
        """Return the commitment to announce in a round after the record `parent`."""
        return commitment(self._secret(round, parent))

    def reveal(self, ledger: Ledger) -> bytes:
        """Return the secret to reveal in a record of the next round that this member proposes; empty if
        none is due."""
        round_ = len(ledger)
        if ledger.beacon is None or not ledger.beacon.commitment_due(self._me, round_):
            return b""
        base = round_ - REVEALED_AFTER
        return self._secret(base, ledger.parent(base))

    # What to do

    def with_audit(self, effect: Train, ledger: Ledger) -> Train:
        """Return the training effect with the drawn audit added, if there is one."""
        work = ledger.audits
        if work is None or effect.long or not effect.samples:
            return effect
        base = work.commitment_round(effect.round)
        if base < 1:
            return effect
        look = work.drawn(self._me, self._secret(base, ledger.parent(base)), effect.round)
        dealt = None if look is None else ledger.share(effect.round, look.peer)
        if look is None or dealt is None:
            return effect
        self._drawn[effect.round] = look
        return replace(effect, audit=dealt[look.sequence], audit_share=len(dealt))

    def applied(self, round: int, ledger: Ledger) -> list[Effect]:
        """Return the audits to score now that the record of `round` is applied: its updates are held."""
        for old in [number for number in self._drawn if number <= round - FRESH]:
            del self._drawn[old]
        look = self._drawn.get(round)
        if look is None or ledger.audits is None:
            return []
        entry = ledger[round].record.update_by(look.peer)
        if entry is not None:
            return [ScoreAudit(round, entry.update)]
        del self._drawn[round]
        return []

    def scored(self, what: AuditScored, ledger: Ledger) -> list[tuple[str, Message]]:
        """Return the message that announces a scored audit, if there is anything to announce."""
        look = self._drawn.pop(what.round, None)
        if look is None or ledger.audits is None or what.squares == 0 or what.round >= len(ledger):
            return []
        base = ledger.audits.commitment_round(what.round)
        secret = self._secret(base, ledger.parent(base))
        parent = ledger.parent(what.round)
        said = AuditMessage(what.round, parent, secret, what.total, what.squares, what.beginning)
        return [("audit", said)]

    def reaudits_due(self, ledger: Ledger) -> list[Effect]:
        """Return the re-audits for which the beacon of the last record draws this member."""
        work, now = ledger.audits, len(ledger)
        if work is None:
            return []
        disputes = work.reputation.disputes
        self._again = {first: scores for first, scores in self._again.items() if first in disputes}
        effects: list[Effect] = []
        for first, dispute in disputes.items():
            if dispute.since + DRAW_LAG_ROUNDS != now - 1 or not work.reputation.may_reaudit(
                self._me, first
            ):
                continue
            numbers = work.reaudit_sequences(self._me, first)
            dealt = ledger.share(first.round, first.peer)
            entry = ledger[first.round].record.update_by(first.peer)
            if numbers is None or dealt is None or entry is None:
                continue
            samples = tuple(dealt[number] for number in numbers)
            effects.append(RunReaudit(first, entry.update, samples, len(dealt)))
        return effects

    def note_reaudit(self, what: ReauditDone, ledger: Ledger) -> None:
        """Note the scores of a finished re-audit."""
        work = ledger.audits
        if work is not None and what.first in work.reputation.disputes and what.scores:
            self._again[what.first] = what.scores

    def finished_reaudits(self, ledger: Ledger) -> list[tuple[str, Message]]:
        """Return the finished re-audits to announce, once each."""
        said: list[tuple[str, Message]] = []
        for first, scores in self._again.items():
            parent = ledger.parent(first.round)
            said.append(("reaudit", ReauditMessage(first.round, parent, first.auditor, scores)))
        self._again.clear()
        return said

    # Audits of others

    def screen(
        self, sender: PeerId, message: AuditMessage | ReauditMessage, ledger: Ledger
    ) -> None:
        """Check an audit or re-audit before it is forwarded. Raises `ProtocolError`."""
        work, now = ledger.audits, len(ledger)
        if work is None:
            raise ProtocolError("audit", "an audit in a swarm that does not audit work")
        # A dispute may begin with an audit that is barely fresh, and stays open for some rounds more.
        lasts = FRESH if isinstance(message, AuditMessage) else FRESH + OPEN_ROUNDS
        if not now - lasts < message.round < now:
            raise ProtocolError("other_round", f"an audit of round {message.round} in round {now}")
        if message.parent != ledger.parent(message.round):
            raise ProtocolError("wrong_parent", "an audit on another chain")
        if isinstance(message, AuditMessage):
            entry = _first_entry(sender, message, bytes(64))
            work.audit_of(entry, now)
            known = self._firsts.get((sender, message.round))
        else:
            entry = _second_entry(sender, message, bytes(64))
            work.reaudit_of(entry)
            known = self._seconds.get((sender, message.auditor, message.round))
        if known is not None and replace(known, signature=entry.signature) != entry:
            # Otherwise a member could send every peer any number of messages with one secret, each with
            # another score.
            raise ProtocolError("equivocation", "a second, different message about the same audit")

    def put(self, sender: PeerId, message: AuditMessage | ReauditMessage, signature: bytes) -> None:
        """Keep a screened audit or re-audit, the first from this sender about the same share."""
        if isinstance(message, AuditMessage):
            if len(self._firsts) < _MAX_WAITING:
                first = _first_entry(sender, message, signature)
                self._firsts.setdefault((sender, message.round), first)
        elif len(self._seconds) < _MAX_WAITING:
            key = sender, message.auditor, message.round
            self._seconds.setdefault(key, _second_entry(sender, message, signature))

    def entries(self, ledger: Ledger) -> tuple[tuple[AuditEntry, ...], tuple[ReauditEntry, ...]]:
        """Return the audits for the next record; if they are too many, the oldest ones."""
        self.forget(ledger)
        firsts = sorted(self._firsts.values(), key=lambda e: (e.round, e.auditor))[:MAX_AUDITS]
        seconds = sorted(self._seconds.values(), key=lambda e: (e.round, e.reauditor, e.auditor))
        return (
            tuple(sorted(firsts, key=lambda e: (e.auditor, e.round))),
            tuple(sorted(seconds[:MAX_REAUDITS], key=lambda e: (e.reauditor, e.auditor, e.round))),
        )

    def forget(self, ledger: Ledger) -> None:
        """Drop audits that are recorded, or cannot be recorded on this chain any more."""
        work, now = ledger.audits, len(ledger)
        if work is None:
            return
        self._firsts = {
            key: entry
            for key, entry in self._firsts.items()
            if _holds(partial(work.audit_of, entry, now))
        }
        self._seconds = {
            key: entry
            for key, entry in self._seconds.items()
            if _holds(partial(work.reaudit_of, entry))
        }

    def start_over(self) -> None:
        """Drop everything after a change of the chain: an audit is signed for one chain."""
        self._drawn.clear()
        self._again.clear()
        self._firsts.clear()
        self._seconds.clear()

    def _secret(self, round: int, parent: RecordId) -> bytes:
        """Derive a secret that only this member's key can make. It is the same each time."""
        made = self._sign("secret", encode([round, parent]))
        return content_id(made.signature)[:SECRET_BYTES]


def _first_entry(auditor: PeerId, said: AuditMessage, signature: bytes) -> AuditEntry:
    score = said.total, said.squares
    return AuditEntry(auditor, said.round, said.secret, *score, signature, said.first_half)


def _second_entry(reauditor: PeerId, said: ReauditMessage, signature: bytes) -> ReauditEntry:
    return ReauditEntry(reauditor, said.round, said.auditor, said.scores, signature)


def _holds(look: Callable[[], object]) -> bool:
    try:
        look()
    except ProtocolError:
        return False
    return True
