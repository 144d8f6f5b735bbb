"""Start of replay: the state that a node continues from, its own or the newest certified snapshot.

From a state a node replays the later updates, if others keep these updates and fetching them costs no
more than a snapshot. Both follow from the ledger, so a node knows them before it loads anything; and by
the same rule the others keep what a returning node may still need.

The cost is not only bytes: each round takes a request and a step, and a snapshot must be loaded, which
matters for small models. These costs are counted once, before the first state is loaded; afterwards only
bytes are compared. Otherwise a node with a slow connection might fetch one snapshot after another, since
as many rounds may pass while one arrives as the next one would save.
"""

from __future__ import annotations

from collections.abc import Iterable

from .ledger import Ledger

KEPT_ROUNDS = 256
"""Most rounds before the oldest kept snapshot for which members keep updates, for nodes that were away.
Their records are read whenever updates are deleted, which takes a twentieth of a second."""

# Replaying a round takes a quarter of a second and loading a snapshot five seconds, here in bytes at
# 10 Mbit/s.
_ROUND_BYTES = 300_000
_LOADING_BYTES = 6_000_000


def first_replayable(ledger: Ledger) -> int:
    """Return the oldest state after which other members keep all updates, as far as the ledger shows;
    -1 is the initial one. Members keep their two newest snapshots, and the updates of some rounds
    before."""
    newest = ledger.snapshot
    if newest is None:
        return -1
    return max(-1, newest.round - ledger.manifest.rounds.snapshot_interval - KEPT_ROUNDS)


def worth_replaying(ledger: Ledger, round: int, size: int, *, loaded: bool = False) -> bool:
    """Whether a node with the state after `round` should replay the later rounds, rather than load the
    newest certified snapshot. `size`: the bytes of a state; `loaded`: whether the node has already
    loaded a state to catch up, from which this one follows."""
    newest = ledger.snapshot
    if newest is None or newest.round < round:
        return True
    if round < first_replayable(ledger):
        return False
    end = len(ledger)
    if loaded:
        # The rounds after the newest snapshot are replayed in either case.
        return ledger.update_bytes(round + 1, newest.round + 1) <= size
    replay = ledger.update_bytes(min(round + 1, end), end)
    steps = (end - 1 - round) * _ROUND_BYTES
    # The others keep no more updates than a snapshot has bytes.
    return replay <= size and replay + steps <= size + _LOADING_BYTES


def choose_state(own: Iterable[int], ledger: Ledger) -> int | None:
    """Return which of a node's `own` states, given by their rounds, to continue from; None for the
    newest certified snapshot, which is downloaded if necessary.

    A state of its own need not be certified (yet): the rounds after it are checked against the records'
    fingerprints.
    """
    size = 4 * ledger.manifest.elements
    for round_ in sorted(own, reverse=True):
        if not worth_replaying(ledger, round_, size):
            return None
        if round_ < len(ledger):
            return round_
    return None
