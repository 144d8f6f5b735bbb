"""The order of a machine's addresses: those that others are likely to reach come first."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from distro_node.node.network import interfaces
from distro_node.node.network.interfaces import HostAddresses, query_hosts
from namespaces import available, run

# Private here: `_default_sources`, `_is_bridge`: this machine's own interfaces would decide the test.


def machine(
    monkeypatch: pytest.MonkeyPatch,
    hosts: dict[str, list[str]],
    *,
    default: set[str],
    down: set[str] = frozenset(),  # type: ignore[assignment]
) -> None:
    def entry(host: str) -> Any:
        return SimpleNamespace(
            family=socket.AF_INET6 if ":" in host else socket.AF_INET, address=host
        )

    psutil = SimpleNamespace(
        net_if_addrs=lambda: {name: list(map(entry, each)) for name, each in hosts.items()},
        net_if_stats=lambda: {name: SimpleNamespace(isup=name not in down) for name in hosts},
    )
    monkeypatch.setattr(interfaces, "psutil", psutil)
    monkeypatch.setattr(interfaces, "_default_sources", lambda: default)
    monkeypatch.setattr(interfaces, "_is_bridge", lambda name: name.startswith("br"))


def test_the_default_route_comes_first_and_what_is_unplugged_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = {
        "lo": ["127.0.0.1", "::1"],
        "dock": ["192.168.9.9"],
        "br0": ["172.17.0.1"],
        "lan": ["192.168.1.7"],
        "wan": ["10.0.0.9", "10.0.0.5", "fe80::1%wan", "2a02:77::5"],
    }
    machine(monkeypatch, hosts, default={"10.0.0.5", "2a02:77::5"}, down={"dock"})
    assert query_hosts() == [
        *("10.0.0.5", "2a02:77::5"),
        *("10.0.0.9", "192.168.1.7", "172.17.0.1", "192.168.9.9"),
    ]


def test_temporary_addresses_crowd_out_no_other_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [f"2a02:77::{number}" for number in range(1, 12)]
    hosts = {"wan": [*many, "7.7.0.1"], "lan": ["192.168.1.7"]}
    machine(monkeypatch, hosts, default={"2a02:77::9", "7.7.0.1"})
    # The source address; another one; and then the rest of the machine.
    assert query_hosts()[:4] == ["2a02:77::9", "7.7.0.1", "2a02:77::1", "192.168.1.7"]
    assert set(many) <= set(query_hosts())


def test_a_machine_without_a_route_lists_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, {"lan": ["192.168.1.7"], "br0": ["10.0.0.1"]}, default=set())
    assert query_hosts() == ["192.168.1.7", "10.0.0.1"]


def test_what_was_known_holds_while_the_system_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[list[str] | OSError] = [
        *(["7.7.0.1"], OSError(errno.EMFILE, "Too many open files"), ["7.7.0.2"]),
    ]

    def query() -> list[str]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    now = [0.0]
    monkeypatch.setattr(interfaces.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(interfaces, "query_hosts", query)
    hosts = HostAddresses()
    reported = []
    for now[0] in (100.0, 100.5, 103.0, 106.0):
        reported.append(hosts())
    assert reported == [["7.7.0.1"]] * 3 + [["7.7.0.2"]]


_TELL = """
import trio
from distro_node.crypto.identity import Identity
from distro_node.node.network.network import NetworkSettings, open_network

async def main():
    async with open_network(NetworkSettings(), Identity.generate()) as network:
        print(*network.addresses, sep="\\n")

trio.run(main)
"""


@pytest.mark.skipif(not available(), reason="network namespaces take root, ip and nft")
def test_ten_container_bridges_come_after_the_card() -> None:
    """With running containers, and bridges that are older than the card, as after its restart."""
    inside = f"dn{os.getpid()}-bridges"
    run("ip", "netns", "add", inside)
    try:
        ip = ("ip", "-n", inside)
        for number in range(10):
            run(*ip, "link", "add", f"cni{number}", "type", "bridge")
            run(*ip, "address", "add", f"172.{20 + number}.0.1/16", "dev", f"cni{number}")
            run(*ip, "link", "add", f"pod{number}", "type", "veth", "peer", "name", f"in{number}")
            run(*ip, "link", "set", f"pod{number}", "master", f"cni{number}")
            for link in (f"cni{number}", f"pod{number}", f"in{number}"):
                run(*ip, "link", "set", link, "up")
        for name, address in (("zlan", "192.168.7.7/24"), ("zwan", "7.7.0.7/24")):
            run(*ip, "link", "add", name, "type", "veth", "peer", "name", f"{name}-there")
            run(*ip, "address", "add", address, "dev", name)
            run(*ip, "link", "set", name, "up")
            run(*ip, "link", "set", f"{name}-there", "up")
        run(*ip, "-6", "address", "add", "2a02:77::7/64", "dev", "zwan", "nodad")
        run(*ip, "route", "add", "default", "via", "7.7.0.1")
        run(*ip, "-6", "route", "add", "default", "via", "2a02:77::1")
        command = ("ip", "netns", "exec", inside, sys.executable, "-c", _TELL)
        reported = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        addresses = [line.split("/")[2] for line in reported.stdout.splitlines()]
        assert addresses[:3] == ["7.7.0.7", "2a02:77::7", "192.168.7.7"]
        assert len(addresses) == 8
    finally:
        run("ip", "netns", "del", inside)
