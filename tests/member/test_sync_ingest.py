"""Ingest of an answer: in order, up to the first fault of the answering peer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from distro_node.crypto.envelope import Envelope, EnvelopeError
from distro_node.protocol.member.inputs import EntryReceived, Input, MessageReceived
from distro_node.protocol.member.sync_ingest import AnswerIngest
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import Decided, Heartbeat
from simulation.chain import Chain
from simulation.keys import identity

CHAIN = Chain(3)
ENTRIES = [CHAIN.grow() for _ in range(3)]
PEER = identity(1).peer
WORDS = [CHAIN.envelope(1, "heartbeat", Heartbeat(CHAIN.round, count)) for count in range(3)]
FORGED = CHAIN.envelope(2, "heartbeat", Heartbeat(CHAIN.round, 99))


def opened(word: Envelope) -> Envelope:
    if word == FORGED:
        raise EnvelopeError("bad_signature", "nobody signed that")
    return word


def taking_in(entries: Iterable[Decided], words: list[Envelope]) -> AnswerIngest[Envelope]:
    return AnswerIngest(PEER, entries, words, opened)


def all_of(taking: AnswerIngest[Envelope]) -> list[Input]:
    inputs: list[Input] = []
    while (what := taking.next_input()) is not None:
        inputs.append(what)
    return inputs


def test_entries_come_first_and_everything_in_order() -> None:
    taking = taking_in(ENTRIES, WORDS)
    assert all_of(taking) == [*map(EntryReceived, ENTRIES), *map(MessageReceived, WORDS)]
    assert taking.all_held
    assert taking.blame is None
    assert taking.next_input() is None


def test_the_first_signature_that_does_not_hold_ends_it_and_is_the_answerers_fault() -> None:
    taking = taking_in([], [WORDS[0], FORGED, WORDS[1]])
    assert all_of(taking) == [MessageReceived(WORDS[0])]
    assert taking.blame is not None
    assert (taking.blame.peer, taking.blame.reason) == (PEER, "bad_signature")
    assert not taking.all_held
    assert taking.next_input() is None


def test_an_entry_that_cannot_be_read_is_the_answerers_fault_too() -> None:
    def entries() -> Iterator[Decided]:
        yield ENTRIES[0]
        raise ProtocolError("malformed", "no entry")

    taking = taking_in(entries(), WORDS)
    assert all_of(taking) == [EntryReceived(ENTRIES[0])]
    assert taking.blame is not None
    assert (taking.blame.peer, taking.blame.reason) == (PEER, "malformed")


def test_nothing_is_taken_after_an_entry_that_the_member_refuses() -> None:
    """It may be valid elsewhere: no peer is at fault."""
    taking = taking_in(ENTRIES, WORDS)
    assert taking.next_input() == EntryReceived(ENTRIES[0])
    taking.refused()
    assert taking.next_input() is None
    assert taking.blame is None
    assert not taking.all_held


def test_a_message_that_the_member_refuses_costs_nothing_but_itself() -> None:
    taking = taking_in(ENTRIES[:1], WORDS)
    assert taking.next_input() == EntryReceived(ENTRIES[0])
    assert taking.next_input() == MessageReceived(WORDS[0])
    taking.refused()
    assert all_of(taking) == [*map(MessageReceived, WORDS[1:])]
    assert taking.all_held
