"""Nodes that lie about work: about their own, and about their audits of others.

They sign nothing twice and propose honestly: they want votes that they have not earned, or others to
lose theirs.
"""

from __future__ import annotations

import dataclasses
import random

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import ContentId
from distro_node.protocol.audit.lottery import SECRET_BYTES
from distro_node.protocol.member.effects import Effect, Publish, Train
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.messages import (
    MAX_SEQUENCES,
    AuditEntry,
    AuditMessage,
    AuditScore,
    Proposal,
    ReauditMessage,
    Record,
)
from simulation.liars import Liar, Liars
from simulation.scores import HONEST, score

# Private here: `_looking`, `_secret`: a liar reports with its own secret what it has not seen.
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
FALSE_LOOKS = "false looks"
"""It reports audits that were not drawn, duplicates, ones with wrong secrets, and ones of nothing."""
WITHHOLDS_LOOKS = "withholds looks"
"""As leader it puts no audits into the record."""
FORGED_LOOKS = "forged looks"
"""As leader it puts audits into the record that no member has signed."""
LATE_LOOKS = "late looks"
"""It publishes its audits at any time at which they may still be recorded."""
GRINDS = "grinds"
"""As leader it varies its own announcement until it likes the record's id."""
KEEPS_SECRET = "keeps its secret"
"""As leader it lets its slot pass half of the time."""
TOO_SMALL = "too small to be looked at"
"""It does nothing, and states that it needs several rounds for a sequence."""

IDLE = (OTHER_DATA, AT_TIMES, BEGINNINGS, UNTIL_VOTES, CROWD, "copycat", TOO_SMALL)
UNTRUE = (
    FALSE_VERDICTS,
    FAINT_PRAISE,
    FALSE_HALVES,
    FALSE_LOOKS,
    WITHHOLDS_LOOKS,
    FORGED_LOOKS,
    LATE_LOOKS,
    GRINDS,
    KEEPS_SECRET,
)

_CROWD = 3
_GROUND = 16
_LATEST_SECONDS = 6.0
_SLOWER = 20


def draw_idlers(count: int, chance: random.Random) -> Liars:
    """Draw liars, fewer than a third of `count` nodes, never the founder; sometimes all are one
    crowd."""
    number = chance.randrange(1, (count - 1) // 3 + 1)
    crowd = chance.random() < 0.2
    return tuple(
        (
            index,
            (
                CROWD if crowd else chance.choice(IDLE),
                *sorted(chance.sample(UNTRUE, chance.randrange(3))),
            ),
        )
        for index in sorted(chance.sample(range(1, count), number))
    )


class Idler(Liar):
    """A liar that also lies about work."""

    def works(self, effect: Train) -> tuple[int, ...]:
        return () if self._idles(effect.round) else effect.samples

    def judges(self, update: ContentId, seen: AuditScore) -> AuditScore:
        maker = self.swarm.number(self.swarm.scores.maker(update))
        if maker in self.swarm.watch.liars:
            return score(HONEST) if FALSE_VERDICTS in self.tells else seen
        if FALSE_VERDICTS in self.tells:
            return score(0.0)
        return (
            AuditScore(seen.total * 11 // 20, seen.squares) if FAINT_PRAISE in self.tells else seen
        )

    def cuts(self) -> bool:
        return BEGINNINGS in self.tells

    def halves(self, update: ContentId, seen: AuditScore) -> AuditScore | None:
        maker = self.swarm.number(self.swarm.scores.maker(update))
        if FALSE_HALVES not in self.tells or maker in self.swarm.watch.liars:
            return seen
        return self._chance.choice((None, score(0.0), score(1000 * HONEST)))

    def trained(self, effect: Train, update: ContentId, seconds: float) -> None:
        super().trained(effect, update, seconds * (_SLOWER if TOO_SMALL in self.tells else 1))

    def perform(self, effect: Effect) -> None:
        told = effect.envelope.kind if isinstance(effect, Publish) else ""
        if LATE_LOOKS in self.tells and told in ("check", "recheck"):
            wait = self._chance.uniform(0.0, _LATEST_SECONDS)
            self.swarm.clock.after(wait, super().perform, effect)
            return
        super().perform(effect)
        if (
            told == "announcement"
            and FALSE_LOOKS in self.tells
            and self.member.ledger.work is not None
        ):
            self._say_false_looks()

    def _idles(self, round_: int) -> bool:
        tells, work = self.tells, self.member.ledger.work
        return (
            OTHER_DATA in tells
            or TOO_SMALL in tells
            or (AT_TIMES in tells and round_ % 2 == 1)
            or (UNTIL_VOTES in tells and work is not None and self.peer in work.accounts.earned)
            or (CROWD in tells and (round_ + self.index) % _CROWD != 0)
        )

    def _propose(self, envelope: Envelope, proposal: Proposal) -> None:
        record = proposal.record
        if KEEPS_SECRET in self.tells and self._chance.random() < 0.5:
            return
        if GRINDS in self.tells:
            record = min(
                (self._with_tokens(record, tokens) for tokens in range(_GROUND)),
                key=lambda ground: ground.id,
            )
        if WITHHOLDS_LOOKS in self.tells:
            record = dataclasses.replace(record, looks=(), looks_again=())
        if FORGED_LOOKS in self.tells and record.round > 3 and self._chance.random() < 0.5:
            record = dataclasses.replace(record, looks=(self._forged_look(record.round - 1),))
        if record is proposal.record:
            super()._propose(envelope, proposal)
        else:
            self._say("proposal", Proposal(proposal.slot, record))

    def _with_tokens(self, record: Record, tokens: int) -> Record:
        """Return the record with this number of tokens in its own announcement."""
        updates = []
        for entry in record.updates:
            if entry.peer == self.peer:
                said = dataclasses.replace(entry, tokens=tokens)
                body = encode(record.announcement(said))
                signed = self.sign("announcement", body).signature
                updates.append(dataclasses.replace(said, signature=signed))
            else:
                updates.append(entry)
        return dataclasses.replace(record, updates=tuple(updates))

    def _forged_look(self, round_: int) -> AuditEntry:
        secret = self._chance.randbytes(SECRET_BYTES)
        forged = AuditEntry(self.peer, round_, secret, 0, 1, b"")
        said = forged.said(self.member.ledger.parent(round_))
        return dataclasses.replace(forged, signature=self.sign("check", encode(said)).signature)

    def _say_false_looks(self) -> None:
        ledger, chance = self.member.ledger, self._chance
        if len(ledger) < 4:
            return
        round_ = len(ledger) - chance.randrange(1, min(20, len(ledger)))
        work = ledger.work
        assert work is not None
        parent, base = ledger.parent(round_), max(0, work.bound_in(round_))
        own = self.member._looking._secret(base, ledger.parent(base))
        secret = chance.choice((own, chance.randbytes(SECRET_BYTES)))
        for deviations in (0.0, HONEST):
            seen = score(deviations)
            self._say("check", AuditMessage(round_, parent, secret, seen.total, seen.squares))
        for first in list(work.accounts.disputes)[:1]:
            scores = (score(chance.choice((0.0, HONEST))),) * chance.randrange(1, MAX_SEQUENCES + 1)
            parent = ledger.parent(first.round)
            self._say("recheck", ReauditMessage(first.round, parent, first.checker, scores))
