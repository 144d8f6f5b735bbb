"""The announced updates of a round, and those held."""

from __future__ import annotations

from distro_node.crypto.hashing import ContentId, content_id
from distro_node.protocol.member.effects import FetchUpdate
from distro_node.protocol.member.update_collection import HeldUpdates, RoundUpdates
from simulation.chain import FINGERPRINT, Chain
from simulation.swarm import identity

CHAIN = Chain(4)
PEERS = CHAIN.membership.peers
U, V = content_id(b"u"), content_id(b"v")


def announced(*peers: bytes, **changes: object) -> RoundUpdates:
    collection = RoundUpdates(CHAIN.membership.one_each)
    for peer in PEERS:
        if peer in peers:
            said = CHAIN.announcement(peer, **changes)
            assert collection.announce(peer, said, CHAIN.signature(peer, "announcement", said))
    return collection


def update(collection: RoundUpdates, peer: bytes) -> ContentId:
    return next(said.update for who, said in collection.announcements() if who == peer)


def test_the_first_announcement_of_a_member_counts() -> None:
    collection = announced(PEERS[0])
    first = update(collection, PEERS[0])
    assert not collection.announce(PEERS[0], CHAIN.announcement(PEERS[0], update=U), bytes(64))
    assert update(collection, PEERS[0]) == first


def test_entries_are_what_is_held_and_trained_from_the_same_parameters() -> None:
    collection = announced(*PEERS)
    assert collection.entries(FINGERPRINT) == []
    assert collection.last_arrival is None
    for second, peer in enumerate((PEERS[2], PEERS[0])):
        collection.held(update(collection, peer), 10.0 + second)
    assert collection.entries(FINGERPRINT) == [CHAIN.update(PEERS[0]), CHAIN.update(PEERS[2])]
    assert collection.entries(FINGERPRINT + 1) == []
    assert collection.last_arrival == 11.0
    assert sorted(collection.arrivals(10.5)) == [0.0, 0.5]


def test_a_copied_update_counts_for_its_first_announcer() -> None:
    author, copycat = PEERS[2], PEERS[0]
    collection = announced(author)
    copy = CHAIN.announcement(copycat, update=update(collection, author))
    assert collection.announce(copycat, copy, bytes(64))
    collection.held(copy.update, 1.0)
    assert collection.entries(FINGERPRINT) == [CHAIN.update(author)]
    # The copy is not awaited either.
    assert collection.outstanding({author, copycat}) == set()


def test_what_is_bad_is_not_waited_for() -> None:
    collection = announced(PEERS[0], PEERS[1])
    assert collection.outstanding(set(PEERS)) == set(PEERS)
    assert collection.mark_invalid(update(collection, PEERS[0])) == {PEERS[0]}
    collection.held(update(collection, PEERS[1]), 1.0)
    assert collection.outstanding(set(PEERS)) == {PEERS[2], PEERS[3]}


def test_updates_are_asked_for_once() -> None:
    holdings = HeldUpdates()
    peer = identity(1).peer
    assert holdings.fetch(3, peer, U, 10) == [FetchUpdate(3, peer, U, 10)]
    assert holdings.fetch(3, peer, U, 10) == []
    assert holdings.fetch(4, peer, U, 10) == [FetchUpdate(4, peer, U, 10)]
    holdings.loaded()
    assert holdings.fetch(3, peer, U, 10) == [FetchUpdate(3, peer, U, 10)]
    holdings.held.add(V)
    assert holdings.fetch(3, peer, V, 10) == []


def test_after_parameters_are_loaded_everything_is_looked_for_again() -> None:
    """An update may have vanished from the disk, and the trainer started again for it. Were it still
    taken for held, the member would apply it from that state again, and the trainer end again."""
    chain = Chain(3)
    entries = chain.grow().record.updates
    holdings = HeldUpdates()
    assert holdings.fetch_all(1, entries)
    for entry in entries:
        holdings.arrived(entry.update, chain.ledger, applied_round=0)
    assert holdings.fetch_all(1, entries) == []
    holdings.loaded()
    assert not holdings.held
    assert holdings.fetch_all(1, entries) == [
        FetchUpdate(1, entry.peer, entry.update, entry.size) for entry in entries
    ]


def test_held_is_kept_until_it_is_applied_or_missed() -> None:
    chain = Chain(3)
    entries = chain.grow().record.updates
    holdings = HeldUpdates()
    counted = {entry.update for entry in entries}
    peer = chain.membership.peers[0]
    holdings.fetch(2, peer, V, 10)
    # However it was learned of: from an announcement, or from a proposed record.
    holdings.held |= counted | {U, V}
    holdings.decided(chain.ledger, applied_round=0)
    assert holdings.held == counted | {V}
    holdings.applied(1, counted)
    assert holdings.held == {V}


def test_what_came_up_again_is_held_until_then() -> None:
    """An update counts in round 1 and is announced for round 2 as well."""
    chain = Chain(3)
    peer = chain.membership.peers[0]
    counted = {entry.update for entry in chain.grow().record.updates}
    again = min(counted)
    holdings = HeldUpdates()
    assert holdings.fetch(2, peer, again, 10)
    holdings.held |= counted
    holdings.applied(1, counted)
    assert holdings.held == {again}
    # Once round 2 is over without it, the disk drops it.
    chain.grow(updates=[])
    holdings.decided(chain.ledger, applied_round=1)
    assert holdings.held == set()
    assert holdings.fetch(3, peer, again, 10)


def test_an_update_announced_again_is_not_lost() -> None:
    """A liar announces in round 2 what counted in round 1; a member that has not applied round 1 yet
    must not drop it because round 2 did not count it."""
    chain = Chain(3)
    counted = {entry.update for entry in chain.grow().record.updates}
    holdings = HeldUpdates()
    holdings.held |= counted
    chain.grow(updates=[])
    holdings.decided(chain.ledger, applied_round=0)
    assert holdings.held == counted
    holdings.decided(chain.ledger, applied_round=1)
    assert holdings.held == set()
