"""What a node keeps of snapshots and updates, and what it may throw away.

Its two newest snapshots stay, and the updates since the older of them: enough to restart without the
network and to serve newcomers. An older one stays for as long as somebody fetches it and is better off
with it than with a newer one; updates from before stay while they come to no more than a snapshot, for
who was away. An update that did not count goes with its round.

Where work is checked, a share may be looked at again some rounds later, on the very parameters that it
was trained on. So there always is a state from before, and the updates since: where snapshots are made
in short order, one or two older ones stay for that.

Snapshots of a chain that was left stay until there is one of the chain that is followed: all may come
back to the first, and nobody else may have them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ...crypto.hashing import ContentId
from ..checks.accounts import FRESH
from ..checks.disputes import OPEN
from ..wire.manifest import Manifest
from .ledger import Ledger
from .replaying import KEPT_ROUNDS

KEPT_SNAPSHOTS = 2
# A look is recorded within `FRESH` rounds of its own and may be disputed for `OPEN` more. With
# `overlap` the update is of the parameters two rounds before its own; the rest is time to make them
# again.
_LOOKED_BACK = FRESH + OPEN + 8


class Snapshot(Protocol):
    """The state after a round."""

    @property
    def round(self) -> int: ...

    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=Snapshot)


def looked_back(manifest: Manifest) -> int:
    """How many rounds back a state may be made again to look at somebody's work; 0 where work is not
    checked."""
    return 0 if manifest.checks is None else _LOOKED_BACK


def most_kept(manifest: Manifest) -> int:
    """How many snapshots stay at most, but for those that somebody fetches."""
    # One that is as old as looks go back, and the next one that will be.
    frequent = manifest.rounds.snapshot_interval < looked_back(manifest)
    return KEPT_SNAPSHOTS + 2 * frequent


def kept_with(
    kept: Sequence[S], new: S, *, held: Callable[[S], bool], most_held: int, back: int = 0
) -> list[S]:
    """Which snapshots to keep now that there is a `new` one, the oldest first. `kept` are those until
    now, in that order; `held` says of one whether somebody still fetches it, and so many more may stay
    for that. `back`: how far states are to be made again (`looked_back`)."""
    older = [old for old in kept if old.round < new.round]
    spare, recent = older[: 1 - KEPT_SNAPSHOTS], older[1 - KEPT_SNAPSHOTS :]
    # The oldest first: whoever fetches it is the nearest to its end.
    waiting = [old for old in spare if held(old)][:most_held]
    needed = _for_looks(older, new.round, back) if back else []
    return [*(old for old in spare if old in waiting or old in needed), *recent, new]


def _for_looks(older: Sequence[S], newest: int, back: int) -> list[S]:
    """Those of the older snapshots that it takes to make again every state of the last `back` rounds:
    one from before, and the next that will be as old when it is needed."""
    found = [old for old in older if old.round <= newest - back][-1:]
    for old in older:
        if not found or old.round - found[-1].round >= back:
            found.append(old)
    return found


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
    end, back = min(height, len(ledger)), looked_back(ledger.manifest)
    if back and height - back < min(oldest, ledger.manifest.rounds.snapshot_interval):
        # What is looked at again is made from the initial state.
        return -1
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
    needed = min(newest - ledger.manifest.rounds.snapshot_interval, applied + 1)
    back = looked_back(ledger.manifest)
    return min(needed, applied - back) if back else needed


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
