"""A member that sends far too much: one update counts, and what is kept of it is bounded."""

from __future__ import annotations

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.protocol.member.effects import Effect, FetchUpdate
from distro_node.protocol.member.inputs import MessageReceived
from distro_node.protocol.member.message_store import FUTURE_ROUNDS, MEMBER_BYTES
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import RecordId
from simulation.chain import Chain

LIAR = 1


@pytest.fixture
def chain() -> Chain:
    chain = Chain(4)
    chain.grow()
    return chain


def test_of_a_thousand_announcements_in_a_round_one_is_taken_in(chain: Chain) -> None:
    member = chain.member(0)
    effects: list[Effect] = []
    for number in range(1000):
        update = content_id(number.to_bytes(4, "big"))
        said = chain.envelope(LIAR, "announcement", chain.announcement(LIAR, update=update))
        if not number:
            effects += member.handle(MessageReceived(said), 0.0)
            continue
        with pytest.raises(ProtocolError, match="a second update"):
            effects += member.handle(MessageReceived(said), 0.001 * number)
    assert sum(isinstance(effect, FetchUpdate) for effect in effects) == 1
    assert len(member.view.messages(chain.round)) == 1


def test_of_later_rounds_a_bounded_number_is_kept_and_none_fetched(chain: Chain) -> None:
    member = chain.member(0)
    effects: list[Effect] = []
    for number in range(1600):
        parent = RecordId(content_id(number.to_bytes(4, "big")))
        round_ = chain.round + 1 + number % FUTURE_ROUNDS
        said = chain.announcement(LIAR, round=round_, parent=parent)
        effects += member.handle(MessageReceived(chain.envelope(LIAR, "announcement", said)), 1.0)
    kept = [
        envelope
        for ahead in range(1, FUTURE_ROUNDS + 1)
        for envelope in member.view.messages(chain.round + ahead)
    ]
    assert 0 < sum(len(envelope.body) + 1024 for envelope in kept) <= MEMBER_BYTES
    assert len(kept) < 1600
    assert not any(isinstance(effect, FetchUpdate) for effect in effects)
    # There is still room for an honest member's messages.
    others = chain.envelope(2, "announcement", chain.announcement(2))
    member.handle(MessageReceived(others), 2.0)
    assert others in member.view.messages(chain.round)
