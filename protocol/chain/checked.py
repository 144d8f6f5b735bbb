"""What the chain says of work that was looked at: the accounts after each record, and the votes in each
round (`checks/accounts`).

The accounts of the last record are at hand. Of earlier rounds some are, at even distances, from which
the others are made again when they are asked for: for a chain that parts from this one. The votes of
all rounds are the same for a term, and so are cheap to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...crypto.identity import PeerId
from ..checks.accounts import TERM, Accounts, Facts, FirstLook, SecondLook, chance_to_look, held
from ..checks.agreement import Agreement
from ..checks.contributions import Contributions
from ..checks.disputes import LAG, MOST_SEQUENCES
from ..checks.draw import Look, commitment, drawn_look, drawn_sequences
from ..checks.standing import level_test
from ..checks.verdict import failed
from ..sampling.say import of_checked
from ..wire.errors import ProtocolError
from ..wire.manifest import ChecksSpec, Manifest
from ..wire.messages import (
    LookAgainEntry,
    LookEntry,
    Record,
    RecordId,
    Score,
    SnapshotEntry,
)
from .beacon import Beacon
from .dealing import Dealing
from .memberships import Memberships

# Accounts that are kept of older rounds, and of the latest.
_APART = 512
_LATEST = 8 * TERM


class CheckedWork:
    """The accounts of a ledger's members, to be grown by one record."""

    def __init__(
        self,
        manifest: Manifest,
        spec: ChecksSpec,
        dealing: Dealing,
        memberships: Memberships,
        records: Callable[[int], Record],
        beacon: Beacon,
    ) -> None:
        """All but the manifest and its `spec` are the ledger's, and grow before this does."""
        self.spec = spec
        self._swarm = manifest.swarm
        self.accounts = Accounts(manifest.founder, level_test(spec.deviation))
        """After the last record."""
        # Rounds from the one that draws a look to the one that is looked at.
        self._ahead = 1 + manifest.rounds.overlap
        self._dealing = dealing
        self._memberships = memberships
        self._records = records
        self._beacon = beacon
        self._length = 0
        self._kept = {0: self.accounts.copy()}
        # What everybody has earned, by term; whose updates do not count, by round.
        self._earned: list[Mapping[PeerId, int]] = [self.accounts.earned]
        self._left_out: list[frozenset[PeerId]] = [frozenset()]

    def __len__(self) -> int:
        return self._length

    @property
    def contributions(self) -> Contributions:
        """What everybody has done since the beginning, after the last record."""
        return self.accounts.contributions

    def earned(self, round: int) -> Mapping[PeerId, int]:
        """The votes of everybody who has any in a round, at most the next one, be it here or not."""
        return self._earned[round // TERM]

    def votes(self, round: int) -> Mapping[PeerId, int]:
        """The votes of each member in a round, at most the next one."""
        if round == self._length:
            return self.accounts.votes
        return held(self.earned(round), self._memberships[round].since.keys())

    def follow(self, record: Record) -> None:
        """Add what is after the last `record`, which must have been checked."""
        self.accounts.close(self._facts(record), self._memberships[record.round + 1].peers)
        self._length += 1
        out = self.accounts.left_out()
        self._left_out.append(self._left_out[-1] if out == self._left_out[-1] else out)
        if self._length % TERM:
            return
        earned = self.accounts.earned
        self._earned.append(self._earned[-1] if earned == self._earned[-1] else earned)
        self._kept[self._length] = self.accounts.copy()
        old = self._length - _LATEST
        if old % _APART:
            self._kept.pop(old, None)

    def before(
        self,
        length: int,
        dealing: Dealing,
        memberships: Memberships,
        records: Callable[[int], Record],
        beacon: Beacon,
    ) -> CheckedWork:
        """That of the first `length` records, in a ledger with these parts."""
        copy = CheckedWork.__new__(CheckedWork)
        vars(copy).update(vars(self))
        copy._dealing, copy._memberships, copy._records = dealing, memberships, records
        copy._beacon = beacon
        # At once: another thread may add to it.
        kept = list(self._kept.items())
        copy._kept = {round_: accounts for round_, accounts in kept if round_ <= length}
        start = max(copy._kept)
        copy._earned = self._earned[: start // TERM + 1]
        copy._left_out = self._left_out[: start + 1]
        copy._length, copy.accounts = start, copy._kept[start].copy()
        if length == self._length:
            copy._length, copy.accounts = length, self.accounts.copy()
            copy._earned, copy._left_out = list(self._earned), list(self._left_out)
        for round_ in range(copy._length, length):
            copy.follow(records(round_))
        return copy

    def counts(self, record: Record, counts: Mapping[PeerId, int]) -> dict[PeerId, int]:
        """How often each update of a record counts in the step, where work is not checked as `counts`
        says; what nobody can look at does not count. The record is the next one at most."""
        round_ = record.round
        seen = self.dealt(round_)
        out = {peer for peer in counts if peer in self._left_out[round_] or peer not in seen}
        voters = self.votes(round_).keys()
        return of_checked(counts, voters, out, self._beacon[round_ - 1])

    # First looks

    def bound_in(self, round: int) -> int:
        """The round whose secret draws what its author looks at in a `round`; below 1 there is none."""
        return round - self._ahead - LAG

    def drawn(self, checker: PeerId, secret: bytes, round: int) -> Look | None:
        """What a member with this secret looks at in a round; None if at nothing, or if it was not this
        secret to which it had bound itself. The record that draws it must be decided."""
        base, drawing = self.bound_in(round), round - self._ahead
        if base < 1 or not self._bound_to(checker, secret, base):
            return None
        dealt, votes = self.dealt(round), self.votes(drawing + 1)
        return drawn_look(
            secret,
            self._beacon[drawing],
            checker,
            dealt,
            self._dealing.say(dealt),
            votes,
            chance_to_look(votes, checker, self.spec.every),
        )

    def dealt(self, round: int) -> dict[PeerId, int]:
        """How many sequences a round deals to each member whose update is due in it. Who has several
        rounds for one has seen other parameters, and can't be looked at."""
        runs = self._dealing.assignment(round).runs
        return {peer: sum(map(len, lanes)) for peer, lanes in runs.items()}

    def first_look(self, entry: LookEntry, now: int) -> FirstLook:
        """What a check comes to. Raises `ProtocolError` (`look`) if the record of round `now` may not
        hold it."""
        if not entry.round < now:
            raise ProtocolError("look", f"a look at round {entry.round} in round {now}")
        look = self.drawn(entry.checker, entry.secret, entry.round)
        if look is None:
            raise ProtocolError("look", "a look that was not drawn")
        if self._records(entry.round).update_by(look.peer) is None:
            raise ProtocolError("look", "a look at an update that does not count")
        if not self.accounts.takes_look(entry.checker, look.peer, entry.round, now):
            raise ProtocolError("look", "a look that is too old, was recorded, or has no say")
        share = self.dealt(entry.round)[look.peer]
        score = Agreement(entry.total, entry.squares).thousandths
        beginning = None if entry.beginning is None else thousandths(entry.beginning)
        return FirstLook(entry.checker, look.peer, entry.round, share, score, beginning)

    # Second looks

    def dispute(self, checker: PeerId, round: int) -> FirstLook | None:
        """The open dispute about what a member saw in a round."""
        return next(
            (
                first
                for first in self.accounts.disputes
                if (first.checker, first.round) == (checker, round)
            ),
            None,
        )

    def sequences_again(self, looker: PeerId, first: FirstLook) -> tuple[int, ...] | None:
        """Which sequences of the share a member is to look at again; None if it is not called, or has
        looked."""
        if looker not in self.accounts.waits_for(first):
            return None
        lot = self._beacon[self.accounts.disputes[first].since + LAG]
        return drawn_sequences(first.name + lot + looker, first.share, MOST_SEQUENCES)

    def second_look(self, entry: LookAgainEntry) -> SecondLook:
        """What a second look comes to. Raises `ProtocolError` (`look`) if the next record may not hold
        it."""
        first = self.dispute(entry.checker, entry.round)
        if first is None:
            raise ProtocolError("look", "a second look where there is no dispute")
        if not self.accounts.may_look_again(entry.looker, first):
            raise ProtocolError(
                "look", "a second look of somebody who is not called, or has no say"
            )
        sequences = self.sequences_again(entry.looker, first)
        if sequences is None or len(sequences) != len(entry.scores):
            raise ProtocolError("look", "a second look at other sequences than were drawn")
        bound = self.accounts.disputes[first].bound
        low = failed(first.score, [thousandths(score) for score in entry.scores], bound)
        return SecondLook(entry.looker, first, low)

    # Private

    def _bound_to(self, peer: PeerId, secret: bytes, round: int) -> bool:
        if not 0 < round < self._length:
            return False
        entry = self._records(round).update_by(peer)
        return entry is not None and entry.commitment == commitment(secret)

    def _facts(self, record: Record) -> Facts:
        sizes = self.dealt(record.round) if record.updates else {}
        return Facts(
            record.round,
            {entry.peer: sizes[entry.peer] for entry in record.updates if entry.peer in sizes},
            tuple(self.first_look(entry, record.round) for entry in record.looks),
            tuple(self.second_look(entry) for entry in record.looks_again),
            self._beacon[record.round],
        )


def checked_work(
    manifest: Manifest,
    dealing: Dealing,
    memberships: Memberships,
    records: Callable[[int], Record],
    beacon: Beacon | None,
) -> CheckedWork | None:
    """That of a new ledger; None where work is not checked."""
    spec = manifest.checks
    if spec is None or beacon is None:
        return None
    return CheckedWork(manifest, spec, dealing, memberships, records, beacon)


def turned_away(peer: PeerId, work: CheckedWork | None) -> bool:
    """Whether a peer has no place in the next round, as far as its work says."""
    return work is not None and work.accounts[peer].turned_away


def thousandths(score: Score) -> int:
    """A score in thousandths of a standard deviation of chance."""
    return Agreement(score.total, score.squares).thousandths


def check_looks(
    record: Record,
    work: CheckedWork | None,
    parent: Callable[[int], RecordId],
    signed: Callable[[str, PeerId, object, bytes], bool],
) -> None:
    """Check the looks of the next record. Raises `ProtocolError` (`record`, `look`).

    `parent` gives the id of the record before a round; `signed` says whether a signature holds.
    """
    if work is None:
        if record.looks or record.looks_again:
            raise ProtocolError("look", "looks where no work is checked")
        return
    firsts = [(entry.checker, entry.round) for entry in record.looks]
    if firsts != sorted(set(firsts)):
        raise ProtocolError("record", "looks are not sorted, each once")
    again = [(entry.looker, entry.checker, entry.round) for entry in record.looks_again]
    if again != sorted(set(again)):
        raise ProtocolError("record", "second looks are not sorted, each once")
    for look in record.looks:
        work.first_look(look, record.round)
        if not signed("check", look.checker, look.said(parent(look.round)), look.signature):
            raise ProtocolError("record", "a look that its member did not sign")
    for entry in record.looks_again:
        work.second_look(entry)
        if not signed("recheck", entry.looker, entry.said(parent(entry.round)), entry.signature):
            raise ProtocolError("record", "a second look that its member did not sign")


def root_due(work: CheckedWork | None, snapshot: SnapshotEntry | None) -> bytes:
    """What the next record says of all contributions before it; nothing unless it certifies a `snapshot`
    and work is checked."""
    return b"" if work is None or snapshot is None else work.contributions.root


def check_root(record: Record, work: CheckedWork | None) -> None:
    """Check what the next record says of all contributions. Raises `ProtocolError` (`record`)."""
    due = root_due(work, record.snapshot)
    if record.contributions and not due:
        raise ProtocolError("record", "an account of all contributions where none is due")
    if record.contributions != due:
        said = "another" if record.contributions else "no"
        raise ProtocolError("record", f"{said} account of all contributions beside a snapshot")
