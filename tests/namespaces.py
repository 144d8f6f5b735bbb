"""Separate hosts on one machine: network namespaces around a router, whose links can be cut.

Each host has a single link to the router, so everything that reaches it comes over that link, which
can be given the speed of a home line. It requires root, `ip`, `tc` and `nft`; `available` returns
whether they exist. Everything ends with the context, and no packet leaves the machine.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import slow_link

_COUNTER = itertools.count()

# The addresses are valid only within the namespaces. One octet counts the hosts.
_MAX_HOSTS = 250
# The burst of a line: more than passes between two of the kernel's ticks.
_BURST_SECONDS = 0.01
_LEAST_BURST_BYTES = 16_384
# What a home router buffers before it drops packets.
_QUEUE = "100ms"


def available() -> bool:
    """Whether this process may create network namespaces and has the tools for it."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "nft"))):
        return False
    probe = f"dn{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    if made.returncode == 0:
        run("ip", "netns", "del", probe)
    return made.returncode == 0


@dataclass(frozen=True)
class Host:
    """A namespace with one address."""

    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words to put before a command to run it there; the process keeps its id."""
        return ("ip", "netns", "exec", self.namespace)


class Hosts(ABC):
    """Namespaces that exist for the duration of the context."""

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._tear_down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._tear_down()

    @abstractmethod
    def _build(self) -> None: ...

    @abstractmethod
    def _tear_down(self) -> None: ...


class Town(Hosts):
    """Hosts by name, and the router between them.

    `congestion` names TCP's congestion control there, for figures that must not depend on the
    configuration of the machine.
    """

    def __init__(self, names: Iterable[str], congestion: str | None = None) -> None:
        label = f"dn{os.getpid()}-{next(_COUNTER)}"
        self._router = f"{label}-router"
        self.hosts = {
            name: Host(f"{label}-{number}", f"10.77.{number}.2")
            for number, name in enumerate(names, 1)
        }
        assert len(self.hosts) <= _MAX_HOSTS
        self._congestion = () if congestion is None else ("congctl", congestion)
        self._delayer: subprocess.Popen[bytes] | None = None

    def cut(self, ones: Iterable[str], others: Iterable[str], *, one_way: bool = False) -> None:
        """Drop all traffic from `ones` to `others`, and in the other direction unless `one_way`."""
        here, there = self._addresses(ones), self._addresses(others)
        self._drop(here, there)
        if not one_way:
            self._drop(there, here)

    def heal(self) -> None:
        """Restore all traffic."""
        self._nft("flush chain inet faults forward")

    def shape(self, name: str, *, up: float, down: float) -> None:
        """Give a host's line these rates, in bits per second, all headers included."""
        number = list(self.hosts).index(name) + 1
        _limit(self.hosts[name].namespace, "eth0", up)
        _limit(self._router, f"host{number}", down)

    def part(self, *, round_trip: float, loss_percent: int) -> None:
        """Put a distance between all hosts: a round trip of that many seconds, and lost packets."""
        links = [f"host{number}" for number in range(1, len(self.hosts) + 1)]
        self._nft(
            f"add rule inet faults forward oifname {slow_link.DEVICE} "
            f"numgen random mod 100 < {loss_percent} drop"
        )
        within = ("ip", "netns", "exec", self._router)
        # Half of it each way.
        command = (sys.executable, "-P", slow_link.__file__, str(round_trip / 2), *links)
        self._delayer = subprocess.Popen([*within, *command], stdout=subprocess.PIPE)
        assert self._delayer.stdout is not None
        if not self._delayer.stdout.readline():
            raise RuntimeError("packets cannot be delayed here")

    def lose_large(self, size: int) -> None:
        """Lose all packets of more than so many bytes between the hosts, and report none of them."""
        self._nft(f"add rule inet faults forward meta length > {size} drop")
        for host in self.hosts.values():
            # Several segments pass a virtual link as one packet otherwise.
            run("ip", "-n", host.namespace, "link", "set", "eth0", "gso_max_segs", "1")

    def line_bytes(self, name: str) -> tuple[int, int]:
        """Return the bytes sent and received over a host's line, as its interface counts them."""
        namespace = self.hosts[name].namespace
        (link,) = json.loads(run("ip", "-n", namespace, "-s", "-j", "link", "show", "eth0"))
        return link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"]

    def _build(self) -> None:
        run("ip", "netns", "add", self._router)
        run("ip", "netns", "exec", self._router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self._nft("add table inet faults")
        self._nft("add chain inet faults forward { type filter hook forward priority 0; }")
        for number, host in enumerate(self.hosts.values(), 1):
            link, gateway = f"host{number}", f"10.77.{number}.1"
            run("ip", "netns", "add", host.namespace)
            run(
                *("ip", "-n", self._router, "link", "add", link, "type", "veth"),
                *("peer", "name", "eth0", "netns", host.namespace),
            )
            run("ip", "-n", self._router, "address", "add", f"{gateway}/24", "dev", link)
            run("ip", "-n", self._router, "link", "set", link, "up")
            inside = ("ip", "-n", host.namespace)
            run(*inside, "link", "set", "lo", "up")
            run(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
            run(*inside, "link", "set", "eth0", "up")
            run(*inside, "route", "add", "default", "via", gateway, *self._congestion)

    def _tear_down(self) -> None:
        if self._delayer is not None:
            self._delayer.kill()
            self._delayer.communicate()
        # The links are removed with their namespaces.
        for namespace in (*(host.namespace for host in self.hosts.values()), self._router):
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", namespace)

    def _addresses(self, names: Iterable[str]) -> str:
        return "{ " + ", ".join(self.hosts[name].address for name in names) + " }"

    def _drop(self, source: str, target: str) -> None:
        self._nft(f"add rule inet faults forward ip saddr {source} ip daddr {target} drop")

    def _nft(self, command: str) -> None:
        run("ip", "netns", "exec", self._router, "nft", command)


class Lan(Hosts):
    """Hosts by name on one Ethernet, without addresses until `address` sets some."""

    def __init__(self, names: Iterable[str]) -> None:
        label = f"dn{os.getpid()}-lan{next(_COUNTER)}"
        self._hub = f"{label}-hub"
        self.namespaces = {name: f"{label}-{number}" for number, name in enumerate(names)}

    def inside(self, name: str) -> tuple[str, ...]:
        """Return the words to put before a command to run it on a host; the process keeps its id."""
        return ("ip", "netns", "exec", self.namespaces[name])

    def address(self, name: str, *addresses: str) -> None:
        """Give a host these addresses, such as 192.168.50.1/24, instead of all that it has."""
        within = ("ip", "-n", self.namespaces[name])
        run(*within, "address", "flush", "dev", "eth0", "scope", "global")
        for address in addresses:
            run(*within, "address", "add", address, "dev", "eth0")
        if addresses:
            run(*within, "route", "replace", "default", "dev", "eth0")

    def _build(self) -> None:
        run("ip", "netns", "add", self._hub)
        run("ip", "-n", self._hub, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self._hub, "link", "set", "br0", "up")
        for number, namespace in enumerate(self.namespaces.values()):
            run("ip", "netns", "add", namespace)
            peer = ("peer", "name", "eth0", "netns", namespace)
            run("ip", "-n", self._hub, "link", "add", f"p{number}", "type", "veth", *peer)
            run("ip", "-n", self._hub, "link", "set", f"p{number}", "master", "br0", "up")
            for link in ("lo", "eth0"):
                run("ip", "-n", namespace, "link", "set", link, "up")

    def _tear_down(self) -> None:
        for namespace in (*self.namespaces.values(), self._hub):
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", namespace)


def _limit(namespace: str, link: str, rate: float) -> None:
    burst = max(_LEAST_BURST_BYTES, int(rate / 8 * _BURST_SECONDS))
    bucket = ("tbf", "rate", f"{rate:.0f}bit", "burst", str(burst), "latency", _QUEUE)
    run("tc", "-n", namespace, "qdisc", "replace", "dev", link, "root", *bucket)


def run(*command: str) -> bytes:
    """Return the output of a command. Raises `CalledProcessError`."""
    return subprocess.run(command, check=True, capture_output=True).stdout
