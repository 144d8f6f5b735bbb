"""Retention of snapshots and updates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.protocol.audit.disputes import REAUDIT_ROUNDS
from distro_node.protocol.audit.reputation import FRESH
from distro_node.protocol.chain.retention import (
    ReceivedUpdates,
    dispensable_updates,
    first_needed,
    kept_with,
    last_dispensable,
    most_kept,
    put_aside,
    rebuilt_rounds,
    updates_from,
    worth_holding,
)
from distro_node.protocol.wire.manifest import AuditsSpec, Manifest
from distro_node.protocol.wire.messages import SnapshotEntry
from simulation.chain import Chain
from simulation.swarm import toy_manifest

ROUNDS = 16
MEMBERS = 3
UPDATE = 100
"""Bytes of each update here."""


@dataclass(frozen=True)
class State:
    round: int
    size: int = 0


@pytest.fixture(scope="module")
def chain() -> Chain:
    """Sixteen rounds with three updates each after round 0."""
    chain = Chain(MEMBERS, snapshot_interval=5)
    while chain.round < ROUNDS:
        peers = chain.membership.peers
        chain.grow(updates=[chain.update(peer, size=UPDATE) for peer in peers])
    return chain


def updates(chain: Chain, round_: int) -> set[ContentId]:
    return {entry.update for entry in chain.ledger[round_].record.updates}


def with_new(kept: list[int], new: int, held: set[int], most: int = 2) -> list[int]:
    states = kept_with(
        [State(round_) for round_ in kept],
        State(new),
        held=lambda state: state.round in held,
        most_held=most,
    )
    return [state.round for state in states]


def test_the_two_newest_snapshots_stay() -> None:
    assert with_new([], 5, set()) == [5]
    assert with_new([5], 10, set()) == [5, 10]
    assert with_new([5, 10], 15, set()) == [10, 15]
    # One that was downloaded again, and snapshots of a chain end that was dropped.
    assert with_new([5, 10, 15], 10, set()) == [5, 10]


@pytest.mark.parametrize("interval", [1, 3, 5, 17, 30, 39, 40, 50, 90])
def test_with_audits_every_state_of_some_rounds_back_can_be_made(interval: int) -> None:
    """With few snapshots: an old enough one, the next that will be, and the two newest."""
    manifest = replace(toy_manifest(snapshot_interval=interval), audits=AuditsSpec())
    back, most = rebuilt_rounds(manifest), most_kept(manifest)
    assert back > FRESH + REAUDIT_ROUNDS
    kept: list[State] = []
    for round_ in range(1, 400):
        if round_ % interval == 0:
            kept = kept_with(kept, State(round_), held=lambda _: False, most_held=0, back=back)
        assert len(kept) <= most
        # Before the first snapshot that is as old, the initial one suffices.
        oldest = kept[0].round if kept else 0
        assert oldest <= round_ - back or round_ - back < interval


def test_without_audits_two_snapshots_are_enough() -> None:
    manifest = toy_manifest(snapshot_interval=5)
    assert (rebuilt_rounds(manifest), most_kept(manifest)) == (0, 2)


def test_updates_stay_while_somebody_may_reaudit() -> None:
    manifest = replace(toy_manifest(snapshot_interval=5), audits=AuditsSpec())
    young: Any = _Rounds(manifest, 30)
    assert last_dispensable(young, [State(20), State(25, 1)], 30) == -1
    old: Any = _Rounds(manifest, 62)
    assert first_needed(old, 61) == 61 - rebuilt_rounds(manifest)
    assert last_dispensable(old, [State(20), State(55), State(60, 1)], 62) == 20
    # A node that joined later has no older state to begin from, and keeps no more for that.
    assert last_dispensable(old, [State(55), State(60, 1)], 62) == 55


class _Rounds:
    """A ledger, of which only the length counts here."""

    def __init__(self, manifest: Manifest, length: int) -> None:
        self.manifest, self._length = manifest, length
        self.snapshot = SnapshotEntry(length - 2, content_id(b"newest"), 1)

    def __len__(self) -> int:
        return self._length

    def update_bytes(self, first: int, end: int) -> int:
        return 1000 * max(0, end - first)


def test_an_older_one_stays_while_somebody_fetches_it_and_so_many_at_most() -> None:
    assert with_new([5, 10], 15, {5}) == [5, 10, 15]
    assert with_new([1, 2, 3, 4, 5], 6, {1, 2, 3}) == [1, 2, 5, 6]
    assert with_new([1, 2, 3, 4, 5], 6, {1, 2, 3}, most=0) == [5, 6]


def test_who_fetches_one_is_better_off_with_it_while_the_updates_since_are_less(
    chain: Chain,
) -> None:
    since = UPDATE * MEMBERS * (ROUNDS - 11)
    assert worth_holding(chain.ledger, State(10, since))
    assert not worth_holding(chain.ledger, State(10, since - 1))
    # Of a round beyond the ledger.
    assert worth_holding(chain.ledger, State(ROUNDS + 5, 0))


def test_updates_before_the_older_snapshot_stay_while_they_are_less_than_a_snapshot(
    chain: Chain,
) -> None:
    def last(size: int, height: int = ROUNDS) -> int:
        return last_dispensable(chain.ledger, [State(5), State(10, size)], height)

    # Updates since the older snapshot always stay.
    assert last(0) == 5
    assert last(UPDATE * MEMBERS * (ROUNDS - 6)) == 5
    assert last(UPDATE * MEMBERS * (ROUNDS - 4)) == 3
    assert last(1 << 40) == -1
    assert last(0, height=4) == 3


def test_what_counts_again_stays(chain: Chain) -> None:
    again = chain.fork()
    repeated = next(iter(updates(chain, 2)))
    peer = again.membership.peers[0]
    again.grow(updates=[again.update(peer, update=repeated, size=UPDATE)])
    gone = dispensable_updates(again.ledger, 1, 3)
    assert set(gone) == (updates(chain, 2) | updates(chain, 3)) - {repeated}
    assert set(dispensable_updates(chain.ledger, 1, 3)) == updates(chain, 2) | updates(chain, 3)
    assert updates_from(again.ledger, ROUNDS) == {repeated}


def test_what_missed_its_round_may_go_and_what_is_awaited_stays(chain: Chain) -> None:
    arrivals = ReceivedUpdates()
    late, early = ContentId(b"l" * 32), ContentId(b"e" * 32)
    counted = next(iter(updates(chain, 4)))
    for round_, update in ((4, counted), (4, late), (6, early), (6, late)):
        arrivals.note(round_, update)
    assert arrivals.of(4) == {counted, late}
    assert arrivals.missed(4, chain.ledger) == {late}
    assert arrivals.awaited() == {early, late}
    assert arrivals.missed(4, chain.ledger) == set()
    assert arrivals.missed(9, chain.ledger) == {early, late}
    assert arrivals.awaited() == set()


def test_what_counted_in_rounds_that_are_kept_for_others_is_needed(chain: Chain) -> None:
    newest = chain.ledger.snapshot
    assert newest is not None
    assert first_needed(chain.ledger, ROUNDS) == newest.round - 5
    assert first_needed(chain.ledger.truncated(2), 1) == -5


def test_what_counts_in_a_round_that_is_not_applied_yet_is_needed(chain: Chain) -> None:
    assert first_needed(chain.ledger, 3) == 4


def test_snapshots_of_a_chain_that_was_left_are_put_aside() -> None:
    ours, before, shared = State(10), State(5), State(3)

    def aside(listed: list[State], certified: set[int]):
        return put_aside([ours], [before, shared], listed, lambda state: state.round in certified)

    # Of the snapshots set aside before, those that the chain has certified: it is followed again.
    assert aside([], {3}) == ([], [ours, shared], [before])
    assert aside([ours], set()) == ([ours], [], [before, shared])
