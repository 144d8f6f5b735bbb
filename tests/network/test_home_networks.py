"""Homes behind real address translation: nodes that cannot be dialled are reached all the same.

In network namespaces, with a process for each node.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from home_networks import PORT, Families, HomeNetworks, Router, has_upnpd
from namespaces import available, run
from network.home_process import HomeProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="network namespaces take root, ip and nft"),
]

_PATIENCE_SECONDS = 90.0


class Homes:
    """Nodes that run in a street; each reports its state."""

    def __init__(self, networks: HomeNetworks, folder: Path) -> None:
        self._networks = networks
        self._folder = folder
        self._processes: dict[int, HomeProcess] = {}

    def start(self, number: int, host: str, *bootstrap: str, listen: str | None = None) -> None:
        """`listen` as `home_program` takes it; without it at one port in IPv4."""
        where = self._networks.hosts[host]
        at = where.address if not bootstrap else "0.0.0.0"
        log = self._folder / f"{number}.log"
        log.unlink(missing_ok=True)
        arguments = (str(number), listen or f"/ip4/{at}/tcp/{PORT}", *bootstrap)
        self._processes[number] = HomeProcess(where.prefix, arguments, log)

    def last_report(self, number: int) -> dict[str, Any]:
        """Return the last report of a node."""
        text = (self._folder / f"{number}.log").read_text()
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("}\n")]
        return json.loads(lines[-1]) if lines else {}

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, {n: self.last_report(n) for n in self._processes}
            time.sleep(0.2)

    def stop(self, number: int) -> None:
        self._processes[number].terminate()
        self._processes[number].wait()

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def test_nodes_in_one_network_find_each_other_with_nobody_to_ask(tmp_path: Path) -> None:
    with HomeNetworks([], {"home": "preserving"}, guests=2) as networks:
        homes = Homes(networks, tmp_path)
        try:
            for number, host in enumerate(["home", "home-guest1", "home-guest2"], 1):
                homes.start(number, host, "local")
            homes.until(lambda: homes.last_report(1).get("echoes") == [2, 3])
            homes.until(lambda: homes.last_report(2).get("echoes") == [1, 3])
            assert homes.last_report(1)["relayed"] == []
        finally:
            homes.kill()


@pytest.fixture
def homes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Homes]:
    kinds: list[Router] = request.param
    names: dict[str, Router] = {f"home{number}": kind for number, kind in enumerate(kinds, 1)}
    with HomeNetworks(["bootstrap"], names) as networks:
        homes = Homes(networks, tmp_path)
        try:
            homes.start(0, "bootstrap")
            homes.until(lambda: homes.last_report(0))
            for number, name in enumerate(names, 1):
                homes.start(number, name, homes.last_report(0)["addresses"][0])
            yield homes
        finally:
            homes.kill()


@pytest.mark.parametrize("homes", [["preserving", "preserving", "random"]], indirect=True)
def test_homes_meet_through_the_relay_and_punch_holes_where_routers_keep_ports(
    homes: Homes,
) -> None:
    everybody = {1, 2, 3}
    for number in everybody:
        homes.until(
            lambda number=number: (
                set(homes.last_report(number).get("echoes", [])) == everybody - {number}
            )
        )
        homes.until(lambda number=number: homes.last_report(number)["verdict"] == "unreachable")
    # Routers that preserve ports let each other in; the one that does not stays on the relay.
    homes.until(
        lambda: (
            homes.last_report(1)["direct"] == [0, 2] and homes.last_report(2)["direct"] == [0, 1]
        )
    )
    assert homes.last_report(1)["relayed"] == homes.last_report(2)["relayed"] == [3]
    homes.until(lambda: homes.last_report(3)["relayed"] == [1, 2])
    assert homes.last_report(3)["relays"]
    # The bootstrap peer restarts: relayed connections return, direct ones are not affected.
    homes.stop(0)
    homes.until(lambda: homes.last_report(3)["relayed"] == [])
    homes.until(lambda: homes.last_report(1)["direct"] == [2])
    homes.start(0, "bootstrap")
    homes.until(lambda: homes.last_report(3)["relayed"] == [1, 2])
    homes.until(lambda: set(homes.last_report(3)["echoes"]) == {1, 2})


@pytest.mark.skipif(not has_upnpd(), reason="a router that opens ports takes miniupnpd")
@pytest.mark.parametrize("homes", [["upnp", "random"]], indirect=True)
def test_a_router_that_opens_ports_when_asked_is_asked(homes: Homes) -> None:
    homes.until(lambda: homes.last_report(1).get("verdict") == "reachable")
    report = homes.last_report(1)
    assert report["mapped"] in report["addresses"]
    # Even a router with random ports reaches it, so nothing is left on the relay.
    homes.until(lambda: homes.last_report(2)["direct"] == [0, 1])
    homes.until(lambda: homes.last_report(1)["relays"] == 0)


@pytest.mark.parametrize(
    "homes",
    [["one-to-one", "one-to-one"], ["forwarding", "random"]],
    indirect=True,
)
def test_an_address_of_no_interface_is_announced_once_it_was_reached(
    homes: Homes,
) -> None:
    """Cloud machines, and a forwarded port that the node is not configured for."""
    homes.until(lambda: homes.last_report(1).get("verdict") == "reachable")
    for one, other in ((1, 2), (2, 1)):
        homes.until(lambda one=one, other=other: other in homes.last_report(one).get("direct", []))
        homes.until(lambda one=one, other=other: homes.last_report(one)["echoes"] == [other])
    report = homes.last_report(1)
    assert any(address.startswith(f"/ip4/7.7.0.100/tcp/{PORT}/") for address in report["addresses"])
    homes.until(lambda: homes.last_report(1)["relays"] == 0)


ALL_INTERFACES = f"/ip4/0.0.0.0/tcp/{PORT},/ip6/::/tcp/{PORT}"


@pytest.mark.parametrize(
    ("families", "prefix"),
    [
        ({"bootstrap": "ip6", "one": "ip6", "other": "ip6"}, "fd77::"),
        ({"bootstrap": "both", "one": "ip6", "other": "both"}, "2a02:77::"),
        # Neither can dial the other: a relay that has both families connects them.
        ({"bootstrap": "both", "one": "ip6", "other": "ip4"}, "fd77::"),
    ],
)
def test_hosts_of_either_family_meet_without_a_setting(
    tmp_path: Path, families: dict[str, Families], prefix: str
) -> None:
    with HomeNetworks(["bootstrap", "one", "other"], families=families, prefix=prefix) as networks:
        homes = Homes(networks, tmp_path)
        try:
            homes.start(0, "bootstrap", listen=ALL_INTERFACES)
            homes.until(lambda: homes.last_report(0))
            addresses = homes.last_report(0)["addresses"]
            assert not any("/ip6/::1/" in each or "/ip4/127." in each for each in addresses)
            for number, name in enumerate(["one", "other"], 1):
                version = "ip4" if families[name] == "ip4" else "ip6"
                (address,) = [each for each in addresses if each.startswith(f"/{version}/")]
                homes.start(number, name, address, listen="default")
            apart = families["other"] == "ip4"
            for number, other in ((1, 2), (2, 1)):
                homes.until(lambda n=number, o=other: homes.last_report(n).get("echoes") == [o])
                assert homes.last_report(number)["relayed"] == ([other] if apart else [])
                local = prefix == "fd77::" and families[["one", "other"][number - 1]] != "ip4"
                verdict = "local" if local else "reachable"
                homes.until(lambda n=number, v=verdict: homes.last_report(n)["verdict"] == v)
        finally:
            homes.kill()


def test_a_name_whose_ip6_leads_nowhere_is_reached_by_ip4(tmp_path: Path) -> None:
    """There is an address and a route, and the packets are dropped, as in many homes."""
    both: dict[str, Families] = {"bootstrap": "both", "one": "both"}
    with HomeNetworks(["bootstrap", "one"], families=both) as networks:
        homes = Homes(networks, tmp_path)
        try:
            homes.start(0, "bootstrap", listen=ALL_INTERFACES)
            homes.until(lambda: homes.last_report(0))
            addresses = homes.last_report(0)["addresses"]
            hosts = [address.split("/")[2] for address in addresses]
            assert [":" in host for host in hosts] == [False, True]
            networks.name("one", "boot.example.org", hosts[1], hosts[0])
            swallow = (
                "add table inet f",
                "add chain inet f out { type filter hook output priority 0; }",
                f"add rule inet f out ip6 daddr {hosts[1]} tcp dport {PORT} drop",
            )
            run(*networks.hosts["one"].prefix, "nft", "; ".join(swallow))
            address = f"/dns/boot.example.org/tcp/{PORT}/p2p/{addresses[0].rpartition('/')[2]}"
            homes.start(1, "one", address, listen="default")
            homes.until(lambda: homes.last_report(1).get("direct") == [0])
        finally:
            homes.kill()
