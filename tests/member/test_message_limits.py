"""Limits on messages: what is read from whom, what is kept of it, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.entry_store import EntryStore
from distro_node.protocol.member.effects import Effect, FetchUpdate
from distro_node.protocol.member.inputs import MessageReceived
from distro_node.protocol.member.message_store import MEMBER_BYTES, NEWCOMER_BYTES, MessageStore
from distro_node.protocol.member.proposal import Accusations, JoinRequests
from distro_node.protocol.member.signed_log import SignedLog
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import NO_BLOCK, JoinRequest
from simulation.chain import Chain, identity

# Private here: `_latest`: that it is bounded shows nowhere else.

ME, MEMBER, STRANGER = identity(0).peer, identity(1).peer, identity(40).peer


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


def test_messages_of_strangers_are_dropped() -> None:
    said = _chain().envelope(40, "announcement", _chain().announcement(40))
    assert _refused(said) == "not_member"


def test_strangers_accuse_nobody() -> None:
    """Checking a proof takes two signatures."""
    assert _refused(_chain().envelope(40, "evidence", _chain().evidence(1))) == "not_member"


def test_one_update_of_a_round_counts() -> None:
    member, effects, refused = _chain().member(0), list[Effect](), 0
    for number in range(20):
        said = _chain().announcement(1, update=content_id(b"%d" % number))
        try:
            effects += member.handle(
                MessageReceived(_chain().envelope(1, "announcement", said)), 0.0
            )
        except ProtocolError:
            refused += 1
    assert refused == 19
    assert sum(isinstance(one, FetchUpdate) for one in effects) == 1


def _kept(envelopes: Iterable[Envelope], *, limit: int) -> int:
    kept = MessageStore()
    for envelope in envelopes:
        kept.put(9, envelope, limit)
    return sum(len(envelope.body) for envelope in kept.of_round(9))


def test_little_is_kept_of_newcomers() -> None:
    assert (
        0
        < _kept((_envelope(n, 500, STRANGER) for n in range(100)), limit=NEWCOMER_BYTES)
        <= 4 << 10
    )


def test_a_bounded_part_is_kept_of_members() -> None:
    assert 0 < _kept((_envelope(n, 100_000) for n in range(20)), limit=MEMBER_BYTES) <= 1 << 20


def test_short_messages_count_for_what_they_cost() -> None:
    assert _kept((_envelope(n, 8) for n in range(3000)), limit=MEMBER_BYTES) <= 8 << 10


def test_what_is_over_is_forgotten() -> None:
    """And makes room for what comes."""
    box = MessageStore()
    for number in range(20):
        box.put(number, _envelope(number, 60_000), 1 << 20)
    box.forget_before(19)
    box.put(19, _envelope(50, 60_000), 1 << 20)
    assert len(box.of_round(19)) == 1
    assert not box.of_round(5)


def test_own_messages_of_some_rounds_are_kept() -> None:
    """A node can send any number itself, and may return to a chain that it left."""
    chain = _chain()
    skips = [chain.envelope(0, "skip", chain.ballot(NO_BLOCK, slot=slot)) for slot in range(1, 601)]
    member = chain.member(0, said=skips)
    assert list(member.parts.own_messages) == skips[-512:]


def test_so_many_wait_for_admission() -> None:
    joins, request = JoinRequests(), JoinRequest(5, b"")
    crowd = [PeerId(number.to_bytes(32, "big")) for number in range(1100)]
    for peer in crowd:
        joins.put(peer, request, bytes(64), 0.0)
    assert sum(map(joins.has, crowd)) == 1024


def test_who_stops_asking_is_forgotten() -> None:
    joins, request = JoinRequests(), JoinRequest(5, b"")
    joins.put(STRANGER, request, bytes(64), 0.0)
    joins.put(MEMBER, request, bytes(64), 16.0)
    assert joins.has(MEMBER)
    assert not joins.has(STRANGER)


def test_an_old_request_replaces_no_newer_one() -> None:
    """A replay would keep a peer from being admitted."""
    joins = JoinRequests()
    new = _chain().admission(40, _chain().round)
    for entry in (new, _chain().admission(40, 0)):
        joins.put(entry.peer, entry.request, entry.signature, 0.0)
    assert joins.admissible(_chain().manifest, _chain().ledger, 0.0) == [new]


def test_so_many_accusations_wait() -> None:
    accusations, proof = Accusations(), _chain().evidence(1)
    for number in range(100):
        accused = Accused(PeerId(number.to_bytes(32, "big")))
        accusations.put(accused, _envelope(number, 8))  # type: ignore[arg-type]  # whose is all it asks
    assert len(accusations.envelopes()) == 64
    assert not accusations.wants(proof.peer)


class Accused:
    """Proof against a member."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer


def test_many_own_messages_are_dropped_sooner() -> None:
    said: SignedLog[str] = SignedLog(1000)
    said.note(6, "a long proposal", 1 << 20)
    said.note(7, "a vote", 100)
    assert said.forget(7) == ["a long proposal"]


def test_entries_go_to_the_disk() -> None:
    class Drawer:
        def put(self, entry: bytes) -> int:
            return 0

        def get(self, offset: int) -> bytes:
            return b""

    kept, entry = EntryStore(Drawer()), _chain().ledger[0]
    for _ in range(600):
        kept.append(entry)
    assert len(kept._latest) < 256


def test_own_messages_are_dropped_now_and_then() -> None:
    """However short they are; each time the rest is rewritten."""
    said: SignedLog[str] = SignedLog()
    said.note(3, "a vote", 100)
    assert [said.forget(round_) for round_ in (63, 64)] == [[], ["a vote"]]
