"""Ledger entries in a spill file: the ledger behaves as with entries in memory."""

from __future__ import annotations

import pytest
from distro_node.protocol.chain.entry_store import AT_HAND, EntryStore, decode_decided
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.encoding import encode
from simulation.chain import Chain

ROUNDS = 2 * AT_HAND + 40


class Drawer:
    """A spill file that counts its entries."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []

    def put(self, entry: bytes) -> int:
        self.entries.append(entry)
        return len(self.entries) - 1

    def get(self, offset: int) -> bytes:
        return self.entries[offset]


@pytest.fixture(scope="module")
def chain() -> Chain:
    """Long enough, with a member that joins late and one that leaves early."""
    chain = Chain(3, snapshot_interval=50)
    for round_ in range(1, ROUNDS):
        if round_ == 5:
            chain.grow(admitted=[chain.admission(7)])
        elif round_ == AT_HAND + 20:
            chain.grow(departed=[chain.leave(1)])
        else:
            chain.grow(updates=[chain.update(peer) for peer in chain.membership.peers])
    return chain


@pytest.fixture(scope="module")
def drawer() -> Drawer:
    return Drawer()


@pytest.fixture(scope="module")
def spilled(chain: Chain, drawer: Drawer) -> Ledger:
    """Only parts of it, which are ledgers of their own, are continued."""
    ledger = Ledger(chain.manifest, spill=drawer)
    for round_ in range(ROUNDS):
        ledger.append(chain.ledger[round_])
    return ledger


def test_all_entries_are_put_away_in_order(spilled: Ledger, drawer: Drawer) -> None:
    # What follows are the entries of continued parts.
    rounds = [decode_decided(entry).record.round for entry in drawer.entries[:ROUNDS]]
    assert rounds == list(range(ROUNDS))


def test_the_latest_are_at_hand_and_no_others(chain: Chain, spilled: Ledger) -> None:
    at_hand = [round_ for round_ in range(ROUNDS) if spilled[round_] is chain.ledger[round_]]
    assert at_hand == list(range(at_hand[0], ROUNDS))
    assert AT_HAND <= len(at_hand) < 2 * AT_HAND


def test_what_others_are_sent_are_the_very_bytes(chain: Chain, spilled: Ledger) -> None:
    part = spilled.truncated(AT_HAND + 30)
    for ledger in (spilled, part, chain.ledger):
        for round_ in range(len(ledger)):
            assert ledger.raw(round_) == encode(chain.ledger[round_])


def test_they_are_read_as_they_were(chain: Chain, spilled: Ledger) -> None:
    assert [encode(spilled[round_]) for round_ in range(ROUNDS)] == [
        encode(chain.ledger[round_]) for round_ in range(ROUNDS)
    ]


@pytest.mark.parametrize("length", [0, 3, 10, AT_HAND, AT_HAND + 30, ROUNDS])
def test_parts_are_as_without_a_spill_file(
    chain: Chain, spilled: Ledger, drawer: Drawer, length: int
) -> None:
    part, plain = spilled.truncated(length), chain.ledger.truncated(length)
    assert len(part) == len(plain) == length
    assert part.head == plain.head
    assert part.snapshot == plain.snapshot
    known = {peer for peer in chain.keys if part.has_been_member(peer)}
    assert known == {peer for peer in chain.keys if plain.has_been_member(peer)}
    assert part.followers(length // 2) == plain.followers(length // 2)
    before = len(drawer.entries)
    for round_ in range(length, ROUNDS):
        part.append(chain.ledger[round_])
    assert part.head == spilled.head
    assert len(drawer.entries) == before + ROUNDS - length
    assert encode(spilled[length % ROUNDS]) == encode(part[length % ROUNDS])


def test_a_quiet_round_has_the_membership_of_the_one_before(chain: Chain) -> None:
    """The same object: a ledger keeps the memberships of all rounds."""
    memberships = {id(chain.ledger.membership(round_)) for round_ in range(ROUNDS)}
    assert len(memberships) <= 5


@pytest.mark.parametrize("round_", [-1, ROUNDS])
def test_there_is_no_other_entry(chain: Chain, spilled: Ledger, round_: int) -> None:
    with pytest.raises(IndexError):
        spilled[round_]


def test_without_a_spill_file_all_is_at_hand(chain: Chain) -> None:
    entries = EntryStore()
    for round_ in range(ROUNDS):
        entries.append(chain.ledger[round_])
    assert entries[0] is chain.ledger[0]
