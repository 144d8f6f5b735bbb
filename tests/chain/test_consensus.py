"""Consensus in one round: each rule by itself, and safety and liveness of all together."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from typing import Any

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import certificates
from distro_node.protocol.chain import consensus as consensus_module
from distro_node.protocol.chain.consensus import SLOT_WINDOW, Consensus
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.membership import FaultModel, Membership, quorum
from distro_node.protocol.wire.messages import (
    NO_BLOCK,
    Ballot,
    BallotHalf,
    BallotKind,
    Record,
    RecordId,
)
from hypothesis import given
from hypothesis import strategies as st
from simulation.swarm import identity

# Private here: `_slots`: which ballots are kept, and the bound on them, is not visible otherwise.

SWARM = b"s" * 32
PARENT = RecordId(b"p" * 32)
SIGNATURE = bytes(64)
PEERS = sorted(identity(index).peer for index in range(10))


def record(number: int) -> Record:
    return Record(5, PARENT, number, (), (), (), None)


B, C = record(1), record(2)


class Round:
    """Consensus among `count` members, as seen by the first of them."""

    def __init__(
        self, count: int = 4, *, model: FaultModel = "byzantine", me: PeerId | None = None
    ) -> None:
        self.membership = Membership(since=dict.fromkeys(PEERS[:count], 0))
        self.me = me or PEERS[0]
        self.others = [peer for peer in self.membership.peers if peer != self.me]
        self.consensus = Consensus(
            swarm=SWARM,
            round=5,
            parent=PARENT,
            membership=self.membership,
            votes=self.membership.one_each,
            model=model,
            me=self.me,
        )

    def propose(self, slot: int, block: Record) -> None:
        self.consensus.add_proposal(self.consensus.leader(slot), slot, block)

    def cast(
        self, kind: BallotKind, peer: PeerId, slot: int, block: RecordId, silent: tuple = ()
    ) -> None:
        ballot = Ballot(5, PARENT, slot, block, self.membership.mask(silent))
        self.consensus.add_ballot(kind, peer, ballot, SIGNATURE)

    def all_others(self, kind: BallotKind, slot: int, block: RecordId) -> None:
        for peer in self.others:
            self.cast(kind, peer, slot, block)

    def certify(self, slot: int, block: Record) -> None:
        self.all_others("vote", slot, block.id)

    def skip(self, slot: int) -> None:
        self.all_others("skip", slot, NO_BLOCK)

    def refused(
        self, kind: BallotKind, peer: PeerId, slot: int, block: RecordId, silent: tuple = ()
    ) -> str:
        with pytest.raises(ProtocolError) as caught:
            self.cast(kind, peer, slot, block, silent)
        return caught.value.reason


def test_a_good_round_from_proposal_to_decision() -> None:
    round_ = Round()
    consensus = round_.consensus
    round_.propose(1, B)
    assert consensus.votable() == B
    round_.cast("vote", round_.me, 1, B.id)
    round_.certify(1, B)
    assert [certificate.block for certificate in consensus.finalizable()] == [B.id]
    round_.cast("finalize", round_.me, 1, B.id)
    assert round_.consensus.decision is None
    round_.all_others("finalize", 1, B.id)
    decision = consensus.decision
    assert decision is not None
    assert (decision.kind, decision.round, decision.slot) == ("finalize", 5, 1)
    assert (decision.parent, decision.block) == (PARENT, B.id)
    signers = [signed.peer for signed in decision.ballots]
    assert signers == sorted(signers)
    assert len(signers) == quorum("byzantine", len(round_.membership))


# Rule 1: leaders


def test_leaders_take_turns() -> None:
    round_ = Round()
    leaders = [round_.consensus.leader(slot) for slot in range(1, 9)]
    assert leaders[:4] == leaders[4:]
    assert set(leaders) == set(round_.membership.peers)


def test_only_the_leader_of_a_slot_proposes() -> None:
    round_ = Round()
    for slot in (1, 2):
        for peer in PEERS[:6]:
            if peer != round_.consensus.leader(slot):
                with pytest.raises(ProtocolError) as caught:
                    round_.consensus.add_proposal(peer, slot, B)
                assert caught.value.reason == "not_leader"
    assert round_.consensus.votable() is None


def test_the_leader_proposes_once_and_in_its_slot() -> None:
    leader = Round().consensus.leader(1)
    round_ = Round(me=leader)
    assert round_.consensus.may_propose()
    round_.propose(1, B)
    assert not round_.consensus.may_propose()
    later = Round(me=Round().consensus.leader(2))
    assert not later.consensus.may_propose()
    later.skip(1)
    later.consensus.advance()
    assert later.consensus.may_propose()


def test_the_first_proposal_of_a_slot_counts() -> None:
    round_ = Round()
    round_.propose(1, B)
    round_.propose(1, B)
    with pytest.raises(ProtocolError) as caught:
        round_.propose(1, C)
    assert caught.value.reason == "equivocation"
    assert round_.consensus.votable() == B
    assert C.id not in round_.consensus.records
    # But a record that others voted for may be decided, so it is accepted.
    round_.cast("vote", round_.others[0], 1, C.id)
    round_.propose(1, C)
    assert round_.consensus.records[C.id] == C
    assert round_.consensus.votable() == B


# Rule 2: well founded


def test_a_fresh_block_needs_every_earlier_slot_skipped() -> None:
    round_ = Round()
    round_.skip(2)
    round_.consensus.advance()
    round_.propose(3, B)
    assert round_.consensus.slot == 3
    assert round_.consensus.votable() is None
    round_.skip(1)
    assert round_.consensus.votable() == B


def test_a_certified_block_must_be_repeated() -> None:
    round_ = Round()
    round_.propose(1, B)
    round_.certify(1, B)
    round_.consensus.advance()
    assert round_.consensus.repeatable() == B.id
    round_.propose(2, C)
    assert round_.consensus.votable() is None
    again = Round()
    again.propose(1, B)
    again.certify(1, B)
    again.consensus.advance()
    again.propose(2, B)
    assert again.consensus.votable() == B


def test_a_block_is_repeated_over_skipped_slots_only() -> None:
    round_ = Round()
    round_.propose(1, B)
    round_.certify(1, B)
    round_.skip(3)
    round_.consensus.advance()
    round_.propose(4, B)
    assert round_.consensus.votable() is None
    assert round_.consensus.repeatable() is None
    round_.skip(2)
    assert round_.consensus.votable() == B
    assert round_.consensus.repeatable() == B.id


def test_where_a_slot_was_both_certified_and_skipped_either_may_follow() -> None:
    for block in (B, C):
        round_ = Round()
        round_.propose(1, B)
        round_.certify(1, B)
        round_.skip(1)
        round_.consensus.advance()
        round_.propose(2, block)
        assert round_.consensus.votable() == block


def test_a_leader_without_a_foundation_waits() -> None:
    round_ = Round(me=Round().consensus.leader(3))
    round_.skip(2)
    round_.consensus.advance()
    assert not round_.consensus.may_propose()
    round_.skip(1)
    assert round_.consensus.may_propose()


def test_who_was_not_in_a_slot_skips_it_where_its_certificate_is_lost() -> None:
    """All members that took part were restarted, and a byzantine member withholds its ballot: three
    skips are no quorum of five, and no later slot is founded."""
    round_ = Round(5)
    _liar, *others = round_.others
    for peer in others[:2]:
        round_.cast("skip", peer, 1, NO_BLOCK)
    assert round_.consensus.gap() is None
    round_.skip(2)
    assert round_.consensus.advance()
    assert round_.consensus.gap() == 1
    round_.cast("skip", round_.me, 1, NO_BLOCK)
    assert round_.consensus.gap() is None
    round_.cast("skip", others[2], 1, NO_BLOCK)
    round_.propose(3, B)
    assert round_.consensus.votable() == B


def test_a_slot_that_can_be_built_on_is_no_gap() -> None:
    round_ = Round()
    round_.certify(1, B)
    round_.skip(2)
    round_.consensus.advance()
    assert round_.consensus.gap() is None


def test_who_has_finalized_in_a_gap_does_not_skip_it() -> None:
    round_ = Round()
    round_.cast("finalize", round_.me, 1, B.id)
    round_.skip(2)
    round_.consensus.advance()
    assert round_.consensus.gap() is None


# Rule 3: one vote a slot, and only there


def test_one_vote_a_slot() -> None:
    round_ = Round()
    round_.propose(1, B)
    round_.cast("vote", round_.me, 1, B.id)
    assert round_.consensus.votable() is None


def test_no_vote_after_a_skip() -> None:
    round_ = Round()
    round_.cast("skip", round_.me, 1, NO_BLOCK)
    round_.propose(1, B)
    assert round_.consensus.votable() is None


def test_votes_are_for_the_slot_a_member_is_in() -> None:
    round_ = Round()
    round_.propose(1, B)
    round_.skip(1)
    assert round_.consensus.advance()
    assert not round_.consensus.advance()
    assert round_.consensus.votable() is None


# Rules 4 and 5: skips and finalizes


def test_a_member_that_voted_may_skip() -> None:
    round_ = Round()
    round_.propose(1, B)
    round_.cast("vote", round_.me, 1, B.id)
    assert round_.consensus.may_skip()
    round_.cast("skip", round_.me, 1, NO_BLOCK)
    assert not round_.consensus.may_skip()


def test_no_finalize_after_a_skip() -> None:
    round_ = Round()
    round_.cast("skip", round_.me, 1, NO_BLOCK)
    round_.propose(1, B)
    round_.certify(1, B)
    assert round_.consensus.finalizable() == []


def test_no_skip_after_a_finalize() -> None:
    round_ = Round()
    round_.propose(1, B)
    round_.certify(1, B)
    round_.cast("finalize", round_.me, 1, B.id)
    assert not round_.consensus.may_skip()
    assert round_.consensus.finalizable() == []


@pytest.mark.parametrize(
    ("model", "count", "needed"),
    [
        ("byzantine", 3, 1),
        ("byzantine", 4, 2),
        ("byzantine", 7, 3),
        ("crash", 3, 2),
        ("crash", 4, 2),
    ],
)
def test_a_slot_is_hopeless_without_a_quorum(model: FaultModel, count: int, needed: int) -> None:
    """One more skip than there may be byzantine members suffices; skips of other slots do not count."""
    round_ = Round(count, model=model)
    for number, peer in enumerate(round_.others, 1):
        round_.cast("skip", peer, 2, NO_BLOCK)
        assert not round_.consensus.hopeless()
        if number == needed:
            break
    for number, peer in enumerate(round_.others[:needed], 1):
        round_.cast("skip", peer, 1, NO_BLOCK)
        assert round_.consensus.hopeless() == (number == needed)


@pytest.mark.parametrize(
    ("for_b", "for_c", "skips", "hopeless"),
    [(1, 1, 0, False), (1, 2, 0, False), (2, 2, 0, True), (1, 1, 1, True), (2, 0, 1, False)],
)
def test_a_slot_is_hopeless_if_votes_are_split(
    for_b: int, for_c: int, skips: int, hopeless: bool
) -> None:
    """Of four, three must vote for one block: votes for another are as lost to it as skips."""
    round_ = Round(4)
    members = iter([round_.me, *round_.others])
    for _ in range(for_b):
        round_.cast("vote", next(members), 1, B.id)
    for _ in range(for_c):
        round_.cast("vote", next(members), 1, C.id)
    for _ in range(skips):
        round_.cast("skip", next(members), 1, NO_BLOCK)
    assert round_.consensus.hopeless() == hopeless


def test_an_earlier_slot_is_finalized_late() -> None:
    """Certificates may arrive after the member has moved on; it has not skipped the slot, so it
    finalizes."""
    round_ = Round()
    round_.skip(1)
    round_.skip(2)
    round_.consensus.advance()
    round_.propose(1, B)
    round_.certify(1, B)
    assert [certificate.slot for certificate in round_.consensus.finalizable()] == [1]


def test_observers_only_watch() -> None:
    round_ = Round(me=PEERS[9])
    round_.propose(1, B)
    round_.others.remove(PEERS[0])
    for peer in round_.membership.peers:
        round_.cast("vote", peer, 1, B.id)
        round_.cast("finalize", peer, 1, B.id)
    assert round_.consensus.decision is not None
    assert not round_.consensus.may_propose()
    assert not round_.consensus.may_skip()
    assert round_.consensus.finalizable() == []


# What is refused


def test_ballots_that_make_no_sense() -> None:
    round_ = Round()
    peer = round_.others[0]
    assert round_.refused("vote", PEERS[9], 1, B.id) == "not_member"
    assert round_.refused("vote", peer, 1, B.id, silent=(peer,)) == "invalid"
    assert round_.refused("vote", peer, 1, NO_BLOCK) == "invalid"
    assert round_.refused("finalize", peer, 1, NO_BLOCK) == "invalid"
    assert round_.refused("skip", peer, 1, B.id) == "invalid"
    with pytest.raises(ProtocolError) as caught:
        round_.consensus.add_ballot("vote", peer, Ballot(5, PARENT, 1, B.id, b"\0\0"), SIGNATURE)
    assert caught.value.reason == "invalid"


@pytest.mark.parametrize("kind", ["vote", "finalize"])
def test_two_different_ballots_for_a_slot_are_an_offence(kind: BallotKind) -> None:
    round_ = Round()
    peer = round_.others[0]
    round_.cast(kind, peer, 1, B.id)
    assert round_.refused(kind, peer, 1, C.id) == "equivocation"
    # The first one remains, and other slots have other ballots.
    round_.cast(kind, peer, 1, B.id)
    round_.cast(kind, peer, 2, C.id)


def test_slots_far_ahead_are_refused() -> None:
    round_ = Round()
    peer = round_.others[0]
    round_.cast("skip", peer, 33, NO_BLOCK)
    assert round_.refused("skip", peer, 34, NO_BLOCK) == "too_far"
    with pytest.raises(ProtocolError) as caught:
        round_.propose(34, B)
    assert caught.value.reason == "too_far"
    round_.skip(1)
    round_.consensus.advance()
    round_.cast("skip", peer, 34, NO_BLOCK)


# Masks


def test_a_ballot_is_cast_again_as_silence_is_noticed() -> None:
    round_ = Round(6)
    gone = tuple(round_.membership.peers[3:])
    here = round_.membership.peers[:3]
    for peer in here:
        round_.cast("skip", peer, 1, NO_BLOCK)
    assert not round_.consensus.advance()
    for peer in here[1:]:
        round_.cast("skip", peer, 1, NO_BLOCK, silent=gone)
        assert not round_.consensus.advance()
    assert round_.consensus.pending_ballots() == [("skip", 1, NO_BLOCK)]
    round_.cast("skip", here[0], 1, NO_BLOCK, silent=gone)
    assert round_.consensus.advance()
    assert round_.consensus.pending_ballots() == []


def test_the_order_in_which_masks_arrive_does_not_matter() -> None:
    """Peers repeat old messages: an earlier mask must not undo a later one."""
    peers = Round(6).membership.peers
    casts = [
        (peer, silent) for peer in peers[:3] for silent in ((), tuple(peers[3:]), tuple(peers[4:]))
    ]
    for seed in range(20):
        random.Random(seed).shuffle(casts)
        round_ = Round(6)
        for peer, silent in casts:
            round_.cast("skip", peer, 1, NO_BLOCK, silent=silent)
        assert round_.consensus.advance()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("vote", B.id), ("vote", C.id)),
        (("finalize", B.id), ("skip", NO_BLOCK)),
        (("skip", NO_BLOCK), ("finalize", B.id)),
    ],
)
def test_what_contradicts_is_refused_and_proven(
    first: tuple[BallotKind, RecordId], second: tuple[BallotKind, RecordId]
) -> None:
    round_ = Round()
    peer = round_.others[0]
    round_.cast(first[0], peer, 1, first[1])
    assert round_.refused(second[0], peer, 1, second[1]) == "equivocation"
    proof = round_.consensus.contradictions[peer]
    assert (proof.peer, proof.round, proof.parent, proof.slot) == (peer, 5, PARENT, 1)
    assert isinstance(proof.first, BallotHalf)
    assert isinstance(proof.second, BallotHalf)
    told = {(each.kind, each.block) for each in (proof.first, proof.second)}
    assert told == {first, second}


@pytest.mark.parametrize("model", ["byzantine", "crash"])
def test_a_liar_who_sent_others_something_else_does_not_hold_us_up(model: FaultModel) -> None:
    """Three members have a certificate with the byzantine member's vote; this member received another
    vote of it first."""
    round_ = Round(4, model=model)
    liar, *others = round_.others
    round_.propose(1, B)
    round_.cast("vote", liar, 1, C.id)
    for peer in others[: 2 if model == "byzantine" else 1]:
        round_.cast("vote", peer, 1, B.id)
    assert not round_.consensus.finalizable()
    round_.cast("vote", liar, 1, B.id)
    round_.cast("vote", round_.me, 1, B.id)
    assert [certificate.block for certificate in round_.consensus.finalizable()] == [B.id]
    assert liar in round_.consensus.contradictions
    # A ballot that no other member has cast is not kept.
    assert round_.refused("vote", liar, 1, record(3).id) == "equivocation"


def test_what_an_honest_member_may_do_contradicts_nothing() -> None:
    round_ = Round()
    one, other, third = round_.others
    # It votes and then skips; it votes and finalizes; it finalizes without having voted.
    round_.cast("vote", one, 1, B.id)
    round_.cast("skip", one, 1, NO_BLOCK)
    round_.cast("vote", other, 1, B.id)
    round_.cast("finalize", other, 1, B.id)
    round_.cast("finalize", third, 1, B.id)
    # Another block in another slot, and the same ballot with another mask.
    round_.cast("vote", one, 2, C.id)
    round_.cast("vote", one, 2, C.id, silent=(third,))
    assert round_.consensus.contradictions == {}


def test_masks_are_limited() -> None:
    """A member may have noticed many changes, but a bounded number of its masks is kept."""
    round_ = Round(10)
    peer, *others = round_.membership.peers
    silent: tuple[PeerId, ...] = ()
    for number in range(200):
        silent = tuple(other for bit, other in enumerate(others) if number >> bit & 1)
        round_.cast("skip", peer, 1, NO_BLOCK, silent=silent)
    (kept,) = round_.consensus._slots[1].ballots["skip"][NO_BLOCK].cast.values()
    assert len(kept) == 16
    assert round_.membership.mask(silent) in kept


def test_a_certificate_once_found_stays() -> None:
    round_ = Round(6)
    gone = tuple(round_.membership.peers[3:])
    here = round_.membership.peers[:3]
    for peer in here:
        round_.cast("vote", peer, 1, B.id, silent=gone)
    (certificate,) = round_.consensus.finalizable()
    # A member that was marked as silent is heard again; the old masks are dropped in the end.
    for number in range(40):
        silent = tuple(peer for bit, peer in enumerate(gone[:2]) if number >> bit & 1)
        round_.cast("vote", here[0], 1, B.id, silent=silent)
    assert round_.consensus.finalizable()[0].block == certificate.block
    assert round_.consensus.advance()


@pytest.mark.parametrize("kind", ["vote", "skip"])
def test_a_liar_alone_neither_certifies_nor_ends_a_slot(kind: BallotKind) -> None:
    """A member that marks all others as silent is a quorum alone, for any member that believes it."""
    round_ = Round(4)
    liar, *others = round_.others
    block = B.id if kind == "vote" else NO_BLOCK
    round_.cast(kind, liar, 1, block, silent=(round_.me, *others))
    assert not round_.consensus.finalizable()
    assert not round_.consensus.advance()
    # About other members alone it may be true.
    round_.cast(kind, liar, 1, block, silent=tuple(others))
    round_.cast(kind, round_.me, 1, block, silent=tuple(others))
    assert round_.consensus.advance()


def test_a_false_decision_does_not_stand_before_a_true_one() -> None:
    round_ = Round(4)
    liar, *others = round_.others
    round_.propose(2, B)
    round_.cast("finalize", liar, 1, C.id, silent=(round_.me, *others))
    round_.cast("finalize", liar, 2, C.id, silent=(round_.me, *others))
    for peer in (round_.me, *others):
        round_.cast("finalize", peer, 2, B.id)
    assert round_.consensus.decision is not None
    assert round_.consensus.decision.block == B.id
    round_.cast("finalize", liar, 2, C.id, silent=(others[0], round_.me))
    round_.cast("finalize", liar, 2, C.id, silent=(*others, round_.me))
    assert round_.consensus.decision.block == B.id


def test_a_lone_member_decides_by_itself() -> None:
    round_ = Round(1)
    round_.propose(1, B)
    round_.cast("vote", round_.me, 1, B.id)
    round_.cast("finalize", round_.me, 1, B.id)
    assert round_.consensus.decision is not None


# All rules together


class Player:
    """An honest member: it does what the rules allow, in any order and at any time."""

    def __init__(self, me: PeerId, count: int, model: FaultModel) -> None:
        self.round = Round(count, model=model, me=me)
        self.consensus = self.round.consensus
        self.inbox: list[tuple] = []

    def act(self, chance: random.Random, fresh: Record) -> list[tuple]:
        """Process some messages or cast ballots; returns the messages to send."""
        consensus, me = self.consensus, self.round.me
        if self.inbox and chance.random() < 0.7:
            self.receive(*self.inbox.pop(chance.randrange(len(self.inbox))))
            return []
        consensus.advance()
        said: list[tuple] = []
        if finalizable := consensus.finalizable():
            said = [("finalize", me, c.slot, c.block) for c in finalizable]
        elif consensus.may_propose() and chance.random() < 0.5:
            repeat = consensus.repeatable()
            block = fresh if repeat is None else consensus.records.get(repeat)
            said = [("proposal", me, consensus.slot, block)] if block else []
        elif (votable := consensus.votable()) and chance.random() < 0.5:
            said = [("vote", me, consensus.slot, votable.id)]
        elif (gap := consensus.gap()) is not None and chance.random() < 0.1:
            said = [("skip", me, gap, NO_BLOCK)]
        elif consensus.may_skip() and chance.random() < 0.1:
            said = [("skip", me, consensus.slot, NO_BLOCK)]
        for message in said:
            self.receive(*message)
        return said

    def receive(self, kind: str, sender: PeerId, slot: int, content: Record | RecordId) -> None:
        try:
            if isinstance(content, Record):
                self.consensus.add_proposal(sender, slot, content)
            else:
                self.round.cast(kind, sender, slot, content)  # type: ignore[arg-type]  # a kind
        except ProtocolError:
            pass


@given(st.integers(0, 2**64), st.integers(1, 7), st.sampled_from(["byzantine", "crash"]))
def test_honest_members_never_decide_two_records(seed: int, count: int, model: FaultModel) -> None:
    """Members act at random, byzantine members send everything to all, messages arrive in any order or
    not at all: all decisions are the same, and no slot has two certified blocks."""
    chance = random.Random(seed)
    peers = list(PEERS[:count])
    chance.shuffle(peers)
    liars = peers[: (count - 1) // 3 if model == "byzantine" else 0]
    players = [Player(peer, count, model) for peer in peers[len(liars) :]]
    blocks = [record(number) for number in range(3)]
    for _ in range(300):
        player = chance.choice(players)
        said = player.act(chance, chance.choice(blocks))
        if liars and chance.random() < 0.3:
            liar, slot = chance.choice(liars), chance.randrange(1, 4)
            block = chance.choice(blocks)
            kind = chance.choice(("proposal", "vote", "skip", "finalize"))
            content = {"proposal": block, "skip": NO_BLOCK}.get(kind, block.id)
            # To one only: a byzantine member sends each another message.
            chance.choice(players).inbox.append((kind, liar, slot, content))
        for other in players:
            other.inbox += [message for message in said if chance.random() < 0.95]
    certified: dict[tuple[str, int], set[RecordId]] = {}
    for player in players:
        for slot, state in player.consensus._slots.items():
            for kind, certificate in state.certificates.items():
                if kind != "skip":
                    certified.setdefault((kind, slot), set()).add(certificate.block)
    assert all(len(found) == 1 for found in certified.values())
    decisions = {p.consensus.decision.block for p in players if p.consensus.decision}
    assert len(decisions) <= 1


@pytest.mark.parametrize("model", ["byzantine", "crash"])
@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_honest_members_that_reach_each_other_decide(count: int, model: FaultModel) -> None:
    """The same players without byzantine members and loss, and with enough time."""
    chance = random.Random(count)
    players = [Player(peer, count, model) for peer in PEERS[:count]]
    for _ in range(20_000):
        said = chance.choice(players).act(chance, B)
        for other in players:
            other.inbox += said
        if all(player.consensus.decision for player in players):
            break
    assert {p.consensus.decision.block for p in players if p.consensus.decision} == {B.id}
    assert all(player.consensus.decision for player in players)


@given(
    st.integers(1, 10),
    st.sampled_from(["byzantine", "crash"]),
    st.sampled_from(["vote", "finalize"]),
    st.data(),
)
def test_two_blocks_of_a_slot_are_never_both_certified(
    count: int, model: FaultModel, kind: BallotKind, data: st.DataObject
) -> None:
    """With less than a third of the members voting for both blocks, whichever ballots arrive."""
    allowed = (count - 1) // 3 if model == "byzantine" else 0
    liars = data.draw(st.integers(0, allowed))
    choices = data.draw(st.lists(st.booleans(), min_size=count - liars, max_size=count - liars))
    sides = (Round(count, model=model), Round(count, model=model))
    for side, block in zip(sides, (B, C), strict=True):
        for peer in PEERS[:liars]:
            side.cast(kind, peer, 1, block.id)
    for peer, choice in zip(PEERS[liars:count], choices, strict=True):
        sides[choice].cast(kind, peer, 1, (B, C)[choice].id)
    certified = [
        bool(side.consensus._slots[1].certificates) for side in sides if side.consensus._slots
    ]
    assert sum(certified) <= 1


def test_two_liars_of_four_are_enough() -> None:
    """Beyond the bound, two blocks can be certified: so the test above can fail."""
    sides = Round(4), Round(4)
    for side, block, honest in zip(sides, (B, C), PEERS[2:4], strict=True):
        for peer in (*PEERS[:2], honest):
            side.cast("vote", peer, 1, block.id)
        assert side.consensus.advance()


def test_quorums_of_skips_and_finalizes_exclude_each_other() -> None:
    """An honest member casts one or the other, so with fewer than a third byzantine members only one of
    the two can have a quorum."""
    for count in range(1, 11):
        liars = (count - 1) // 3
        least = quorum("byzantine", count)
        honest = count - liars
        for skipping in range(honest + 1):
            assert not (skipping + liars >= least and honest - skipping + liars >= least)


def test_states_of_slots_are_few() -> None:
    """A peer makes us keep no more slots than the window allows, whatever numbers it sends."""
    round_ = Round(4)
    for slot in range(1, 1 + SLOT_WINDOW + 1):
        round_.cast("skip", round_.others[0], slot, NO_BLOCK)
    for slot in (100, 2**20):
        assert round_.refused("skip", round_.others[0], slot, NO_BLOCK) == "too_far"
    assert len(round_.consensus._slots) == SLOT_WINDOW + 1


def test_records_kept_are_one_a_slot() -> None:
    round_ = Round()
    round_.propose(1, B)
    for number in range(50):
        with pytest.raises(ProtocolError):
            round_.propose(1, dataclasses.replace(B, fingerprint=100 + number))
    assert len(round_.consensus.records) == 1


def test_one_liar_does_not_have_the_ballots_of_a_slot_searched_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It marks all others as silent, so that it is a quorum alone, and sends many other masks as
    well."""
    searches = 0

    def find(*arguments: Any) -> Any:
        nonlocal searches
        searches += 1
        return certificates.find_quorum(*arguments)

    monkeypatch.setattr(consensus_module, "find_quorum", find)
    chance = random.Random(1)
    peers = sorted(PeerId(bytes([number]) * 32) for number in range(64))
    members = Membership(since=dict.fromkeys(peers, 0))
    me, liar, *honest = peers
    seen = Consensus(
        swarm=SWARM,
        round=1,
        parent=B.parent,
        membership=members,
        votes=members.one_each,
        model="byzantine",
        me=me,
    )

    def votes(peer: PeerId, silent: Iterable[PeerId]) -> None:
        seen.add_ballot("vote", peer, Ballot(1, B.parent, 1, B.id, members.mask(silent)), bytes(64))

    for _ in range(20):
        votes(liar, chance.sample(honest, 50))
    votes(liar, [me, *honest])
    before = searches
    for peer in honest[:41]:
        votes(peer, [])
    assert searches == before
    votes(honest[41], [])
    assert seen.certified(B.id)
