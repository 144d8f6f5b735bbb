"""A decision that declares a member silent: when it may be a liar's alone."""

from __future__ import annotations

from contextlib import suppress

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.protocol.member.effects import Effect, FetchUpdate, Publish
from distro_node.protocol.member.inputs import (
    Applied,
    EntryReceived,
    MessageReceived,
    Tick,
    UpdateHeld,
)
from distro_node.protocol.member.member import Member
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import (
    Announcement,
    Decided,
    Heartbeat,
    RecordId,
    SnapshotEntry,
)
from simulation.chain import FINGERPRINT, Chain

LEASE = 6.0


class Doubt:
    """Member with a decision that another one has signed alone, declaring all others silent."""

    def __init__(self, members: int = 4) -> None:
        self.chain = Chain(members)
        self.liar, me, *self.others = self.chain.membership.peers
        self.member: Member = self.chain.member(me)
        self.member.handle(EntryReceived(self.chain.grow()), 0.0)
        accused = (me, *self.others)
        record = self.chain.record(departed=[self.chain.silence(peer) for peer in accused])
        self.decided: Decided = self.chain.decide(record, silent=accused, signers=[self.liar])

    def check(self, *, followed: bool) -> None:
        """Check whether the member follows the decision, more than a lease after the one before."""
        record = self.decided.record
        if followed:
            self.member.handle(EntryReceived(self.decided), LEASE + 2)
            assert self.member.view.round == record.round + 1
            return
        with pytest.raises(ProtocolError) as caught:
            self.member.handle(EntryReceived(self.decided), LEASE + 2)
        assert caught.value.reason == "silences_us"


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_lone_signer_is_believed_only_by_who_was_cut_off(cut_off: bool) -> None:
    doubt = Doubt()
    chain, member = doubt.chain, doubt.member
    for second in range(1, int(LEASE) + 3):
        member.handle(Tick(), float(second))
        for peer in [] if cut_off else [doubt.liar, *doubt.others]:
            beat = chain.envelope(peer, "heartbeat", Heartbeat(member.view.round, second))
            member.handle(MessageReceived(beat), float(second))
    doubt.check(followed=cut_off)


@pytest.mark.parametrize(("others", "followed"), [(1, True), (2, False)])
def test_who_is_down_takes_neither_side(others: int, followed: bool) -> None:
    """Of eleven, three without the signer suffice to decide: the others are gone."""
    doubt = Doubt(11)
    for second in range(1, int(LEASE) + 3):
        doubt.member.handle(Tick(), float(second))
        for peer in doubt.others[:others]:
            beat = doubt.chain.envelope(
                peer, "heartbeat", Heartbeat(doubt.member.view.round, second)
            )
            doubt.member.handle(MessageReceived(beat), float(second))
    doubt.check(followed=followed)


@pytest.mark.parametrize("followed", [False, True])
def test_those_who_went_on_support_the_record_that_they_went_on_from(followed: bool) -> None:
    """Otherwise the last to learn of a decision would follow the liars, being alone in the round."""
    doubt = Doubt()
    elsewhere = RecordId(content_id(b"what the others have decided"))
    base = doubt.decided.record.id if followed else elsewhere
    update = content_id(b"update")
    for peer in doubt.others:
        said = Announcement(doubt.member.view.round + 1, base, update, 1, 1, 0.0, 0)
        doubt.member.handle(
            MessageReceived(doubt.chain.envelope(peer, "announcement", said)), LEASE
        )
    doubt.check(followed=followed)


@pytest.mark.parametrize("seen", [True, False], ids=["seen going on", "first heard later"])
def test_those_who_are_several_rounds_further_are_company_too(seen: bool) -> None:
    """A member delayed by a liar's slow answers receives nothing of the round after its own any more."""
    doubt = Doubt()
    elsewhere = RecordId(content_id(b"what the others have decided"))
    for further, second in [(1, 0.0), (2, LEASE), (3, LEASE + 1)][0 if seen else 1 :]:
        for peer in doubt.others:
            update, round_ = content_id(bytes([further])), doubt.member.view.round + further
            parent = elsewhere if further == 1 else RecordId(content_id(bytes([further])))
            said = Announcement(round_, parent, update, 1, 1, 0.0, 0)
            envelope = doubt.chain.envelope(peer, "announcement", said)
            doubt.member.handle(MessageReceived(envelope), second)
    doubt.check(followed=False)


def _lacks() -> Doubt:
    """Return a member that was cut off and holds none of the updates of the lone signer's record."""
    doubt = Doubt()
    before = doubt.member.view.round - 1
    for entry in doubt.member.view.ledger[before].record.updates:
        doubt.member.handle(UpdateHeld(entry.update), 0.0)
    doubt.member.handle(Applied(before, FINGERPRINT, None), 0.0)
    me = doubt.member.view.me
    mine = doubt.chain.update(me)
    lies = doubt.chain.update(doubt.liar)
    record = doubt.chain.record(updates=sorted([mine, lies], key=lambda entry: entry.peer))
    others = [me, *doubt.others]
    doubt.decided = doubt.chain.decide(record, silent=others, signers=[doubt.liar])
    return doubt


def _hear(doubt: Doubt, now: float) -> list[Effect]:
    return doubt.member.handle(EntryReceived(doubt.decided), now)


def test_a_lone_signer_is_not_followed_without_the_updates() -> None:
    """It may be the only one that ever has them; once they are here, its record can be applied."""
    doubt = _lacks()
    at_work = doubt.member.view.round
    effects = _hear(doubt, LEASE + 2)
    updates = [entry.update for entry in doubt.decided.record.updates]
    assert [each.update for each in effects if isinstance(each, FetchUpdate)] == updates
    for update in updates:
        assert doubt.member.view.round == at_work
        doubt.member.handle(UpdateHeld(update), LEASE + 3)
    assert doubt.member.view.round == at_work + 1


def test_what_nobody_has_is_waited_for_as_long_as_a_doubt_lasts() -> None:
    doubt = _lacks()
    at_work = doubt.member.view.round
    _hear(doubt, LEASE + 2)
    begun = doubt.member.parts.context.last_undoubted
    patience = 16 * doubt.member.parts.timeouts.lease
    doubt.member.handle(Tick(), begun + patience - 1)
    assert doubt.member.view.round == at_work
    doubt.member.handle(Tick(), begun + patience + 1)
    assert doubt.member.view.round == at_work + 1


def test_updates_that_a_later_snapshot_contains_are_not_waited_for() -> None:
    """Who went on alone for long has deleted them, and gives out the snapshot instead."""
    doubt = _lacks()
    at_work = doubt.member.view.round
    ahead = Chain(4).grow_until(at_work + 1)
    snapshot = SnapshotEntry(at_work, content_id(b"parameters"), 1)
    later = ahead.decide(ahead.record(snapshot=snapshot))
    doubt.member.handle(EntryReceived(later), LEASE + 1)
    _hear(doubt, LEASE + 2)
    assert doubt.member.view.round == at_work + 1


def test_who_hears_a_quorum_at_work_asks_for_no_update_of_a_lone_signer() -> None:
    doubt = _lacks()
    for peer in doubt.others:
        beat = doubt.chain.envelope(peer, "heartbeat", Heartbeat(doubt.member.view.round, 1))
        doubt.member.handle(MessageReceived(beat), LEASE + 1)
    doubt.check(followed=False)
    effects = doubt.member.handle(Tick(), LEASE + 3)
    assert not [each for each in effects if isinstance(each, FetchUpdate)]


def test_who_waits_for_updates_casts_no_ballot() -> None:
    """It may lose sight of those who made the decision before it has the updates, and would then decide
    against them."""
    doubt = _lacks()
    said = doubt.chain.announcement(doubt.others[0])
    announced = doubt.chain.envelope(doubt.others[0], "announcement", said)
    doubt.member.handle(MessageReceived(announced), 1.0)
    doubt.member.handle(UpdateHeld(said.update), 1.0)
    effects = _hear(doubt, LEASE + 2)
    for second in range(int(LEASE) + 3, 90):
        effects += doubt.member.handle(Tick(), float(second))
    assert {e.envelope.kind for e in effects if isinstance(e, Publish)} == {"heartbeat"}


@pytest.mark.parametrize("slot", [1, 2])
def test_a_record_proposed_after_its_decision_is_not_followed(slot: int) -> None:
    """A liar that signs alone can make such an entry, and by its ballots such a decision."""
    doubt = _lacks()
    chain, liar, others = doubt.chain, doubt.liar, [doubt.member.view.me, *doubt.others]
    record = chain.record(updates=[chain.update(liar)], slot=slot)
    doubt.decided = chain.decide(record, silent=others, signers=[liar])
    round_ = doubt.member.parts.round
    with suppress(ProtocolError):
        _hear(doubt, LEASE + 2)
    assert (round_.kept is None) == (slot > 1)
    ballot = chain.ballot(record.id, silent=others)
    said = chain.envelope(liar, "finalize", ballot)
    # As a proposal of a liar that leads brings it.
    round_.consensus.records[record.id] = record
    doubt.member.handle(MessageReceived(said), LEASE + 3)
    doubt.member.handle(UpdateHeld(record.updates[0].update), LEASE + 4)
    assert (doubt.member.parts.round is round_) == (slot > 1)
