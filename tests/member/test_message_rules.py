"""The table of messages: each kind is screened, handled, and kept or not."""

from __future__ import annotations

import pytest
from distro_node.crypto.envelope import Envelope
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.member import inputs
from distro_node.protocol.member.effects import Note, Publish
from distro_node.protocol.member.inputs import EntryReceived, MessageReceived
from distro_node.protocol.member.member_part import MemberPart, Outgoing
from distro_node.protocol.wire.messages import (
    MESSAGE_TYPES,
    Heartbeat,
    Message,
    decode_message,
)
from simulation.chain import Chain

# Private here: `_intake`: its table is not needed outside the member.


def test_every_kind_of_message_has_a_rule() -> None:
    member = Chain(3).member(0)
    assert set(member._intake.rules) == set(MESSAGE_TYPES)


def test_kinds_that_bind_their_sender_are_durable() -> None:
    rules = Chain(3).member(0)._intake.rules
    durable = {kind for kind, rule in rules.items() if rule.durable}
    assert durable == {"announcement", "leave", "proposal", "vote", "skip", "finalize"}
    assert {kind for kind, rule in rules.items() if rule.restored} == durable - {"leave"}


def test_a_message_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Screening before it is forwarded, and handling afterwards, use the same message."""
    chain, decoded = Chain(4).grow_until(2), list[Envelope]()

    def counting(envelope: Envelope) -> Message:
        decoded.append(envelope)
        return decode_message(envelope)

    monkeypatch.setattr(inputs, "decode_message", counting)
    member = chain.member(0)
    received = MessageReceived(chain.envelope(1, "announcement", chain.announcement(1)))
    member.screen(received, 0.0)
    member.screen(received, 0.0)
    member.handle(received, 0.0)
    assert decoded == [received.envelope]
    assert received.envelope in member.view.messages(chain.round)


class Recorder(MemberPart):
    """A feature that records which hooks were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def messages_due(self, ledger: Ledger) -> list[Outgoing]:
        self.called.append("messages_due")
        return [("heartbeat", Heartbeat(len(ledger), 1 << 40))]

    def forget(self, ledger: Ledger) -> None:
        self.called.append("forget")

    def before_record(self, ledger: Ledger) -> int:
        return len(ledger)

    def notes(self, before: int, round: int, ledger: Ledger) -> list[Note]:
        assert (before, len(ledger)) == (round, round + 1)
        return [Note("voters", round, None, "noted")]


def test_a_feature_hooks_in() -> None:
    """Its messages are sent, and its events reported with the record that has caused them."""
    chain = Chain(4).grow_until(2)
    member, feature = chain.member(0), Recorder()
    member.parts.features = (*member.parts.features, feature)
    effects = member.handle(EntryReceived(chain.grow()), 1.0)
    assert Note("voters", 2, None, "noted") in effects
    assert feature.called == ["forget", "messages_due"]
    sent = [effect.message for effect in effects if isinstance(effect, Publish)]
    assert Heartbeat(3, 1 << 40) in sent
