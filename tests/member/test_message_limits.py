"""Limits on messages: what is read from whom, what is kept of it, and for how long."""

from __future__ import annotations

from functools import cache

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.identity import PeerId
from distro_node.protocol.member.inputs import MessageReceived
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import NO_BLOCK
from simulation.chain import Chain, identity

MEMBER, STRANGER = identity(1).peer, identity(40).peer


@cache
def _chain() -> Chain:
    return Chain(4).grow_until(2)


def _envelope(number: int, size: int, sender: PeerId = MEMBER) -> Envelope:
    body = number.to_bytes(8, "big").ljust(size, b"\0")
    return Envelope(kind="vote", swarm=bytes(32), sender=sender, body=body, signature=bytes(64))


def _refused(envelope: Envelope) -> str:
    """Return why it is not accepted."""
    try:
        _chain().member(0).screen(MessageReceived(envelope), 0.0)
    except ProtocolError as error:
        return error.reason
    return ""


def test_long_messages_of_strangers_are_not_read() -> None:
    """It would turn out not to be a message, but only after a while."""
    assert _refused(_envelope(1, 5000, STRANGER)) == "not_member"


def test_long_messages_of_members_are_read() -> None:
    assert _refused(_envelope(1, 5000)) == "malformed"


def test_rounds_far_ahead_are_not_let_in() -> None:
    ahead = [_chain().announcement(1, round=_chain().round + by) for by in (8, 9)]
    said = [_chain().envelope(1, "announcement", announcement) for announcement in ahead]
    assert [_refused(envelope) for envelope in said] == ["", "other_round"]


def test_own_messages_of_some_rounds_are_kept() -> None:
    """A node can send any number itself, and may return to a chain that it left."""
    chain = _chain()
    skips = [chain.envelope(0, "skip", chain.ballot(NO_BLOCK, slot=slot)) for slot in range(1, 601)]
    member = chain.member(0, said=skips)
    assert list(member.parts.own_messages) == skips[-512:]
