"""What a node keeps of snapshots and updates, and what it may throw away.

Its two newest snapshots stay, and the updates since the older of them: enough to restart without the
network and to serve newcomers. An older one stays for as long as somebody fetches it and is better off
with it than with a newer one; updates from before stay while they come to no more than a snapshot, for
who was away. An update that did not count goes with its round.

Snapshots of a chain that was left stay until there is one of the chain that is followed: all may come
back to the first, and nobody else may have them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ...crypto.hashing import ContentId
from .ledger import Ledger
from .replaying import KEPT_ROUNDS

KEPT_SNAPSHOTS = 2


class Snapshot(Protocol):
    """The state after a round."""

    @property
    def round(self) -> int: ...

    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=Snapshot)


def kept_with(kept: Sequence[S], new: S, *, held: Callable[[S], bool], most_held: int) -> list[S]:
    """Which snapshots to keep now that there is a `new` one, the oldest first. `kept` are those until
    now, in that order; `held` says of one whether somebody still fetches it, and so many more may stay
    for that."""
    older = [old for old in kept if old.round < new.round]
    spare, recent = older[: 1 - KEPT_SNAPSHOTS], older[1 - KEPT_SNAPSHOTS :]
    # The oldest first: whoever fetches it is the nearest to its end.
    waiting = [old for old in spare if held(old)][:most_held]
    return [*waiting, *recent, new]


def worth_holding(ledger: Ledger, snapshot: Snapshot) -> bool:
    """Whether who fetches this snapshot is better off with it than with the newest one: beyond that
    members take a newer one (`replaying`). It bounds what is kept for others; a line that cannot follow
    the updates never arrives."""
    since = min(snapshot.round + 1, len(ledger))
    return ledger.update_bytes(since, len(ledger)) <= snapshot.size


def last_dispensable(ledger: Ledger, kept: Sequence[Snapshot], height: int) -> int:
    """The last round whose updates need not be kept once `height` rounds are decided; `kept` are the
    snapshots at hand, the oldest first."""
    oldest, size = kept[0].round, kept[-1].size
    end = min(height, len(ledger))
    rounds = range(max(-1, oldest - KEPT_ROUNDS), min(oldest, end - 1))
    # Whoever stands at a round replays those after it, and does so while they come to less than a
    # snapshot (`replaying`).
    return rounds.start + bisect_left(
        rounds, True, key=lambda round_: ledger.update_bytes(round_ + 1, end) <= size
    )


def updates_from(ledger: Ledger, first: int) -> set[ContentId]:
    """The updates that count in round `first` or later."""
    return {
        entry.update
        for round_ in range(max(0, first), len(ledger))
        for entry in ledger[round_].record.updates
    }


def dispensable_updates(ledger: Ledger, swept: int, last: int) -> list[ContentId]:
    """The updates of the rounds after `swept` up to `last` that count in no later one: those of a member
    without momentum may, or a replay."""
    needed = updates_from(ledger, last + 1)
    rounds = range(max(0, swept + 1), min(last + 1, len(ledger)))
    counted = (entry for round_ in rounds for entry in ledger[round_].record.updates)
    return [entry.update for entry in counted if entry.update not in needed]


def first_needed(ledger: Ledger, applied: int) -> int:
    """The first round whose updates are needed: by others, as far as the ledger tells, or here, where
    no round after `applied` is in the parameters."""
    newest = ledger.snapshot.round if ledger.snapshot is not None else 0
    return min(newest - ledger.manifest.rounds.snapshot_interval, applied + 1)


class Arrivals:
    """The updates that came, by the round that they came for, until that is applied."""

    def __init__(self) -> None:
        self._rounds: dict[int, set[ContentId]] = {}

    def of(self, round: int) -> frozenset[ContentId]:
        """Those that came for `round`."""
        return frozenset(self._rounds.get(round, ()))

    def note(self, round: int, update: ContentId) -> None:
        """An update of `round` is in the store."""
        self._rounds.setdefault(round, set()).add(update)

    def missed(self, round: int, ledger: Ledger) -> set[ContentId]:
        """Those of rounds up to `round`, which is applied, that did not count there. They may go unless
        they count in one of the rounds from `first_needed` on."""
        missed: set[ContentId] = set()
        for old in [r for r in self._rounds if r <= round]:
            missed |= self._rounds.pop(old)
            missed -= {entry.update for entry in ledger[old].record.updates}
        return missed

    def awaited(self) -> set[ContentId]:
        """Those of rounds to come."""
        return set().union(*self._rounds.values())


def put_aside(
    kept: Sequence[S], left: Sequence[S], listed: Sequence[S], certified: Callable[[S], bool]
) -> tuple[list[S], list[S], list[S]]:
    """After a change to another chain: which snapshots are to start from, which are put aside, which may
    go. `kept` were to start from, `left` are those of the chain that was left before; `listed` belong to
    the chain that is followed now, which has `certified` some."""
    # Those that the chain has certified are to start from now, if it is the one that is followed again.
    gone = [old for old in left if not certified(old)]
    aside = [own for own in kept if own not in listed]
    aside += [old for old in left if old not in gone]
    return [own for own in kept if own in listed], aside, gone
