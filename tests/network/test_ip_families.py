"""IPv4 and IPv6 alike: listening in both, knowing the remote address, and bounds that hold in either."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from distro_node.node.network import addresses, ip_families
from distro_node.node.network import network as network_module
from distro_node.node.network.addresses import endpoint, versions_of
from distro_node.node.network.circuit_relay import CircuitLimits
from distro_node.node.network.dial_policy import Scope
from distro_node.node.network.errors import BadAddress, DialError
from distro_node.node.network.ip_families import plain_host, remote_address
from distro_node.node.network.nat.dial_back import DialBack, ask_dial_back, ports_of
from distro_node.node.network.network import Network, NetworkSettings, open_network
from multiaddr import Multiaddr
from network.support import LOOPBACK, identity, networks, relay_and, until

# Private here: `_swarm`: what is listened on, before it becomes addresses to announce.
# Private here: `_has_family`: a machine without IPv6.


def has_ip6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


takes_ip6 = pytest.mark.skipif(not has_ip6(), reason="this machine has no IPv6")


def listening(network: Network) -> list[tuple[str, int]]:
    found = [listener.get_addrs()[0] for listener in network._swarm.listeners.values()]
    return [endpoint(address) for address in found]


@takes_ip6
async def test_a_peer_at_an_ip6_address_is_known_and_called_back() -> None:
    there = replace(LOOPBACK, listen=("/ip6/::1/tcp/0",))
    async with open_network(there, identity(1)) as a, open_network(there, identity(2)) as b:
        DialBack(a)
        await b.connect(a.addresses[0])
        await until(lambda: b.peer in a.connected())
        remote = a.remote(b.peer)
        assert remote is not None
        assert remote.host == "::1"
        assert a.source_of(b.peer).scope is Scope.MACHINE
        finding = await ask_dial_back(b, a.peer, ports_of(b.addresses))
        assert finding is not None
        assert (finding.observed, finding.reached) == ("::1", ports_of(b.addresses))


@takes_ip6
async def test_without_options_a_node_listens_in_both_families_at_one_port() -> None:
    async with open_network(NetworkSettings(), identity(1)) as network:
        (one, port), (other, same) = listening(network)
        assert {one, other} == {"0.0.0.0", "::"}
        assert port == same
        assert network.listening_ports == [port]
        assert network.listening_port(4) == network.listening_port(6) == port


@takes_ip6
async def test_a_port_that_one_family_lacks_is_replaced_in_that_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from distro_node.node.network import host as host_module
    from distro_node.node.network.errors import PortInUse

    def taken(address: Multiaddr) -> None:
        raise PortInUse(str(address))

    monkeypatch.setattr(host_module, "check_free", taken)
    async with open_network(NetworkSettings(), identity(1)) as network:
        (_, port), (_, another) = listening(network)
        assert port != another
        assert network.listening_port(6) == another


@takes_ip6
async def test_a_socket_of_ip6_takes_ip6_alone_whatever_the_system_setting() -> None:
    settings = NetworkSettings(listen=("/ip6/::/tcp/0",))
    async with open_network(settings, identity(1)) as a, open_network(LOOPBACK, identity(2)) as b:
        port, peer = listening(a)[0][1], a.addresses[0].rpartition("/")[2]
        with pytest.raises(DialError, match="refused"):
            await b.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}")
        assert await b.connect(f"/ip6/::1/tcp/{port}/p2p/{peer}") == a.peer


async def test_a_machine_without_ip6_reports_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ip_families, "_has_family", lambda family: family == socket.AF_INET)
    with caplog.at_level(logging.INFO, "distro_node"):
        async with open_network(NetworkSettings(), identity(1)) as network:
            assert [host for host, _ in listening(network)] == ["0.0.0.0"]
    messages = [record.message for record in caplog.records if "IPv6" in record.message]
    assert messages == ["not listening at /ip6/::/tcp/0: this machine has no IPv6"]


async def test_ip6_alone_on_a_machine_without_it_is_a_wrong_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = socket.socket

    def make(family: int = -1, *arguments: Any, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return made(family, *arguments, **options)

    monkeypatch.setattr(ip_families.socket, "socket", make)
    with pytest.raises(BadAddress, match="not supported"):
        async with open_network(NetworkSettings(listen=("/ip6/::/tcp/0",)), identity(1)):
            pass


@pytest.mark.parametrize(
    ("name", "known"),
    [
        (("192.0.2.1", 4001), ("192.0.2.1", 4001)),
        (("2001:db8::1", 4001, 0, 0), ("2001:db8::1", 4001)),
        (("fe80::1%eth0", 4001, 0, 2), ("fe80::1", 4001)),
        (("::ffff:192.0.2.1", 4001, 0, 0), ("192.0.2.1", 4001)),
        (b"/run/socket", None),
    ],
)
def test_who_is_at_the_other_end(name: Any, known: tuple[str, int] | None) -> None:
    names: list[Any] = [name]
    stream: Any = SimpleNamespace(
        stream=SimpleNamespace(socket=SimpleNamespace(getpeername=lambda: names[0])),
        _cached_remote_address=None,
    )
    assert remote_address(stream) == known

    def gone() -> Any:
        raise OSError(errno.ENOTCONN, "gone")

    stream.stream.socket.getpeername = gone
    assert remote_address(stream) == known


def test_one_address_has_one_spelling() -> None:
    assert plain_host("2001:DB8:0:0::1%eth0") == "2001:db8::1"
    assert plain_host("::ffff:7.7.0.1") == "7.7.0.1"


def test_the_families_of_addresses() -> None:
    direct = ["/ip4/7.7.0.1/tcp/1/p2p/x", "/dns6/a.example/tcp/1/p2p/x"]
    assert versions_of(direct) == {4, 6}
    assert versions_of(["/ip4/7.7.0.1/tcp/1/p2p/relay/p2p-circuit/p2p/x"]) == set()


def from_hosts(*hosts: str) -> Callable[[object], str]:
    """Assign these hosts to connections in the order in which they are first queried."""
    seen: dict[int, str] = {}

    def host(connection: object) -> str:
        return seen.setdefault(id(connection), hosts[len(seen) % len(hosts)])

    return host


async def test_the_bound_of_connections_holds_for_a_network_of_ip6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner of one address has 2⁶⁴ of them."""
    settings = replace(LOOPBACK, max_connections_per_address=2)
    async with open_network(settings, identity(99)) as hub, networks(4) as others:
        host = from_hosts("2a02:77::1", "2a02:77::2", "2a02:77::3", "2a02:78::1")
        monkeypatch.setattr(network_module, "host_of", host)
        for number, other in enumerate(others):
            await other.connect(hub.addresses[0])
            if number != 2:
                await until(lambda other=other: other.peer in hub.connected())
            else:
                await until(lambda other=other: not other.connected())
        assert hub.connected() == {others[n].peer for n in (0, 1, 3)}


async def test_a_relays_bounds_hold_for_a_network_of_ip6(monkeypatch: pytest.MonkeyPatch) -> None:
    from distro_node.node.network.connection import GuardedConnection

    limits = CircuitLimits(reservations_per_address=1)
    async with relay_and(2, limits) as (_, (a, b)):
        hosts = iter(f"2a02:77::{number}" for number in range(1, 1000))
        monkeypatch.setattr(
            GuardedConnection,
            "get_remote_address",
            lambda self: (next(hosts), 1),
            raising=False,
        )
        (relay,) = a.connected()
        await a.circuits.reserve(relay)
        with pytest.raises(DialError, match="full"):
            await b.circuits.reserve(relay)


@takes_ip6
def test_a_port_is_looked_at_in_its_own_family() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen(1)
        addresses.check_free(Multiaddr(f"/ip6/::/tcp/{taken.getsockname()[1]}"))
