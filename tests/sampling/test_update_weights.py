"""Update weights: they follow from the assignments on the chain, wherever it is replayed."""

from __future__ import annotations

import itertools

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.member.effects import Apply
from distro_node.protocol.member.replica import Replica
from distro_node.protocol.member.update_collection import HeldUpdates
from distro_node.protocol.sampling.update_weights import (
    MOST,
    NEWCOMERS_WEIGHT,
    audited_weights,
    by_share,
    equal_weights,
)
from distro_node.protocol.wire.manifest import OptimizerSpec, UpdateWeightRule
from simulation.chain import FINGERPRINT, Chain
from simulation.toy import INITIAL, next_parameters

PEERS = [PeerId(bytes([number]) * 32) for number in range(8)]


def said(*shares: int) -> list[int]:
    """Return the update weights of updates with these shares."""
    found = by_share(dict(zip(PEERS, shares, strict=False)))
    assert set(found) == set(PEERS[: len(shares)])
    return [found[peer] for peer in PEERS[: len(shares)]]


@pytest.mark.parametrize(
    ("shares", "weights"),
    [
        ((), ()),
        ((5,), (1,)),
        ((5, 5, 5), (1, 1, 1)),
        ((1, 2), (1, 2)),
        # Three is the mean, and suffices for weight 2.
        ((2, 3, 4), (1, 2, 2)),
        ((1, 1, 2, 2, 4, 4, 9, 9), (1, 1, 1, 1, 2, 2, 2, 2)),
        # However large a share is, its weight is 2, and below the mean it is 1.
        ((1, 1, 1, 10**6), (1, 1, 1, 2)),
        ((0, 0), (1, 1)),
    ],
)
def test_who_has_the_mean_share_counts_twice(
    shares: tuple[int, ...], weights: tuple[int, ...]
) -> None:
    assert said(*shares) == list(weights)
    assert equal_weights(PEERS[: len(shares)]) == dict.fromkeys(PEERS[: len(shares)], 1)


def test_what_is_said_follows_the_shares_alone() -> None:
    """They depend on neither the unit nor the order of shares, and are 1 or 2."""
    for shares in itertools.product(range(1, 5), repeat=4):
        weights = said(*shares)
        assert set(weights) <= {1, MOST}
        assert said(*(7 * share for share in shares)) == weights
        assert said(*reversed(shares)) == weights[::-1]
        assert (2 in weights) == (len(set(shares)) > 1)
        pairs = zip(shares, weights, strict=True)
        for (one, first), (other, second) in itertools.permutations(pairs, 2):
            assert one < other or first >= second


def test_fewer_than_a_third_who_claim_everything_weigh_less_than_the_others() -> None:
    """This is the reason for `MOST`: with weight 3, two of seven members would outweigh the others."""
    for members in range(4, 100):
        liars = (members - 1) // 3
        shares = {PeerId(n.to_bytes(32, "big")): 10**6 if n < liars else 1 for n in range(members)}
        weights = [*by_share(shares).values()]
        assert sum(weights[:liars]) == 2 * liars < sum(weights[liars:]) == members - liars


def chain_of(rule: UpdateWeightRule, rounds: int = 40) -> Chain:
    """Return a chain of four members, one of which needs several rounds for a sequence, and one does
    twice the work of the other two."""
    chain = Chain(4, sequences=16, max_share=0.5, optimizer=OptimizerSpec(update_weight=rule))
    slow, *_, fast = chain.membership.peers
    while chain.round < rounds:
        due = sorted(chain.ledger.assignments.due(chain.round))
        stated = {slow: 10, fast: 2000}
        chain.grow(updates=[chain.update(p, capacity=stated.get(p, 1000)) for p in due])
    return chain


def test_counts_follow_what_was_assigned() -> None:
    chain = chain_of("share")
    slow, *_, fast = chain.membership.peers
    works = 0
    for round_ in range(1, chain.round):
        record = chain.ledger[round_].record
        weights = dict(
            zip([e.peer for e in record.updates], chain.ledger.update_weights(record), strict=True)
        )
        assigned = {
            peer: len(chain.ledger.assignments.share(round_, peer) or ()) for peer in weights
        }
        assert weights == by_share(assigned)
        assert assigned == dict(chain.ledger.assignments.shares(round_).sequences)
        if slow in weights and round_ > 10:
            # A sequence over several rounds is one sequence.
            assert (assigned[slow], weights[slow], weights[fast]) == (1, 1, 2)
            works += 1
    assert works
    assert chain.ledger.update_weights(chain.ledger[0].record) == ()


def test_with_equal_weights_all_count_once() -> None:
    chain = chain_of("equal")
    for round_ in range(chain.round):
        record = chain.ledger[round_].record
        assert chain.ledger.update_weights(record) == (1,) * len(record.updates)


def test_who_replays_comes_to_the_same() -> None:
    """A ledger that grew with the chain, and one that was truncated, so that rounds dropped from memory
    are recomputed."""
    chain = chain_of("share", 300)
    again = chain.ledger.truncated(150)
    for round_ in range(150, chain.round):
        again.append(chain.ledger[round_])
    prints = set()
    for ledger in (chain.ledger, again):
        replica = Replica(PEERS[0], 1000)
        replica.loaded(0, FINGERPRINT, None)
        parameters, unequal = INITIAL, 0
        for round_ in range(1, chain.round):
            record = ledger[round_].record
            held = HeldUpdates()
            held.held = {entry.update for entry in record.updates}
            (apply,) = (e for e in replica.next(ledger, held) if isinstance(e, Apply))
            assert apply.record == record
            replica.applied(round_, FINGERPRINT, None)
            updates = [each.entry.update for each in apply.needed]
            weights = [each.update_weight for each in apply.needed]
            parameters = next_parameters(parameters, updates, weights)
            unequal += len(set(weights)) > 1
        prints.add(parameters)
        assert unequal > 250
    assert len(prints) == 1


def test_those_without_votes_have_a_third_of_the_weight_together() -> None:
    weights = dict.fromkeys(PEERS, 2)
    voters, new = set(PEERS[:4]), set(PEERS[4:])
    heard = set()
    for number in range(40):
        found = audited_weights(weights, voters, set(), b"round %d" % number)
        assert all(found[peer] == 2 for peer in voters)
        assert sum(found[peer] for peer in new) == 4
        heard |= {peer for peer in new if found[peer]}
    # Every newcomer counts in some round.
    assert heard == new


def test_however_many_come_they_have_no_more() -> None:
    crowd = [PeerId(number.to_bytes(32, "big")) for number in range(500, 1500)]
    found = audited_weights(dict.fromkeys([PEERS[0], *crowd], 1), {PEERS[0]}, set(), b"")
    assert found[PEERS[0]] == 1
    assert sum(found[peer] for peer in crowd) == NEWCOMERS_WEIGHT


def test_who_is_left_out_counts_not_at_all_with_votes_or_without() -> None:
    found = audited_weights(dict.fromkeys(PEERS[:4], 1), set(PEERS[:3]), {PEERS[0], PEERS[3]}, b"")
    assert list(found.values()) == [0, 1, 1, 0]


def test_where_nobody_has_votes_all_count_as_before() -> None:
    weights = {PEERS[0]: 1, PEERS[1]: 2, PEERS[2]: 2}
    assert audited_weights(weights, set(), set(), b"") == weights
    assert audited_weights({}, set(PEERS), set(), b"") == {}
