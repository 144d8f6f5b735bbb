"""One member against handmade messages: what it sends, what it refuses, what it does not believe."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
from distro_node.crypto.envelope import Envelope
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.certificates import silenced
from distro_node.protocol.member.effects import (
    Apply,
    AskSync,
    CompareChains,
    Effect,
    FetchUpdate,
    Note,
    Publish,
    Resync,
    StoreEntry,
    Train,
)
from distro_node.protocol.member.inputs import (
    Applied,
    EntryReceived,
    LeaveRequested,
    Loaded,
    MessageReceived,
    Rebased,
    Tick,
    Trained,
    UpdateBad,
    UpdateHeld,
)
from distro_node.protocol.member.member import Member
from distro_node.protocol.member.message_store import FUTURE_ROUNDS, MEMBER_BYTES, NEWCOMER_BYTES
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import (
    BALLOT_KINDS,
    NO_BLOCK,
    Announcement,
    Ballot,
    BallotHalf,
    Evidence,
    Heartbeat,
    JoinRequest,
    Leave,
    Message,
    Proposal,
    Record,
    RecordId,
    UpdateEntry,
    decode_message,
)
from simulation.chain import FINGERPRINT, Chain, by_invitation, ticket, update_of
from simulation.swarm import identity

E = TypeVar("E")
LEASE = 6.0  # toy_manifest's lease_min_seconds


def of(kind: type[E], effects: Iterable[Effect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def said(effects: Iterable[Effect], *kinds: str) -> list[Message]:
    return [
        decode_message(effect.envelope)
        for effect in of(Publish, effects)
        if not kinds or effect.envelope.kind in kinds
    ]


class Seat:
    """Member of a chain, with all others as puppets."""

    def __init__(
        self, count: int = 4, *, leads: bool = False, grown: int = 1, **options: Any
    ) -> None:
        self.chain = Chain(count, **options)
        for _ in range(grown):
            self.chain.grow()
        leaders = self.chain.leaders
        self.leader = leaders[0]
        self.me = leaders[0] if leads else leaders[-1]
        self.others = [peer for peer in self.chain.membership.peers if peer != self.me]
        self.now = 0.0
        self.member = self.chain.member(self.me)

    def receives(self, who: PeerId, kind: str, message: Message) -> list[Effect]:
        return self.member.handle(
            MessageReceived(self.chain.envelope(who, kind, message)), self.now
        )

    def refuses(self, who: int | PeerId, kind: str, message: Message) -> str:
        with pytest.raises(ProtocolError) as caught:
            self.member.handle(MessageReceived(self.chain.envelope(who, kind, message)), self.now)
        return caught.value.reason

    def trains(self) -> list[Effect]:
        round_ = self.chain.round
        return self.member.handle(
            Trained(round_, round_, update_of(self.me, round_), 1000, 500, 2.5), self.now
        )

    def gathers(self, *peers: PeerId) -> list[Effect]:
        """Deliver all (or these peers') announcements and updates."""
        effects: list[Effect] = []
        for peer in peers or self.others:
            announcement = self.chain.announcement(peer)
            effects += self.receives(peer, "announcement", announcement)
            effects += self.member.handle(UpdateHeld(announcement.update), self.now)
        return effects

    def proposal(self, record: Record | None = None, slot: int = 1) -> list[Effect]:
        record = record or self.chain.record()
        leader = self.member.parts.round.consensus.leader(slot)
        return self.receives(leader, "proposal", Proposal(slot, record))

    def ballots(
        self, kind: str, block: RecordId, *, slot: int = 1, silent: Iterable[PeerId] = ()
    ) -> list[Effect]:
        effects: list[Effect] = []
        silent = set(silent)
        for peer in self.others:
            if peer not in silent:
                ballot = self.chain.ballot(block, slot=slot, silent=silent)
                effects += self.receives(peer, kind, ballot)
        return effects

    def waits(self, seconds: float, *alive: PeerId) -> list[Effect]:
        """Let time pass; these peers (or all) send heartbeats."""
        effects: list[Effect] = []
        for _ in range(int(seconds / 0.5)):
            self.now += 0.5
            for peer in alive:
                effects += self.receives(
                    peer, "heartbeat", Heartbeat(self.chain.round, int(self.now * 2))
                )
            effects += self.member.handle(Tick(), self.now)
        return effects


# A round


def test_a_round_from_training_to_applying() -> None:
    seat = Seat(leads=True)
    (train,) = of(Train, seat.member.handle(Loaded(1, FINGERPRINT, None), 0.0))
    assert (train.round, train.parent) == (2, seat.chain.ledger.head)
    (announcement,) = said(seat.trains())
    assert announcement == seat.chain.announcement(seat.me)
    effects = seat.gathers()
    assert {fetch.peer for fetch in of(FetchUpdate, effects)} == set(seat.others)
    proposal, vote = said(effects)
    record = seat.chain.record()
    assert proposal == Proposal(1, record)
    assert vote == seat.chain.ballot(record.id)
    (finalize,) = said(seat.ballots("vote", record.id))
    assert finalize == seat.chain.ballot(record.id)
    effects = seat.ballots("finalize", record.id)
    (keep,) = of(StoreEntry, effects)
    assert keep.decided.record == record
    (apply,) = of(Apply, effects)
    assert (apply.record, apply.own_counted, apply.snapshot_due) == (record, True, False)
    assert seat.member.view.round == 3
    assert of(Train, seat.member.handle(Applied(2, FINGERPRINT, None), 1.0))[0].round == 3


def test_an_update_that_counts_in_the_name_of_another_is_not_given_back() -> None:
    """The leader received the copy first; what is applied may not go back into the momentum."""
    seat = Seat()
    seat.trains()
    copycat, *others = seat.others
    copy = seat.chain.update(copycat, update=update_of(seat.me, 2))
    seat.gathers(*others)
    record = seat.chain.record(updates=[copy, *(seat.chain.update(peer) for peer in others)])
    seat.proposal(record)
    effects = [*seat.ballots("vote", record.id), *seat.ballots("finalize", record.id)]
    (apply,) = of(Apply, effects)
    assert apply.own_counted


def test_what_must_survive_is_durable() -> None:
    seat = Seat(leads=True)
    effects = [*seat.trains(), *seat.gathers(), *seat.ballots("vote", seat.chain.record().id)]
    effects += seat.member.handle(LeaveRequested(), 0.0)
    durable = {e.envelope.kind: e.durable for e in of(Publish, effects)}
    assert durable == dict.fromkeys(["announcement", "proposal", "vote", "finalize", "leave"], True)
    (beat,) = of(Publish, Seat().waits(2.0))
    assert (beat.envelope.kind, beat.durable) == ("heartbeat", False)


# Votes


def ready(seat: Seat) -> Seat:
    seat.trains()
    seat.gathers()
    return seat


def test_a_vote_for_what_is_held_and_right() -> None:
    seat = ready(Seat())
    assert said(seat.proposal()) == [seat.chain.ballot(seat.chain.record().id)]


def test_no_vote_for_other_parameters() -> None:
    seat = ready(Seat())
    other = seat.chain.record(
        fingerprint=8, updates=[seat.chain.update(peer, fingerprint=8) for peer in seat.others]
    )
    effects = seat.proposal(other)
    assert said(effects) == []
    assert [note.kind for note in of(Note, effects)] == ["mismatch"]
    assert said(seat.member.handle(Tick(), 0.2)) == []


def test_no_vote_before_everything_is_held() -> None:
    seat = Seat()
    seat.trains()
    *early, late = seat.others
    seat.gathers(*early)
    effects = seat.proposal()
    assert said(effects) == []
    assert [fetch.update for fetch in of(FetchUpdate, effects)] == [update_of(late, 2)]
    # It is not requested again, and a vote follows when it is there.
    assert seat.member.handle(Tick(), 0.2) == []
    effects = seat.member.handle(UpdateHeld(update_of(late, 2)), 0.3)
    assert said(effects) == [seat.chain.ballot(seat.chain.record().id)]


def test_no_vote_for_a_bad_update() -> None:
    seat = Seat()
    seat.trains()
    *good, bad = seat.others
    seat.gathers(*good)
    seat.receives(bad, "announcement", seat.chain.announcement(bad))
    seat.member.handle(UpdateBad(update_of(bad, 2)), 0.0)
    assert said(seat.proposal()) == []
    assert seat.member.parts.round.collection.outstanding(set(seat.chain.membership.peers)) == set()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda seat: {"updates": [dataclasses.replace(seat.chain.update(seat.me), loss=1.0)]},
        lambda seat: {"departed": [seat.chain.leave(20, 2)]},
        lambda seat: {"admitted": [dataclasses.replace(seat.chain.admission(20), peer=seat.me)]},
        lambda seat: {"snapshot": seat.chain.snapshot(1)},
    ],
)
def test_no_vote_for_what_the_chain_forbids(wrong: Any) -> None:
    seat = ready(Seat())
    assert said(seat.proposal(seat.chain.record(**wrong(seat)))) == []


def test_no_vote_for_another_snapshot() -> None:
    seat = Seat(grown=2, snapshot_interval=2)
    good = seat.chain.snapshot(2)
    assert good == seat.chain.record().snapshot
    bad = dataclasses.replace(good, blob=update_of(seat.me, 1))
    for snapshot, votes in ((good, 1), (bad, 0), (None, 0)):
        seat.member = seat.chain.member(seat.me, load=False)
        seat.member.handle(Loaded(2, FINGERPRINT, snapshot), 0.0)
        ready(seat)
        assert len(said(seat.proposal(), "vote")) == votes


def test_silence_is_agreed_to_by_those_who_noticed_it() -> None:
    seat = Seat()
    seat.trains()
    gone, *here = [peer for peer in seat.others if peer != seat.leader]
    here.append(seat.leader)
    seat.gathers(*here)
    record = seat.chain.record(
        updates=[seat.chain.update(peer) for peer in (seat.me, *here)],
        departed=[seat.chain.silence(gone)],
    )
    assert said(seat.proposal(record)) == []
    effects = seat.waits(LEASE + 1, *here)
    votes = [vote for vote in said(effects, "vote") if isinstance(vote, Ballot)]
    assert votes
    assert votes[-1].block == record.id
    assert votes[-1].silent == seat.chain.membership.mask([gone])


def test_a_certified_accusation_is_not_judged_again() -> None:
    """The accused came back between the votes and the finalizes. The block must be repeated, since it
    may be decided somewhere; if it were refused now, the round would never end."""
    seat = Seat()
    chain = seat.chain
    seat.trains()
    gone, *here = [peer for peer in seat.others if peer != seat.leader]
    here.append(seat.leader)
    seat.gathers()
    record = chain.record(
        updates=[chain.update(peer) for peer in (seat.me, *here)], departed=[chain.silence(gone)]
    )
    assert said(seat.proposal(record)) == []
    for peer in seat.others:
        seat.receives(peer, "skip", chain.ballot(NO_BLOCK))
    assert said(seat.proposal(record, slot=2)) == []
    assert not seat.member.parts.round.consensus.certified(record.id)
    effects = seat.ballots("vote", record.id)
    assert seat.member.parts.round.consensus.certified(record.id)
    assert said(effects, "vote") == [chain.ballot(record.id, slot=2)]


def test_a_slot_that_cannot_decide_is_skipped_with_the_others() -> None:
    """A member that was restarted has forgotten the swarm's pace and skips early; if the others waited
    for their own timers, each slot would take its maximum time."""
    seat = Seat()
    seat.trains()
    first, second, *_ = [peer for peer in seat.others if peer != seat.leader]
    skip = seat.chain.ballot(NO_BLOCK)
    assert said(seat.receives(first, "skip", skip)) == []
    assert said(seat.receives(second, "skip", skip)) == [skip]


def test_one_update_a_member_and_round() -> None:
    """A second announcement is an offence, and causes no download."""
    seat = Seat()
    peer = seat.others[0]
    assert of(FetchUpdate, seat.receives(peer, "announcement", seat.chain.announcement(peer)))
    for number in range(3):
        second = seat.chain.announcement(peer, update=update_of(peer, 100 + number))
        assert seat.refuses(peer, "announcement", second) == "equivocation"
    own = seat.trains()
    assert said(own, "announcement")
    assert seat.trains() == []


# Contradictions


def contradicts(seat: Seat, peer: PeerId) -> Evidence:
    """Have `peer` vote for two blocks; return the member's evidence."""
    proof = seat.chain.evidence(peer)
    assert isinstance(proof.first, BallotHalf)
    assert isinstance(proof.second, BallotHalf)
    seat.receives(peer, "vote", seat.chain.ballot(proof.first.block))
    assert seat.refuses(peer, "vote", seat.chain.ballot(proof.second.block)) == "equivocation"
    (accusation,) = said(seat.member.handle(Tick(), seat.now), "evidence")
    assert accusation == proof
    return proof


def test_a_contradiction_is_reported_once_and_recorded_by_the_leader() -> None:
    seat = Seat(leads=True)
    liar = seat.others[0]
    proof = contradicts(seat, liar)
    assert said(seat.member.handle(Tick(), seat.now + 0.2), "evidence") == []
    seat.trains()
    (proposal,) = (m for m in said(seat.gathers()) if isinstance(m, Proposal))
    assert proposal.record.evidence == (proof,)
    block = proposal.record.id
    seat.others.remove(liar)
    effects = [*seat.ballots("vote", block), *seat.ballots("finalize", block)]
    assert ("expelled", liar) in [(note.kind, note.peer) for note in of(Note, effects)]
    assert liar not in seat.member.view.members
    assert not seat.member.view.is_expelled


def test_who_received_a_contradiction_records_it_and_hands_it_on() -> None:
    seat = Seat(leads=True)
    liar, accuser, *_ = seat.others
    proof = seat.chain.evidence(liar)
    assert said(seat.receives(accuser, "evidence", proof)) == []
    (kept,) = (e for e in seat.member.view.messages(seat.chain.round) if e.kind == "evidence")
    assert (kept.sender, decode_message(kept)) == (accuser, proof)
    seat.trains()
    (proposal,) = (m for m in said(seat.gathers()) if isinstance(m, Proposal))
    assert proposal.record.evidence == (proof,)


def test_accusations_that_do_not_hold() -> None:
    seat = Seat()
    liar, accuser, *_ = seat.others
    proof = seat.chain.evidence(liar)
    false = dataclasses.replace(proof, peer=seat.me)
    assert seat.refuses(accuser, "evidence", false) == "evidence"
    assert seat.refuses(20, "evidence", proof) == "not_member"
    early = seat.chain.evidence(liar, round=seat.chain.round + 1)
    assert seat.refuses(accuser, "evidence", early) == "other_round"
    assert seat.member.view.messages(seat.chain.round) == []


def test_who_is_expelled_knows_it_and_asks_no_more() -> None:
    chain = Chain(3)
    chain.grow(evidence=(chain.evidence(2),))
    member = chain.member(2)
    assert member.view.is_expelled
    effects = [effect for second in range(5) for effect in member.handle(Tick(), float(second))]
    assert said(effects, "join") == []
    # Nor would it be heard: its request is not a message that peers forward.
    other = chain.member(1)
    with pytest.raises(ProtocolError) as caught:
        other.handle(MessageReceived(chain.envelope(2, "join", JoinRequest(chain.round, b""))), 0.0)
    assert caught.value.reason == "not_member"


def test_a_newcomer_asks_though_the_last_rounds_are_still_on_their_way() -> None:
    """Where rounds are shorter than an update's transfer it would otherwise never ask."""
    chain = Chain(3)
    chain.grow()
    newcomer = chain.member(20)
    assert said(newcomer.handle(Tick(), 3.0), "join")
    for behind in range(1, 7):
        newcomer.handle(EntryReceived(chain.grow()), 3.0 * behind)
        # It tries for ten seconds to catch up first.
        asked = [
            bool(said(newcomer.handle(Tick(), now), "join")) for now in (12.9, 13.1 + 3.0 * behind)
        ]
        assert asked == [False, behind <= 4]


def test_who_asks_where_no_member_is_left_compares_the_chains_again() -> None:
    chain = Chain(3)
    chain.grow()
    newcomer = chain.member(20)
    lease = newcomer.parts.timeouts.lease
    newcomer.handle(
        MessageReceived(chain.envelope(1, "heartbeat", Heartbeat(chain.round, 1))), lease
    )
    for now in (lease, 2.9 * lease):
        assert not newcomer.view.is_abandoned(now)
        assert of(CompareChains, newcomer.handle(Tick(), now)) == []
    assert newcomer.view.is_abandoned(3.1 * lease)
    assert of(CompareChains, newcomer.handle(Tick(), 3.1 * lease)) == [
        CompareChains(chain.round - 1)
    ]
    # A member waits where it is: silent members are counted out.
    assert not chain.member(2).view.is_abandoned(9 * lease)


# What is refused


def test_messages_of_strangers_and_other_rounds() -> None:
    seat = Seat(grown=5)
    peer, chain = seat.others[0], seat.chain
    assert seat.refuses(20, "heartbeat", Heartbeat(chain.round, 1)) == "not_member"
    assert seat.refuses(20, "announcement", chain.announcement(20)) == "not_member"
    for round_ in (0, chain.round - 2, chain.round + FUTURE_ROUNDS + 1, 2**63 - 1):
        assert seat.refuses(peer, "heartbeat", Heartbeat(round_, 1)) == "other_round"
    seat.receives(peer, "heartbeat", Heartbeat(chain.round - 1, 1))
    seat.receives(peer, "heartbeat", Heartbeat(chain.round + FUTURE_ROUNDS, 2))
    elsewhere = chain.ballot(NO_BLOCK, parent=RecordId(bytes(32)))
    assert seat.refuses(peer, "skip", elsewhere) == "wrong_parent"


def test_joiners_are_no_members_yet() -> None:
    seat = Seat()
    chain = seat.chain
    seat.member.handle(MessageReceived(chain.envelope(20, "join", JoinRequest(2, b""))), 0.0)
    assert seat.refuses(20, "announcement", chain.announcement(20)) == "not_member"
    assert seat.refuses(20, "proposal", Proposal(1, chain.record())) == "not_leader"
    assert seat.refuses(20, "skip", chain.ballot(NO_BLOCK)) == "not_member"
    assert seat.refuses(20, "leave", Leave(2)) == "not_member"


def test_kinds_that_do_not_exist() -> None:
    seat = Seat()
    for kind in ("", "gossip", "record", "votes"):
        envelope = dataclasses.replace(
            seat.chain.envelope(seat.others[0], "skip", seat.chain.ballot(NO_BLOCK)), kind=kind
        )
        with pytest.raises(ProtocolError) as caught:
            seat.member.handle(MessageReceived(envelope), 0.0)
        assert caught.value.reason == "unknown_kind"


def test_own_messages_that_come_back_change_nothing() -> None:
    seat = Seat()
    (own,) = of(Publish, seat.trains())
    assert seat.member.handle(MessageReceived(own.envelope), 0.0) == []


def test_invitations_are_checked_before_anything_is_passed_on() -> None:
    issuer, policy = by_invitation()
    chain = Chain(0, admission=policy, start_members=2)
    founder = chain.member(0, load=False)
    founder.handle(Loaded(-1, FINGERPRINT, None), 0.0)

    def ask(who: int, invitation: bytes) -> list[Effect]:
        request = JoinRequest(0, invitation)
        return founder.handle(MessageReceived(chain.envelope(who, "join", request)), 0.0)

    good = ticket(chain.manifest, issuer, identity(1).peer)
    for who, bad in ((1, b""), (1, bytes(64)), (2, good)):
        with pytest.raises(ProtocolError) as caught:
            ask(who, bad)
        assert caught.value.reason == "not_member"
    (keep,) = of(StoreEntry, ask(1, good))
    assert [entry.peer for entry in keep.decided.record.admitted] == [identity(1).peer]
    newcomer = chain.member(1, load=False, ticket=good)
    newcomer.handle(Loaded(-1, FINGERPRINT, None), 0.0)
    assert said(newcomer.handle(Tick(), 3.0), "join") == [JoinRequest(0, good)]


# Liveness


def replayed(seat: Seat, envelopes: list[Envelope], seconds: float) -> None:
    """Let all others keep repeating these messages."""
    for _ in range(int(seconds / 0.5)):
        seat.now += 0.5
        for envelope in envelopes:
            try:
                seat.member.handle(MessageReceived(envelope), seat.now)
            except ProtocolError:
                continue
        seat.member.handle(Tick(), seat.now)


def test_messages_of_the_dead_keep_nobody_alive() -> None:
    seat = Seat()
    chain, dead = seat.chain, seat.others[0]
    record = chain.record()
    mask = [seat.others[1]]
    messages: list[tuple[str, Message]] = [
        ("announcement", chain.announcement(dead)),
        ("heartbeat", Heartbeat(2, 7)),
        ("heartbeat", Heartbeat(2, 8)),
        ("heartbeat", Heartbeat(1, 6)),
        ("vote", chain.ballot(record.id)),
        ("vote", chain.ballot(record.id, silent=mask)),
        ("skip", chain.ballot(NO_BLOCK)),
        ("skip", chain.ballot(NO_BLOCK, silent=mask)),
        ("skip", chain.ballot(NO_BLOCK, round=3)),
        ("skip", chain.ballot(NO_BLOCK, round=1)),
    ]
    envelopes = [chain.envelope(dead, kind, message) for kind, message in messages]
    replayed(seat, envelopes, LEASE + 1.0)
    assert dead in seat.member.parts.liveness.silent(LEASE, seat.now)


def test_a_leave_of_before_does_not_disturb_who_came_back() -> None:
    """A leave is a signed message that any peer can repeat."""
    seat = Seat()
    chain, peer = seat.chain, seat.others[0]
    leave = chain.envelope(peer, "leave", Leave(2))
    assert seat.member.handle(MessageReceived(leave), 0.0) is not None
    assert seat.member.parts.liveness.leaving() == {peer}
    back = chain.admission(index(peer), 3)
    rounds: list[dict[str, Any]] = [{"departed": [chain.leave(peer)]}, {"admitted": [back]}]
    for parts in rounds:
        seat.member.handle(EntryReceived(chain.grow(**parts)), 0.0)
        if peer not in seat.member.view.members:
            request = chain.envelope(peer, "join", JoinRequest(3, b""))
            seat.member.handle(MessageReceived(request), 0.0)
        with pytest.raises(ProtocolError):
            seat.member.handle(MessageReceived(leave), 0.0)
        assert seat.member.parts.liveness.leaving() == set()
    assert peer in seat.member.view.members


def index(peer: PeerId) -> int:
    return next(i for i in range(64) if identity(i).peer == peer)


def test_a_leave_that_came_a_round_late_counts() -> None:
    seat = Seat()
    peer = seat.others[0]
    leave = seat.chain.envelope(peer, "leave", Leave(2))
    seat.member.handle(EntryReceived(seat.chain.grow()), 0.0)
    seat.member.handle(MessageReceived(leave), 0.0)
    assert seat.member.parts.liveness.leaving() == {peer}


def test_who_slept_does_not_take_the_others_for_dead() -> None:
    """A laptop is opened: messages may be handled before the clock ticks. It must not decide alone
    because it heard no other member for hours."""
    seat = Seat(leads=True)
    seat.trains()
    seat.waits(2.0, *seat.others)
    seat.now = 3600.0
    peer = seat.others[0]
    effects = seat.receives(peer, "announcement", seat.chain.announcement(peer))
    effects += seat.member.handle(Tick(), seat.now)
    assert of(StoreEntry, effects) == []
    assert all(not any(m.silent) for m in said(effects) if isinstance(m, Ballot))
    assert seat.member.parts.liveness.silent(LEASE, seat.now) == set()


def test_who_has_been_alone_for_a_lease_goes_on_alone() -> None:
    seat = Seat()
    seat.trains()
    effects = seat.waits(4 * LEASE)
    (keep,) = of(StoreEntry, effects)
    certificate = keep.decided.certificate
    assert [signed.peer for signed in certificate.ballots] == [seat.me]
    assert silenced(certificate, seat.chain.membership) == set(seat.others)


# Certificates that declare this member silent


def test_a_member_is_not_bound_by_who_calls_it_silent() -> None:
    seat = ready(Seat())
    chain = seat.chain
    seat.member.handle(EntryReceived(chain.grow()), seat.now)
    record = chain.record(departed=[chain.silence(seat.me)])
    decided = chain.decide(record, silent=[seat.me])
    with pytest.raises(ProtocolError) as caught:
        seat.member.handle(EntryReceived(decided), seat.now)
    assert caught.value.reason == "silences_us"
    assert seat.member.view.round == 3
    # Nor by the same ballots one by one.
    slot = 1 if seat.member.parts.round.consensus.leader(1) != seat.me else 2
    for peer in seat.others:
        ballot = chain.ballot(record.id, silent=[seat.me], slot=slot)
        seat.receives(peer, "finalize", ballot)
    seat.proposal(record, slot=slot)
    assert seat.member.view.round == 3
    # Unless it saw no decision for a lease: then it was cut off.
    seat.waits(LEASE - 1.0, *seat.others)
    assert seat.member.view.round == 3
    seat.waits(2.0, *seat.others)
    assert seat.member.view.round == 4
    assert not seat.member.view.is_member


def test_a_newcomer_believes_certificates_about_who_is_silent() -> None:
    """It has observed nothing yet and knows no better; neither does a member that was restarted."""
    seat = Seat()
    chain = seat.chain
    decided = chain.decide(chain.record(departed=[chain.silence(seat.me)]), silent=[seat.me])
    assert of(StoreEntry, seat.member.handle(EntryReceived(decided), 0.0))


def test_a_quorum_for_what_the_chain_forbids_is_not_followed() -> None:
    """More byzantine members than the model allows can stop a member, but not make it fail."""
    seat = ready(Seat())
    chain = seat.chain
    bad = chain.record(updates=[dataclasses.replace(chain.update(seat.me), loss=1.0)])
    seat.proposal(bad)
    seat.ballots("vote", bad.id)
    seat.ballots("finalize", bad.id)
    assert of(StoreEntry, seat.waits(3.0, *seat.others)) == []
    assert seat.member.view.round == 2
    with pytest.raises(ProtocolError) as caught:
        seat.member.handle(EntryReceived(chain.decide(bad)), seat.now)
    assert caught.value.reason == "record"


# Behind, ahead, on another chain


def test_messages_of_the_next_rounds_wait_for_them() -> None:
    seat = ready(Seat())
    chain = seat.chain
    decided = chain.grow()
    early = [chain.envelope(p, "announcement", chain.announcement(p)) for p in seat.others]
    for envelope in early:
        assert of(FetchUpdate, seat.member.handle(MessageReceived(envelope), 0.0)) == []
    assert seat.member.view.round == 2
    effects = seat.member.handle(EntryReceived(decided), 0.0)
    assert {fetch.update for fetch in of(FetchUpdate, effects)} == {
        update_of(peer, 3) for peer in seat.others
    }
    assert seat.member.view.messages(3) == early


def test_messages_that_turn_out_wrong_are_dropped_when_their_round_comes() -> None:
    seat = ready(Seat())
    chain = seat.chain
    peer = seat.others[0]
    seat.receives(peer, "skip", chain.ballot(NO_BLOCK, round=3, parent=RecordId(bytes(32))))
    seat.receives(peer, "vote", chain.ballot(NO_BLOCK, round=3))
    seat.member.handle(EntryReceived(chain.grow()), 0.0)
    assert seat.member.view.round == 3
    assert seat.member.parts.round.consensus.pending_ballots() == []


def test_entries_of_the_ledger_arrive() -> None:
    seat = Seat()
    chain = seat.chain
    first, second = chain.grow(), chain.grow()
    assert seat.member.handle(EntryReceived(second), 0.0) == []
    assert of(StoreEntry, seat.member.handle(EntryReceived(first), 0.0))
    assert seat.member.handle(EntryReceived(first), 0.0) == []
    assert of(StoreEntry, seat.member.handle(EntryReceived(second), 0.0))
    assert seat.member.view.round == 4


def test_entries_of_another_chain_are_compared() -> None:
    seat = Seat(grown=3)
    chain = seat.chain
    other = chain.fork()
    other.grow(updates=[])
    chain.grow()
    chain.grow()
    seat.member = chain.member(seat.me)
    assert seat.member.handle(EntryReceived(other.ledger[4]), 0.0) == [CompareChains(4)]
    other.grow()
    assert seat.member.handle(EntryReceived(other.grow()), 0.0) == [CompareChains(5)]


def asks(effects: Iterable[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, (AskSync, CompareChains))]


def test_messages_of_another_chain_make_us_compare() -> None:
    """Peers that parted from us count their own rounds; only known peers can mean another chain."""
    seat = Seat(grown=3)
    chain, gone = seat.chain, seat.others[0]
    other = chain.fork()
    chain.grow(departed=[chain.silence(gone)], silent=[gone])
    for _ in range(4):
        chain.grow()
    seat.member = chain.member(seat.me)
    seat.now = 50.0
    stray = other.ballot(NO_BLOCK)
    assert seat.refuses(gone, "skip", stray) == "other_round"
    assert CompareChains(chain.round - 1) not in asks(seat.member.handle(Tick(), seat.now))
    # That was our chain, though old. Now another one:
    astray = other.ballot(NO_BLOCK, parent=RecordId(b"x" * 32))
    assert seat.refuses(20, "skip", astray) == "other_round"
    assert CompareChains(chain.round - 1) not in asks(seat.member.handle(Tick(), seat.now))
    seat.refuses(gone, "skip", astray)
    assert CompareChains(chain.round - 1) in asks(seat.member.handle(Tick(), seat.now))
    # Rate-limited, however often a peer provokes it.
    seat.refuses(gone, "skip", astray)
    assert CompareChains(chain.round - 1) not in asks(seat.waits(8.0))
    assert CompareChains(chain.round - 1) in asks(seat.waits(3.0))
    # And a peer that is ahead, although our chain counts it out.
    seat.refuses(gone, "heartbeat", Heartbeat(chain.round + 50, 1))
    assert CompareChains(chain.round - 1) in asks(seat.waits(10.5))


def test_who_is_behind_asks_sooner() -> None:
    seat = Seat()
    seat.member.handle(Tick(), 0.5)
    assert asks(seat.member.handle(Tick(), 1.0)) == []
    seat.receives(seat.others[0], "heartbeat", Heartbeat(3, 1))
    assert asks(seat.member.handle(Tick(), 1.5)) == [AskSync(2)]
    assert asks(seat.member.handle(Tick(), 2.0)) == []


def test_wrong_parameters_are_loaded_again() -> None:
    seat = Seat(grown=2)
    seat.member = seat.chain.member(seat.me, load=False)
    effects = seat.member.handle(Loaded(0, FINGERPRINT + 1, None), 0.0)
    assert of(Resync, effects)
    assert of(Apply, seat.member.handle(Tick(), 1.0)) == []
    assert of(FetchUpdate, seat.member.handle(Loaded(0, FINGERPRINT, None), 1.0))


def test_a_change_of_chain_forgets_what_was_under_way() -> None:
    """Applying a record of the old chain may just have begun; its end has no meaning any more."""
    seat = Seat(grown=2)
    chain = seat.chain
    other = chain.fork()
    other.grow(updates=[])
    decided = chain.grow(updates=[])
    assert of(Apply, seat.member.handle(EntryReceived(decided), 0.0))
    assert of(Resync, seat.member.handle(Rebased(other.ledger), 0.0))
    assert seat.member.handle(Applied(3, 99, None), 0.0) == []
    assert seat.member.view.fingerprint is None
    assert of(Train, seat.member.handle(Loaded(3, FINGERPRINT, None), 0.0))


def test_an_update_needed_for_an_earlier_round_is_not_dropped() -> None:
    """A liar announces again what counted before; a member that still waits for another update of that
    earlier record must find it when it applies it."""
    seat = Seat()
    chain, (late, liar, *_) = seat.chain, seat.others
    seat.trains()
    seat.gathers(*[peer for peer in seat.others if peer != late])
    seat.member.handle(EntryReceived(chain.grow()), 0.0)
    again = chain.announcement(liar, update=update_of(liar, 2))
    seat.receives(liar, "announcement", again)
    honest = [chain.update(peer) for peer in seat.others if peer != liar]
    seat.member.handle(EntryReceived(chain.grow(updates=honest)), 0.0)
    effects = seat.member.handle(UpdateHeld(update_of(late, 2)), 0.0)
    assert [apply.record.round for apply in of(Apply, effects)] == [2]


# Leaving


def test_a_leaver_announces_it_and_works_no_more() -> None:
    seat = Seat()
    assert said(seat.member.handle(LeaveRequested(), 0.0)) == [Leave(2)]
    assert said(seat.waits(3.0)) == []
    assert of(Train, seat.member.handle(EntryReceived(seat.chain.grow()), seat.now)) == []


def test_the_founder_may_go_before_anybody_came() -> None:
    chain = Chain(0, start_members=2)
    founder = chain.member(0, load=False)
    founder.handle(Loaded(-1, FINGERPRINT, None), 0.0)
    assert founder.handle(LeaveRequested(), 0.0) == []
    assert founder.view.is_member


# Floods


def kept(member: Member) -> int:
    return sum(
        len(envelope.body)
        for round_ in range(member.view.round, member.view.round + FUTURE_ROUNDS + 1)
        for envelope in member.view.messages(round_)
    )


def test_floods_are_bounded() -> None:
    """What one member and one joiner can make another keep, with the largest possible messages."""
    seat = Seat()
    chain, peer = seat.chain, seat.others[0]
    entries = tuple(
        UpdateEntry(PeerId(bytes(31) + bytes([n])), update_of(peer, n), 1, 1, 0.0, bytes(64))
        for n in range(200)
    )
    seat.member.handle(MessageReceived(chain.envelope(20, "join", JoinRequest(2, b""))), 0.0)
    for who, limit in ((peer, MEMBER_BYTES), (identity(20).peer, NEWCOMER_BYTES)):
        before = kept(seat.member)
        for number in range(200):
            record = chain.record(updates=entries, round=3 + number % 7, fingerprint=number)
            envelope = chain.envelope(who, "proposal", Proposal(number + 1, record))
            seat.member.handle(
                MessageReceived(dataclasses.replace(envelope, signature=bytes(64))), 0.0
            )
        assert kept(seat.member) - before <= limit
    for number in range(2000):
        try:
            seat.receives(peer, "skip", chain.ballot(NO_BLOCK, slot=1 + number))
        except ProtocolError:
            continue
    assert kept(seat.member) <= MEMBER_BYTES + NEWCOMER_BYTES


# Restarts


def test_a_restarted_member_sends_nothing_else() -> None:
    seat = ready(Seat())
    envelopes = [e.envelope for e in of(Publish, [*seat.trains(), *seat.proposal()])]
    assert [envelope.kind for envelope in envelopes] == ["vote"]
    again = seat.chain.member(seat.me, said=envelopes, start_number=2)
    seat.member = again
    seat.gathers()
    other = seat.chain.record(updates=[seat.chain.update(seat.others[0])])
    assert said(seat.proposal(other)) == []
    assert again.parts.round.consensus.pending_ballots()


def test_a_restarted_member_trains_once_a_round() -> None:
    seat = Seat()
    envelopes = [e.envelope for e in of(Publish, seat.trains())]
    again = seat.chain.member(seat.me, said=envelopes, start_number=2, load=False)
    effects = again.handle(Loaded(1, FINGERPRINT, None), 0.0)
    assert of(Train, effects) == []
    # But it requests its own update, which is no longer in its memory.
    assert [fetch.update for fetch in of(FetchUpdate, effects)] == [update_of(seat.me, 2)]


def test_a_restarted_leader_proposes_nothing_else() -> None:
    seat = Seat(leads=True)
    envelopes = [e.envelope for e in of(Publish, [*seat.trains(), *seat.gathers()])]
    kinds = [envelope.kind for envelope in envelopes]
    assert kinds == ["announcement", "proposal", "vote"]
    for count in (2, 3):
        seat.member = seat.chain.member(seat.me, said=envelopes[:count], start_number=2)
        *some, _ = seat.others
        effects = [
            *seat.member.handle(UpdateHeld(update_of(seat.me, 2)), 0.0),
            *seat.gathers(*some),
        ]
        effects += seat.waits(1.0)
        assert said(effects, "proposal") == []


def test_a_lone_member_that_was_killed_at_any_instant_goes_on() -> None:
    """Whatever it had sent and kept by then."""
    seat = Seat(1)
    envelopes = [e.envelope for e in of(Publish, seat.trains())]
    assert [envelope.kind for envelope in envelopes] == [
        "announcement",
        "proposal",
        "vote",
        "finalize",
    ]
    for count in range(len(envelopes) + 1):
        member = seat.chain.member(seat.me, said=envelopes[:count], start_number=2, load=False)
        effects = member.handle(Loaded(1, FINGERPRINT, None), 0.0)
        if count == 0:
            assert of(Train, effects)
            continue
        effects += member.handle(UpdateHeld(update_of(seat.me, 2)), 0.0)
        for _ in range(20):
            effects += member.handle(Tick(), 1.0)
        assert [keep.decided.record.round for keep in of(StoreEntry, effects)] == [2]


def test_messages_about_rounds_that_the_disk_has_lost_are_not_forgotten() -> None:
    """The ledger's last entry was lost in a power failure, the vote in the round after it was not."""
    seat = ready(Seat())
    chain = seat.chain
    before = seat.chain.fork()
    decided = chain.grow()
    seat.member.handle(EntryReceived(decided), 0.0)
    seat.member.handle(Applied(2, FINGERPRINT, None), 0.0)
    ready(seat)
    leader = seat.member.parts.round.consensus.leader(1)
    if leader == seat.me:
        return
    envelopes = [e.envelope for e in of(Publish, seat.proposal())]
    assert [envelope.kind for envelope in envelopes] == ["vote"]
    seat.member = before.member(seat.me, said=envelopes, start_number=2)
    seat.member.handle(EntryReceived(decided), 0.0)
    seat.member.handle(Loaded(2, FINGERPRINT, None), 0.0)
    ready(seat)
    other = chain.record(updates=[chain.update(seat.others[0])])
    assert said(seat.proposal(other), "vote") == []


def test_messages_about_an_abandoned_chain_are_passed_over() -> None:
    seat = Seat()
    envelopes = [
        seat.chain.envelope(seat.me, kind, seat.chain.ballot(NO_BLOCK, parent=RecordId(b"x" * 32)))
        for kind in BALLOT_KINDS
    ]
    member = seat.chain.member(seat.me, said=envelopes, start_number=2)
    assert member.parts.round.consensus.pending_ballots() == []


def test_heartbeats_grow_over_restarts() -> None:
    counts = []
    for start_number in (1, 2):
        seat = Seat()
        seat.member = seat.chain.member(seat.me, start_number=start_number)
        counts += [m.count for m in said(seat.waits(10.0)) if isinstance(m, Heartbeat)]
    assert len(counts) > 6
    assert counts == sorted(set(counts))


def test_who_has_no_parameters_does_not_ask_to_join() -> None:
    chain = Chain(3)
    chain.grow()
    newcomer = chain.member(9, load=False)
    assert said(newcomer.handle(Tick(), 5.0)) == []
    newcomer.handle(Loaded(1, FINGERPRINT, None), 5.0)
    assert said(newcomer.handle(Tick(), 8.5)) == [JoinRequest(2, b"")]
    assert said(newcomer.handle(Tick(), 9.0)) == []
    assert said(newcomer.handle(Tick(), 11.0)) == [JoinRequest(2, b"")]


def test_announcements_are_what_entries_report() -> None:
    chain = Chain(3)
    entry = chain.update(1)
    assert isinstance(chain.announcement(1), Announcement)
    assert chain.record(updates=[entry]).announcement(entry) == chain.announcement(1)


def test_a_goodbye_of_one_s_own_is_no_being_counted_out() -> None:
    seat = ready(Seat())
    seat.member.handle(LeaveRequested(), seat.now)
    decided = seat.chain.grow(departed=[seat.chain.leave(seat.me)])
    notes = of(Note, seat.member.handle(EntryReceived(decided), seat.now))
    assert [(note.kind, note.peer) for note in notes if note.peer] == [("left", seat.me)]
