"""A decision that calls a member silent: when it may be a liar's alone."""

from __future__ import annotations

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.protocol.errors import ProtocolError
from distro_node.protocol.messages import Announcement, Heartbeat, RecordId
from simulation.chain import Chain

LEASE = 6.0


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_lone_signer_is_believed_only_by_who_was_cut_off(cut_off: bool) -> None:
    chain = Chain(4)
    liar, me, *others = chain.membership.peers
    member = chain.member(me)
    member.receive_decided(chain.grow(), 0.0)
    record = chain.record(departed=[chain.silence(peer) for peer in (me, *others)])
    decided = chain.decide(record, silent=(me, *others), signers=[liar])
    for second in range(1, int(LEASE) + 3):
        member.tick(float(second))
        for peer in [] if cut_off else [liar, *others]:
            beat = chain.envelope(peer, "heartbeat", Heartbeat(member.round, second))
            member.receive(beat, float(second))
    if cut_off:
        member.receive_decided(decided, LEASE + 2)
        assert member.round == record.round + 1
        return
    with pytest.raises(ProtocolError) as caught:
        member.receive_decided(decided, LEASE + 2)
    assert caught.value.reason == "silences_us"


@pytest.mark.parametrize("followed", [False, True])
def test_those_who_went_on_speak_for_the_record_that_they_went_on_from(followed: bool) -> None:
    """Else the last to learn of a decision would follow the liars, being alone in the round."""
    chain = Chain(4)
    liar, me, *others = chain.membership.peers
    member = chain.member(me)
    member.receive_decided(chain.grow(), 0.0)
    record = chain.record(departed=[chain.silence(peer) for peer in (me, *others)])
    decided = chain.decide(record, silent=(me, *others), signers=[liar])
    base = record.id if followed else RecordId(content_id(b"what the others have decided"))
    update = content_id(b"update")
    for peer in others:
        said = Announcement(member.round + 1, base, update, 1, 1, 0.0, 0)
        member.receive(chain.envelope(peer, "announcement", said), LEASE)
    if followed:
        member.receive_decided(decided, LEASE + 2)
        assert member.round == record.round + 1
        return
    with pytest.raises(ProtocolError) as caught:
        member.receive_decided(decided, LEASE + 2)
    assert caught.value.reason == "silences_us"
