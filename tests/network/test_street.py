"""Homes behind real address translation: who cannot be dialled is reached all the same.

In network namespaces, with a process for each node.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaces import available
from network import home_program
from street import Router, Street, has_upnpd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="network namespaces take root, ip and nft"),
]

_PATIENCE_SECONDS = 90.0


class Homes:
    """Nodes that run in a street; each tells how it stands."""

    def __init__(self, street: Street, folder: Path) -> None:
        self._street = street
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int, host: str, *bootstrap: str) -> None:
        where = self._street.hosts[host]
        listen = where.address if not bootstrap else "0.0.0.0"
        with (self._folder / f"{number}.log").open("wb") as log:
            self._processes[number] = subprocess.Popen(
                [
                    *(*where.prefix, sys.executable, home_program.__file__),
                    *(str(number), f"/ip4/{listen}/tcp/4001", *bootstrap),
                ],
                stdout=log,
                stderr=log,
            )

    def told(self, number: int) -> dict[str, Any]:
        """The last that a node said."""
        text = (self._folder / f"{number}.log").read_text()
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("}\n")]
        return json.loads(lines[-1]) if lines else {}

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, {n: self.told(n) for n in self._processes}
            time.sleep(0.2)

    def stop(self, number: int) -> None:
        self._processes[number].terminate()
        self._processes[number].wait()

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def test_nodes_in_one_network_find_each_other_with_nobody_to_ask(tmp_path: Path) -> None:
    with Street([], {"home": "preserving"}, guests=2) as street:
        homes = Homes(street, tmp_path)
        try:
            for number, host in enumerate(["home", "home-guest1", "home-guest2"], 1):
                homes.start(number, host, "local")
            homes.until(lambda: homes.told(1).get("echoes") == [2, 3])
            homes.until(lambda: homes.told(2).get("echoes") == [1, 3])
            assert homes.told(1)["relayed"] == []
        finally:
            homes.kill()


@pytest.fixture
def homes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Homes]:
    kinds: list[Router] = request.param
    names: dict[str, Router] = {f"home{number}": kind for number, kind in enumerate(kinds, 1)}
    with Street(["bootstrap"], names) as street:
        homes = Homes(street, tmp_path)
        try:
            homes.start(0, "bootstrap")
            homes.until(lambda: homes.told(0))
            for number, name in enumerate(names, 1):
                homes.start(number, name, homes.told(0)["addresses"][0])
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
            lambda number=number: set(homes.told(number).get("echoes", [])) == everybody - {number}
        )
        homes.until(lambda number=number: homes.told(number)["verdict"] == "unreachable")
    # Routers that keep ports let each other in; the one that does not stays on the relay.
    homes.until(lambda: homes.told(1)["direct"] == [0, 2] and homes.told(2)["direct"] == [0, 1])
    assert homes.told(1)["relayed"] == homes.told(2)["relayed"] == [3]
    homes.until(lambda: homes.told(3)["relayed"] == [1, 2])
    assert homes.told(3)["relays"]
    # The bootstrap peer starts anew: the relayed come back, the direct notice nothing.
    homes.stop(0)
    homes.until(lambda: homes.told(3)["relayed"] == [])
    homes.until(lambda: homes.told(1)["direct"] == [2])
    homes.start(0, "bootstrap")
    homes.until(lambda: homes.told(3)["relayed"] == [1, 2])
    homes.until(lambda: set(homes.told(3)["echoes"]) == {1, 2})


@pytest.mark.skipif(not has_upnpd(), reason="a router that opens ports takes miniupnpd")
@pytest.mark.parametrize("homes", [["upnp", "random"]], indirect=True)
def test_a_router_that_opens_ports_when_asked_is_asked(homes: Homes) -> None:
    homes.until(lambda: homes.told(1).get("verdict") == "reachable")
    told = homes.told(1)
    assert told["mapped"] in told["addresses"]
    # Even a router that gives random ports reaches it, so nothing is left on the relay.
    homes.until(lambda: homes.told(2)["direct"] == [0, 1])
    homes.until(lambda: homes.told(1)["relays"] == 0)
