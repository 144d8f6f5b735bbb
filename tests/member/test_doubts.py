"""A decision that declares a member silent: when it may be a liar's alone."""

from __future__ import annotations

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.protocol.member.inputs import EntryReceived, MessageReceived, Tick
from distro_node.protocol.member.member import Member
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import Announcement, Decided, Heartbeat, RecordId
from simulation.chain import Chain

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
