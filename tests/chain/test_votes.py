"""Rules of votes: their effect where members have different numbers of them, and the rights of members
without votes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import certificates, fork_choice
from distro_node.protocol.chain.consensus import Consensus
from distro_node.protocol.chain.leaders import Leaders
from distro_node.protocol.member.inputs import (
    EntryReceived,
    MessageReceived,
    Tick,
    Trained,
    UpdateHeld,
)
from distro_node.protocol.member.member import Member
from distro_node.protocol.member.update_collection import RoundUpdates
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import PROTOCOL_VERSION
from distro_node.protocol.wire.membership import Membership, Votes
from distro_node.protocol.wire.messages import Decided, Heartbeat, RecordId, SignedBallot
from simulation.chain import Chain, identity, update_of, voting
from simulation.known_chains import carried_on

FOUNDER = identity(0).peer
PEERS = sorted(identity(number).peer for number in range(7))
MEMBERS = Membership(since=dict.fromkeys(PEERS, 0))
BLOCK = RecordId(b"b" * 32)
SWARM = bytes(32)


def _where(votes: dict[PeerId, int]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the case in a swarm with these votes."""

    def case(holds: Callable[..., None]) -> Callable[..., None]:
        @wraps(holds)
        def holding(**parameters: Any) -> None:
            with voting(votes):
                holds(**parameters)

        return holding

    return case


def _append(signers: Iterable[int], silent: Iterable[int] = ()) -> bool:
    """Whether a ledger of four members accepts an entry signed by these."""
    chain = Chain(4)
    record = chain.record()
    try:
        chain.ledger.append(
            chain.decide(
                record,
                signers=[identity(who).peer for who in signers],
                silent=[identity(who).peer for who in silent],
            )
        )
    except ProtocolError:
        return False
    return True


@_where({FOUNDER: 9, identity(1).peer: 1, identity(2).peer: 1, identity(3).peer: 1})
def test_votes_decide() -> None:
    assert _append([0])
    assert not _append([1, 2, 3])


@_where({FOUNDER: 9})
def test_who_has_none_signs_nothing() -> None:
    """Otherwise its mask would keep a member in the count."""
    assert _append([0])
    assert not _append([0, 1])


@_where({FOUNDER: 9})
def test_heirs_count_by_heads() -> None:
    assert _append([1, 2, 3], silent=[0])
    assert not _append([1, 2], silent=[0])


def test_heirs_call_all_silent_who_have_votes() -> None:
    """Two of seven are no quorum if they mark only half of the voters as silent."""
    a, b, *_, c, d = PEERS
    mask = MEMBERS.mask({*PEERS} - {b, c, d})
    ballots = {peer: [SignedBallot(peer, mask, bytes(64))] for peer in (c, d)}
    votes = Votes({a: 1, b: 1})
    assert certificates.find_quorum(ballots, MEMBERS, votes, "crash") is None


@_where({FOUNDER: 9})
def test_what_heirs_decide_is_doubted() -> None:
    """Every member that has not signed it doubts it, however many heirs there are."""
    chain = Chain(7)
    *heirs, other = (identity(who).peer for who in range(1, 7))
    seen = Consensus(
        swarm=chain.manifest.swarm,
        round=chain.round,
        parent=chain.ledger.head,
        membership=chain.membership,
        votes=chain.ledger.votes(chain.round),
        model="byzantine",
        me=other,
    )
    assert seen.doubts(chain.certificate(BLOCK, signers=heirs, silent=[FOUNDER]))


def test_who_has_votes_leads() -> None:
    votes = Votes({PEERS[0]: 1})
    assert all(Leaders(SWARM, round_, MEMBERS, votes)[1] == PEERS[0] for round_ in range(9))


def test_heirs_lead_too() -> None:
    leaders = Leaders(SWARM, 1, MEMBERS, Votes({PEERS[0]: 1}))
    assert {leaders[slot] for slot in range(2, 15, 2)} == set(PEERS)


def test_nothing_is_redrawn() -> None:
    """One audit more or less in a record hardly ever changes the leader."""
    changed = sum(
        Leaders(SWARM, round_, MEMBERS, Votes({PEERS[0]: 500, PEERS[1]: 500}))[1]
        != Leaders(SWARM, round_, MEMBERS, Votes({PEERS[0]: 500, PEERS[1]: 501}))[1]
        for round_ in range(100)
    )
    assert changed < 5


@_where({FOUNDER: 9, identity(1).peer: 1})
def test_votes_make_final() -> None:
    chain = Chain(5)
    for _ in range(12):
        chain.grow(updates=[chain.update(FOUNDER)])
    assert chain.ledger.final_round > 5


@_where({FOUNDER: 9})
def test_votes_choose_the_chain() -> None:
    """The chain of the founder alone wins against that of a crowd."""
    chain = Chain(5).grow_until(3)
    crowd = [identity(who).peer for who in range(1, 5)]
    alone, many = carried_on(chain, [FOUNDER], 3), carried_on(chain, crowd, 3)
    many.ledger.binding = True
    assert fork_choice.prefers(many.ledger, alone.ledger, 3, me=crowd[0], abandoned=False)
    assert not fork_choice.prefers(alone.ledger, many.ledger, 3, me=FOUNDER, abandoned=False)


@_where({FOUNDER: 10, identity(1).peer: 1, identity(2).peer: 1})
def test_votes_change_the_version() -> None:
    chain = Chain(4, version_notice=12)
    chain.ledger.versions.max_version = PROTOCOL_VERSION + 1
    for _ in range(20):
        max_version = {FOUNDER: PROTOCOL_VERSION + 1}
        chain.grow(
            updates=[
                chain.update(peer, max_version=max_version.get(peer, PROTOCOL_VERSION))
                for peer in chain.membership.peers
            ]
        )
    assert chain.ledger.versions.change is not None


def test_a_crowd_has_nobody_load_parameters() -> None:
    chain = Chain(7)
    collection = RoundUpdates(Votes({identity(1).peer: 9}))
    for who in range(2, 7):
        said = chain.announcement(who, fingerprint=666)
        collection.announce(identity(who).peer, said, bytes(64))
    assert not collection.contradicts(7)


class _Founder:
    """A founder that alone has votes and was just started. Its lease is six seconds."""

    def __init__(self, *, updates: bool = True) -> None:
        """`updates`: whether the others' have arrived, so that the round waits for nothing else."""
        self.chain = Chain(4).grow_until(2)
        self.member: Member = self.chain.member(FOUNDER)
        self.start = self.chain.round
        self.others = [peer for peer in self.chain.membership.peers if peer != FOUNDER]
        update = update_of(FOUNDER, self.start)
        self.member.handle(Trained(self.start, self.start, update, 1000, 500, 2.5), 0.0)
        for peer in self.others:
            said = self.chain.announcement(peer)
            self.member.handle(
                MessageReceived(self.chain.envelope(peer, "announcement", said)), 0.0
            )
            if updates:
                self.member.handle(UpdateHeld(said.update), 0.0)

    def until(self, seconds: float, *company: PeerId, since: float = 0.0) -> int:
        """Return how many rounds it has advanced by then, while the members of `company` work on its
        first round."""
        now = since
        while now < seconds:
            now += 0.5
            for peer in company:
                beat = Heartbeat(self.start, int(2 * now))
                self.member.handle(
                    MessageReceived(self.chain.envelope(peer, "heartbeat", beat)), now
                )
            self.member.handle(Tick(), now)
        return self.member.view.round - self.start

    def learns(self, now: float) -> Decided:
        """Let the founder learn of a decision that the others made without it."""
        record = self.chain.record(departed=[self.chain.silence(FOUNDER)])
        decided = self.chain.decide(record, signers=self.others, silent=[FOUNDER])
        # It does not bind yet, which the sender learns as an error.
        with suppress(ProtocolError):
            self.member.handle(EntryReceived(decided), now)
        return decided

    def follows(self, decided: Decided) -> bool:
        ledger = self.member.view.ledger
        return len(ledger) > self.start and ledger.parent(self.start + 1) == decided.record.id


@_where({FOUNDER: 9})
def test_who_could_decide_alone_listens() -> None:
    assert _Founder().until(5.5) == 0


@_where({FOUNDER: 9})
def test_who_has_listened_decides() -> None:
    assert _Founder().until(120.0) > 0


@pytest.mark.parametrize("updates", [True, False])
@_where({FOUNDER: 9})
def test_who_was_away_follows_heirs(updates: bool) -> None:
    """It learns of the decision while it listens, and is not told again. If it waited for the updates,
    it would decide the round alone meanwhile."""
    founder = _Founder(updates=updates)
    decided = founder.learns(3.0)
    early = founder.until(5.5)
    founder.until(8.0, since=5.5)
    assert early == 0
    assert founder.follows(decided)


@_where({FOUNDER: 9})
def test_who_is_not_left_alone_follows_no_crowd() -> None:
    """One member is at work on the same round: it has not missed the founder for a lease."""
    founder = _Founder()
    waits, *crowd = founder.others
    founder.others = crowd
    record = founder.chain.record(departed=[founder.chain.silence(FOUNDER)])
    decided = founder.chain.decide(record, signers=crowd, silent=[FOUNDER, waits])
    founder.until(6.0, waits)
    assert not founder.member.parts.round.binds(decided.certificate, leaving=False, now=6.2)


@_where({FOUNDER: 9})
def test_who_was_there_follows_no_heirs() -> None:
    """They have not missed it, whatever they claim; it continues alone."""
    founder = _Founder()
    founder.member.parts.solo_guard.decided(beyond_doubt=True, listens=False, now=0.0)
    record = founder.chain.record(departed=[founder.chain.silence(FOUNDER)])
    decided = founder.chain.decide(record, signers=founder.others, silent=[FOUNDER])
    assert not founder.member.parts.round.binds(decided.certificate, leaving=False, now=6.5)


@_where({FOUNDER: 9})
def test_who_slept_listens() -> None:
    founder = _Founder()
    founder.member.parts.solo_guard.decided(beyond_doubt=True, listens=False, now=0.0)
    founder.member.handle(Tick(), 1.0)
    founder.member.handle(Tick(), 100.0)
    assert founder.member.parts.round.listens(100.0)


@_where({FOUNDER: 9})
def test_who_returns_counts_again() -> None:
    founder = _Founder()
    solo_guard = founder.member.parts.solo_guard
    solo_guard.decided(beyond_doubt=True, listens=False, now=0.0)
    solo_guard.note_others(False, 10.0)
    alone = founder.member.parts.round.listens(10.0)
    solo_guard.note_others(True, 20.0)
    assert not alone
    assert founder.member.parts.round.listens(20.0)
