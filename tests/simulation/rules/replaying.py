"""Rules of replaying: from which state a node goes on, and what it must not hope for."""

from __future__ import annotations

from functools import cache
from unittest.mock import patch

from distro_node.protocol.chain import replaying
from distro_node.protocol.chain.ledger import Ledger

from ..chain import Chain, identity
from .rule import Rule, edited

INTERVAL = 5


@cache
def _chain(size: int = 1000) -> Ledger:
    """Rounds of one member with updates of so many bytes; the newest certified snapshot is of 20."""
    chain = Chain(1, snapshot_interval=INTERVAL)
    while chain.round < 23:
        chain.grow(updates=[chain.update(identity(0).peer, size=size)] if chain.round else [])
    assert chain.ledger.snapshot is not None
    assert chain.ledger.snapshot.round == 20
    return chain.ledger


def _without_a_snapshot_all_is_replayed() -> bool:
    return replaying.worth_replaying(_chain().truncated(4), 1, 0)


def _nobody_goes_back_to_an_older_snapshot() -> bool:
    """Though the updates since the own state come to more than a snapshot."""
    return replaying.worth_replaying(_chain(), 21, 0)


def _what_nobody_keeps_is_not_replayed() -> bool:
    """Members keep what came after the older of two snapshots, and some rounds before."""
    with patch.object(replaying, "KEPT_ROUNDS", 3):
        worth = [replaying.worth_replaying(_chain(), round_, 1 << 40) for round_ in (11, 12)]
    return worth == [False, True]


def _no_more_is_replayed_than_a_snapshot() -> bool:
    """The updates of twelve rounds."""
    return [replaying.worth_replaying(_chain(), 10, size) for size in (11_999, 12_000)] == [
        False,
        True,
    ]


def _a_state_that_is_too_old_is_not_loaded() -> bool:
    """Neither the newest of them nor one before it."""
    with patch.object(replaying, "KEPT_ROUNDS", 3):
        return replaying.choose_state([-1, 1, 11], _chain()) is None


def _a_state_beyond_the_ledger_is_none_of_this_chain() -> bool:
    """The end of the ledger was lost, or the chain is another one."""
    return replaying.choose_state([1, 9], _chain().truncated(4)) == 1


def _the_newest_state_is_loaded() -> bool:
    return replaying.choose_state([20, 10, 15], _chain(1)) == 20


RULES = (
    Rule(
        "without a snapshot all is replayed",
        _without_a_snapshot_all_is_replayed,
        edited(replaying, "worth_replaying", ("newest is None or", "newest is not None and")),
    ),
    Rule(
        "nobody goes back to an older snapshot",
        _nobody_goes_back_to_an_older_snapshot,
        edited(replaying, "worth_replaying", (" or newest.round < round", "")),
    ),
    Rule(
        "what nobody keeps is not replayed",
        _what_nobody_keeps_is_not_replayed,
        edited(replaying, "worth_replaying", ("round < first_replayable(ledger)", "False")),
    ),
    Rule(
        "updates are kept since the older of two snapshots",
        _what_nobody_keeps_is_not_replayed,
        edited(replaying, "first_replayable", (" - ledger.manifest.rounds.snapshot_interval", "")),
    ),
    Rule(
        "updates are kept for some rounds more",
        _what_nobody_keeps_is_not_replayed,
        edited(replaying, "first_replayable", (" - KEPT_ROUNDS", "")),
    ),
    Rule(
        "no more is replayed than a snapshot",
        _no_more_is_replayed_than_a_snapshot,
        edited(replaying, "worth_replaying", ("<= size", "<= 1 << 60")),
    ),
    Rule(
        "a state that is too old is not loaded",
        _a_state_that_is_too_old_is_not_loaded,
        edited(replaying, "choose_state", ("not worth_replaying(ledger, round_, size)", "False")),
    ),
    Rule(
        "a state beyond the ledger is none of this chain",
        _a_state_beyond_the_ledger_is_none_of_this_chain,
        edited(replaying, "choose_state", ("round_ < len(ledger)", "True")),
    ),
    Rule(
        "the newest state is loaded",
        _the_newest_state_is_loaded,
        edited(replaying, "choose_state", ("reverse=True", "reverse=False")),
    ),
)
