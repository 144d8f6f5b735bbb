"""Rules of a round's patience: with a leader that is gone, with missing updates, and with decisions that
may be liars' alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from distro_node.crypto.identity import PeerId
from distro_node.protocol.member.effects import Effect, Publish
from distro_node.protocol.member.inputs import (
    Disconnected,
    MessageReceived,
    Tick,
    Trained,
    UpdateHeld,
)
from distro_node.protocol.wire.manifest import ScheduleSpec
from distro_node.protocol.wire.messages import (
    NO_BLOCK,
    Ballot,
    Heartbeat,
    Message,
    Proposal,
    decode_message,
)
from simulation.chain import Chain, update_of


class _Seat:
    """Member with its own and all others' updates; all other members are puppets."""

    def __init__(self, *, leads: int = -1, restarted: bool = False) -> None:
        """It leads this slot, counted from 0; if it was `restarted`, its own update is lost."""
        self.chain = Chain(4, slot_min_seconds=8.0, collect_max_seconds=9.0).grow_until(2)
        leaders = self.chain.leaders
        self.leader, self.me = leaders[0], leaders[leads]
        own = self.chain.envelope(self.me, "announcement", self.chain.announcement(self.me))
        self.member = self.chain.member(self.me, said=[own] if restarted else [])
        if not restarted:
            update = update_of(self.me, self.chain.round)
            self.member.handle(
                Trained(self.chain.round, self.chain.round, update, 1000, 500, 2.5), 0.0
            )
        for peer in self.others:
            said = self.chain.announcement(peer)
            self.member.handle(
                MessageReceived(self.chain.envelope(peer, "announcement", said)), 0.0
            )
            self.member.handle(UpdateHeld(said.update), 0.0)

    @property
    def others(self) -> list[PeerId]:
        return [peer for peer in self.chain.membership.peers if peer != self.me]

    def receives(self, who: PeerId, kind: str, message: Message, now: float) -> list[str]:
        """Deliver a message and return the kinds of its answers."""
        return _said(
            self.member.handle(MessageReceived(self.chain.envelope(who, kind, message)), now)
        )

    def waits(self, seconds: float) -> list[str]:
        """Let time pass and return the kinds of its messages."""
        kinds: list[str] = []
        for step in range(1, int(10 * seconds) + 1):
            kinds += _said(self.member.handle(Tick(), step / 10))
        return kinds


def _said(effects: Iterable[Effect]) -> list[str]:
    return [effect.envelope.kind for effect in effects if isinstance(effect, Publish)]


def test_a_leader_that_is_cut_off_is_waited_for_less() -> None:
    """For a quarter of a slot of eight seconds, once the connection does not come back."""
    seat = _Seat()
    seat.member.handle(Disconnected(seat.leader), 0.0)
    assert "skip" in seat.waits(3.0)


def test_what_was_lost_in_a_restart_is_not_waited_for() -> None:
    """It is on its own disk, or lost."""
    assert "proposal" in _Seat(leads=0, restarted=True).waits(3.0)


def _repeats(seconds: float) -> bool:
    """Whether the second leader has repeated by then what is certified in the first slot."""
    seat = _Seat(leads=1)
    record = seat.chain.record()
    seat.receives(seat.leader, "proposal", Proposal(1, record), 0.0)
    kinds: list[str] = []
    for peer in seat.others:
        kinds += seat.receives(peer, "vote", seat.chain.ballot(record.id), 0.0)
    assert "finalize" in kinds
    return "proposal" in kinds + seat.waits(seconds)


def test_a_decision_is_waited_for() -> None:
    """In the good case it is under way already."""
    assert not _repeats(1.5)


def test_what_is_certified_is_repeated() -> None:
    """For members that missed it, before the slot is over."""
    assert _repeats(3.0)


def test_a_gap_is_skipped() -> None:
    """Others have left the second slot, and it is no longer known how they left the first one."""
    seat = _Seat()
    for peer in seat.others:
        seat.receives(peer, "skip", seat.chain.ballot(NO_BLOCK, slot=2), 0.0)
    skipped = set()
    for step in range(1, 200):
        for effect in seat.member.handle(Tick(), step / 10):
            if isinstance(effect, Publish):
                message = decode_message(effect.envelope)
                if isinstance(message, Ballot) and effect.envelope.kind == "skip":
                    skipped.add(message.slot)
    assert 1 in skipped


def _heartbeats(seat: _Seat, seconds: int, round_: int) -> None:
    for now in range(1, seconds + 1, 2):
        for peer in seat.others:
            seat.receives(peer, "heartbeat", Heartbeat(round_, now), float(now))
        seat.member.handle(Tick(), float(now))


def _binds(seconds: int) -> bool:
    """Whether a member, with a quorum around it, follows what another one has decided alone."""
    seat = _Seat()
    liar, *others = seat.others
    lone = seat.chain.certificate(seat.chain.record().id, signers=[liar], silent=others)
    _heartbeats(seat, seconds, seat.chain.round)
    # A decision that declares this member silent as well is another matter.
    return seat.member.parts.round.binds(lone, leaving=False, now=float(seconds))


def _follows_one_of_eleven(here: int, seconds: float = 8.0) -> bool:
    """Whether a member of eleven that hears `here` others follows, in time, a decision by one alone."""
    chain = Chain(11).grow_until(2)
    me, liar, *others = chain.membership.peers
    member = chain.member(me)
    for peer in others[:here]:
        beat = Heartbeat(chain.round, 7)
        member.handle(MessageReceived(chain.envelope(peer, "heartbeat", beat)), seconds - 1.0)
    lone = chain.certificate(chain.record().id, signers=[liar], silent=[me, *others])
    return member.parts.round.binds(lone, leaving=False, now=seconds)


def test_who_is_down_takes_no_side() -> None:
    assert not _follows_one_of_eleven(2)
    assert _follows_one_of_eleven(1)


def test_who_has_received_nothing_yet_listens() -> None:
    """For a lease, which is six seconds."""
    assert not _follows_one_of_eleven(1, 5.0)


def test_what_one_has_decided_is_doubted() -> None:
    assert not _binds(141)


def test_doubts_end() -> None:
    """The quorum decides by then, unless some of it lie."""
    assert _binds(147)


def test_who_is_alone_for_a_moment_is_not_stranded() -> None:
    assert not _Seat().member.parts.round.is_abandoned(11.0)


def test_who_is_alone_for_long_is_stranded() -> None:
    """A lease is six seconds."""
    assert _Seat().member.parts.round.is_abandoned(13.0)


@cache
def _ended() -> Chain:
    """Return a run of two rounds, and those that follow it."""
    chain = Chain(2, schedule=ScheduleSpec(warmup_rounds=1, total_rounds=2)).grow_until(3)
    while not chain.ledger.finished:
        chain.grow(updates=[])
    return chain


def test_who_lacks_the_end_is_not_waited_for_for_ever() -> None:
    """It is alive, and repeats that it is one record before the end."""
    chain = _ended()
    me, other = chain.membership.peers
    member, ends = chain.member(me), {}
    for now in range(1, 20):
        beat = chain.envelope(other, "heartbeat", Heartbeat(chain.round - 1, now))
        member.handle(MessageReceived(beat), float(now))
        member.handle(Tick(), float(now))
        ends[now] = member.view.may_end(float(now))
    assert not ends[17]
    assert ends[19]
    # As long as it is connected, it still catches up here; but it cannot keep others for ever.
    assert not member.view.may_end(19.0, {other})
    assert not member.view.may_end(3600.0, {other})
    assert member.view.may_end(3602.0, {other})
    # What is not behind keeps nobody.
    beat = chain.envelope(other, "heartbeat", Heartbeat(chain.round, 99))
    member.handle(MessageReceived(beat), 20.0)
    assert member.view.may_end(20.0, {other})
