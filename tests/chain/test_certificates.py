"""Certificates: which ballots prove a quorum, with and without silent members."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import certificates
from distro_node.protocol.chain.certificates import check_certificate, find_quorum, silenced
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.membership import FaultModel, Membership, Votes, quorum
from distro_node.protocol.wire.messages import NO_BLOCK, Certificate, RecordId, SignedBallot
from hypothesis import given
from hypothesis import strategies as st
from simulation.chain import Chain
from simulation.swarm import identity

# Private here: `_floors`: how much a search may cost.

PEERS = sorted(identity(index).peer for index in range(10))
BLOCK = RecordId(b"b" * 32)


def members(count: int) -> Membership:
    return Membership(since=dict.fromkeys(PEERS[:count], 0))


def cast(
    membership: Membership, masks: Mapping[int, Iterable[int]]
) -> dict[PeerId, list[SignedBallot]]:
    """Return ballots of members, each given by its number and the numbers that it marks as silent."""
    return {
        membership.peers[signer]: [
            SignedBallot(
                membership.peers[signer],
                membership.mask(membership.peers[other] for other in silent),
                bytes(64),
            )
        ]
        for signer, silent in masks.items()
    }


def certifies(
    membership: Membership, masks: Mapping[int, Iterable[int]], model: FaultModel
) -> bool:
    return find_quorum(cast(membership, masks), membership, membership.one_each, model) is not None


@pytest.mark.parametrize("model", ["byzantine", "crash"])
@pytest.mark.parametrize("count", range(1, 11))
def test_a_quorum_and_not_one_less(model: FaultModel, count: int) -> None:
    membership = members(count)
    least = quorum(model, count)
    assert certifies(membership, dict.fromkeys(range(least), ()), model)
    assert not certifies(membership, dict.fromkeys(range(least - 1), ()), model)


@pytest.mark.parametrize("model", ["byzantine", "crash"])
def test_whom_all_signers_call_silent_does_not_count(model: FaultModel) -> None:
    """Half of eight members are offline: the other half decides, unanimously."""
    membership, gone = members(8), range(4, 8)
    for signers in range(5):
        enough = signers >= quorum(model, 4)
        assert certifies(membership, dict.fromkeys(range(signers), gone), model) == enough


def test_one_signer_that_receives_a_member_keeps_it_in_the_count() -> None:
    membership = members(6)
    masks: dict[int, Iterable[int]] = {0: (3, 4, 5), 1: (3, 4, 5), 2: (3, 4, 5)}
    assert certifies(membership, masks, "byzantine")
    # Of five that not all signers mark as silent, three are no quorum.
    assert not certifies(membership, {**masks, 2: (5,)}, "byzantine")
    assert not certifies(membership, {**masks, 2: ()}, "byzantine")
    # Three of four are.
    assert certifies(membership, {**masks, 2: (4, 5)}, "byzantine")


def test_a_signer_is_not_silent_whatever_others_received() -> None:
    membership = members(4)
    everybody_deaf = {i: [j for j in range(4) if j != i] for i in range(4)}
    found = find_quorum(
        cast(membership, everybody_deaf), membership, membership.one_each, "byzantine"
    )
    assert found is not None
    alone: dict[int, Iterable[int]] = {0: (1, 2, 3), 1: (0, 2, 3)}
    pair = find_quorum(cast(membership, alone), membership, membership.one_each, "byzantine")
    assert pair is not None
    certificate = Certificate("vote", 1, BLOCK, 1, BLOCK, pair)
    assert silenced(certificate, membership).isdisjoint(signed.peer for signed in pair)


def test_a_lone_member_that_receives_nothing_certifies_for_itself() -> None:
    """This is allowed: its decision binds no other member (test_member) and weighs little
    (test_fork)."""
    assert certifies(members(7), {3: (0, 1, 2, 4, 5, 6)}, "byzantine")


def test_masks_that_differ_by_more_than_they_share() -> None:
    """Three of ten mark the same six as silent, and each one more. No mask is contained in another, but
    their intersection makes a quorum; a fourth that hears all must not spoil it."""
    six = (4, 5, 6, 7, 8, 9)
    masks: dict[int, Iterable[int]] = {0: (*six, 1), 1: (*six, 2), 2: (*six, 0), 3: ()}
    found = find_quorum(cast(members(10), masks), members(10), members(10).one_each, "byzantine")
    assert found is not None
    assert [signed.peer for signed in found] == PEERS[:3]


def test_any_of_a_signers_masks_may_be_used() -> None:
    membership = members(4)
    ballots = cast(membership, {0: (), 1: (3,), 2: (3,)})
    assert find_quorum(ballots, membership, membership.one_each, "byzantine") is not None  # 3 of 4
    ballots = cast(membership, {0: (), 1: (2, 3)})
    assert find_quorum(ballots, membership, membership.one_each, "byzantine") is None
    later = cast(membership, {0: (2, 3)})[PEERS[0]]
    for versions in itertools.permutations((*ballots[PEERS[0]], *later)):
        found = find_quorum(
            {**ballots, PEERS[0]: versions}, membership, membership.one_each, "byzantine"
        )
        assert found is not None
        assert [signed.silent for signed in found] == [b"\x0c", b"\x0c"]


@st.composite
def ballots_of_some(draw: st.DrawFn) -> tuple[Membership, dict[PeerId, list[SignedBallot]]]:
    membership = members(draw(st.integers(1, 7)))
    signers = draw(st.sets(st.sampled_from(membership.peers)))
    masks = st.integers(0, 2 ** len(membership) - 1)
    ballots = {
        peer: [
            SignedBallot(peer, (mask & ~membership.bit(peer)).to_bytes(1, "little"), bytes(64))
            for mask in draw(st.lists(masks, min_size=1, max_size=2))
        ]
        for peer in signers
    }
    return membership, ballots


@given(ballots_of_some(), st.sampled_from(["byzantine", "crash"]))
def test_a_quorum_is_found_if_there_is_one(
    given_ballots: tuple[Membership, dict[PeerId, list[SignedBallot]]], model: FaultModel
) -> None:
    """Compared with a search over all choices of signers and masks."""
    membership, ballots = given_ballots

    def valid(chosen: Iterable[SignedBallot]) -> bool:
        chosen = list(chosen)
        common = ~0
        for signed in chosen:
            common &= membership.bits(signed.silent)
        counted = [
            peer
            for peer in membership.peers
            if not common & membership.bit(peer) or peer in {signed.peer for signed in chosen}
        ]
        return bool(chosen) and len(chosen) >= quorum(model, len(counted))

    best = 0
    for choice in itertools.product(*([None, *versions] for versions in ballots.values())):
        chosen = [signed for signed in choice if signed is not None]
        if len(chosen) > best and valid(chosen):
            best = len(chosen)
    found = find_quorum(ballots, membership, membership.one_each, model)
    assert len(found or ()) == best
    if found is not None:
        assert valid(found)
        assert [signed.peer for signed in found] == sorted({signed.peer for signed in found})


@given(ballots_of_some(), st.data(), st.sampled_from(["byzantine", "crash"]))
def test_the_most_votes_are_found_if_there_are_any(
    given_ballots: tuple[Membership, dict[PeerId, list[SignedBallot]]],
    data: st.DataObject,
    model: FaultModel,
) -> None:
    """The same where members have different numbers of votes, some of them 0."""
    membership, ballots = given_ballots
    numbers = {peer: data.draw(st.sampled_from([0, 0, 1, 2, 5])) for peer in membership.peers}
    votes = Votes.of(numbers, membership)

    def weight(chosen: list[SignedBallot]) -> tuple[int, int]:
        """Return the votes that certify, or the heirs; 0 if it is no certificate."""
        common = ~0
        for signed in chosen:
            common &= membership.bits(signed.silent)
        signers = {signed.peer for signed in chosen}
        present = {
            peer
            for peer in membership.peers
            if not common & membership.bit(peer) or peer in signers
        }
        if not chosen:
            return 0, 0
        if not votes.among(present):
            return 0, len(signers) * (len(signers) >= quorum(model, len(present)))
        enough = votes.among(signers) >= quorum(model, votes.among(present))
        return votes.among(signers) * (enough and all(votes[peer] for peer in signers)), 0

    choices = itertools.product(*([None, *versions] for versions in ballots.values()))
    best = max(weight([signed for signed in choice if signed]) for choice in choices)
    found = find_quorum(ballots, membership, votes, model)
    assert weight(list(found or ())) == best
    assert (found is None) == (best == (0, 0))


def test_who_has_no_votes_keeps_nobody_in_the_count_or_out_of_it() -> None:
    membership = members(4)
    a, b, c, d = membership.peers
    votes = Votes({a: 2, b: 1})
    # It hears all members; only the voters' masks count.
    masks: dict[int, Iterable[int]] = {0: (1,), 2: (), 3: ()}
    found = find_quorum(cast(membership, masks), membership, votes, "byzantine")
    assert [signed.peer for signed in found or ()] == [a]
    # Together they are no quorum while one of them does not mark a voter as silent.
    masks = {2: (0, 1), 3: (1,)}
    assert find_quorum(cast(membership, {**masks, 2: (0,)}), membership, votes, "byzantine") is None
    masks = {2: (0, 1), 3: (0, 1)}
    heirs = find_quorum(cast(membership, masks), membership, votes, "byzantine")
    assert [signed.peer for signed in heirs or ()] == [c, d]


def test_noise_in_masks_costs_little_and_hides_no_agreement() -> None:
    """Thirty of a hundred sign a mask of their own; the quorum of the others is found all the same."""
    membership = Membership(since={identity(i).peer: 0 for i in range(100)})
    gone = set(membership.peers[90:])
    ballots = {
        peer: [SignedBallot(peer, membership.mask(gone), bytes(64))]
        for peer in membership.peers[:61]
    }
    for number, peer in enumerate(membership.peers[61:90]):
        noise = {other for i, other in enumerate(membership.peers) if (i * i + number) % 7 < 3}
        ballots[peer] = [SignedBallot(peer, membership.mask(noise - {peer}), bytes(64))]
    found = find_quorum(ballots, membership, membership.one_each, "byzantine")
    assert found is not None
    assert {signed.peer for signed in found} >= set(membership.peers[:61])


def test_intersections_are_few() -> None:
    """Twelve masks, each without another member."""
    assert len(certificates._floors([0xFFF ^ 1 << bit for bit in range(12)])) <= 2 * 64 + 1


# Checks of received certificates


def check(chain: Chain, certificate: Certificate, model: FaultModel = "byzantine") -> None:
    check_certificate(
        certificate,
        kind="finalize",
        swarm=chain.manifest.swarm,
        round=chain.round,
        parent=chain.ledger.head,
        block=BLOCK,
        membership=chain.membership,
        votes=chain.membership.one_each,
        model=model,
    )


def refused(chain: Chain, certificate: Certificate) -> str:
    with pytest.raises(ProtocolError) as caught:
        check(chain, certificate)
    assert caught.value.reason in ("certificate", "invalid")
    return str(caught.value)


@pytest.fixture(scope="module")
def chain() -> Chain:
    return Chain(6)


def test_a_quorum_of_signatures(chain: Chain) -> None:
    everybody = chain.membership.peers
    check(chain, chain.certificate(BLOCK))
    check(chain, chain.certificate(BLOCK, signers=everybody[:5]))
    assert "4 of 6" in refused(chain, chain.certificate(BLOCK, signers=everybody[:4]))
    check(chain, chain.certificate(BLOCK, signers=everybody[:4]), "crash")


def test_signatures_of_those_who_are_left(chain: Chain) -> None:
    *here, gone = chain.membership.peers
    check(chain, chain.certificate(BLOCK, signers=here[:4], silent=[gone]))
    assert "3 of 6" in refused(chain, chain.certificate(BLOCK, signers=here[:3], silent=[gone]))


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "vote"},
        {"round": 2},
        {"parent": RecordId(bytes(32))},
        {"block": NO_BLOCK},
    ],
)
def test_a_certificate_about_something_else(chain: Chain, changes: dict) -> None:
    """Signed for another subject, or relabelled: both are refused."""
    kind = changes.get("kind", "finalize")
    rest = {key: value for key, value in changes.items() if key not in ("kind", "block")}
    signed = chain.certificate(changes.get("block", BLOCK), kind=kind, **rest)
    assert "another record, round or kind" in refused(chain, signed)
    relabelled = dataclasses.replace(
        signed, kind="finalize", round=chain.round, parent=chain.ledger.head, block=BLOCK
    )
    assert "signature" in refused(chain, relabelled)


def with_ballots(certificate: Certificate, *ballots: SignedBallot) -> Certificate:
    return dataclasses.replace(certificate, ballots=ballots)


def test_signers_are_sorted_and_count_once(chain: Chain) -> None:
    good = chain.certificate(BLOCK)
    first, second, *rest = good.ballots
    assert "sorted" in refused(chain, with_ballots(good, second, first, *rest))
    assert "sorted" in refused(chain, with_ballots(good, first, *[second] * 4))


def test_signers_are_members(chain: Chain) -> None:
    good = chain.certificate(BLOCK)
    stranger = SignedBallot(
        identity(9).peer,
        b"\0",
        chain.signature(9, "finalize", good.ballot(SignedBallot(identity(9).peer, b"\0", b""))),
    )
    ballots = sorted([*good.ballots[:4], stranger], key=lambda signed: signed.peer)
    assert "not a member" in refused(chain, with_ballots(good, *ballots))


@pytest.mark.parametrize("mask", [b"\0\0", b"\x40", b"\xff"])
def test_masks_fit_the_membership(chain: Chain, mask: bytes) -> None:
    good = chain.certificate(BLOCK)
    first = dataclasses.replace(good.ballots[0], silent=mask)
    assert "mask" in refused(chain, with_ballots(good, first, *good.ballots[1:]))


def test_every_signature_is_checked(chain: Chain) -> None:
    good = chain.certificate(BLOCK)
    for place, signed in enumerate(good.ballots):
        ballots = list(good.ballots)
        flipped = bytes([signed.signature[0] ^ 1]) + signed.signature[1:]
        ballots[place] = dataclasses.replace(signed, signature=flipped)
        assert "signature" in refused(chain, with_ballots(good, *ballots))


def test_masks_are_signed(chain: Chain) -> None:
    """A third party cannot make a quorum smaller by changing the masks of the signers."""
    few = chain.certificate(BLOCK, signers=chain.membership.peers[:3])
    others = chain.membership.mask(chain.membership.peers[3:])
    assert "signature" in refused(
        chain,
        with_ballots(few, *[dataclasses.replace(signed, silent=others) for signed in few.ballots]),
    )


def test_signatures_are_for_a_kind_and_a_swarm(chain: Chain) -> None:
    votes = chain.certificate(BLOCK, kind="vote")
    assert "signature" in refused(chain, dataclasses.replace(votes, kind="finalize"))
    other = Chain(6, name="another")
    foreign = dataclasses.replace(
        other.certificate(BLOCK, parent=chain.ledger.head), parent=chain.ledger.head
    )
    assert "signature" in refused(chain, foreign)


def test_silenced_are_those_whom_all_signers_name(chain: Chain) -> None:
    a, b, *rest = chain.membership.peers
    certificate = chain.certificate(BLOCK, silent=[a, b])
    assert silenced(certificate, chain.membership) == {a, b}
    one = chain.certificate(BLOCK, signers=rest[:1], silent=[a]).ballots[0]
    mixed = with_ballots(certificate, one, *certificate.ballots[1:])
    assert silenced(mixed, chain.membership) == {a}


def test_a_ballot_without_votes_is_no_part_of_a_certificate(chain: Chain) -> None:
    founder, *others = chain.membership.peers
    votes = Votes({founder: 1})

    def holds(signers: list[PeerId], silent: Iterable[PeerId] = ()) -> bool:
        try:
            check_certificate(
                chain.certificate(BLOCK, signers=signers, silent=silent),
                kind="finalize",
                swarm=chain.manifest.swarm,
                round=chain.round,
                parent=chain.ledger.head,
                block=BLOCK,
                membership=chain.membership,
                votes=votes,
                model="byzantine",
            )
        except ProtocolError:
            return False
        return True

    assert holds([founder])
    assert not holds([founder, others[0]])
    assert not holds(others)
    # Heirs, all of them and too few.
    assert holds(others, [founder])
    assert holds(others[:4], [founder])
    assert not holds(others[:3], [founder])
