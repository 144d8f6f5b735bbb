"""What each round of a chain deals out, and to whom: samples, lanes, and when updates are due."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...crypto.identity import PeerId
from ..sampling.assignment import Assignment, Lanes, Terms, Work, samples_of
from ..sampling.deal import Deal
from ..sampling.sampler import Order
from ..sampling.say import by_share, once
from ..wire.manifest import Manifest
from ..wire.messages import Record
from .memberships import Memberships
from .shares import Lost, Shares, SharesByRound


class Dealing:
    """The samples of a ledger's rounds, to be grown by one."""

    def __init__(
        self,
        manifest: Manifest,
        order: Order,
        memberships: Memberships,
        records: Callable[[int], Record],
    ) -> None:
        """`memberships` are the ledger's, which grow before this does, and so are `records`."""
        rounds = manifest.rounds
        self.terms = Terms(order, rounds.max_share, manifest.schedule.trains)
        self._order = order
        self._overlap = rounds.overlap
        self._say = manifest.optimizer.say
        self._memberships = memberships
        self._records = records
        self._shares = SharesByRound(self.terms, memberships[0], rounds.overlap)
        # What each round from 1 on deals: four bytes a lane for a round that lost samples, shared by
        # those after it that did not.
        self._deals = [Deal(1)]
        if rounds.overlap:
            self._deals.append(self._deals[0].then(self._deals[0], [], order.lanes))

    def __len__(self) -> int:
        """The round after the last record."""
        return len(self._shares) - 1

    def deal(self, round: int) -> Deal:
        """What a round from 1 on deals out: at most the next round, with `overlap` the one after it."""
        return self._deals[round - 1]

    def shares(self, round: int) -> Shares:
        """The members' weights before a round, at most the next one, and who computes what in it."""
        return self._shares.at(round, self._records, self._memberships)

    def assignment(self, round: int) -> Assignment:
        """Who has the lanes of a round; rounds as for `deal`."""
        # Round 0 trains nothing, so before its record nobody knows who has those of the first.
        if round > len(self) > 0:
            return self.shares(len(self)).dealt[1]
        return next(iter(self.shares(round).dealt), Assignment(round))

    def due(self, round: int) -> frozenset[PeerId]:
        """The members whose update is due in a round, at most the next one: nobody else's counts."""
        return self.shares(round).due

    def share(self, round: int, peer: PeerId) -> tuple[int, ...] | None:
        """The samples of which an update of `peer` is due in a round, as for `deal`; None if none is."""
        lanes = self.assignment(round).runs.get(peer)
        if lanes is not None:
            return self._samples(round, lanes)
        for work in self.shares(min(round, len(self))).works:
            if (work.peer, work.due) == (peer, round):
                return self._samples(work.dealt, work.lanes)
        return None

    def works(self, peer: PeerId) -> list[tuple[int, int, Callable[[], tuple[int, ...]]]]:
        """What was dealt to `peer` in rounds that are settled, and is not over: the round in which it is
        due, the next one at the earliest, the one that deals it, and its samples."""
        shares = self.shares(len(self))
        found = [(a.round, a.round, a.runs[peer]) for a in shares.dealt if peer in a.runs]
        found += [(w.due, w.dealt, w.lanes) for w in shares.works if w.peer == peer]
        found.sort(key=lambda each: each[0])
        return [(due, dealt, partial(self._samples, dealt, lanes)) for due, dealt, lanes in found]

    def counts(self, record: Record) -> dict[PeerId, int]:
        """How often each update of a record counts in the step (`say`). The record must have been
        checked, and is the next one at most."""
        peers = [entry.peer for entry in record.updates]
        if self._say == "equal":
            return once(peers)
        sequences = self.shares(record.round).sequences
        return by_share({peer: sequences[peer] for peer in peers})

    def follow(self, record: Record) -> None:
        """Add what comes after the last `record`, which must have been checked."""
        lost = self._shares.follow(record, self._memberships[record.round + 1])
        if record.round > 0:
            self._deals.append(self._deal_after(record, lost))

    def before(
        self, length: int, memberships: Memberships, records: Callable[[int], Record]
    ) -> Dealing:
        """That of the first `length` records, in a ledger with these memberships and records."""
        copy = Dealing.__new__(Dealing)
        vars(copy).update(vars(self))
        copy._memberships, copy._records = memberships, records
        copy._shares = self._shares.before(length + 1, self._records, self._memberships)
        copy._deals = self._deals[: max(length, 1) + self._overlap]
        return copy

    def _deal_after(self, record: Record, lost: Lost) -> Deal:
        lanes = self._order.lanes
        owed = [(work.lane, self._row(work)) for work in lost.works]
        return self._deals[-1].then(self.deal(record.round), lost.runs, lanes, owed)

    def _row(self, work: Work) -> int:
        return int(self.deal(work.dealt).rows(self._order.lanes)[work.lane])

    def _samples(self, dealt: int, lanes: Lanes) -> tuple[int, ...]:
        return samples_of(self._order, [self.deal(dealt)], [lanes])
