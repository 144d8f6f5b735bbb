"""Committees of a chain: the aggregators of each round, and the aggregates of a record that count.

A step takes two rounds (`CommitteesSpec`): members send their sign votes in an odd round, and committees
aggregate in the even round after it. Committees are drawn for an epoch of steps, when its first round
begins, by the beacon of the round before. Penalties follow from the records of the epochs before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..codec.layout import manifest_layout
from ..committee.aggregate import ABSTENTION, section_header
from ..committee.draw import (
    AggregatorStanding,
    Committee,
    agreed_aggregate,
    dissenters,
    draw_committees,
    may_aggregate,
)
from ..committee.exchange_size import CommitteeExchangeSize
from ..committee.sections import most_sections
from ..committee.sign_vote import step_of
from ..wire.manifest import CommitteesSpec
from ..wire.messages import Record
from ..wire.saved_state import Restorable, apart, collection, fields, of
from .beacon import Beacon
from .chain_index import ChainFeature, ChainView, StepSource, WeightRule

Place = tuple[int, int]
"""A section's number, and the number of sections."""


@dataclass(frozen=True)
class CommitteeEpoch:
    """The committees of one epoch."""

    committees: tuple[Committee, ...]
    """Committees by section."""
    standings: Mapping[PeerId, AggregatorStanding]
    """Penalties at the time of the draw; a member without an entry was neither penalised nor new."""

    def section_of(self, peer: PeerId) -> int | None:
        """Return the section that a member aggregates; None if none."""
        found = (number for number, committee in enumerate(self.committees) if peer in committee)
        return next(found, None)


class CommitteeChain(WeightRule, StepSource, Restorable):
    """Committees of a chain, extended record by record."""

    STATE = fields(
        _epochs=collection(apart(of(CommitteeEpoch))),
        _length=of(int),
        _agreed=of(dict[int, list[ContentId]]),
        _announced=of(set[PeerId]),
        _penalised=of(set[PeerId]),
        _admitted=of(set[PeerId]),
    )

    needs_all = False

    def __init__(self, chain: ChainView, spec: CommitteesSpec) -> None:
        """The chain has a beacon, which follows each record before this object does."""
        self._chain = chain
        self._manifest = chain.manifest
        self._spec = spec
        self._beacon = chain.index(Beacon)
        self._most = most_sections(manifest_layout(chain.manifest))
        # Epochs that have begun.
        self._epochs: list[CommitteeEpoch] = []
        # Number of processed records.
        self._length = 0
        self._begin_notes()

    def epoch(self, round: int) -> CommitteeEpoch:
        """Return the epoch of a round in which members train or committees aggregate, at most the next
        one."""
        return self._epochs[self._number(round)]

    def place(self, round: int, peer: PeerId) -> Place | None:
        """Return the section that a member aggregates in the step of a round, and the number of
        sections; None if it aggregates none, or if that round's committees are not drawn yet."""
        epoch = self._known(round)
        section = None if epoch is None else epoch.section_of(peer)
        return None if epoch is None or section is None else (section, len(epoch.committees))

    def sections(self, round: int) -> int:
        """Return the number of sections in the step of a round; 0 if its committees are not drawn."""
        epoch = self._known(round)
        return 0 if epoch is None else len(epoch.committees)

    def committee(self, round: int, section: int) -> Committee:
        """Return the committee of a section in the step of a round; empty if that round's committees
        are not drawn."""
        epoch = self._known(round)
        committees = () if epoch is None else epoch.committees
        return committees[section] if section < len(committees) else ()

    def agreed(self, section: int) -> tuple[ContentId, ...]:
        """Return the aggregates of a section that counted in the latest epoch, since the last step
        without one. The state of the section's aggregators follows from these alone."""
        return tuple(self._agreed.get(section, ()))

    def due(self, round: int) -> frozenset[PeerId]:
        """Return the members whose aggregate is due in a round: none unless committees aggregate
        in it."""
        if not self._manifest.aggregates_in(round):
            return frozenset()
        return frozenset(peer for committee in self.epoch(round).committees for peer in committee)

    def aggregates(self, record: Record) -> tuple[ContentId | None, ...]:
        """Return, for a record of a round in which committees aggregate, each section's aggregate that
        counts; None for a section without one."""
        announced = _announced_aggregates(record)
        present = self._chain.membership(record.round).peers
        committees = self.epoch(record.round).committees
        return tuple(agreed_aggregate(committee, announced, present) for committee in committees)

    def update_weights(self, record: Record) -> dict[PeerId, int]:
        """Return the update weights of a record in the step: 1 for the first announcement of each
        aggregate that counts, 0 for the others and for sign votes."""
        found = {entry.peer: 0 for entry in record.updates}
        if not self._manifest.aggregates_in(record.round):
            return found
        counted = self.aggregates(record)
        for committee, aggregate in zip(self.epoch(record.round).committees, counted, strict=True):
            announcers = (
                e.peer for e in record.updates if e.peer in committee and e.update == aggregate
            )
            if (first := next(announcers, None)) is not None:
                found[first] = 1
        return found

    def weights(self, record: Record, given: Mapping[PeerId, int]) -> dict[PeerId, int]:
        """Return the update weights of a record, as `update_weights` does. Sign votes have weight 0,
        because a step consists of their aggregates only."""
        return self.update_weights(record)

    def counted(self, record: Record) -> set[PeerId]:
        """Return the members whose updates are needed to apply a record: one for each aggregate that
        counts. Only aggregators need sign votes."""
        return {peer for peer, weight in self.update_weights(record).items() if weight}

    def needed(self, record: Record) -> dict[PeerId, bytes]:
        """Return the members that announce the aggregates that count, one for each. An aggregate must be
        of the section of its author's committee, and begins with it."""
        places = ((peer, self.place(record.round, peer)) for peer in self.counted(record))
        return {peer: section_header(*place) for peer, place in places if place is not None}

    def follow(self, record: Record) -> None:
        """Process the last `record`, which must have been checked."""
        self._note(record)
        following = self._length = record.round + 1
        if not self._manifest.schedule.trains(following) or self._manifest.aggregates_in(following):
            return
        if self._number(following) == len(self._epochs):
            self._epochs.append(self._draw_epoch(following))
            self._begin_notes()

    def before(self, length: int, chain: ChainView) -> CommitteeChain:
        """Return the committees of the first `length` records, as an index of `chain`."""
        copy = CommitteeChain(chain, self._spec)
        # An epoch begins when the record before its first round is decided. The records of the latest
        # epoch are processed again.
        begun = 0 if length == 0 else min(self._number(length) + 1, len(self._epochs))
        copy._epochs = self._epochs[:begun]
        copy._length = length
        if length == self._length:
            copy._copy_notes(self)
            return copy
        for round_ in range(2 * self._spec.epoch_steps * max(0, begun - 1) + 1, length):
            copy._note(chain.record(round_))
        return copy

    def _known(self, round: int) -> CommitteeEpoch | None:
        """Return the epoch of a round, if its committees are drawn."""
        number = self._number(round)
        return self._epochs[number] if 0 <= number < len(self._epochs) else None

    def _number(self, round: int) -> int:
        return step_of(round) // self._spec.epoch_steps

    def _begin_notes(self) -> None:
        # For the latest epoch: the aggregates that counted, and the members that announced one, were
        # penalised, or were admitted.
        self._agreed: dict[int, list[ContentId]] = {}
        self._announced: set[PeerId] = set()
        self._penalised: set[PeerId] = set()
        self._admitted: set[PeerId] = set()

    def _copy_notes(self, other: CommitteeChain) -> None:
        self._agreed = {section: [*aggregates] for section, aggregates in other._agreed.items()}
        self._announced, self._penalised = {*other._announced}, {*other._penalised}
        self._admitted = {*other._admitted}

    def _note(self, record: Record) -> None:
        # Members that are admitted before training begins are not new.
        if record.round > 0:
            self._admitted |= {entry.peer for entry in record.admitted}
        if not self._manifest.aggregates_in(record.round):
            return
        announced = _announced_aggregates(record)
        for committee in self.epoch(record.round).committees:
            self._penalised |= dissenters(committee, announced)
        self._announced |= announced.keys()
        for section, aggregate in enumerate(self.aggregates(record)):
            so_far = self._agreed.get(section, [])
            self._agreed[section] = [] if aggregate is None else [*so_far, aggregate]

    def _draw_epoch(self, round: int) -> CommitteeEpoch:
        """Return the epoch that begins with a round."""
        number, members = len(self._epochs), self._chain.membership(round).peers
        standings = self._standings()
        committees = draw_committees(
            may_aggregate(members, standings, number),
            size=self._spec.min_members,
            most=self._most,
            seed=self._beacon[round - 1],
        )
        return CommitteeEpoch(committees, standings)

    def _standings(self) -> Mapping[PeerId, AggregatorStanding]:
        """Return the members' penalties at the end of the latest epoch."""
        if not self._epochs:
            return {}
        last = len(self._epochs) - 1
        known = self._epochs[last].standings
        after = dict(known)
        for peer in self._announced | self._admitted:
            standing = after.get(peer, AggregatorStanding())
            if peer in self._penalised:
                standing = standing.penalised(last)
            elif peer in self._announced:
                standing = standing.served()
            if peer in self._admitted:
                standing = standing.newly_admitted(last)
            after[peer] = standing
        # Drop members with a clean record: identities are free, so the table would grow without bound.
        after = {
            peer: standing
            for peer, standing in after.items()
            if standing.penalties or standing.back > last + 1
        }
        return known if after == known else after


class CommitteesOnChain(ChainFeature):
    """Committees, as a feature of chains."""

    table = CommitteesSpec

    def indexes(self, chain: ChainView, table: CommitteesSpec) -> Iterable[CommitteeChain]:
        return (CommitteeChain(chain, table),)

    def exchange_size(self, table: CommitteesSpec) -> CommitteeExchangeSize:
        return CommitteeExchangeSize(table)


def _announced_aggregates(record: Record) -> dict[PeerId, ContentId]:
    """Return the aggregates of a record by the member that announces them."""
    announcements = ((entry.peer, entry.update) for entry in record.updates)
    return {peer: aggregate for peer, aggregate in announcements if aggregate != ABSTENTION}
