"""Members in the local network: our announcement, and the use of others' announcements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from distro_node.crypto.identity import peer_text
from distro_node.node.network.discovery import mdns
from distro_node.node.network.discovery.introductions import Introducer, NoBootstrap
from distro_node.node.network.discovery.mdns import (
    SERVICE,
    LocalDiscovery,
    dialable,
    own_service,
    swarm_tag,
)
from distro_node.node.network.network import NetworkSettings, open_network
from distro_node.protocol.wire.manifest import SwarmId
from network.homes import SWARM, home
from network.support import identity, networks, until
from zeroconf import ServiceStateChange

# Private here: `_open`, `_open_sockets`: nothing is announced in the network in which the tests run.
# Private here: `_follow_scopes`, `_introduced`: what is followed, and which peer it led to, shows
# nowhere else.

ME, OTHER = identity(1).peer, identity(2).peer


def announcement(
    peer: bytes = peer_text(OTHER).encode(),
    port: int | None = 4001,
    addresses: tuple[str, ...] = ("192.168.1.7",),
) -> Any:
    return SimpleNamespace(
        properties={b"peer": peer}, port=port, parsed_scoped_addresses=lambda: list(addresses)
    )


def test_what_somebody_announces_becomes_addresses() -> None:
    suffix = f"/tcp/4001/p2p/{peer_text(OTHER)}"
    given = announcement(addresses=("192.168.1.7", "fe80::1%3", "fd77::1", "10.0.0.1"))
    found = dialable(given, ME)
    assert [address.text for address in found] == [
        "/ip4/192.168.1.7" + suffix,
        "/ip6/fe80::1" + suffix,
        "/ip6/fd77::1" + suffix,
        "/ip4/10.0.0.1" + suffix,
    ]
    assert [address.interface for address in found] == [0, 3, 0, 0]


def test_a_public_address_is_local_in_a_network_of_ours() -> None:
    given = announcement(addresses=("2a02:77::7", "2a02:78::7", "8.8.8.8"))
    own = ["/dns4/example.org/tcp/1", f"/ip6/2a02:77::1/tcp/4001/p2p/{peer_text(ME)}"]
    assert [address.host for address in dialable(given, ME, own)] == ["2a02:77::7"]
    # Another node of this machine.
    own.append(f"/ip4/8.8.8.8/tcp/4001/p2p/{peer_text(ME)}")
    assert [address.host for address in dialable(given, ME, own)] == ["2a02:77::7", "8.8.8.8"]


@pytest.mark.parametrize(
    "nonsense",
    [
        announcement(peer=b""),
        announcement(peer=b"\xff\xff"),
        announcement(peer=b"nobody"),
        announcement(peer=peer_text(ME).encode()),
        announcement(port=None),
        announcement(port=70000),
        announcement(addresses=()),
        announcement(addresses=("8.8.8.8", "127.0.0.1", "0.0.0.0", "2a02:77::7")),
        announcement(addresses=("fe80::1", "fe80::1%eth0", "fe80::1%" + "9" * 30, "169.254.0.1%3")),
        announcement(addresses=("nonsense",)),
    ],
)
def test_nonsense_and_strangers_addresses_are_not_dialled(nonsense: Any) -> None:
    assert dialable(nonsense, ME) == ()


def test_a_crowd_of_addresses_is_cut() -> None:
    assert (
        len(dialable(announcement(addresses=tuple(f"10.0.0.{n}" for n in range(1, 99))), ME)) == 4
    )


async def test_the_name_shows_the_swarm_to_those_alone_who_know_it() -> None:
    async with open_network(NetworkSettings(), identity(1)) as network:
        own = own_service(network, swarm_tag(SWARM))
        assert own is not None
        assert own.name.startswith(swarm_tag(SWARM) + "-")
        assert own.name.endswith("." + SERVICE)
        assert own.port == network.listening_ports[0]
        assert own.properties == {b"peer": peer_text(network.peer).encode()}
        assert SWARM.hex() not in own.name
    assert swarm_tag(SWARM) != swarm_tag(SwarmId(bytes(32)))


async def test_a_node_on_loopback_announces_nothing() -> None:
    async with networks(1) as (network,):
        assert own_service(network, swarm_tag(SWARM)) is None


class Neighbourhood:
    """Replaces the library: it reports names, but their addresses only at the third query."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up = trio.Event()
        self._asked: Counter[str] = Counter()
        self._notify: Callable[..., None] = lambda **event: None
        self._attempts = 0
        monkeypatch.setattr(mdns, "_open_sockets", self.open)
        monkeypatch.setattr(mdns, "_open", self.begin)
        monkeypatch.setattr(mdns, "_FIRST_REPEAT_SECONDS", 0.01)
        monkeypatch.setattr(mdns, "_LAST_REPEAT_SECONDS", 0.02)
        monkeypatch.setattr(mdns, "_RETRY_SECONDS", 0.01)

    def open(self) -> Neighbourhood:
        self._attempts += 1
        if self._attempts == 1:
            raise OSError("no network yet")
        return self

    def begin(self, zeroconf: Any, own: Any, changed: Callable[..., None]) -> None:
        self._notify = changed
        trio.from_thread.run_sync(self.up.set)

    def get_service_info(self, service: str, name: str, milliseconds: int) -> Any:
        self._asked[name] += 1
        return announcement() if self._asked[name] >= 3 else None

    def close(self) -> None:
        pass

    async def notify(self, name: str, change: ServiceStateChange) -> None:
        await trio.to_thread.run_sync(self._notify, self, SERVICE, f"{name}.{SERVICE}", change)


async def test_names_are_asked_for_until_they_are_resolved_and_forgotten_when_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Sequence[str]] = []
    neighbourhood = Neighbourhood(monkeypatch)
    monkeypatch.setattr(mdns, "_MAX_FOUND", 64)
    tag = swarm_tag(SWARM)
    async with open_network(NetworkSettings(), identity(1)) as network, trio.open_nursery() as all_:
        discovery = LocalDiscovery(network, SWARM, found.append)
        all_.start_soon(discovery.run)
        await neighbourhood.up.wait()
        await neighbourhood.notify("somebody-elses", ServiceStateChange.Added)
        await neighbourhood.notify(f"{tag}-one", ServiceStateChange.Added)
        # Repeatedly: a machine that did not answer may do so later.
        await until(lambda: len(found) >= 2)
        assert {*map(tuple, found)} == {
            tuple(a.text for a in dialable(announcement(), network.peer))
        }
        assert len(discovery._follow_scopes) == 1
        for number in range(100):
            await neighbourhood.notify(f"{tag}-{number}", ServiceStateChange.Added)
        await until(lambda: len(discovery._follow_scopes) == 64)
        # The oldest have made room.
        assert f"{tag}-99.{SERVICE}" in discovery._follow_scopes
        for name in ("one", *map(str, range(100))):
            await neighbourhood.notify(f"{tag}-{name}", ServiceStateChange.Removed)
        await until(lambda: not discovery._follow_scopes)
        all_.cancel_scope.cancel()
    # The library's thread may report something even after that.
    await neighbourhood.notify(f"{tag}-late", ServiceStateChange.Added)
    await trio.testing.wait_all_tasks_blocked()
    assert not discovery._follow_scopes


async def test_hundreds_of_invented_names_keep_no_member_from_being_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before: the first 64 names kept all others from being queried."""
    found: list[Sequence[str]] = []
    neighbourhood = Neighbourhood(monkeypatch)
    tag = swarm_tag(SWARM)

    def nobody_but_one(service: str, name: str, milliseconds: int) -> Any:
        return announcement() if name.startswith(f"{tag}-honest") else None

    monkeypatch.setattr(neighbourhood, "get_service_info", nobody_but_one)
    async with open_network(NetworkSettings(), identity(1)) as network, trio.open_nursery() as all_:
        all_.start_soon(LocalDiscovery(network, SWARM, found.append).run)
        await neighbourhood.up.wait()
        for number in range(200):
            await neighbourhood.notify(f"{tag}-{number}", ServiceStateChange.Added)
        await neighbourhood.notify(f"{tag}-honest", ServiceStateChange.Added)
        await until(lambda: bool(found))
        assert {*map(tuple, found)} == {
            tuple(a.text for a in dialable(announcement(), network.peer))
        }
        all_.cancel_scope.cancel()


async def test_addresses_at_which_nobody_answers_keep_no_suggestion_waiting() -> None:
    async def keep_quiet(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with (
        home(1, [], hidden=False) as one,
        home(2, [], hidden=False) as other,
        trio.open_nursery() as nursery,
    ):
        serve: Any = trio.serve_tcp
        (listener,) = await nursery.start(partial(serve, keep_quiet, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        # Each costs five seconds.
        for number in range(10, 17):
            quiet = f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_text(identity(number).peer)}"
            other.introducer.suggest([quiet])
        other.introducer.suggest(one.network.addresses)
        await until(lambda: one.network.peer in other.network.connected())
        nursery.cancel_scope.cancel()


async def test_a_suggestion_is_enough_to_find_a_swarm() -> None:
    async with home(1, [], hidden=False) as one, home(2, [], hidden=False) as other:
        for _ in range(100):
            # Far more than are queued; the rest is dropped.
            other.introducer.suggest(one.network.addresses)
        await until(lambda: one.network.peer in other.network.connected())
        await until(other.introducer._introduced.is_set)


async def test_a_node_waits_for_suggestions_before_it_gives_up() -> None:
    async with networks(1) as (network,):
        introducer = Introducer(network, identity(1), SWARM, suggestion_seconds=0.3)
        with pytest.raises(NoBootstrap):
            await introducer.first_contact(20)
