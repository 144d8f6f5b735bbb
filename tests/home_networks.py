"""A simulated local network on one machine: homes, each behind a router with address translation,
and a public net.

Homes are network namespaces in a home's own network behind a router's namespace; the routers and the
hosts with public addresses share one bridge. A router admits only replies to connections from
inside, unless its kind defines otherwise. Hosts on the bridge may also have IPv6, or only IPv6. It
requires root, `ip` and `nft`, and `miniupnpd` for a router that opens ports on request; the
addresses are public ones because libraries treat private ones differently, but no packet leaves the
machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from namespaces import Host, Hosts, run

_COUNTER = itertools.count()

Router = Literal["preserving", "random", "upnp", "forwarding", "one-to-one"]
"""How a router translates: it keeps the source ports of outgoing packets, randomises them, keeps
them and opens ports by UPnP, forwards `PORT` to its first host, or forwards all ports, as that of a
cloud machine does."""

PORT = 4001
"""The port that a forwarding router forwards."""

Families = Literal["ip4", "ip6", "both"]
"""The kinds of addresses of a host on the bridge."""

_PUBLIC = "7.7.0"
# `ip netns exec` mounts the files in here over those in /etc.
_RESOLVERS = Path("/etc/netns")
# miniupnpd adds its rules to these; on a router without it they are empty.
_RULES = """
table inet filter {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        iifname "lan" accept
        jump miniupnpd
    }
    chain miniupnpd { }
    chain input {
        type filter hook input priority 0; policy accept;
        iifname "wan" ct state new drop
    }
    chain prerouting { type nat hook prerouting priority -100; jump prerouting_miniupnpd; }
    chain prerouting_miniupnpd { }
    chain postrouting {
        type nat hook postrouting priority 100;
        jump postrouting_miniupnpd
        oifname "wan" masquerade %s
    }
    chain postrouting_miniupnpd { }
}
"""
_UPNPD = """
ext_ifname=wan
listening_ip=lan
port=0
enable_upnp=yes
enable_natpmp=no
secure_mode=yes
upnp_table_name=filter
upnp_nat_table_name=filter
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
uuid=11111111-2222-3333-4444-555555555555
allow 1-65535 0.0.0.0/0 1-65535
"""


def has_upnpd() -> bool:
    """Whether `miniupnpd` is available for routers."""
    return shutil.which("miniupnpd") is not None


class HomeNetworks(Hosts):
    """Public hosts and homes by name. Everything ends with the context."""

    def __init__(
        self,
        public: Sequence[str],
        homes: Mapping[str, Router] | None = None,
        guests: int = 0,
        *,
        families: Mapping[str, Families] | None = None,
        prefix: str = "2a02:77::",
    ) -> None:
        """`guests`: the number of further hosts in each home's network: `NAME-guest1` and so on.

        `families`: the address families of public hosts that have other ones than IPv4 alone;
        `prefix` is that of their IPv6 network.
        """
        self._label = f"dn{os.getpid()}-street{next(_COUNTER)}"
        self._homes = dict(homes or {})
        self._guests = guests
        self._made: list[str] = []
        self._resolvers: list[Path] = []
        self._upnpds: list[subprocess.Popen[bytes]] = []
        self._folder = Path(tempfile.mkdtemp(prefix="distro-street-"))
        self.hosts: dict[str, Host] = {}
        for number, name in enumerate(public):
            self.hosts[name] = Host(f"{self._label}-p{number}", f"{_PUBLIC}.{10 + number}")
        # By namespace: the public hosts' IPv6 addresses, and their IPv4 ones.
        self._ip6: dict[str, str] = {}
        self._ip4 = {host.namespace: f"{host.address}/24" for host in self.hosts.values()}
        for name, kind in (families or {}).items():
            host = self.hosts[name]
            address = prefix + host.address.rpartition(".")[2]
            if kind != "ip4":
                self._ip6[host.namespace] = f"{address}/64"
            if kind == "ip6":
                del self._ip4[host.namespace]
                self.hosts[name] = Host(host.namespace, address)
        for number, name in enumerate(self._homes):
            for guest in range(guests + 1):
                full = name if guest == 0 else f"{name}-guest{guest}"
                self.hosts[full] = Host(
                    f"{self._label}-h{number}-{guest}", f"192.168.{100 + number}.{2 + guest}"
                )

    def name(self, who: str, name: str, *addresses: str) -> None:
        """Let a host's resolver resolve a name to these addresses."""
        folder = _RESOLVERS / self.hosts[who].namespace
        folder.mkdir(parents=True)
        self._resolvers.append(folder)
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for address in addresses)]
        (folder / "hosts").write_text("\n".join(lines) + "\n")

    def outside(self, home: str) -> str:
        """Return a home's public address."""
        return f"{_PUBLIC}.{100 + list(self._homes).index(home)}"

    def _build(self) -> None:
        net = f"{self._label}-net"
        self._namespace(net)
        run("ip", "-n", net, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", net, "link", "set", "br0", "up")
        for number, host in enumerate(self.hosts.values()):
            self._namespace(host.namespace)
            ip4, ip6 = self._ip4.get(host.namespace), self._ip6.get(host.namespace)
            if ip4 is not None or ip6 is not None:
                self._join(net, f"p{number}", host.namespace, "eth0", ip4)
            if ip6 is not None:
                # No other host can have the address, so duplicate detection is skipped.
                run("ip", "-n", host.namespace, "address", "add", ip6, "dev", "eth0", "nodad")
        for number, (name, kind) in enumerate(self._homes.items()):
            router = f"{self._label}-r{number}"
            self._namespace(router)
            _inside(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            self._join(net, f"r{number}", router, "wan", f"{self.outside(name)}/24")
            gateway = f"192.168.{100 + number}.1"
            run("ip", "-n", router, "link", "add", "lan", "type", "bridge")
            run("ip", "-n", router, "address", "add", f"{gateway}/24", "dev", "lan")
            run("ip", "-n", router, "link", "set", "lan", "up")
            for guest in range(self._guests + 1):
                host = self.hosts[name if guest == 0 else f"{name}-guest{guest}"]
                self._join(
                    router, f"in{guest}", host.namespace, "eth0", f"{host.address}/24", "lan"
                )
                run("ip", "-n", host.namespace, "route", "add", "default", "via", gateway)
            rules = _RULES % ("fully-random" if kind == "random" else "")
            _inside(router, "nft", "-f", "-", text=rules)
            if kind in ("forwarding", "one-to-one"):
                port = f"tcp dport {PORT} " if kind == "forwarding" else ""
                inside = self.hosts[name].address
                let_in = f'add rule inet filter prerouting iifname "wan" {port}dnat ip to {inside}'
                _inside(router, "nft", let_in)
                _inside(router, "nft", "add rule inet filter forward ct status dnat accept")
            if kind == "upnp":
                self._start_upnpd(router)

    def _start_upnpd(self, router: str) -> None:
        settings = self._folder / f"{router}.conf"
        settings.write_text(_UPNPD)
        pid = self._folder / f"{router}.pid"
        log = self._folder / f"{router}.log"
        with log.open("wb") as output:
            self._upnpds.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", router, "miniupnpd", "-d", "-f", settings, "-P", pid],
                    stdout=output,
                    stderr=output,
                )
            )
        deadline = time.monotonic() + 20
        # It writes its process id when it listens.
        while not pid.exists():
            if time.monotonic() > deadline or self._upnpds[-1].poll() is not None:
                raise RuntimeError(f"miniupnpd does not start: {log.read_text()}")
            time.sleep(0.05)

    def _namespace(self, name: str) -> None:
        run("ip", "netns", "add", name)
        self._made.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def _join(
        self,
        hub: str,
        port: str,
        namespace: str,
        link: str,
        address: str | None,
        bridge: str = "br0",
    ) -> None:
        peer = ("peer", "name", link, "netns", namespace)
        run("ip", "-n", hub, "link", "add", port, "type", "veth", *peer)
        run("ip", "-n", hub, "link", "set", port, "master", bridge)
        run("ip", "-n", hub, "link", "set", port, "up")
        if address is not None:
            run("ip", "-n", namespace, "address", "add", address, "dev", link)
        run("ip", "-n", namespace, "link", "set", link, "up")

    def _tear_down(self) -> None:
        for process in self._upnpds:
            process.kill()
            process.wait()
        # The links are removed with their namespaces.
        for namespace in self._made:
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", namespace)
        for folder in (*self._resolvers, self._folder):
            shutil.rmtree(folder, ignore_errors=True)


def _inside(namespace: str, *command: str, text: str = "") -> None:
    subprocess.run(
        ["ip", "netns", "exec", namespace, *command],
        check=True,
        capture_output=True,
        input=text.encode(),
    )
