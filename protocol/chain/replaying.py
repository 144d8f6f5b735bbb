"""From which state a node goes on: one that it has, or the newest snapshot that the chain certifies.

From a state a node replays the updates since. It does so as long as others keep these updates, and as
long as they are no more to fetch than a snapshot. Both follow from the ledger, so a node knows it before
it loads anything; and by the same rule the others keep what somebody may still come for.
"""

from __future__ import annotations

from collections.abc import Iterable

from .ledger import Ledger

KEPT_ROUNDS = 256
"""Updates of more rounds than this before the oldest snapshot that members keep stay for no one who was
away. Their records are read whenever some are removed: a twentieth of a second."""


def first_replayable(ledger: Ledger) -> int:
    """The oldest state after which the others keep all updates, as far as the ledger tells; -1 is the
    initial one. Members keep their two newest snapshots, and the updates of some rounds before."""
    newest = ledger.snapshot
    if newest is None:
        return -1
    return max(-1, newest.round - ledger.manifest.rounds.snapshot_interval - KEPT_ROUNDS)


def worth_replaying(ledger: Ledger, round: int, size: int) -> bool:
    """Whether who has the state after `round` should replay what follows, rather than load the newest
    certified snapshot; a state has `size` bytes."""
    newest = ledger.snapshot
    if newest is None or newest.round < round:
        return True
    if round < first_replayable(ledger):
        return False
    return ledger.update_bytes(min(round + 1, len(ledger)), len(ledger)) <= size


def choose_state(own: Iterable[int], ledger: Ledger) -> int | None:
    """The one of a node's `own` states, each by its round, to go on from; None for the newest certified
    snapshot, which is to be fetched if need be.

    An own one need not be certified (yet): what follows it is held against the records' fingerprints.
    """
    size = 4 * ledger.manifest.elements
    for round_ in sorted(own, reverse=True):
        if not worth_replaying(ledger, round_, size):
            return None
        if round_ < len(ledger):
            return round_
    return None
