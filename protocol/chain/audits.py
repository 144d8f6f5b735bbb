"""Audits on the chain: the members' reputation after each record, and their votes in each round
(`audit/reputation`).

The reputation after the last record is kept at hand. For earlier rounds some states are kept, at even
distances. The others are recomputed from these on request, which happens for a chain that diverges from
this one. Earned votes do not change within an epoch of `EPOCH_ROUNDS` rounds, so it is cheap to keep
those of all rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...crypto.envelope import Verify
from ...crypto.identity import PeerId
from ..audit.audit_sums import level_test
from ..audit.contributions import Contributions
from ..audit.disputes import DRAW_LAG_ROUNDS, MAX_REAUDITED_SEQUENCES, OPEN_ROUNDS
from ..audit.lottery import AuditTarget, draw_audit, draw_sequences
from ..audit.reputation import (
    EPOCH_ROUNDS,
    FRESH,
    Audit,
    EpochVotes,
    Reaudit,
    RecordedWork,
    ReputationTable,
    audit_probability,
)
from ..audit.sign_score import SignSums
from ..sampling.update_weights import audited_weights
from ..wire.encoding import encode
from ..wire.errors import ProtocolError
from ..wire.manifest import AuditsSpec
from ..wire.membership import Votes
from ..wire.messages import (
    AuditEntry,
    AuditScore,
    ReauditEntry,
    Record,
    SnapshotEntry,
)
from ..wire.saved_state import Codec, Restorable, RestoreScope, apart, of, part, runs, table
from .assignments import SampleAssignments
from .beacon import Beacon
from .chain_index import ChainFeature, ChainView, VoteSource, WeightRule
from .commitments import opens, secret_of

# In the last `_LATEST` rounds the state at the end of every epoch is kept; of the earlier states, one in
# every `_SPACING` rounds.
_SPACING = 512
_LATEST = 8 * EPOCH_ROUNDS
# Of those, one in every so many rounds is saved for a restart, and all of the latest rounds.
_SAVED_SPACING = 4 * _SPACING

_EPOCHS = runs(apart(of(EpochVotes)), None)
_EXCLUDED = runs(apart(of(frozenset[PeerId])), 1)


class AuditLedger(VoteSource, WeightRule, Restorable):
    """Reputation of a chain's members by their audits, extended record by record."""

    def __init__(self, chain: ChainView, spec: AuditsSpec) -> None:
        """`chain` must have the indexes `SampleAssignments` and `Beacon`, and they must follow each
        record before this one does."""
        manifest = chain.manifest
        self.spec = spec
        self.reputation = ReputationTable(manifest.founder, level_test(spec.deviation))
        """Reputation after the last record."""
        # An audit is drawn by the last beacon before members compute the audited update. These are the
        # rounds from that beacon to the round whose record counts the update: with `overlap`, members
        # compute one round ahead.
        self._ahead = 1 + manifest.rounds.overlap
        self._chain = chain
        self._assignments = chain.index(SampleAssignments)
        self._beacon = chain.index(Beacon)
        self._length = 0
        self._kept = {0: self.reputation.copy()}
        # Votes by epoch.
        self._epochs: list[EpochVotes] = [self.reputation.epoch]
        # Members whose updates do not count, by round.
        self._excluded: list[frozenset[PeerId]] = [frozenset()]

    def __len__(self) -> int:
        return self._length

    @property
    def contributions(self) -> Contributions:
        """Contributions of all members since the first round, after the last record."""
        return self.reputation.contributions

    def epoch(self, round: int) -> EpochVotes:
        """Return the votes of a round's epoch. `round` is at most the next one."""
        return self._epochs[round // EPOCH_ROUNDS]

    def votes(self, round: int) -> Mapping[PeerId, int]:
        """Return the votes of a round's members (`EpochVotes.present`). `round` is at most the next
        one."""
        if round == self._length:
            return self.reputation.votes
        return self.epoch(round).present(self._chain.membership(round).since.keys())

    def votes_in(self, round: int) -> Votes:
        """Return the votes that `votes` returns, as a `Votes` object."""
        membership = self._chain.membership(round)
        return Votes.of(self.epoch(round).deciding(membership.since), membership)

    def follow(self, record: Record) -> None:
        """Process the last `record`, which must have been checked."""
        self.reputation.close(
            self._recorded_work(record), self._chain.membership(record.round + 1).peers
        )
        self._length += 1
        excluded = self.reputation.excluded()
        self._excluded.append(self._excluded[-1] if excluded == self._excluded[-1] else excluded)
        if self._length % EPOCH_ROUNDS:
            return
        epoch = self.reputation.epoch
        self._epochs.append(self._epochs[-1] if epoch == self._epochs[-1] else epoch)
        self._kept[self._length] = self.reputation.copy()
        old = self._length - _LATEST
        if old % _SPACING:
            self._kept.pop(old, None)

    def before(self, length: int, chain: ChainView) -> AuditLedger:
        """Return the state after the first `length` records, as an index of `chain`, which must begin
        with the same records."""
        copy = AuditLedger(chain, self.spec)
        # Copied in one step: another thread may extend it.
        kept = list(self._kept.items())
        copy._kept = {round_: table for round_, table in kept if round_ <= length}
        start = max(copy._kept)
        copy._epochs = self._epochs[: start // EPOCH_ROUNDS + 1]
        copy._excluded = self._excluded[: start + 1]
        copy._length, copy.reputation = start, copy._kept[start].copy()
        if length == self._length:
            copy._length, copy.reputation = length, self.reputation.copy()
            copy._epochs, copy._excluded = list(self._epochs), list(self._excluded)
        for round_ in range(copy._length, length):
            copy.follow(chain.record(round_))
        return copy

    def state(self) -> list[Any]:
        latest = self._length - _SAVED_SPACING
        kept = {
            at: known
            for at, known in sorted(self._kept.items())
            if at and (at % _SAVED_SPACING == 0 or at > latest)
        }
        return [
            self.reputation.state(),
            self._tables().pack(kept),
            _EPOCHS.pack(self._epochs),
            _EXCLUDED.pack(self._excluded),
        ]

    def restore(self, state: Any, scope: RestoreScope) -> None:
        reputation, kept, epochs, excluded = state
        self._kept |= self._tables().unpack(kept, scope)
        self.reputation.restore(reputation, scope)
        self._length = scope.length
        self._epochs = _EPOCHS.unpack(epochs, scope)
        self._excluded = _EXCLUDED.unpack(excluded, scope)
        if len(self._epochs) != scope.length // EPOCH_ROUNDS + 1:
            raise ValueError("votes of another number of epochs")

    def _tables(self) -> Codec:
        return table(of(int), apart(part(lambda: self._kept[0].copy())))

    def weights(self, record: Record, given: Mapping[PeerId, int]) -> dict[PeerId, int]:
        """Return the update weights of a record under audits. `given`: the weights without audits.
        Updates that cannot be audited have weight 0. `record` is one of the chain's, or follows the
        last of them."""
        round_ = record.round
        sizes = self.share_sizes(round_)
        excluded = {peer for peer in given if peer in self._excluded[round_] or peer not in sizes}
        voters = self.votes(round_).keys()
        return audited_weights(given, voters, excluded, self._beacon[round_ - 1])

    # Audits

    def commitment_round(self, round: int) -> int:
        """Return the round in which auditors committed to the secrets that draw their audits of the
        updates of `round`. If the result is below 1, these updates are not audited."""
        return round - self._ahead - DRAW_LAG_ROUNDS

    def drawn(self, auditor: PeerId, opening: bytes, round: int) -> AuditTarget | None:
        """Return which update of `round` a member's secret draws for an audit, and which sequence of its
        share; None if it draws none, or if the `opening` reveals no secret for audits to which the
        member had committed. The record whose beacon draws (`_ahead` rounds earlier) must be
        decided."""
        committed_in, drawn_in = self.commitment_round(round), round - self._ahead
        if committed_in < 1 or not self._has_committed(auditor, opening, committed_in):
            return None
        sizes, votes = self.share_sizes(round), self.votes(drawn_in + 1)
        return draw_audit(
            secret_of(opening),
            self._beacon[drawn_in],
            auditor,
            sizes,
            self._assignments.weights_by_share(sizes),
            votes,
            audit_probability(votes, auditor, self.spec.interval),
        )

    def share_sizes(self, round: int) -> dict[PeerId, int]:
        """Return how many sequences a round assigns to each member whose update is due in it. Members
        whose update takes several rounds are left out: it is computed on the parameters of an earlier
        round than the auditors', and so cannot be audited."""
        runs = self._assignments.assignment(round).runs
        return {peer: sum(map(len, streams)) for peer, streams in runs.items()}

    def audit_of(self, entry: AuditEntry, now: int) -> Audit:
        """Return the audit that a record's entry reports. Raises `ProtocolError` (`audit`) if the record
        of round `now` may not hold it."""
        if not entry.round < now:
            raise ProtocolError("audit", f"an audit of round {entry.round} in round {now}")
        target = self.drawn(entry.auditor, entry.opening, entry.round)
        if target is None:
            raise ProtocolError("audit", "an audit that was not drawn")
        if self._chain.record(entry.round).update_by(target.peer) is None:
            raise ProtocolError("audit", "an audit of an update that does not count")
        if not self.reputation.may_record_audit(entry.auditor, target.peer, entry.round, now):
            raise ProtocolError(
                "audit",
                "an audit that is too old, is recorded already, or is by a member without a vote",
            )
        share = self.share_sizes(entry.round)[target.peer]
        score = SignSums(entry.total, entry.squares).thousandths
        first_half = None if entry.first_half is None else thousandths(entry.first_half)
        return Audit(
            entry.auditor, target.peer, entry.round, share, score, first_half, target.sequence
        )

    # Re-audits

    def disputed_audit(self, auditor: PeerId, round: int) -> Audit | None:
        """Return the audit that a member made of an update of `round` if its score is low and re-audits
        have not settled it yet; None if there is no such audit."""
        return next(
            (
                low_audit
                for low_audit in self.reputation.disputes
                if (low_audit.auditor, low_audit.round) == (auditor, round)
            ),
            None,
        )

    def reaudit_sequences(self, reauditor: PeerId, low_audit: Audit) -> tuple[int, ...] | None:
        """Return which sequences of the share in `low_audit`, numbered from 0, a member has to re-audit;
        None if the member was not drawn to re-audit it, or has already done so."""
        if reauditor not in self.reputation.pending_reauditors(low_audit):
            return None
        beacon = self._beacon[self.reputation.disputes[low_audit].since + DRAW_LAG_ROUNDS]
        return draw_sequences(
            low_audit.name + beacon + reauditor, low_audit.share, MAX_REAUDITED_SEQUENCES
        )

    def reaudit_of(self, entry: ReauditEntry) -> Reaudit:
        """Return the re-audit that an entry reports. Raises `ProtocolError` (`audit`) if the next record
        may not hold it."""
        low_audit = self.disputed_audit(entry.auditor, entry.round)
        if low_audit is None:
            raise ProtocolError("audit", "a re-audit without an open dispute")
        if not self.reputation.may_reaudit(entry.reauditor, low_audit):
            raise ProtocolError(
                "audit", "a re-audit by a member that was not drawn, or has no vote"
            )
        sequences = self.reaudit_sequences(entry.reauditor, low_audit)
        if sequences is None or len(sequences) != len(entry.scores):
            raise ProtocolError("audit", "a re-audit of other sequences than those drawn")
        bound = self.reputation.disputes[low_audit].bound
        scores = dict(zip(sequences, map(thousandths, entry.scores), strict=True))
        return Reaudit.of_scores(entry.reauditor, low_audit, scores, bound)

    def dismisses(self, peer: PeerId) -> bool:
        return self.reputation[peer].dismissed

    # Records

    def root_due(self, snapshot: SnapshotEntry | None) -> bytes:
        return b"" if snapshot is None else self.contributions.root

    def check_audits(self, record: Record, verify: Verify) -> None:
        chain, swarm = self._chain, self._chain.manifest.swarm
        audit_keys = [(entry.auditor, entry.round) for entry in record.audits]
        if audit_keys != sorted(set(audit_keys)):
            raise ProtocolError("record", "audits are not sorted and distinct")
        reaudit_keys = [(entry.reauditor, entry.auditor, entry.round) for entry in record.reaudits]
        if reaudit_keys != sorted(set(reaudit_keys)):
            raise ProtocolError("record", "re-audits are not sorted and distinct")
        for entry in record.audits:
            self.audit_of(entry, record.round)
            body = encode(entry.message(chain.parent(entry.round)))
            if not verify("audit", swarm, entry.auditor, body, entry.signature):
                raise ProtocolError("record", "an audit that its auditor did not sign")
        for entry in record.reaudits:
            self.reaudit_of(entry)
            body = encode(entry.message(chain.parent(entry.round)))
            if not verify("reaudit", swarm, entry.reauditor, body, entry.signature):
                raise ProtocolError("record", "a re-audit that its auditor did not sign")

    # Private

    def _has_committed(self, peer: PeerId, opening: bytes, round: int) -> bool:
        if not 0 < round < self._length:
            return False
        entry = self._chain.record(round).update_by(peer)
        return entry is not None and opens(opening, "audit", entry.commitment)

    def _recorded_work(self, record: Record) -> RecordedWork:
        sizes = self.share_sizes(record.round) if record.updates else {}
        return RecordedWork(
            record.round,
            {entry.peer: sizes[entry.peer] for entry in record.updates if entry.peer in sizes},
            tuple(self.audit_of(entry, record.round) for entry in record.audits),
            tuple(self.reaudit_of(entry) for entry in record.reaudits),
            self._beacon[record.round],
        )


class AuditsOnChain(ChainFeature):
    """Audits, as a feature of chains."""

    table = AuditsSpec
    # An audit is recorded within `FRESH` rounds of the audited one and may be disputed for `OPEN_ROUNDS`
    # more. With `overlap` an update was computed on the parameters of two rounds earlier. The remaining
    # rounds are the time in which a re-auditor can rebuild these parameters.
    rebuilt_rounds = FRESH + OPEN_ROUNDS + 8

    def indexes(self, chain: ChainView, table: AuditsSpec) -> Iterable[AuditLedger]:
        return (AuditLedger(chain, table),)


def thousandths(score: AuditScore) -> int:
    """Return a score in thousandths of the standard deviation that scores have by chance."""
    return SignSums(score.total, score.squares).thousandths
