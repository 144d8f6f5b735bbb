"""Protocol version of a swarm by round: a function of its chain.

A swarm begins with the version that its manifest names. With each update a member announces the highest
version that it supports (`Announcement.max_version`). When a quorum of the members has announced support
for the next version for `READY_ROUNDS` rounds in a row, the swarm changes to it `version_notice` rounds
later (a number in the manifest). So a change needs no proposal: members install a newer program one by
one, and once enough have, all members know the round of the change. Byzantine members that are too few
to decide anything can neither cause a change nor prevent one.

A member that does not support the new version leaves before that round. If a quorum no longer supports
the new version when that round comes, the change is cancelled, and counting restarts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ...crypto.identity import PeerId
from ..wire.membership import FaultModel, Votes, quorum
from ..wire.messages import Record
from ..wire.saved_state import Restorable, fields, of, part, runs
from .chain_index import ChainView

READY_ROUNDS = 16
"""Consecutive rounds in which a quorum must support the next version, so that members that are present
only briefly cause no change."""

VERSION_VOTE_ROUNDS = 64
"""Rounds for which an announced version counts: slow members have an update only in some rounds."""

GOODBYE_ROUNDS = 3
"""Rounds before a change at which members that do not support the new version leave: a leave is
recorded in the next round or two."""


class VersionChange(NamedTuple):
    """The swarm uses `version` from `round` on."""

    version: int
    round: int


@dataclass(frozen=True, slots=True)
class VersionState:
    """Version state before a round."""

    now: int
    """The version in use in the round."""
    since: int | None = None
    """The round since which a quorum has supported the next version; None if none does."""
    change: VersionChange | None = None
    """The scheduled change."""


def next_versions(before: VersionState, round: int, *, ready: bool, notice: int) -> VersionState:
    """Return the state after the record of `round`. `ready`: whether a quorum supports the next version
    after this record; `notice`: the number of rounds from scheduling a change to the change."""
    change = before.change
    if change is not None and round + 1 < change.round:
        return before
    if change is not None:
        return VersionState(change.version if ready else before.now)
    if not ready:
        return before if before.since is None else VersionState(before.now)
    since = round if before.since is None else before.since
    if round + 1 - since < READY_ROUNDS:
        return before if before.since is not None else VersionState(before.now, since)
    return VersionState(before.now, since, VersionChange(before.now + 1, round + 1 + notice))


class VersionVotes(Restorable):
    """Versions that members announced recently, extended record by record."""

    STATE = fields(_announced=of(dict[PeerId, tuple[int, int]]))

    def __init__(self, records: Iterable[Record] = ()) -> None:
        """Start after these `records`, of which only the last `VERSION_VOTE_ROUNDS` matter."""
        # By member, the round of its last announced version, and that version.
        self._announced: dict[PeerId, tuple[int, int]] = {}
        for record in records:
            self.follow(record)

    def copy(self) -> VersionVotes:
        """Return a copy that is extended independently."""
        copy = VersionVotes()
        copy._announced = dict(self._announced)
        return copy

    def follow(self, record: Record) -> None:
        """Process the next record."""
        for entry in record.updates:
            # Moved to the end, so that the oldest come first.
            self._announced.pop(entry.peer, None)
            self._announced[entry.peer] = record.round, entry.max_version
        while self._announced:
            oldest = next(iter(self._announced))
            if self._announced[oldest][0] > record.round - VERSION_VOTE_ROUNDS:
                break
            del self._announced[oldest]

    def is_quorum(self, version: int, votes: Votes, model: FaultModel) -> bool:
        """Whether members with a quorum of the `votes` have announced at least this version."""
        supporting = votes.among(
            peer for peer, (_, max_version) in self._announced.items() if max_version >= version
        )
        return supporting >= quorum(model, votes.total)


class VersionHistory(Restorable):
    """Version state before each round from 0 to the next one; extended by one thread."""

    STATE = fields(_rounds=runs(of(VersionState), 1), _version_votes=part(VersionVotes))

    def __init__(self, chain: ChainView, max_version: int) -> None:
        """`max_version`: the highest version that this program supports."""
        self.max_version = max_version
        self._chain = chain
        # Most rounds share one object.
        self._rounds = [VersionState(chain.manifest.version)]
        self._version_votes = VersionVotes()

    def __getitem__(self, round: int) -> VersionState:
        return self._rounds[round]

    @property
    def change(self) -> VersionChange | None:
        """The scheduled change."""
        return self._rounds[-1].change

    @property
    def outdated(self) -> bool:
        """Whether the next round uses a version that this program does not support."""
        return self._rounds[-1].now > self.max_version

    @property
    def soon_outdated(self) -> bool:
        """Whether a round within the next `GOODBYE_ROUNDS` uses a version that this program does not
        support, so that it is time to leave."""
        change = self.change
        if change is None or change.version <= self.max_version:
            return self.outdated
        return len(self._rounds) - 1 + GOODBYE_ROUNDS >= change.round

    def follow(self, record: Record) -> None:
        """Process the last `record`, which must have been checked."""
        before, manifest = self._rounds[-1], self._chain.manifest
        votes = self._chain.votes(record.round + 1)
        self._version_votes.follow(record)
        ready = self._version_votes.is_quorum(before.now + 1, votes, manifest.fault_model)
        notice = manifest.rounds.version_notice
        self._rounds.append(next_versions(before, record.round, ready=ready, notice=notice))

    def before(self, length: int, chain: ChainView) -> VersionHistory:
        """Return a history of the first `length` records of `chain`, to be extended along it."""
        copy = VersionHistory(chain, self.max_version)
        copy._rounds = self._rounds[: length + 1]
        if length + 1 == len(self._rounds):
            # Most copies are of the whole chain, and reading records from disk takes a while.
            copy._version_votes = self._version_votes.copy()
        else:
            copy._version_votes = VersionVotes(
                map(chain.record, range(max(0, length - VERSION_VOTE_ROUNDS), length))
            )
        return copy
