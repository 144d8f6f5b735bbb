"""Which version of the protocol a swarm speaks in which round: a function of its chain.

A swarm begins with the version that its manifest names. With each update a member says up to which
version it speaks (`Announcement.speaks`). When a quorum of the members has said for `READY_ROUNDS`
rounds in a row that it speaks the next version, the swarm changes over to it, `version_notice` rounds of
the manifest later. So nobody proposes a change and nobody calls one: members install a newer program,
one by one, and once enough have, everybody knows the round. Liars who are too few to decide anything can
neither bring a change about nor keep it from coming.

Whoever does not speak the new version takes leave before that round. If by then a quorum does not speak
it any more, the change is called off, and counting begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ...crypto.identity import PeerId
from ..wire.manifest import Manifest
from ..wire.membership import FaultModel, Votes, quorum
from ..wire.messages import Record

READY_ROUNDS = 16
"""So many rounds in a row a quorum has to speak the next version, so that no short visit counts."""

SPOKEN_ROUNDS = 64
"""What a member said with an update counts for so many rounds: slow members have one in a few."""

GOODBYE_ROUNDS = 3
"""So many rounds before a change those take leave who do not speak the new version: a leave is recorded
in the next round or two."""


class Change(NamedTuple):
    """From this `round` on the swarm speaks this `version`."""

    version: int
    round: int


@dataclass(frozen=True, slots=True)
class Versions:
    """How it stands before a round."""

    now: int
    """The version that the swarm speaks in the round."""
    since: int | None = None
    """The round since which a quorum has spoken the next one; None: it does not."""
    change: Change | None = None
    """What is to come."""


def next_versions(before: Versions, round: int, *, ready: bool, notice: int) -> Versions:
    """How it stands after the record of `round`. `ready`: whether a quorum speaks the next version by
    then; `notice`: the rounds from scheduling a change to the change."""
    change = before.change
    if change is not None and round + 1 < change.round:
        return before
    if change is not None:
        return Versions(change.version if ready else before.now)
    if not ready:
        return before if before.since is None else Versions(before.now)
    since = round if before.since is None else before.since
    if round + 1 - since < READY_ROUNDS:
        return before if before.since is not None else Versions(before.now, since)
    return Versions(before.now, since, Change(before.now + 1, round + 1 + notice))


class Spoken:
    """What members said of late, to be grown by one record."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        """After these `records`, of which only the last `SPOKEN_ROUNDS` matter."""
        # The round in which each said last what it speaks, and what.
        self._said: dict[PeerId, tuple[int, int]] = {}
        for record in records:
            self.follow(record)

    def copy(self) -> Spoken:
        """To be grown in another way."""
        copy = Spoken()
        copy._said = dict(self._said)
        return copy

    def follow(self, record: Record) -> None:
        """Add what stands in the next record."""
        for entry in record.updates:
            # At the end again, so that the oldest come first.
            self._said.pop(entry.peer, None)
            self._said[entry.peer] = record.round, entry.speaks
        while self._said:
            oldest = next(iter(self._said))
            if self._said[oldest][0] > record.round - SPOKEN_ROUNDS:
                break
            del self._said[oldest]

    def is_quorum(self, version: int, votes: Votes, model: FaultModel) -> bool:
        """Whether a quorum of the `votes` has said that it speaks at least this version."""
        said = votes.among(peer for peer, (_, speaks) in self._said.items() if speaks >= version)
        return said >= quorum(model, votes.total)


class VersionsByRound:
    """How it stands before each round from 0 to the next one, to be grown by one."""

    def __init__(self, manifest: Manifest, speaks: int) -> None:
        """`speaks`: the highest version that this program speaks."""
        self.speaks = speaks
        self._manifest = manifest
        # Those of most rounds are the same one.
        self._rounds = [Versions(manifest.version)]
        self._spoken = Spoken()

    def __getitem__(self, round: int) -> Versions:
        return self._rounds[round]

    @property
    def change(self) -> Change | None:
        """The change that is to come."""
        return self._rounds[-1].change

    @property
    def outdated(self) -> bool:
        """Whether the next round is held in a version that this program does not speak."""
        return self._rounds[-1].now > self.speaks

    @property
    def soon_outdated(self) -> bool:
        """Whether it will be in a few rounds: it is time to take leave."""
        change = self.change
        if change is None or change.version <= self.speaks:
            return self.outdated
        return len(self._rounds) - 1 + GOODBYE_ROUNDS >= change.round

    def follow(self, record: Record, votes: Votes) -> None:
        """Add how it stands after the last `record`, with the `votes` of the next round."""
        before, manifest = self._rounds[-1], self._manifest
        self._spoken.follow(record)
        ready = self._spoken.is_quorum(before.now + 1, votes, manifest.fault_model)
        notice = manifest.rounds.version_notice
        self._rounds.append(next_versions(before, record.round, ready=ready, notice=notice))

    def before(self, length: int, records: Callable[[int], Record]) -> VersionsByRound:
        """That of a chain of the first `length` of these records."""
        copy = VersionsByRound(self._manifest, self.speaks)
        copy._rounds = self._rounds[: length + 1]
        if length + 1 == len(self._rounds):
            # Mostly it is copied whole, and entries from the disk take a while to read.
            copy._spoken = self._spoken.copy()
        else:
            copy._spoken = Spoken(map(records, range(max(0, length - SPOKEN_ROUNDS), length)))
        return copy
