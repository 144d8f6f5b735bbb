"""Nodes that lie about work: about their own, and about their audits of others.

They sign nothing twice and propose honestly: they want votes that they have not earned, or others to
lose theirs.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.chain.commitments import OPENING_BYTES
from distro_node.protocol.member.effects import Effect, Publish, Train
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.messages import (
    MAX_SEQUENCES,
    AuditEntry,
    AuditMessage,
    AuditScore,
    Message,
    Proposal,
    ReauditMessage,
    Record,
)
from simulation.liars import Liar, Liars
from simulation.scores import HONEST, score

# Private here: `_propose`: where `Liar` twists a proposal.

OTHER_DATA = "other data"
"""It trains on samples not assigned to it: always."""
AT_TIMES = "other data at times"
"""The same in every second round."""
BEGINNINGS = "beginnings of its samples"
"""It computes only these."""
UNTIL_VOTES = "works until it has votes"
CROWD = "one of a crowd"
"""Many identities on one machine, which works for each of them in turn."""
FALSE_VERDICTS = "false verdicts"
"""It reports liars' work as good, and that of others as bad."""
FAINT_PRAISE = "faint praise"
"""It reports that others' work barely passes, so it is not re-audited."""
FALSE_HALVES = "false halves"
"""It reports that one half of each sequence is missing in others' work, or omits the halves."""
FALSE_AUDITS = "false audits"
"""It reports audits that were not drawn, duplicates, ones with wrong secrets, and ones of nothing."""
WITHHOLDS_AUDITS = "withholds audits"
"""As leader it puts no audits into the record."""
FORGED_AUDITS = "forged audits"
"""As leader it puts audits into the record that no member has signed."""
LATE_AUDITS = "late audits"
"""It publishes its audits at any time at which they may still be recorded."""
GRINDS = "grinds"
"""As leader it varies its own announcement until it likes the record's id."""
KEEPS_SECRET = "keeps its secret"
"""As leader it lets its slot pass half of the time."""
TOO_SMALL = "too small to be audited"
"""It does nothing, and states that it needs several rounds for a sequence."""

IDLE = (OTHER_DATA, AT_TIMES, BEGINNINGS, UNTIL_VOTES, CROWD, "copycat", TOO_SMALL)
UNTRUE = (
    FALSE_VERDICTS,
    FAINT_PRAISE,
    FALSE_HALVES,
    FALSE_AUDITS,
    WITHHOLDS_AUDITS,
    FORGED_AUDITS,
    LATE_AUDITS,
    GRINDS,
    KEEPS_SECRET,
)

_CROWD = 3
_GROUND = 16
_LATEST_SECONDS = 6.0
_SLOWER = 20


def draw_freeloaders(count: int, chance: random.Random, idle: Sequence[str] = IDLE) -> Liars:
    """Draw liars, fewer than a third of `count` nodes, never the founder, each of whom does not work in
    one of the `idle` ways; sometimes all are one crowd."""
    number = chance.randrange(1, (count - 1) // 3 + 1)
    crowd = chance.random() < 0.2
    return tuple(
        (
            index,
            (
                CROWD if crowd else chance.choice(idle),
                *sorted(chance.sample(UNTRUE, chance.randrange(3))),
            ),
        )
        for index in sorted(chance.sample(range(1, count), number))
    )


class IdleMember(Protocol):
    """What the lies about work need of a liar, in either simulation."""

    @property
    def tells(self) -> frozenset[str]: ...
    @property
    def index(self) -> int: ...
    @property
    def peer(self) -> PeerId: ...
    @property
    def swarm(self) -> Any: ...
    @property
    def member(self) -> Any: ...
    @property
    def sign(self) -> Callable[[str, bytes], Envelope]: ...


class WorkLies:
    """One liar's lies about work: about its own, and about its audits of others."""

    def __init__(self, liar: IdleMember, chance: random.Random) -> None:
        self._liar = liar
        self._chance = chance

    def works(self, round_: int, samples: tuple[int, ...]) -> tuple[int, ...]:
        """Return the samples on which it really trains."""
        return () if self._idles(round_) else samples

    def cuts(self) -> bool:
        """Whether it computes only their beginnings."""
        return BEGINNINGS in self._liar.tells

    def slowness(self) -> float:
        """Return how many times longer it claims to need."""
        return _SLOWER if TOO_SMALL in self._liar.tells else 1

    def judges(self, update: ContentId, seen: AuditScore) -> AuditScore:
        """Return the score that it reports for an update, given the true one."""
        tells = self._liar.tells
        if self._is_of_a_liar(update):
            return score(HONEST) if FALSE_VERDICTS in tells else seen
        if FALSE_VERDICTS in tells:
            return score(0.0)
        return AuditScore(seen.total * 11 // 20, seen.squares) if FAINT_PRAISE in tells else seen

    def halves(self, update: ContentId, seen: AuditScore) -> AuditScore | None:
        """Return the score that it reports for a sequence's beginning, given the true one."""
        if FALSE_HALVES not in self._liar.tells or self._is_of_a_liar(update):
            return seen
        return self._chance.choice((None, score(0.0), score(1000 * HONEST)))

    def lateness(self, kind: str) -> float | None:
        """Return how long it holds back a message of this kind; None if it does not."""
        if LATE_AUDITS in self._liar.tells and kind in ("audit", "reaudit"):
            return self._chance.uniform(0.0, _LATEST_SECONDS)
        return None

    def proposes(self, record: Record) -> Record | None:
        """Return the record that it proposes instead; None to let its slot pass."""
        tells = self._liar.tells
        if KEEPS_SECRET in tells and self._chance.random() < 0.5:
            return None
        if GRINDS in tells:
            record = min(
                (self._with_tokens(record, tokens) for tokens in range(_GROUND)),
                key=lambda ground: ground.id,
            )
        if WITHHOLDS_AUDITS in tells:
            record = dataclasses.replace(record, audits=(), reaudits=())
        if FORGED_AUDITS in tells and record.round > 3 and self._chance.random() < 0.5:
            record = dataclasses.replace(record, audits=(self._forged_audit(record.round - 1),))
        return record

    def false_audits(self) -> Iterator[tuple[str, Message]]:
        """Yield audits that were not drawn, to be sent after its announcement."""
        member, chance = self._liar.member, self._chance
        ledger, work = member.view.ledger, member.view.ledger.find(AuditLedger)
        if FALSE_AUDITS not in self._liar.tells or work is None or len(ledger) < 4:
            return
        round_ = len(ledger) - chance.randrange(1, min(20, len(ledger)))
        parent, base = ledger.parent(round_), max(0, work.commitment_round(round_))
        own = member.parts.secrets.of_round(base, ledger.parent(base))
        opening = chance.choice(
            (own.opening("audit"), own.opening("beacon"), chance.randbytes(OPENING_BYTES))
        )
        for deviations in (0.0, HONEST):
            seen = score(deviations)
            yield "audit", AuditMessage(round_, parent, opening, seen.total, seen.squares)
        for first in list(work.reputation.disputes)[:1]:
            scores = (score(chance.choice((0.0, HONEST))),) * chance.randrange(1, MAX_SEQUENCES + 1)
            parent = ledger.parent(first.round)
            yield "reaudit", ReauditMessage(first.round, parent, first.auditor, scores)

    def _is_of_a_liar(self, update: ContentId) -> bool:
        swarm = self._liar.swarm
        return swarm.number(swarm.scores.maker(update)) in swarm.watch.liars

    def _idles(self, round_: int) -> bool:
        liar = self._liar
        tells, work = liar.tells, liar.member.view.ledger.find(AuditLedger)
        return (
            OTHER_DATA in tells
            or TOO_SMALL in tells
            or (AT_TIMES in tells and round_ % 2 == 1)
            or (UNTIL_VOTES in tells and work is not None and liar.peer in work.reputation.earned)
            or (CROWD in tells and (round_ + liar.index) % _CROWD != 0)
        )

    def _with_tokens(self, record: Record, tokens: int) -> Record:
        """Return the record with this number of tokens in its own announcement."""
        updates = []
        for entry in record.updates:
            if entry.peer == self._liar.peer:
                said = dataclasses.replace(entry, tokens=tokens)
                body = encode(record.announcement(said))
                signed = self._liar.sign("announcement", body).signature
                updates.append(dataclasses.replace(said, signature=signed))
            else:
                updates.append(entry)
        return dataclasses.replace(record, updates=tuple(updates))

    def _forged_audit(self, round_: int) -> AuditEntry:
        liar = self._liar
        opening = self._chance.randbytes(OPENING_BYTES)
        forged = AuditEntry(liar.peer, round_, opening, 0, 1, b"")
        said = forged.message(liar.member.view.ledger.parent(round_))
        return dataclasses.replace(forged, signature=liar.sign("audit", encode(said)).signature)


class Freeloader(Liar):
    """A liar that also lies about work."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._work = WorkLies(self, self._chance)

    def works(self, effect: Train) -> tuple[int, ...]:
        return self._work.works(effect.round, effect.samples)

    def judges(self, update: ContentId, seen: AuditScore) -> AuditScore:
        return self._work.judges(update, seen)

    def cuts(self) -> bool:
        return self._work.cuts()

    def halves(self, update: ContentId, seen: AuditScore) -> AuditScore | None:
        return self._work.halves(update, seen)

    def trained(self, effect: Train, update: ContentId, seconds: float) -> None:
        super().trained(effect, update, seconds * self._work.slowness())

    def perform(self, effect: Effect) -> None:
        told = effect.envelope.kind if isinstance(effect, Publish) else ""
        wait = self._work.lateness(told)
        if wait is not None:
            self.swarm.clock.after(wait, super().perform, effect)
            return
        super().perform(effect)
        if told == "announcement":
            for kind, message in self._work.false_audits():
                self._send(kind, message)

    def _propose(self, envelope: Envelope, proposal: Proposal) -> None:
        record = self._work.proposes(proposal.record)
        if record is proposal.record:
            super()._propose(envelope, proposal)
        elif record is not None:
            self._send("proposal", Proposal(proposal.slot, record))
