"""Limits of formats and tables: lengths, numbers of entries kept, sizes of answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId, peer_text
from distro_node.protocol.chain import entry_store, sync
from distro_node.protocol.chain.sync import SyncRequest, compose_response
from distro_node.protocol.util.backoff import Backoff
from distro_node.protocol.wire import (
    blobs,
    encoding,
    introductions,
    manifest,
    messages,
    relay_requests,
    structure,
    swarm_id,
)
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.membership import Membership, MembershipChange
from distro_node.protocol.wire.structure import StructureError
from simulation.chain import identity

# Private here: `_free`: values of any depth, which no format has.

SWARM = SwarmId(bytes(32))


def _peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


# Lengths


def _message(body: bytes) -> object:
    envelope = Envelope(kind="vote", swarm=SWARM, sender=_peer(1), body=body, signature=bytes(64))
    return messages.decode_message(envelope)


@pytest.mark.parametrize(
    ("decode", "most"),
    [
        pytest.param(_message, 256 << 10, id="a message"),
        pytest.param(entry_store.decode_decided, 4 << 20, id="an entry"),
        pytest.param(sync.decode_request, 512, id="a question"),
        pytest.param(sync.decode_response, 8 << 20, id="an answer"),
        pytest.param(blobs.decode_any_blob_list, 5 << 20, id="a list of chunks"),
        pytest.param(introductions.decode_request, 3200, id="a request for introductions"),
        pytest.param(introductions.decode_response, 64 * 3080, id="introductions"),
    ],
)
def test_what_is_too_long_is_not_read(decode: Callable[[bytes], Any], most: int) -> None:
    """With zeros, which are invalid as well: the reason shows which check came first."""
    reasons = []
    for size in (most, most + 1):
        with pytest.raises(ProtocolError) as refused:
            decode(bytes(size))
        reasons.append(refused.value.reason)
    assert reasons[0] != "oversized" == reasons[1]


def test_too_many_items() -> None:
    """Half a megabyte that asks for half a million objects."""
    most = 1 << 19
    with pytest.raises(ProtocolError) as refused:
        encoding.decode_plain(b"\xdd" + most.to_bytes(4, "big") + b"\xc0" * most, max_bytes=1 << 20)
    assert refused.value.reason == "malformed"


def test_too_deep() -> None:
    value: Any = 1
    for _ in range(14):
        value = [value]
    with pytest.raises(StructureError):
        structure._free(value, 0)


def test_manifests_have_a_length() -> None:
    """Longer ones are not even hashed."""
    data = bytes((2 << 20) + 1)
    with pytest.raises(ProtocolError) as refused:
        manifest.decode_manifest(data, SwarmId(content_id(data)))
    assert refused.value.reason == "oversized"


def test_relay_requests_have_a_length() -> None:
    with pytest.raises(ProtocolError) as refused:
        relay_requests.open_relay_request(bytes(32 + 513))
    assert refused.value.reason == "oversized"


def test_peer_records_have_a_length() -> None:
    with pytest.raises(ProtocolError) as refused:
        introductions.open_peer_record(bytes(3073), SWARM)
    assert refused.value.reason == "oversized"


# Sizes of answers


class _Tall:
    """Ledger that reports a given height."""

    def __len__(self) -> int:
        return 100_000


def _answered(request: SyncRequest) -> tuple[range, list[Envelope]]:
    letter = Envelope(kind="vote", swarm=SWARM, sender=_peer(1), body=b"", signature=bytes(64))
    ledger: Any = _Tall()
    _, _, rounds, said = sync.answer_to(request, ledger, lambda round_: [letter])
    return rounds, said


def test_an_answer_has_so_many_entries() -> None:
    rounds, _ = _answered(SyncRequest(SWARM, 0, (), 1 << 60))
    assert len(rounds) == 65_536


def test_who_wants_no_entries_gets_no_messages() -> None:
    """For a peer that only compares chains, or a liar that asks for ids all the time."""
    said = [_answered(SyncRequest(SWARM, 100_000, (), most))[1] for most in (0, 1)]
    assert [len(messages_) for messages_ in said] == [0, 1]


def test_answers_fit() -> None:
    """With entries and messages of maximum length."""
    entry, letter = bytes(4 << 20), bytes(256 << 10)
    made = compose_response(9, [entry] * 9, [letter] * 99)
    size = sum(map(len, made.entries)) + sum(map(len, made.envelopes))
    assert size <= (8 << 20) - 4096


# Numbers of entries kept


def test_so_many_expelled_are_remembered() -> None:
    members = Membership(since={_peer(0): 0})
    assert (
        len(members.changed(MembershipChange(1, expelled=tuple(map(_peer, range(5000))))).expelled)
        == 4096
    )


def test_so_many_are_left_alone() -> None:
    left: Backoff[int] = Backoff(2.0, 5.0)
    for number in range(5000):
        left.failed(number, 0.0)
    assert len(left) == 4096


# Links


def _a_link_names(query: str) -> str:
    """Return what is wrong with a link."""
    try:
        swarm_id.parse_invite(f"distro:{swarm_id.swarm_text(SWARM)}?{query}")
    except swarm_id.SwarmIdError as error:
        return error.fault
    return ""


ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{peer_text(identity(1).peer)}"


def test_links_name_few_bootstrap_peers() -> None:
    """The node dials all of them."""
    assert [_a_link_names("&".join([f"bootstrap={ADDRESS}"] * n)) for n in (16, 17)] == ["", "link"]


def test_tickets_have_a_length() -> None:
    assert [_a_link_names("ticket=" + "a" * n) for n in (2048, 2049)] == ["", "ticket"]


def test_addresses_have_a_length() -> None:
    # The last 24 characters are the port and its surroundings.
    found = []
    for more in (0, 1):
        name = "a" * (256 + more - len("/dns4/") - len(ADDRESS[len("/ip4/192.0.2.1") :]))
        found.append(_a_link_names(f"bootstrap=/dns4/{name}{ADDRESS[len('/ip4/192.0.2.1') :]}"))
    assert found == ["", "bootstrap"]
