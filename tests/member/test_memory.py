"""A node that lost its memory takes its own messages back; a voter remembers what it voted for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.member.effects import Effect, LogMessage, Publish, RecallOwnMessages
from distro_node.protocol.member.inputs import (
    Applied,
    EntryReceived,
    Loaded,
    MessageReceived,
    Recalled,
    Tick,
    Trained,
    UpdateHeld,
)
from distro_node.protocol.member.member import Member
from distro_node.protocol.member.vote_recovery import RECALL_SECONDS
from distro_node.protocol.wire.messages import (
    NO_BLOCK,
    Ballot,
    Message,
    Proposal,
    decode_message,
)
from seeds import seeds
from simulation.chain import FINGERPRINT, Chain
from simulation.swarm import Swarm, toy_manifest

E = TypeVar("E")


def of(kind: type[E], effects: Iterable[Effect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def ballots(effects: Iterable[Effect]) -> list[Message]:
    envelopes = [effect.envelope for effect in of(Publish, effects)]
    return [m for m in map(decode_message, envelopes) if isinstance(m, Ballot)]


@pytest.fixture
def chain() -> Chain:
    """Return a chain at round 2, with members 0 to 3."""
    chain = Chain(4)
    chain.grow()
    return chain


def gather(chain: Chain, member: Member, now: float = 0.0) -> list[Effect]:
    """Deliver all updates and the leader's proposal."""
    effects: list[Effect] = []
    for peer in chain.membership.peers:
        # Its own, too: sent before a restart, and remembered by others.
        said = chain.announcement(peer)
        effects += member.handle(MessageReceived(chain.envelope(peer, "announcement", said)), now)
        effects += member.handle(UpdateHeld(said.update), now)
    leader = member.parts.round.consensus.leader(1)
    if leader != member.view.me:
        proposal = Proposal(1, chain.record())
        effects += member.handle(MessageReceived(chain.envelope(leader, "proposal", proposal)), now)
    return effects


def follower(chain: Chain) -> PeerId:
    return chain.leaders[-1]


# Messages from before a restart


def amnesiac(chain: Chain) -> tuple[Member, list[Effect]]:
    """Return a member without memory that would vote if it were sure of itself."""
    member = chain.member(follower(chain), recall=True, load=False)
    effects = member.handle(Loaded(1, FINGERPRINT, None), 0.0)
    return member, [*effects, *gather(chain, member)]


def test_it_asks_before_it_casts_its_first_ballot(chain: Chain) -> None:
    member, effects = amnesiac(chain)
    assert of(RecallOwnMessages, effects) == [RecallOwnMessages(2)]
    assert ballots(effects) == []
    assert ballots(member.handle(Recalled(1), 0.1)) == []
    assert ballots(member.handle(Recalled(2), 0.2)) == [chain.ballot(chain.record().id)]


def test_it_waits_for_a_while_only(chain: Chain) -> None:
    member, _ = amnesiac(chain)
    assert ballots(member.handle(Tick(), RECALL_SECONDS - 0.1)) == []
    assert ballots(member.handle(Tick(), RECALL_SECONDS)) == [chain.ballot(chain.record().id)]


def test_it_does_not_contradict_what_others_remember(chain: Chain) -> None:
    member, _ = amnesiac(chain)
    skip = chain.envelope(member.view.me, "skip", chain.ballot(NO_BLOCK))
    effects = member.handle(MessageReceived(skip), 0.1)
    # It is on its own disk again, too, and sent to peers that ask.
    assert of(LogMessage, effects) == [LogMessage(skip)]
    assert skip in member.view.messages(2)
    assert member.handle(MessageReceived(skip), 0.1) == []
    assert ballots(member.handle(Recalled(2), 0.2)) == []
    assert ballots(member.handle(Tick(), RECALL_SECONDS + 1)) == []


def test_in_the_next_round_no_earlier_life_counts(chain: Chain) -> None:
    member, _ = amnesiac(chain)
    decided = chain.grow()
    member.handle(EntryReceived(decided), 0.1)
    member.handle(Applied(2, FINGERPRINT, None), 0.1)
    assert ballots(gather(chain, member, 0.2)) == [chain.ballot(chain.record().id)]


def test_a_lone_member_has_nobody_to_ask() -> None:
    chain = Chain(1)
    chain.grow(updates=[])
    member = chain.member(0, recall=True, load=False)
    effects = member.handle(Loaded(chain.round - 1, FINGERPRINT, None), 0.0)
    assert of(RecallOwnMessages, effects) == []
    own = chain.announcement(0)
    effects += member.handle(
        Trained(chain.round, chain.round, own.update, own.size, own.tokens, own.loss), 1.0
    )
    assert [ballot.block for ballot in ballots(effects) if isinstance(ballot, Ballot)]


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("seed", seeds(6))
def test_members_whose_disks_are_lost_contradict_nothing(count: int, seed: int) -> None:
    """A member's disk is lost at any instant of a round, all but its key. The others remember."""
    swarm = Swarm(toy_manifest(start_members=count), seed)
    nodes = [swarm.add(index) for index in range(count)]
    swarm.run_until(lambda: all(node.member.view.applied_round >= 3 for node in nodes), 60)
    swarm.run_for(2.0 * swarm.random.random())
    victim = nodes[-1]
    victim.stop()
    # Its messages have arrived.
    swarm.run_for(0.5)
    swarm.nodes.remove(victim)
    swarm.add(victim.index)
    target = max(node.member.view.round for node in swarm.alive) + 4
    swarm.run_until(
        lambda: all(node.member.view.applied_round >= target for node in swarm.alive), 200
    )
    assert not any(note.kind == "expelled" for node in swarm.nodes for note in node.notes)


# Votes


def test_what_is_voted_for_is_on_disk_before_the_vote(chain: Chain) -> None:
    member = chain.member(follower(chain))
    effects = gather(chain, member)
    (remember,) = of(LogMessage, [e for e in effects if not _is_announcement(e)])
    assert decode_message(remember.envelope) == Proposal(1, chain.record())
    (vote,) = (e for e in of(Publish, effects) if e.envelope.kind == "vote")
    assert effects.index(remember) < effects.index(vote)
    # The same record in a later slot is not kept twice.
    for peer in chain.membership.peers:
        if peer != member.view.me:
            skip = chain.envelope(peer, "skip", chain.ballot(NO_BLOCK))
            effects = member.handle(MessageReceived(skip), 1.0)
    leader = member.parts.round.consensus.leader(2)
    if leader != member.view.me:
        again = chain.envelope(leader, "proposal", Proposal(2, chain.record()))
        effects = member.handle(MessageReceived(again), 1.0)
    assert ballots(effects)
    assert of(LogMessage, effects) == []


def _is_announcement(effect: Effect) -> bool:
    return isinstance(effect, LogMessage) and effect.envelope.kind == "announcement"


def test_who_has_finalized_knows_the_votes_after_a_restart(chain: Chain) -> None:
    """All others that knew them were restarted, and a liar withholds its own: without them the members
    could not go on from the record, and one that has finalized it may not skip its slot."""
    voter = follower(chain)
    member = chain.member(voter)
    effects = gather(chain, member)
    record = chain.record()
    others = [peer for peer in chain.membership.peers if peer != voter]
    for peer in others:
        vote = chain.envelope(peer, "vote", chain.ballot(record.id))
        effects += member.handle(MessageReceived(vote), 0.0)
    said = [effect.envelope for effect in effects if isinstance(effect, (Publish, LogMessage))]
    votes = {envelope.sender for envelope in said if envelope.kind == "vote"}
    finalize = next(i for i, envelope in enumerate(said) if envelope.kind == "finalize")
    # They are on the disk before it is sent: those of a quorum, the own one among them.
    assert votes == {envelope.sender for envelope in said[:finalize] if envelope.kind == "vote"}
    assert len(votes) >= 3
    again = chain.member(voter, said=said)
    assert again.parts.round.consensus.certified(record.id)
    served = {envelope.sender for envelope in again.view.messages(2) if envelope.kind == "vote"}
    assert served == votes
    # Restored messages do not make their senders present.
    assert not again.parts.liveness.silent(1e9, 0.0)
    assert again.parts.round.is_abandoned(100.0)


def test_a_voter_that_was_restarted_serves_and_repeats_the_record(chain: Chain) -> None:
    """The leader and its disk are gone; all that received the certified proposal were restarted."""
    leaders = chain.leaders
    voter = leaders[1]
    member = chain.member(voter)
    effects = gather(chain, member)
    said = [effect.envelope for effect in effects if isinstance(effect, (Publish, LogMessage))]
    again = chain.member(voter, said=said, load=False)
    again.handle(Loaded(1, FINGERPRINT, None), 0.0)
    assert any(envelope.kind == "proposal" for envelope in again.view.messages(2))
    record = chain.record()
    effects = []
    for peer in chain.membership.peers:
        update = chain.announcement(peer).update
        effects += again.handle(UpdateHeld(update), 0.0)
        if peer not in (voter, leaders[0]):
            vote = chain.envelope(peer, "vote", chain.ballot(record.id))
            effects += again.handle(MessageReceived(vote), 0.0)
    # It leads slot 2 and repeats the record that a quorum has voted for.
    effects += again.handle(Tick(), 5.0)
    proposals = [
        message
        for effect in of(Publish, effects)
        if isinstance(message := decode_message(effect.envelope), Proposal)
    ]
    assert proposals == [Proposal(2, record)]
