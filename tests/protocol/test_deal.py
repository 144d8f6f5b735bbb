"""What a round leaves untrained is dealt again: no sample of an epoch is lost, none is trained twice."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.assignment import cut, samples_at, share
from distro_node.protocol.deal import Deal
from distro_node.protocol.membership import Membership
from distro_node.protocol.messages import Record, RecordId, UpdateEntry
from simulation.chain import Chain, update_of
from simulation.swarm import identity

EVERYBODY = [identity(index).peer for index in range(40)]


def record(round_: int, counted: list[PeerId]) -> Record:
    updates = tuple(
        UpdateEntry(peer, update_of(peer, round_), 1, 1, 0.0, bytes(64)) for peer in sorted(counted)
    )
    return Record(round_, RecordId(bytes(32)), 0, updates, (), (), None)


def positions_of(deal: Deal, sequences: int) -> list[int]:
    return [position for piece in deal.positions(sequences) for position in piece]


@pytest.mark.parametrize("seed", range(12))
def test_every_sample_of_an_epoch_is_trained_once_with_churn(seed: int) -> None:
    """Members come, go and fail at random; some rounds count nobody's update, some deal less than a
    sample a member. Then the failures stop: every position dealt so far was trained once."""
    chance = random.Random(seed)
    samples, sequences = chance.randint(20, 90), chance.choice([1, 5, 16, 32, 61])
    trained: Counter[int] = Counter()
    of_epoch: dict[int, Counter[int]] = {}
    deal = Deal()
    calm = False
    for round_ in range(1, 400):
        members = chance.sample(EVERYBODY, chance.randint(1, 30))
        membership = Membership(since=dict.fromkeys(members, 0))
        failing = 0.0 if calm else chance.choice([0.0, 0.1, 0.5, 1.0])
        counted = [peer for peer in members if chance.random() >= failing]
        dealt = deal.positions(sequences)
        assert sum(map(len, dealt)) == sequences
        numbers = positions_of(deal, sequences)
        everybody = [
            share(7, samples, dealt, membership.peers, peer, round_) for peer in membership.peers
        ]
        # The shares are together the round, whatever it is made of.
        assert Counter(sample for mine in everybody for sample in mine) == Counter(
            sample for piece in dealt for sample in samples_at(7, samples, piece)
        )
        for peer, mine in zip(membership.peers, everybody, strict=True):
            if peer in counted:
                rank = (membership.peers.index(peer) - round_) % len(members)
                count = len(members)
                places = range(rank * sequences // count, (rank + 1) * sequences // count)
                own = [numbers[place] for place in places]
                assert len(own) == len(mine)
                trained.update(own)
                for position, sample in zip(own, mine, strict=True):
                    of_epoch.setdefault(position // samples, Counter())[sample] += 1
        deal = deal.after(record(round_, counted), membership, sequences)
        # Dealt is trained or left over, at any time, and what is left over is at most a round.
        left = [position for piece in deal.backlog for position in piece]
        assert sorted([*trained, *left]) == list(range(deal.cursor))
        assert len(left) <= sequences
        calm = round_ > 300 or deal.cursor > 10 * samples
        if calm and not left and deal.cursor >= 3 * samples:
            break
    assert not deal.backlog
    assert set(trained.values()) == {1}
    whole = deal.cursor // samples
    assert whole >= 1
    for epoch in range(whole):
        assert of_epoch[epoch] == dict.fromkeys(range(samples), 1)


def test_an_empty_record_returns_everything() -> None:
    membership = Membership(since=dict.fromkeys(EVERYBODY[:3], 0))
    first = Deal().after(record(1, []), membership, 10)
    assert first == Deal(10, (range(10),))
    assert first.positions(10) == (range(10),)
    assert first.after(record(2, []), membership, 10) == first
    assert first.after(record(2, list(membership.peers)), membership, 10) == Deal(10)


def test_what_is_left_over_comes_first_and_the_cursor_waits_for_it() -> None:
    membership = Membership(since=dict.fromkeys(EVERYBODY[:4], 0))
    late = membership.peers[2]
    deal = Deal().after(record(1, [p for p in membership.peers if p != late]), membership, 8)
    # In round 1 the third member has the second run.
    assert deal == Deal(8, (range(2, 4),))
    assert deal.positions(8) == (range(2, 4), range(8, 14))
    assert deal.after(record(2, list(membership.peers)), membership, 8) == Deal(14)


def test_pieces_of_pieces() -> None:
    ranges = (range(3, 5), range(7, 8), range(10, 20))
    assert cut(ranges, range(1, 5)) == [range(4, 5), range(7, 8), range(10, 12)]
    assert cut(ranges, range(0)) == []
    assert cut(ranges, range(3, 30)) == [range(10, 20)]


def test_the_ledger_knows_it_of_every_round() -> None:
    chain = Chain(4)
    absent = chain.membership.peers[0]
    for round_ in range(1, 6):
        some = [chain.update(peer) for peer in chain.membership.peers if peer != absent]
        chain.grow(updates=some if round_ % 2 else None)
    ledger = chain.ledger
    assert ledger.deal(0) == ledger.deal(1) == Deal()
    assert [bool(ledger.deal(round_).backlog) for round_ in range(2, 7)] == [1, 0, 1, 0, 1]
    # 64 a round: 16 of rounds 1 and 3 were dealt again, those of round 5 are still to come.
    assert ledger.deal(6).cursor == 5 * 64 - 2 * 16
    shorter = ledger.truncated(3)
    assert [shorter.deal(round_) for round_ in range(4)] == [ledger.deal(r) for r in range(4)]
