"""Rules of replay: from which state a node continues, and what it cannot rely on."""

from __future__ import annotations

from functools import cache

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


def test_no_more_is_replayed_than_a_snapshot() -> None:
    """The updates of the twelve rounds since total 12,000 bytes."""
    assert [replay_start.worth_replaying(_chain(), 10, size) for size in (11_999, 12_000)] == [
        False,
        True,
    ]


def test_the_newest_state_is_loaded() -> None:
    assert replay_start.choose_state([20, 10, 15], _chain(1)) == 20
