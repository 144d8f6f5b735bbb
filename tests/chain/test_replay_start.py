"""Rules of replay: from which state a node continues, and what it cannot rely on."""

from __future__ import annotations

from functools import cache
from unittest.mock import patch

from distro_node.protocol.chain import replay_start
from distro_node.protocol.chain.ledger import Ledger
from simulation.chain import Chain, identity

INTERVAL = 5


@cache
def _chain(size: int = 1000) -> Ledger:
    """Return the ledger of one member with updates of `size` bytes; the newest certified snapshot is of
    round 20."""
    chain = Chain(1, snapshot_interval=INTERVAL)
    while chain.round < 23:
        chain.grow(updates=[chain.update(identity(0).peer, size=size)] if chain.round else [])
    assert chain.ledger.snapshot is not None
    assert chain.ledger.snapshot.round == 20
    return chain.ledger


def test_without_a_snapshot_all_is_replayed() -> None:
    assert replay_start.worth_replaying(_chain().truncated(4), 1, 0)


def test_nobody_goes_back_to_an_older_snapshot() -> None:
    """It replays although the updates since its own state total more than a snapshot."""
    assert replay_start.worth_replaying(_chain(), 21, 0)


def test_what_nobody_keeps_is_not_replayed() -> None:
    """Members keep the updates since the older of two snapshots, and of some rounds before."""
    with patch.object(replay_start, "KEPT_ROUNDS", 3):
        worth = [replay_start.worth_replaying(_chain(), round_, 1 << 40) for round_ in (11, 12)]
    assert worth == [False, True]


def test_no_more_is_replayed_than_a_snapshot() -> None:
    """The updates of the twelve rounds since total 12,000 bytes."""
    assert [replay_start.worth_replaying(_chain(), 10, size) for size in (11_999, 12_000)] == [
        False,
        True,
    ]


def test_a_state_that_is_too_old_is_not_loaded() -> None:
    """Neither its newest state nor an older one is loaded."""
    with patch.object(replay_start, "KEPT_ROUNDS", 3):
        assert replay_start.choose_state([-1, 1, 11], _chain()) is None


def test_a_state_beyond_the_ledger_is_none_of_this_chain() -> None:
    """The end of the ledger was lost, or the chain is another one."""
    assert replay_start.choose_state([1, 9], _chain().truncated(4)) == 1


def test_the_newest_state_is_loaded() -> None:
    assert replay_start.choose_state([20, 10, 15], _chain(1)) == 20
