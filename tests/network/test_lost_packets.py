"""Paths that lose large packets and report none of them, as behind some VPNs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distro_node.node.network import segment_size
from distro_node.node.network.ledbat import TcpSample
from distro_node.node.network.segment_size import LossWatch, SegmentSizes
from e2e.program import wait_for
from e2e.support import Place, Swarm
from home_networks import PORT
from namespaces import Town, available
from network.test_home_networks import Homes

in_namespaces = pytest.mark.skipif(not available(), reason="takes root, ip and nft")

# Of Ethernet, and of what large packets still pass: a tunnel's, and the least that any path promises.
TUNNEL, LEAST = 1300, 600


@in_namespaces
@pytest.mark.slow
@pytest.mark.parametrize("largest", [pytest.param(TUNNEL, marks=pytest.mark.soak), LEAST])
def test_peers_send_smaller_packets_where_large_ones_get_lost(tmp_path: Path, largest: int) -> None:
    with Town(["bootstrap", "one", "other"]) as town:
        town.lose_large(largest)
        homes: Any = Homes(town, tmp_path)  # type: ignore[arg-type]  # it has hosts, too
        try:
            homes.start(0, "bootstrap")
            homes.until(lambda: homes.last_report(0).get("addresses"))
            address = homes.last_report(0)["addresses"][0]
            for number, host in enumerate(["one", "other"], 1):
                homes.start(
                    number, host, address, listen=f"/ip4/{town.hosts[host].address}/tcp/{PORT}"
                )
            # 64 KiB there and back.
            homes.until(lambda: homes.last_report(1).get("echoes") == [2])
            homes.until(lambda: homes.last_report(2).get("echoes") == [1])
        finally:
            homes.kill()


@in_namespaces
@pytest.mark.soak
@pytest.mark.e2e
def test_a_swarm_is_joined_through_a_tunnel_that_loses_large_packets(tmp_path: Path) -> None:
    """It ended with code 17 and the advice to lower the interface's MTU."""
    with Town(["bootstrap", "founder", "newcomer"]) as town:
        town.lose_large(TUNNEL)
        places = {name: Place(host.prefix, host.address) for name, host in town.hosts.items()}
        with Swarm(tmp_path / "swarm", places=places) as swarm:
            swarm.create()
            founder, newcomer = *swarm.start("founder"), *swarm.start("newcomer")
            wait_for(lambda: newcomer.state == "training", "the newcomer to train", limit=240.0)
            wait_for(lambda: newcomer.counted(), "the newcomer's update to count", limit=240.0)
            assert founder.running


def test_each_address_has_its_size_and_an_end() -> None:
    sizes = SegmentSizes()
    assert sizes.of("10.0.0.1") is None
    tried = [(sizes.shrink("10.0.0.1"), sizes.of("10.0.0.1")) for _ in range(3)]
    assert tried == [(True, 1200), (True, 536), (False, 536)]
    assert sizes.of("10.0.0.2") is None
    assert sizes.shrink("2a02:0:0::1")
    assert sizes.of("2a02::1%eth0") == 1200


class Line:
    """What a kernel says of a connection, second by second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wire: Any = SimpleNamespace(last_received_at=0.0, received=0)
        self.acknowledged = self.in_flight = 0
        monkeypatch.setattr(segment_size, "gauge", lambda muxer: self._sample)
        unused: Any = None
        self._watch = LossWatch(unused, self.wire)
        self._now = 0.0

    def found_after(self, seconds: int, *, received: bool, acknowledged: bool) -> str | None:
        """What is found while the peer is heard or not, and acknowledges something or not."""
        found = None
        for _ in range(seconds):
            self._now += 1.0
            if received:
                self.wire.last_received_at = self._now
            self.acknowledged += 12 * acknowledged
            found = found or self._watch.finds_loss(self._now)
        return found

    def _sample(self) -> TcpSample:
        return TcpSample(
            now=self._now,
            round_trip=0.1,
            deviation=0.0,
            shortest=0.1,
            acknowledged=self.acknowledged,
            in_flight=self.in_flight,
            unsent=0,
        )


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    return Line(monkeypatch)


def test_a_peer_that_sends_and_acknowledges_nothing_gets_no_large_packets(line: Line) -> None:
    assert not line.found_after(5, received=True, acknowledged=True)
    line.in_flight = 1448
    assert line.found_after(8, received=True, acknowledged=False) == "certain"
    # Once: the connection is being cut.
    assert not line.found_after(8, received=True, acknowledged=False)


def test_a_peer_whose_large_packets_are_lost_sends_them_in_vain(line: Line) -> None:
    assert not line.found_after(5, received=True, acknowledged=True)
    assert line.found_after(8, received=False, acknowledged=True) == "certain"


def test_a_peer_that_has_gone_loses_no_packets(line: Line) -> None:
    assert not line.found_after(5, received=True, acknowledged=True)
    assert not line.found_after(20, received=False, acknowledged=False)


def test_where_both_send_in_vain_they_do_so_twice(line: Line) -> None:
    """Like a peer that has gone, which is not there for a second time, or not at once."""
    assert not line.found_after(5, received=True, acknowledged=True)
    line.in_flight = 1448
    assert line.found_after(20, received=False, acknowledged=False) == "possible"
    sizes = SegmentSizes()
    assert not sizes.shrink_if_again("10.0.0.1", 100.0)
    assert not sizes.shrink_if_again("10.0.0.2", 110.0)
    assert not sizes.shrink_if_again("10.0.0.1", 170.0)
    assert sizes.of("10.0.0.1") is None
    assert sizes.shrink_if_again("10.0.0.1", 190.0)
    assert sizes.of("10.0.0.1") == 1200


@pytest.mark.parametrize("direction", ["here", "there"])
def test_where_much_has_passed_large_packets_do(line: Line, direction: str) -> None:
    """A process that was stopped acknowledges, too: its kernel does."""
    line.acknowledged, line.wire.received = 1 << 20, 1 << 20
    line.in_flight = 1448 * (direction == "here")
    assert not line.found_after(20, received=direction == "here", acknowledged=direction == "there")


def test_an_idle_connection_loses_nothing(line: Line) -> None:
    assert not line.found_after(60, received=True, acknowledged=False)
