"""Networks that come up after the node, on a local network of namespaces."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distro_node.node.control.command_socket import ask
from distro_node.node.errors import ExitCode, UserError
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.swarm_id import swarm_text
from e2e.program import Program, wait_for
from namespaces import Lan, available, run
from network.home_process import HomeProcess

pytestmark = [
    pytest.mark.skipif(not available(), reason="takes root, ip and nft"),
    pytest.mark.slow,
]

SWARM = swarm_text(SwarmId(bytes(32)))


@pytest.fixture
def lan() -> Iterator[Lan]:
    with Lan(["one", "other"]) as lan:
        yield lan


def join(folder: Path, lan: Lan, host: str, *options: str) -> Program:
    return Program(
        host,
        ("join", SWARM, "--data-dir", folder / "data", "--no-screen", "--no-upnp", *options),
        folder,
        lan.inside(host),
    )


def addresses(data: Path) -> list[str]:
    try:
        return ask(data / "daemon.sock", "status", 10.0)["line"]["addresses"]
    except UserError:
        return []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--listen", "/ip4/10.8.0.2/tcp/4001"),
        ("--metrics-addr", "10.8.0.2:9464"),
        ("--dashboard", "10.8.0.2:9465"),
    ],
)
def test_an_address_that_comes_later_is_waited_for(
    lan: Lan, tmp_path: Path, option: str, value: str
) -> None:
    """A VPN's, for example."""
    others = {"--metrics-addr": "off", "--dashboard": "off", "--listen": "/ip4/0.0.0.0/tcp/4001"}
    rest = [word for pair in (others | {option: value}).items() for word in pair]
    plain = ("--dashboard-plain",) if option == "--dashboard" else ()
    options = (*rest, "--no-mdns", *plain)
    if option == "--listen":
        program = join(tmp_path, lan, "one", *options)
        assert program.wait() == ExitCode.ADDRESS_MISSING, program.stderr
        assert "10.8.0.2" in program.complaint[0]
    waiting = join(tmp_path, lan, "one", *options, "--wait")
    try:
        wait_for(lambda: "waiting for it" in waiting.stderr, "it to wait for the address")
        lan.address("one", "10.8.0.2/24")
        wait_for(
            lambda: [each for each in addresses(tmp_path / "data") if "/ip4/10.8.0.2/tcp" in each],
            "it to listen",
        )
        waiting.signal(signal.SIGTERM)
        assert waiting.wait() == 0
    finally:
        waiting.destroy()


def test_a_node_that_waits_for_its_address_can_be_asked_to_leave(lan: Lan, tmp_path: Path) -> None:
    options = ("--listen", "/ip4/10.8.0.2/tcp/4001", "--metrics-addr", "off", "--dashboard", "off")
    program = join(tmp_path, lan, "one", *options, "--wait", "--no-mdns")
    try:
        wait_for(lambda: "waiting for it" in program.stderr, "it to wait for the address")
        assert ask(tmp_path / "data" / "daemon.sock", "status", 10.0)["progress"] == {
            "what": "waiting for the address to listen on",
            "done": 0,
            "total": None,
            "kind": "working",
        }
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    finally:
        program.destroy()


def test_a_misspelt_address_is_not_waited_for(lan: Lan, tmp_path: Path) -> None:
    program = join(tmp_path, lan, "one", "--listen", "/ip4/10.8.0.256/tcp/4001", "--wait")
    assert program.wait() == ExitCode.BAD_ADDRESS, program.stderr


class LocalNode:
    """A node without training that has no bootstrap peer and searches its local network."""

    def __init__(
        self,
        lan: Lan,
        host: str,
        number: int,
        folder: Path,
        listen: str = "/ip4/0.0.0.0/tcp/4001",
    ) -> None:
        self._out, self._err = folder / f"{host}.out", folder / f"{host}.err"
        command = (str(number), listen, "local")
        self.process = HomeProcess(lan.inside(host), command, self._out, self._err)

    def last_report(self) -> dict[str, Any]:
        """Return the last line that it printed."""
        lines = self._out.read_text().splitlines()
        assert self.process.poll() is None, self._err.read_text()
        return json.loads(lines[-1]) if lines else {"echoes": [], "addresses": []}


def test_local_discovery_follows_the_addresses_of_the_machine(lan: Lan, tmp_path: Path) -> None:
    """The network comes up after one of the nodes; then both get other addresses, as by DHCP."""
    lan.address("one", "192.168.50.1/24")
    with contextlib.ExitStack() as stack:
        nodes = [LocalNode(lan, host, n, tmp_path) for n, host in ((1, "one"), (2, "other"))]
        for node in nodes:
            stack.callback(node.process.wait)
            stack.callback(node.process.kill)

        def meet(network: str) -> bool:
            reports = [node.last_report() for node in nodes]
            return [each["echoes"] for each in reports] == [[2], [1]] and all(
                each["addresses"] and all(network in text for text in each["addresses"])
                for each in reports
            )

        wait_for(lambda: nodes[1].last_report().get("verdict"), "both to run")
        assert not nodes[0].last_report()["echoes"]
        lan.address("other", "192.168.50.2/24")
        wait_for(lambda: meet("/ip4/192.168.50."), "them to meet")
        lan.address("one", "192.168.60.1/24")
        lan.address("other", "192.168.60.2/24")
        wait_for(lambda: meet("/ip4/192.168.60."), "them to meet at their new addresses")


@pytest.mark.parametrize("prefix", ["", "fd77:1:2:3::"])
def test_nodes_in_a_network_of_ipv6_alone_find_each_other(
    lan: Lan, tmp_path: Path, prefix: str
) -> None:
    """With link-local addresses alone, as without a router; and with private ones. One of the nodes has
    no network at first."""
    cable = (*lan.inside("other"), "ip", "link", "set", "eth0")
    run(*cable, "down")
    if prefix:
        lan.address("one", f"{prefix}1/64")
    with contextlib.ExitStack() as stack:
        nodes = [
            LocalNode(lan, host, n, tmp_path, listen="default")
            for n, host in ((1, "one"), (2, "other"))
        ]
        for node in nodes:
            stack.callback(node.process.wait)
            stack.callback(node.process.kill)
        wait_for(lambda: nodes[1].last_report().get("verdict"), "both to run")
        assert not nodes[0].last_report()["echoes"]
        run(*cable, "up")
        if prefix:
            lan.address("other", f"{prefix}2/64")
        wait_for(
            lambda: [node.last_report()["echoes"] for node in nodes] == [[2], [1]],
            "them to meet",
            describe=lambda: [node.last_report() for node in nodes],
        )
        addresses = [text for node in nodes for text in node.last_report()["addresses"]]
        assert not any("/ip6/fe80:" in text for text in addresses)
