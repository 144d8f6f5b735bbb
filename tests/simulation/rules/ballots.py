"""Budgets of one round's agreement: slots, masks, proposals, and searches for a certificate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import agreement, certificates
from distro_node.protocol.chain.agreement import Agreement
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.membership import Membership
from distro_node.protocol.wire.messages import NO_BLOCK, Ballot, Record, RecordId

from .rule import Rule, edited, put

# Private here: `_slots`, `_floors`: what is kept of ballots and masks shows nowhere else.

PARENT = RecordId(b"p" * 32)
PEERS = [PeerId(bytes([number]) * 32) for number in range(64)]
BLOCK = Record(5, PARENT, 1, (), (), (), None)


class _Round:
    """An agreement among so many members, as the first of them sees it."""

    def __init__(self, count: int) -> None:
        self.members = Membership(since=dict.fromkeys(PEERS[:count], 0))
        self.seen = Agreement(
            swarm=bytes(32),
            round=5,
            parent=PARENT,
            membership=self.members,
            votes=self.members.one_each,
            model="byzantine",
            me=PEERS[0],
        )

    def skip(self, who: PeerId, slot: int = 1, silent: Iterable[PeerId] = ()) -> str:
        """Why a skip is refused; nothing if it is not."""
        ballot = Ballot(5, PARENT, slot, NO_BLOCK, self.members.mask(silent))
        try:
            self.seen.add_ballot("skip", who, ballot, bytes(64))
        except ProtocolError as error:
            return error.reason
        return ""

    def vote(self, who: PeerId, silent: Iterable[PeerId]) -> None:
        ballot = Ballot(5, PARENT, 1, BLOCK.id, self.members.mask(silent))
        self.seen.add_ballot("vote", who, ballot, bytes(64))


def _slots_far_ahead_are_refused() -> bool:
    round_ = _Round(4)
    return [round_.skip(PEERS[1], slot) for slot in (33, 34)] == ["", "too_far"]


def _masks_of_a_ballot_are_few() -> bool:
    round_ = _Round(10)
    for number in range(1, 100):
        round_.skip(PEERS[1], silent=[PEERS[2 + bit] for bit in range(8) if number >> bit & 1])
    (kept,) = round_.seen._slots[1].ballots["skip"][NO_BLOCK].cast.values()
    return len(kept) == 16


def _the_latest_mask_stays() -> bool:
    """Whom it has heard again by now counts."""
    round_ = _Round(10)
    for number in range(1, 100):
        round_.skip(PEERS[1], silent=[PEERS[2 + bit] for bit in range(8) if number >> bit & 1])
    (kept,) = round_.seen._slots[1].ballots["skip"][NO_BLOCK].cast.values()
    return round_.members.mask([PEERS[2 + bit] for bit in range(8) if 99 >> bit & 1]) in kept


def _masks_fit_the_membership() -> bool:
    """One of 512 bytes is as long as any may be, and kept as it is."""
    ballot = Ballot(5, PARENT, 1, NO_BLOCK, bytes(512))
    try:
        _Round(10).seen.add_ballot("skip", PEERS[1], ballot, bytes(64))
    except ProtocolError as error:
        return error.reason == "invalid"
    return False


def _intersections_are_few() -> bool:
    """Of twelve masks, each without another member."""
    return len(certificates._floors([0xFFF ^ 1 << bit for bit in range(12)])) <= 2 * 64 + 1


def _one_liar_starts_no_search() -> bool:
    """It calls all others silent, and is a quorum by itself: ballots that come are not searched anew."""
    round_, searches = _Round(64), 0
    me, liar, *honest = PEERS
    original = certificates.find_quorum

    def find(*arguments: Any) -> Any:
        nonlocal searches
        searches += 1
        return original(*arguments)

    with patch.object(agreement, "find_quorum", find):
        round_.vote(liar, [me, *honest])
        before = searches
        for peer in honest[:41]:
            round_.vote(peer, [])
        none_more = searches == before
        round_.vote(honest[41], [])
    return none_more and round_.seen.certified(BLOCK.id)


def _a_leader_proposes_once() -> bool:
    """As many as it likes would be passed on to everybody, of the greatest length."""
    round_, taken = _Round(4), 0
    leader = round_.seen.leader(1)
    for number in range(20):
        try:
            round_.seen.add_proposal(leader, 1, Record(5, PARENT, number, (), (), (), None))
        except ProtocolError:
            continue
        taken += 1
    return taken == len(round_.seen.records) == 1


def _what_was_voted_for_is_taken_in() -> bool:
    """A leader told others something else, and they may decide it."""
    round_ = _Round(4)
    leader = round_.seen.leader(1)
    round_.seen.add_proposal(leader, 1, Record(5, PARENT, 9, (), (), (), None))
    round_.vote(PEERS[1], [])
    round_.seen.add_proposal(leader, 1, BLOCK)
    return BLOCK.id in round_.seen.records


RULES = (
    Rule(
        "slots far ahead are refused",
        _slots_far_ahead_are_refused,
        put(agreement, "SLOT_WINDOW", 1 << 40),
    ),
    Rule(
        "masks of a ballot are few", _masks_of_a_ballot_are_few, put(agreement, "_MAX_MASKS", 9999)
    ),
    Rule(
        "the latest mask stays",
        _the_latest_mask_stays,
        edited(Agreement, "add_ballot", ("next(iter(versions))", "list(versions)[-1]")),
    ),
    Rule(
        "masks fit the membership",
        _masks_fit_the_membership,
        edited(Membership, "bits", ("len(mask) != self._mask_length or ", "")),
    ),
    Rule(
        "intersections are few", _intersections_are_few, put(certificates, "_MAX_FLOORS", 1 << 40)
    ),
    Rule(
        "one liar starts no search",
        _one_liar_starts_no_search,
        edited(Agreement, "_certify", ("self._most_signers(tally)", "(len(tally.cast), 0)")),
    ),
    Rule(
        "nothing is searched twice",
        _one_liar_starts_no_search,
        edited(Agreement, "_certify", ("most <= tally.tried", "not most")),
    ),
    Rule(
        "a leader proposes once",
        _a_leader_proposes_once,
        edited(Agreement, "check_proposal", ("known not in (None, record.id)", "False")),
    ),
    Rule(
        "what was voted for is taken in",
        _what_was_voted_for_is_taken_in,
        edited(Agreement, "check_proposal", (" and not self._wanted(record.id)", "")),
    ),
)
