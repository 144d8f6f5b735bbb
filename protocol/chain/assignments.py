"""Sample assignment by round: which streams and samples each member has, and when its update is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...crypto.identity import PeerId
from ..sampling.assignment import Assignment, AssignmentRules, LentStream, Streams, samples_of
from ..sampling.member_weights import modest_weight
from ..sampling.sampler import order_of
from ..sampling.stream_cursor import StreamCursors
from ..sampling.update_weights import by_share, equal_weights
from ..wire.membership import Membership
from ..wire.messages import Record
from ..wire.saved_state import Restorable, RestoreScope, apart, of, runs
from .chain_index import ChainView, StepSource, WeightRule
from .shares import RoundShares, ShareHistory, UntrainedWork
from .steps import StepSchedule

# One in this many streams may be lent: given to a member that takes several rounds for one sequence.
# Features may lower this (`FeatureSpec.lent_one_in`).
_LENT = 2

_Behind = tuple[bytes, bytes, tuple[tuple[int, int], ...]]
"""Stream cursors without their round, which most rounds share with the one before."""

_CURSORS = runs(apart(of(_Behind)), None)

OpenWork = tuple[int, int, Callable[[], tuple[int, ...]]]
"""An assignment whose update is not decided yet: the round in which the update is due, the round that
assigns it, and a function that returns its samples."""


class SampleAssignments(WeightRule, Restorable):
    """Sample assignments of a chain's rounds; extended by one thread.

    Samples are assigned once a step (`steps`). What `sampling` and `shares` call a round is therefore a
    step here: `RoundShares.round`, `Assignment.round`, and `assigned_in` and `due` of a `LentStream`.
    """

    def __init__(self, chain: ChainView) -> None:
        manifest = chain.manifest
        rounds = manifest.rounds
        self._chain = chain
        self.order = order_of(manifest)
        """The order of the samples in the streams."""
        self._steps = StepSchedule(manifest)
        lent = max([_LENT, *(table.lent_one_in for table in manifest.features)])
        self.rules = AssignmentRules(self.order, rounds.max_share, self._steps.trains, lent)
        self._overlap = rounds.overlap
        self._weight_rule = manifest.optimizer.update_weight
        self._length = 0
        # Results of `open_work`, which a member asks for with each message, and their length of chain.
        self._open_work: dict[PeerId, tuple[int, tuple[OpenWork, ...]]] = {}
        self._shares = ShareHistory(self.rules, chain.membership(0), rounds.overlap)
        # Stream cursors of each step from 1 on. Offsets change only after a step that left samples
        # untrained (four bytes a stream); the cursors of the steps until the next change share the same
        # bytes.
        self._cursors = [StreamCursors(1)]
        if rounds.overlap:
            first = self._cursors[0]
            self._cursors.append(first.next_cursors(first, [], self.order.streams))

    def __len__(self) -> int:
        """Return the round after the last record."""
        return self._length

    def cursors(self, round: int) -> StreamCursors:
        """Return the stream cursors of a round. `round` may be 1 to the next round; with `overlap`, also
        the one after that. A round that assigns nothing has the cursors of the latest earlier round that
        assigns."""
        return self._cursors[self._steps.step(round) - 1]

    def shares(self, round: int) -> RoundShares:
        """Return the weights and assignments before a round. `round` is at most the next one. A round
        that assigns nothing has those of the round before, with a weight for members admitted since."""
        shares = self._shares.at(self._steps.step(round), self._record_of, self._members_of)
        if self._steps.begins(round):
            return shares
        new = modest_weight(shares.weights)
        newcomers = {
            peer: new for peer in self._chain.membership(round).peers if peer not in shares.weights
        }
        return replace(shares, weights={**shares.weights, **newcomers}) if newcomers else shares

    @property
    def last(self) -> StreamCursors:
        """The stream cursors of the latest assignment; before any, those of the first."""
        return self._cursors[-1]

    def assignment(self, round: int) -> Assignment:
        """Return which member has which streams in a round, for the same rounds as `cursors`."""
        if not self._steps.begins(round):
            return Assignment(round)
        # With `overlap`, `round` may be the one after the next: its assignment is the second one. Before
        # the record of round 0 nothing is assigned, not even round 1.
        if round > len(self) > 0:
            return self.shares(len(self)).assignments[1]
        return next(iter(self.shares(round).assignments), Assignment(round))

    def due(self, round: int) -> frozenset[PeerId]:
        """Return the members whose update is due in a round; no other update counts. `round` is at most
        the next one."""
        if self._steps.begins(round):
            return self.shares(round).due
        return self._chain.index(StepSource).due(round)

    def share(self, round: int, peer: PeerId) -> tuple[int, ...] | None:
        """Return the samples of the update that is due from `peer` in a round, for the same rounds as
        `cursors`; None if none is due."""
        if not self._steps.begins(round):
            return None
        streams = self.assignment(round).runs.get(peer)
        step = self._steps.step(round)
        if streams is not None:
            return self._samples(step, streams)
        for work in self.shares(min(round, len(self))).lent_streams:
            if (work.peer, work.due) == (peer, step):
                return self._samples(work.assigned_in, work.streams)
        return None

    def open_work(self, peer: PeerId) -> Sequence[OpenWork]:
        """Return the assignments of `peer` that already follow from the records and whose update is not
        decided yet; the update is due in the next round at the earliest."""
        length = self._length
        known = self._open_work.get(peer)
        if known is not None and known[0] == length:
            return known[1]
        shares = self.shares(length)
        found = [(a.round, a.round, a.runs[peer]) for a in shares.assignments if peer in a.runs]
        found += [(w.due, w.assigned_in, w.streams) for w in shares.lent_streams if w.peer == peer]
        found.sort(key=lambda each: each[0])
        round_of = self._steps.round_of
        open_work = tuple(
            (round_of(due), round_of(assigned_in), partial(self._samples, assigned_in, streams))
            for due, assigned_in, streams in found
            if round_of(due) >= length
        )
        self._open_work[peer] = length, open_work
        return open_work

    def update_weights(self, record: Record) -> dict[PeerId, int]:
        """Return the update weights of a record, by author: in the step, or in the sums of the
        committees that aggregate in the next round. The record must have been checked; its round is at
        most the next one."""
        sequences = self.shares(record.round).sequences if self._steps.begins(record.round) else {}
        return self.weights_by_share(
            {entry.peer: sequences.get(entry.peer, 0) for entry in record.updates}
        )

    def weights(self, record: Record, given: Mapping[PeerId, int]) -> dict[PeerId, int]:
        """Return the update weights of a record, as `update_weights` does. The weights by earlier
        rules (`given`) do not matter here."""
        return self.update_weights(record)

    def weights_by_share(self, shares: Mapping[PeerId, int]) -> dict[PeerId, int]:
        """Return the update weights, by author, of updates with these numbers of sequences."""
        return equal_weights(shares) if self._weight_rule == "equal" else by_share(shares)

    def follow(self, record: Record) -> None:
        """Process the last `record`, which must have been checked."""
        round_ = record.round
        self._length = round_ + 1
        if not self._steps.ends(round_):
            return
        step = self._steps.step(round_)
        # The record of a step's first round shows what was trained.
        trained = record if self._steps.begins(round_) else self._record_of(step)
        lost = self._shares.follow(trained, self._chain.membership(round_ + 1))
        if step > 0:
            self._cursors.append(self._cursors_after(step, lost))

    def before(self, length: int, chain: ChainView) -> SampleAssignments:
        """Return the assignments of the first `length` records, as an index of `chain`."""
        copy = SampleAssignments(chain)
        copy._length = length
        step = self._steps.step(length)
        copy._shares = self._shares.before(step + 1, copy._record_of, copy._members_of)
        copy._cursors = self._cursors[: max(step, 1) + self._overlap]
        return copy

    def state(self) -> list[Any]:
        cursors = [(each.behind, each.waiting, each.owed) for each in self._cursors]
        return [self._length, self._shares.state(), _CURSORS.pack(cursors)]

    def restore(self, state: Any, scope: RestoreScope) -> None:
        length, shares, cursors = state
        step = self._steps.step(scope.length)
        self._length = of(int).unpack(length, scope)
        self._shares.restore(shares, scope)
        behind = _CURSORS.unpack(cursors, scope)
        self._cursors = [StreamCursors(number, *each) for number, each in enumerate(behind, 1)]
        counts = self._length, len(self._shares), len(behind)
        if counts != (scope.length, step + 1, max(step, 1) + self._overlap):
            raise ValueError("assignments of another number of rounds")

    def _record_of(self, step: int) -> Record:
        """Return the record that shows what was trained in a step."""
        return self._chain.record(self._steps.round_of(step))

    def _members_of(self, step: int) -> Membership:
        """Return the members at the beginning of a step."""
        return self._chain.membership(self._steps.round_of(step))

    def _cursors_after(self, step: int, lost: UntrainedWork) -> StreamCursors:
        """Return the next cursors, after a step whose record leaves the work `lost` untrained."""
        streams = self.order.streams
        # Stream and row of each lent sample that was not trained.
        owed = [(work.stream, self._row(work)) for work in lost.lent_streams]
        return self._cursors[-1].next_cursors(self._cursors[step - 1], lost.runs, streams, owed)

    def _row(self, work: LentStream) -> int:
        """Return the row of the lent sample in its stream."""
        return int(self._cursors[work.assigned_in - 1].rows(self.order.streams)[work.stream])

    def _samples(self, assigned_in: int, streams: Streams) -> tuple[int, ...]:
        """Return the samples of these streams that a step assigns."""
        return samples_of(self.order, [self._cursors[assigned_in - 1]], [streams])
