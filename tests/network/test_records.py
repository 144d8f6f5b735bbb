"""Peer records and introductions: what is signed, refused and kept, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.crypto.envelope import seal
from distro_node.crypto.identity import peer_text
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.introductions import (
    MAX_PEER_RECORD_BYTES,
    IntroductionRequest,
    IntroductionResponse,
    PeerRecord,
    Registry,
    decode_request,
    decode_response,
    open_peer_record,
    seal_peer_record,
)
from distro_node.protocol.wire.manifest import SwarmId
from network.support import identity

SWARM = SwarmId(bytes(range(32)))
OTHER = SwarmId(bytes(32))


def address(number: int, port: int = 4001) -> str:
    return f"/ip4/192.0.2.1/tcp/{port}/p2p/{peer_text(identity(number).peer)}"


def sealed(peer: int, swarm: SwarmId = SWARM, number: int = 1_700_000_000) -> bytes:
    return seal_peer_record(identity(peer), swarm, [address(peer)], number)


def record(peer: int, swarm: SwarmId = SWARM, number: int = 1_700_000_000) -> PeerRecord:
    return open_peer_record(sealed(peer, swarm, number), swarm)


def test_a_record_states_who_where_and_when() -> None:
    opened = open_peer_record(sealed(1), SWARM)
    assert opened == PeerRecord(
        peer=identity(1).peer,
        swarm=SWARM,
        addresses=(address(1),),
        number=1_700_000_000,
        sealed=sealed(1),
    )


def test_sealing_leaves_out_what_nobody_would_accept() -> None:
    addresses = [address(2), "/ip4/1.2.3.4", "/dns4/" + "x" * 240 + address(1)]
    addresses += [address(1, port) for port in range(1, 20)]
    opened = open_peer_record(seal_peer_record(identity(1), SWARM, addresses, 1), SWARM)
    assert opened.addresses == tuple(address(1, port) for port in range(1, 9))


def test_the_largest_record_fits() -> None:
    ending = "/p2p/" + peer_text(identity(1).peer)
    longest = ["/dns4/" + f"{n:x}" * (122 - len(ending)) + ending for n in range(8)]
    data = seal_peer_record(identity(1), SWARM, longest, 2**63 - 1)
    assert len(open_peer_record(data, SWARM).addresses) == 8
    response = IntroductionResponse(records=(data,) * 64)
    assert decode_response(response.encode()) == response
    request = IntroductionRequest(swarm=SWARM, record=bytes(MAX_PEER_RECORD_BYTES))
    assert decode_request(request.encode()) == request


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed"),
        (bytes(MAX_PEER_RECORD_BYTES + 1), "oversized"),
        (sealed(1, OTHER), "wrong_swarm"),
        (sealed(1)[:-1] + b"\0", "bad_signature"),
        (seal(identity(1), "vote", SWARM, encode([[address(1)], 1])), "invalid"),
        (seal(identity(1), "peer", SWARM, encode([[address(2)], 1])), "invalid"),
        (seal(identity(1), "peer", SWARM, encode([["x" + address(1)], 1])), "invalid"),
        (seal(identity(1), "peer", SWARM, encode([["/\x1b[2J" + address(1)], 1])), "invalid"),
        (seal(identity(1), "peer", SWARM, encode([[address(1)] * 9, 1])), "invalid"),
        (seal(identity(1), "peer", SWARM, encode([[address(1)], -1])), "invalid"),
        (seal(identity(1), "peer", SWARM, encode([[address(1)], 1]) + b"\0"), "malformed"),
    ],
)
def test_a_record_that_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        open_peer_record(data, SWARM)
    assert caught.value.reason == reason


def test_the_formats_are_frozen(checkout: Path) -> None:
    """A difference here is a new version of the protocol."""
    request = IntroductionRequest(swarm=SWARM, record=sealed(1)).encode()
    bare = IntroductionRequest(swarm=SWARM, record=None).encode()
    response = IntroductionResponse(records=(sealed(1), sealed(2))).encode()
    lines = [data.hex() for data in (sealed(1), request, bare, response)]
    golden = checkout / "tests" / "golden" / "peer_record.hex"
    assert golden.read_text().split() == lines


def test_newer_records_replace_older_ones() -> None:
    registry = Registry()
    assert registry.add(record(1, number=10), now=0.0) is None
    assert registry.add(record(1, number=11), now=1.0) is None
    assert registry.add(record(1, number=9), now=2.0) == record(1, number=11)
    assert [each.number for each in registry.peer_records(SWARM, 2.0)] == [11]


def test_records_hold_for_a_while_and_swarms_are_apart() -> None:
    registry = Registry()
    registry.add(record(1), 0.0)
    registry.add(record(2), 60.0)
    registry.add(record(3, OTHER), 60.0)
    assert {each.peer for each in registry.peer_records(SWARM, 119.0)} == {
        identity(1).peer,
        identity(2).peer,
    }
    assert [each.peer for each in registry.peer_records(SWARM, 120.0)] == [identity(2).peer]
    assert [each.peer for each in registry.peer_records(OTHER, 120.0)] == [identity(3).peer]
    assert registry.peer_records(SWARM, 1000.0) == []
    assert registry.swarms() == 0
    # Renewed in time, it stays.
    registry.add(record(1), 1000.0)
    registry.add(record(1), 1100.0)
    assert len(registry.peer_records(SWARM, 1150.0)) == 1


def test_a_sample_is_bounded_leaves_the_asker_out_and_varies() -> None:
    registry = Registry()
    for number in range(100):
        registry.add(record(number), float(number) / 10)
    asker = identity(7).peer
    samples = [registry.sample(SWARM, 10.0, bytes([salt]), asker) for salt in range(4)]
    for sample in samples:
        assert len(sample) == 64
        assert asker not in {each.peer for each in sample}
    assert len({tuple(each.peer for each in sample) for sample in samples}) == 4


def test_the_registry_is_bounded() -> None:
    registry = Registry()
    for number in range(532):
        registry.add(record(number), 1.0)
    kept = [each.peer for each in registry.peer_records(SWARM, 1.0)]
    assert kept == [identity(number).peer for number in range(20, 532)]
    swarms = [SwarmId(number.to_bytes(32, "big")) for number in range(74)]
    for number, swarm in enumerate(swarms):
        registry.add(record(number, swarm), 2.0)
    assert registry.swarms() == 64
    assert registry.peer_records(swarms[-1], 2.0)
    # Peers that are in another swarm as well count half.
    assert registry.peer_records(swarms[0], 2.0)
    assert not registry.peer_records(swarms[20], 2.0)


def test_one_peer_cannot_push_swarms_out() -> None:
    registry = Registry()
    registry.add(record(1), 0.0)
    for number in range(74):
        registry.add(record(2, SwarmId(number.to_bytes(32, "little"))), 1.0)
    assert registry.swarms() == 5
    assert len(registry.peer_records(SWARM, 1.0)) == 1


def test_a_few_peers_with_many_swarms_push_nobody_out() -> None:
    """Sixteen keys in four swarms of their own each once emptied a bootstrap peer's memory."""
    registry = Registry()
    honest = SwarmId(b"h" * 32)
    registry.add(record(1), 0.0)
    for number in range(2, 30):
        registry.add(record(number, honest), 0.0)
    for number in range(16):
        for place in range(4):
            other = SwarmId(bytes([number, place]) * 16)
            registry.add(record(40 + number, other), 1.0)
    assert len(registry.peer_records(honest, 1.0)) == 28
    assert len(registry.peer_records(SWARM, 1.0)) == 1
    assert registry.swarms() == 64
