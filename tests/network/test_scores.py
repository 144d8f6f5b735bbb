"""What peers are held responsible for, and which addresses are announced."""

from __future__ import annotations

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.node.network import addresses
from distro_node.node.network.scores import OffenceScores
from distro_node.node.network.traffic import Traffic
from multiaddr import Multiaddr

PEER = PeerId(bytes(32))


def test_offences_add_up_and_fade() -> None:
    scores = OffenceScores()
    assert [scores.penalise(PEER, "malformed", float(t)) for t in range(4)] == [0, 0, 0, 1]
    # The same spread over hours is forgiven.
    other = PeerId(bytes([1]) * 32)
    assert not any(scores.penalise(other, "malformed", t * 1200.0) for t in range(100))


def test_refusal_ends_and_begins_with_a_clean_sheet() -> None:
    scores = OffenceScores()
    assert not scores.penalise(PEER, "bad_hash", 0.0)
    assert not scores.refused(PEER, 0.0)
    assert scores.penalise(PEER, "bad_hash", 0.0)
    assert scores.refused(PEER, 599.0)
    assert not scores.refused(PEER, 600.0)
    assert scores.score(PEER, 600.0) == 0.0


def test_a_crowd_of_identities_does_not_fill_the_memory() -> None:
    scores = OffenceScores()
    crowd = [PeerId(number.to_bytes(32, "big")) for number in range(8192)]
    for peer in crowd:
        scores.penalise(peer, "malformed", 0.0)
    assert [peer for peer in crowd if scores.score(peer, 0.0)] == crowd[4096:]
    for peer in crowd:
        scores.penalise(peer, "impersonation", 0.0)
    assert [peer for peer in crowd if scores.refused(peer, 0.0)] == crowd[4096:]


def test_labels_are_bounded() -> None:
    traffic = Traffic()
    for number in range(1000):
        traffic.reject(f"reason {number}")
    assert len(traffic.rejected) <= 129
    assert traffic.rejected.total() == 1000
    traffic.count_sent("no such kind", 5)
    assert traffic.sent["other"] == 5


def test_what_is_announced_of_a_socket_on_all_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    # This machine's own addresses would decide the test.
    hosts = ["192.0.2.1", "2001:db8::1", "192.0.2.2"]
    monkeypatch.setattr(addresses, "reachable_hosts", lambda: hosts)
    bound = [
        Multiaddr(text)
        for text in (
            "/ip4/0.0.0.0/tcp/4001",
            "/ip6/::/tcp/4001",
            "/ip4/192.0.2.9/tcp/4002",
            "/ip4/127.0.0.1/tcp/4003",
            "/ip6/fe80::1/tcp/4004",
        )
    ]
    assert [str(each) for each in addresses.advertised(bound, [])] == [
        "/ip4/192.0.2.9/tcp/4002",
        "/ip4/192.0.2.1/tcp/4001",
        "/ip6/2001:db8::1/tcp/4001",
        "/ip4/192.0.2.2/tcp/4001",
    ]
    hosts.clear()
    # Loopback if there is nothing else.
    del bound[2]
    assert [str(each) for each in addresses.advertised(bound, [])] == [
        "/ip4/127.0.0.1/tcp/4003",
        "/ip4/127.0.0.1/tcp/4001",
        "/ip6/::1/tcp/4001",
    ]
    announced = [Multiaddr(f"/dns4/example.org/tcp/{port}") for port in range(1, 20)]
    assert addresses.advertised(bound, announced) == announced[: addresses.MAX_ADDRESSES]
