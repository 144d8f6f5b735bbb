"""A member votes for records that name, as announced, everything the leader could have."""

from __future__ import annotations

import dataclasses

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.evidence import check_evidence
from distro_node.protocol.member.completeness import Completeness, judge_completeness
from distro_node.protocol.member.effects import Effect, Note, Publish
from distro_node.protocol.member.inputs import MessageReceived, Recalled, Tick, Trained, UpdateHeld
from distro_node.protocol.member.member import Member
from distro_node.protocol.member.update_collection import RoundUpdates
from distro_node.protocol.wire.messages import Announcement, Proposal, Record, UpdateEntry
from simulation.chain import Chain
from simulation.message_cache import read

COLLECT = 20.0


class Voter:
    """A member in a chain's next round, which holds all updates."""

    def __init__(self, members: int = 4) -> None:
        self.chain = Chain(members)
        self.chain.grow()
        self.leader = self.chain.leaders[0]
        self.others = [peer for peer in self.chain.membership.peers if peer != self.leader]
        self.me = self.others[0]
        self.member: Member = self.chain.member(self.me)
        round_, own = self.chain.round, self.chain.announcement(self.me)
        self.member.handle(Trained(round_, round_, own.update, own.size, own.tokens, own.loss), 0.0)
        for peer in self.chain.membership.peers:
            if peer != self.me:
                said = self.chain.announcement(peer)
                self.receives(peer, said)
                self.member.handle(UpdateHeld(said.update), 0.0)

    def receives(self, peer: PeerId, said: Announcement, now: float = 0.0) -> list[Effect]:
        return self.member.handle(
            MessageReceived(self.chain.envelope(peer, "announcement", said)), now
        )

    def entries(self, **changes: object) -> list[UpdateEntry]:
        """Return all members' entries, with these changes to the leader's."""
        return [
            self.chain.update(peer, **(changes if peer == self.leader else {}))
            for peer in self.chain.membership.peers
        ]

    def answers(self, record: Record, slot: int = 1, now: float = 0.5) -> list[Effect]:
        leader = self.chain.leaders[slot - 1]
        envelope = self.chain.envelope(leader, "proposal", Proposal(slot, record))
        return self.member.handle(MessageReceived(envelope), now)


def kinds(effects: list[Effect]) -> list[str]:
    return [effect.envelope.kind for effect in effects if isinstance(effect, Publish)]


def notes(effects: list[Effect]) -> list[str]:
    return [effect.kind for effect in effects if isinstance(effect, Note)]


def test_it_votes_for_what_names_everything() -> None:
    voter = Voter()
    assert kinds(voter.answers(voter.chain.record())) == ["vote"]


@pytest.mark.parametrize("left", [0, 1, 2])
def test_it_skips_at_once_the_slot_of_a_leader_that_leaves_somebody_out(left: int) -> None:
    """Another leader takes over, instead of all waiting until this one's time is over."""
    voter = Voter()
    kept = [e for e in voter.entries() if e.peer in (voter.leader, voter.me, *voter.others[:left])]
    kept = kept if left else [entry for entry in kept if entry.peer == voter.leader]
    effects = voter.answers(voter.chain.record(updates=kept))
    assert kinds(effects) == ["skip"]
    assert notes(effects) == ["incomplete"]


def test_its_own_update_may_be_lacking() -> None:
    """It cannot know whether others could fetch it yet; all others require it instead."""
    voter = Voter()
    kept = [entry for entry in voter.entries() if entry.peer != voter.me]
    assert kinds(voter.answers(voter.chain.record(updates=kept))) == ["vote"]


@pytest.mark.parametrize("field", ["tokens", "loss", "capacity", "size", "max_version"])
def test_an_entry_that_was_announced_otherwise_is_none(field: str) -> None:
    """Otherwise a leader could vary its own announcement to grind the record's id."""
    voter = Voter()
    said = getattr(voter.chain.announcement(voter.leader), field)
    effects = voter.answers(voter.chain.record(updates=voter.entries(**{field: said + 1})))
    assert kinds(effects) == ["skip", "evidence"]
    (proof,) = [
        read(effect.envelope)
        for effect in effects
        if isinstance(effect, Publish) and effect.envelope.kind == "evidence"
    ]
    check_evidence(proof, voter.chain.ledger, voter.chain.ledger.verify)  # type: ignore[arg-type]
    assert proof.peer == voter.leader  # type: ignore[union-attr]


def test_what_was_not_received_before_is_taken_from_the_record() -> None:
    """When received later, it counts as the same announcement."""
    chain = Chain(4)
    chain.grow()
    me = chain.leaders[-1]
    member = chain.member(me)
    record = chain.record()
    leader = chain.leaders[0]
    member.handle(MessageReceived(chain.envelope(leader, "proposal", Proposal(1, record))), 0.0)
    for entry in record.updates:
        member.handle(UpdateHeld(entry.update), 0.0)
    for entry in record.updates:
        said = record.announcement(entry)
        member.handle(MessageReceived(chain.envelope(entry.peer, "announcement", said)), 0.1)
    assert not member.parts.round.collection.contradictions


def test_who_announced_two_things_is_missed_by_nobody_and_named_by_no_leader() -> None:
    voter = Voter()
    liar = next(peer for peer in voter.others if peer != voter.me)
    said = voter.chain.announcement(liar)
    with pytest.raises(Exception, match="a second update"):
        voter.receives(liar, dataclasses.replace(said, tokens=said.tokens + 1))
    collection = voter.member.parts.round.collection
    fingerprint = voter.member.view.fingerprint
    assert fingerprint is not None
    assert liar not in {entry.peer for entry in collection.entries(fingerprint)}
    kept = [entry for entry in voter.entries() if entry.peer != liar]
    assert kinds(voter.answers(voter.chain.record(updates=kept)))[0] == "vote"


def test_a_record_of_another_slot_is_none() -> None:
    """Otherwise the chain would count slots as skipped that were not."""
    voter = Voter()
    assert kinds(voter.answers(voter.chain.record(slot=2))) == ["skip"]


# The rule, case by case


CHAIN = Chain(7)
PEERS = CHAIN.membership.peers


def judged(
    lacking: int,
    *,
    slot: int = 1,
    held: float = 5.0,
    proposed: float = 10.0,
    ready: bool = True,
    pace_known: bool = True,
) -> Completeness:
    """Judge a record of seven members without `missing` of the updates, which were held at that time."""
    collection = RoundUpdates(CHAIN.membership.one_each)
    for place, peer in enumerate(PEERS):
        said = CHAIN.announcement(peer)
        collection.announce(peer, said, CHAIN.signature(peer, "announcement", said))
        collection.held(said.update, held if place < lacking else 1.0)
    return judge_completeness(
        CHAIN.record(updates=[CHAIN.update(peer) for peer in PEERS[lacking:]]),
        slot,
        collection,
        me=PEERS[-1],
        members=len(PEERS),
        due={*PEERS},
        model="byzantine",
        start=0.0,
        collect=COLLECT,
        proposed=proposed,
        ready=ready,
        pace_known=pace_known,
    )


def test_good_time_is_three_quarters_of_the_deadline_or_a_quarter_before_the_proposal() -> None:
    assert judged(1, held=15.0) == "incomplete"
    assert judged(1, held=15.1) == "complete"
    # A later leader need not have what came too late for the first one.
    assert judged(1, held=15.1, proposed=21.0) == "incomplete"
    assert judged(1, held=16.1, proposed=21.0) == "complete"


def test_the_demand_outlasts_the_slots_that_liars_can_lead_and_ends_for_good() -> None:
    """Seven members, two of them byzantine: five slots; two thirds for seven more; then anything."""
    assert [judged(2, slot=slot) for slot in (5, 6)] == ["incomplete", "complete"]
    assert [judged(3, slot=slot) for slot in (6, 12, 13)] == ["incomplete"] * 2 + ["complete"]


def test_who_waits_itself_cannot_judge() -> None:
    assert judged(0, ready=False) == "unknown"
    assert judged(1, held=15.1, ready=False) == "unknown"
    assert judged(1, ready=False) == "incomplete"


def test_who_knows_no_pace_yet_follows_a_record_with_most_updates() -> None:
    assert judged(3, held=19.0, ready=False, pace_known=False) == "complete"
    assert judged(4, held=19.0, ready=False, pace_known=False) == "unknown"


@pytest.mark.parametrize("earlier", [True, False])
def test_who_lost_its_disk_asks_what_it_announced_before_it_announces(earlier: bool) -> None:
    """Otherwise it would be expelled for two announcements in a round."""
    chain = Chain(4)
    chain.grow()
    me, round_ = chain.leaders[-1], chain.round
    member = chain.member(me, recall=True)
    member.handle(Tick(), 0.0)
    effects = member.handle(Trained(round_, round_, content_id(b"new"), 1000, 500, 2.5), 0.1)
    assert "announcement" not in kinds(effects)
    if earlier:
        said = chain.envelope(me, "announcement", chain.announcement(me))
        effects += member.handle(MessageReceived(said), 0.2)
    effects += member.handle(Recalled(round_), 0.3)
    assert kinds(effects).count("announcement") == (not earlier)
