"""Stored messages, and how much a peer can make us store."""

from __future__ import annotations

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.identity import PeerId
from distro_node.protocol.member.message_store import MEMBER_BYTES, NEWCOMER_BYTES, MessageStore
from simulation.swarm import identity

A, B = identity(0).peer, identity(1).peer


def envelope_of(number: int, sender: PeerId = A, size: int = 100, kind: str = "vote") -> Envelope:
    body = number.to_bytes(8, "big").ljust(size, b"\0")
    return Envelope(kind=kind, swarm=bytes(32), sender=sender, body=body, signature=bytes(64))


def test_every_message_is_kept_once_in_the_order_of_arrival() -> None:
    mailbox = MessageStore()
    envelopes = [envelope_of(1), envelope_of(0), envelope_of(0, B), envelope_of(0, kind="skip")]
    for envelope in [*envelopes, *envelopes]:
        mailbox.put(5, envelope, MEMBER_BYTES)
    assert mailbox.of_round(5) == envelopes
    assert all(mailbox.has(5, envelope) for envelope in envelopes)
    assert not mailbox.has(6, envelopes[0])
    assert not mailbox.has(5, envelope_of(2))
    assert mailbox.of_round(6) == []


def test_past_rounds_are_forgotten() -> None:
    mailbox = MessageStore()
    for round_ in range(10):
        mailbox.put(round_, envelope_of(round_), MEMBER_BYTES)
    mailbox.forget_before(7)
    assert [bool(mailbox.of_round(round_)) for round_ in range(10)] == [False] * 7 + [True] * 3


def kept_bytes(mailbox: MessageStore, sender: PeerId) -> int:
    return sum(
        len(envelope.body)
        for round_ in range(100)
        for envelope in mailbox.of_round(round_)
        if envelope.sender == sender
    )


def test_floods_are_cut_off() -> None:
    mailbox = MessageStore()
    for number in range(5000):
        mailbox.put(number % 9, envelope_of(number, size=400), MEMBER_BYTES)
        mailbox.put(number % 9, envelope_of(number, B, size=400), NEWCOMER_BYTES)
    assert 0 < kept_bytes(mailbox, A) <= MEMBER_BYTES
    assert 0 < kept_bytes(mailbox, B) <= NEWCOMER_BYTES
    # The number of empty messages is bounded, too.
    empty = MessageStore()
    for number in range(5000):
        empty.put(0, envelope_of(number, size=8), MEMBER_BYTES)
    assert len(empty.of_round(0)) <= MEMBER_BYTES // 1024


def test_one_peers_flood_is_not_anothers() -> None:
    mailbox = MessageStore()
    for number in range(5000):
        mailbox.put(0, envelope_of(number), MEMBER_BYTES)
    mailbox.put(0, envelope_of(0, B), NEWCOMER_BYTES)
    assert mailbox.has(0, envelope_of(0, B))


def test_room_returns_when_rounds_are_forgotten() -> None:
    mailbox = MessageStore()
    big = envelope_of(1, size=200_000)
    for number in range(20):
        mailbox.put(number % 2, envelope_of(number, size=200_000), MEMBER_BYTES)
    assert not mailbox.has(1, envelope_of(19, size=200_000))
    mailbox.forget_before(1)
    mailbox.put(2, big, MEMBER_BYTES)
    assert mailbox.has(2, big)
    mailbox.forget_before(3)
    for number in range(5):
        mailbox.put(3, envelope_of(number, size=200_000), MEMBER_BYTES)
    assert len(mailbox.of_round(3)) == 5


def test_a_long_round_fits() -> None:
    """A member's ballots of a hundred slots and its announcement: all of them may be needed."""
    mailbox = MessageStore()
    for number in range(3 * 100 + 1):
        mailbox.put(0, envelope_of(number, size=150), MEMBER_BYTES)
    assert len(mailbox.of_round(0)) == 301
