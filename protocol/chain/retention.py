"""Retention of snapshots and updates: what a node keeps, and what it may delete.

A node keeps its two newest snapshots and the updates since the older of them: enough to restart without
the network and to serve newcomers. It keeps an older snapshot while a peer downloads it and is better
off with it than with a newer one; it keeps older updates while they total no more than a snapshot, for
members that were away. An update that did not count is deleted with its round.

With audits, a share may be re-audited some rounds later, on exactly the parameters on which it was
trained. So the node always has a snapshot from before that and the updates since: if snapshots are
frequent, it keeps one or two older ones for this.

Snapshots of a chain that the node has left are kept until it has one of the chain that it follows: the
swarm may return to the earlier chain, and perhaps no other node has them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ...crypto.hashing import ContentId
from ..wire.manifest import Manifest
from .features import features_of
from .ledger import Ledger
from .replay_start import KEPT_ROUNDS

KEPT_SNAPSHOTS = 2
# Number of further snapshots kept while peers download them, whatever their size.
_HELD_SNAPSHOTS = 2
# Small snapshots may be more, up to this number and this total of bytes: if one is made every ten
# seconds, members that return at different times download different ones.
_MOST_HELD, _HELD_BYTES = 16, 1 << 30


class Snapshot(Protocol):
    """A snapshot: its round and its size in bytes."""

    @property
    def round(self) -> int: ...

    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=Snapshot)


def rebuilt_rounds(manifest: Manifest) -> int:
    """Return how many rounds back a state may have to be rebuilt, for an audit; 0 if work is not
    audited."""
    return max((feature.rebuilt_rounds for feature, _ in features_of(manifest.features)), default=0)


def most_kept(manifest: Manifest) -> int:
    """Return how many snapshots are kept at most, not counting downloads by peers."""
    # Two more: one that is at least as old as audits reach back, and one to replace it.
    frequent = manifest.rounds.snapshot_interval < rebuilt_rounds(manifest)
    return KEPT_SNAPSHOTS + 2 * frequent


def most_held(size: int) -> int:
    """Return how many snapshots of `size` bytes may be kept beyond `most_kept`, for peers that download
    them."""
    return max(_HELD_SNAPSHOTS, min(_MOST_HELD, _HELD_BYTES // max(1, size)))


def kept_with(
    kept: Sequence[S], new: S, *, held: Callable[[S], bool], most_held: int, back: int = 0
) -> list[S]:
    """Return the snapshots to keep once there is a `new` one, the oldest first. `kept`: those kept
    until now, in that order; `held`: whether a peer still downloads one; `most_held`: how many more may
    be kept for that; `back`: how far back states may have to be rebuilt (`rebuilt_rounds`)."""
    older = [old for old in kept if old.round < new.round]
    spare, recent = older[: 1 - KEPT_SNAPSHOTS], older[1 - KEPT_SNAPSHOTS :]
    # The oldest first: the peer that downloads it is closest to finishing.
    waiting = [old for old in spare if held(old)][:most_held]
    needed = _for_audits(older, new.round, back) if back else []
    return [*(old for old in spare if old in waiting or old in needed), *recent, new]


def _for_audits(older: Sequence[S], newest: int, back: int) -> list[S]:
    """Return the older snapshots needed to rebuild every state of the last `back` rounds, now and later:
    the latest one from before these rounds, and one at least `back` rounds later that will replace
    it."""
    found = [old for old in older if old.round <= newest - back][-1:]
    for old in older:
        if not found or old.round - found[-1].round >= back:
            found.append(old)
    return found


def worth_holding(ledger: Ledger, snapshot: Snapshot) -> bool:
    """Whether a peer that downloads this snapshot is better off with it than with the newest one;
    otherwise members take a newer one (`replay_start`). This bounds what is kept for others: a peer
    whose connection is too slow for the updates never catches up."""
    since = min(snapshot.round + 1, len(ledger))
    return ledger.update_bytes(since, len(ledger)) <= snapshot.size


def last_dispensable(ledger: Ledger, kept: Sequence[Snapshot], height: int) -> int:
    """Return the last round whose updates can be deleted once `height` rounds are decided; -1 if none
    can. `kept`: the available snapshots, the oldest first."""
    oldest, size = kept[0].round, kept[-1].size
    end, back = min(height, len(ledger)), rebuilt_rounds(ledger.manifest)
    if back and height - back < min(oldest, ledger.manifest.rounds.snapshot_interval):
        # Re-audits rebuild states from the initial parameters.
        return -1
    rounds = range(max(-1, oldest - KEPT_ROUNDS), min(oldest, end - 1))
    # A node at a round replays the rounds after it while their updates total less than a snapshot
    # (`replay_start`).
    return rounds.start + bisect_left(
        rounds, True, key=lambda round_: ledger.update_bytes(round_ + 1, end) <= size
    )


def updates_from(ledger: Ledger, first: int) -> set[ContentId]:
    """Return the updates that count in round `first` or later."""
    return {
        entry.update
        for round_ in range(max(0, first), len(ledger))
        for entry in ledger[round_].record.updates
    }


def dispensable_updates(ledger: Ledger, swept: int, last: int) -> list[ContentId]:
    """Return the updates of the rounds after `swept` up to `last` that count in no later round. An
    update can count in several rounds: a member without momentum may produce the same one again, and a
    byzantine member may announce an old one again."""
    needed = updates_from(ledger, last + 1)
    rounds = range(max(0, swept + 1), min(last + 1, len(ledger)))
    counted = (entry for round_ in rounds for entry in ledger[round_].record.updates)
    return [entry.update for entry in counted if entry.update not in needed]


def first_needed(ledger: Ledger, applied: int) -> int:
    """Return the first round whose updates are needed by other members, as far as the ledger shows, or
    by this node, whose parameters contain the rounds up to `applied`."""
    newest = ledger.snapshot.round if ledger.snapshot is not None else 0
    needed = min(newest - ledger.manifest.rounds.snapshot_interval, applied + 1)
    back = rebuilt_rounds(ledger.manifest)
    return min(needed, applied - back) if back else needed


class ReceivedUpdates:
    """Updates received, by the round for which they were announced, until that round is applied."""

    def __init__(self) -> None:
        self._rounds: dict[int, set[ContentId]] = {}

    def of(self, round: int) -> frozenset[ContentId]:
        """Return the updates received for `round`."""
        return frozenset(self._rounds.get(round, ()))

    def note(self, round: int, update: ContentId) -> None:
        """Record that an update of `round` is in the store."""
        self._rounds.setdefault(round, set()).add(update)

    def missed(self, round: int, ledger: Ledger) -> set[ContentId]:
        """Return the updates of rounds up to `round`, which is applied, that did not count there, and
        forget the updates of these rounds. Those returned may be deleted unless they count in a round
        from `first_needed` on."""
        missed: set[ContentId] = set()
        for old in [r for r in self._rounds if r <= round]:
            missed |= self._rounds.pop(old)
            missed -= {entry.update for entry in ledger[old].record.updates}
        return missed

    def awaited(self) -> set[ContentId]:
        """Return the updates of rounds not applied yet."""
        return set().union(*self._rounds.values())


def put_aside(
    kept: Sequence[S], left: Sequence[S], listed: Sequence[S], certified: Callable[[S], bool]
) -> tuple[list[S], list[S], list[S]]:
    """Return three lists of snapshots after a change of chain: those to start from, those set aside, and
    those to delete. `kept`: those to start from before the change; `left`: those set aside at earlier
    changes; `listed`: those that belong to the chain that is followed now; `certified`: whether that
    chain certifies one."""
    # Snapshots that the chain has certified are usable again if the member returns to that chain.
    gone = [old for old in left if not certified(old)]
    aside = [own for own in kept if own not in listed]
    aside += [old for old in left if old not in gone]
    return [own for own in kept if own in listed], aside, gone
