"""Bounds of one round's consensus: slots, masks, proposals, and searches for a certificate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import certificates, consensus
from distro_node.protocol.chain.consensus import Consensus
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.membership import Membership
from distro_node.protocol.wire.messages import NO_BLOCK, Ballot, Record, RecordId

# Private here: `_slots`, `_floors`: which ballots and masks are kept is not visible otherwise.

PARENT = RecordId(b"p" * 32)
PEERS = [PeerId(bytes([number]) * 32) for number in range(64)]
BLOCK = Record(5, PARENT, 1, (), (), (), None)


class _Round:
    """An agreement among `count` members, as seen by the first of them."""

    def __init__(self, count: int) -> None:
        self.members = Membership(since=dict.fromkeys(PEERS[:count], 0))
        self.seen = Consensus(
            swarm=bytes(32),
            round=5,
            parent=PARENT,
            membership=self.members,
            votes=self.members.one_each,
            model="byzantine",
            me=PEERS[0],
        )

    def skip(self, who: PeerId, slot: int = 1, silent: Iterable[PeerId] = ()) -> str:
        """Return why a skip is refused; empty if it is accepted."""
        ballot = Ballot(5, PARENT, slot, NO_BLOCK, self.members.mask(silent))
        try:
            self.seen.add_ballot("skip", who, ballot, bytes(64))
        except ProtocolError as error:
            return error.reason
        return ""

    def vote(self, who: PeerId, silent: Iterable[PeerId]) -> None:
        ballot = Ballot(5, PARENT, 1, BLOCK.id, self.members.mask(silent))
        self.seen.add_ballot("vote", who, ballot, bytes(64))


def test_slots_far_ahead_are_refused() -> None:
    round_ = _Round(4)
    assert [round_.skip(PEERS[1], slot) for slot in (33, 34)] == ["", "too_far"]


def test_masks_of_a_ballot_are_few() -> None:
    round_ = _Round(10)
    for number in range(1, 100):
        round_.skip(PEERS[1], silent=[PEERS[2 + bit] for bit in range(8) if number >> bit & 1])
    (kept,) = round_.seen._slots[1].ballots["skip"][NO_BLOCK].cast.values()
    assert len(kept) == 16


def test_the_latest_mask_stays() -> None:
    """A member that is heard again by now counts."""
    round_ = _Round(10)
    for number in range(1, 100):
        round_.skip(PEERS[1], silent=[PEERS[2 + bit] for bit in range(8) if number >> bit & 1])
    (kept,) = round_.seen._slots[1].ballots["skip"][NO_BLOCK].cast.values()
    assert round_.members.mask([PEERS[2 + bit] for bit in range(8) if 99 >> bit & 1]) in kept


def test_masks_fit_the_membership() -> None:
    """A mask of 512 bytes has the largest allowed length, and is kept unchanged."""
    ballot = Ballot(5, PARENT, 1, NO_BLOCK, bytes(512))
    with pytest.raises(ProtocolError) as refused:
        _Round(10).seen.add_ballot("skip", PEERS[1], ballot, bytes(64))
    assert refused.value.reason == "invalid"


def test_intersections_are_few() -> None:
    """Twelve masks, each without another member."""
    assert len(certificates._floors([0xFFF ^ 1 << bit for bit in range(12)])) <= 2 * 64 + 1


def test_one_liar_starts_no_search() -> None:
    """It marks all others as silent, and is a quorum alone: new ballots must not cause a new search."""
    round_, searches = _Round(64), 0
    me, liar, *honest = PEERS
    original = certificates.find_quorum

    def find(*arguments: Any) -> Any:
        nonlocal searches
        searches += 1
        return original(*arguments)

    with patch.object(consensus, "find_quorum", find):
        round_.vote(liar, [me, *honest])
        before = searches
        for peer in honest[:41]:
            round_.vote(peer, [])
        none_more = searches == before
        round_.vote(honest[41], [])
    assert none_more
    assert round_.seen.certified(BLOCK.id)


def test_a_leader_proposes_once() -> None:
    """Otherwise any number of proposals of the greatest length would be forwarded to all."""
    round_, taken = _Round(4), 0
    leader = round_.seen.leader(1)
    for number in range(20):
        try:
            round_.seen.add_proposal(leader, 1, Record(5, PARENT, number, (), (), (), None))
        except ProtocolError:
            continue
        taken += 1
    assert taken == len(round_.seen.records) == 1


def test_what_was_voted_for_is_taken_in() -> None:
    """The leader sent others another proposal, and they may decide it."""
    round_ = _Round(4)
    leader = round_.seen.leader(1)
    round_.seen.add_proposal(leader, 1, Record(5, PARENT, 9, (), (), (), None))
    round_.vote(PEERS[1], [])
    round_.seen.add_proposal(leader, 1, BLOCK)
    assert BLOCK.id in round_.seen.records
