"""Finding each other through a bootstrap peer, and without one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import peer_text
from distro_node.node.bootstrap import BootstrapSettings, run_bootstrap
from distro_node.node.network.cancel_scopes import open_scope
from distro_node.node.network.dial_policy import AddressSource, Scope, scope_of
from distro_node.node.network.discovery import introductions, known_peers
from distro_node.node.network.discovery.introductions import (
    PROTOCOL,
    Introducer,
    IntroductionService,
    NoBootstrap,
)
from distro_node.node.network.discovery.known_peers import KnownPeers
from distro_node.node.network.discovery.peers_file import PeersFile
from distro_node.node.network.errors import BadAddress, RequestError
from distro_node.node.network.exchange.blobs import BlobFetcher, serve_blobs
from distro_node.node.network.network import Network, open_network
from distro_node.node.settings.components import LineSettings
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.monotonic_counter import MonotonicCounter
from distro_node.protocol.wire import introductions as wire_introductions
from distro_node.protocol.wire.introductions import (
    IntroductionRequest,
    Registry,
    decode_response,
    open_peer_record,
    seal_peer_record,
)
from distro_node.protocol.wire.manifest import SwarmId
from network.support import LOOPBACK, free_port, identity, networks, star, until

# Private here: `_registry`, `_introduced`, `_save`: what a node knows before it dials any peer.

SWARM = SwarmId(bytes(range(32)))
OTHER = SwarmId(bytes(32))


class Node:
    """A network with an introducer that runs."""

    def __init__(self, network: Network, introducer: Introducer) -> None:
        self.network = network
        self.introducer = introducer


@asynccontextmanager
async def node(
    number: int,
    bootstrap: list[str],
    known: Path | None = None,
    swarm: SwarmId = SWARM,
    message_numbers: MonotonicCounter | None = None,
    listen: tuple[str, ...] = LOOPBACK.listen,
) -> AsyncIterator[Node]:
    async with open_network(replace(LOOPBACK, listen=listen), identity(number)) as network:
        introducer = Introducer(
            network, identity(number), swarm, bootstrap, known, message_numbers=message_numbers
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(introducer.run)
            yield Node(network, introducer)
            nursery.cancel_scope.cancel()


class Bootstrap:
    """A bootstrap peer that can be stopped."""

    def __init__(self) -> None:
        self.scope = open_scope()
        self.stopped = trio.Event()

    async def run(self, task_status: Any) -> None:
        settings = BootstrapSettings(
            identity=identity(99), line=LineSettings(listen=LOOPBACK.listen)
        )
        with self.scope:
            await run_bootstrap(settings, ready=task_status.started)
        self.stopped.set()


def closed_address(number: int) -> str:
    """Return an address without a listener: port 1 needs privileges, and no program uses it."""
    return f"/ip4/127.0.0.1/tcp/1/p2p/{peer_text(identity(number).peer)}"


async def test_nodes_find_each_other_and_outlive_the_bootstrap_peer(tmp_path: Path) -> None:
    data = bytes(100_000)
    seeded = BlobStore(tmp_path / "seeded")
    seeded.put(data)
    bootstrap = Bootstrap()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        addresses = await nursery.start(bootstrap.run)
        # One of the two bootstrap addresses is dead from the start.
        addresses = [closed_address(98), *addresses]
        nodes = [await stack.enter_async_context(node(n, addresses)) for n in range(1, 5)]
        for each in nodes:
            await each.introducer.first_contact(10)
            assert each.introducer.bootstrap_connected()
        # To all others and to the bootstrap peer.
        await until(lambda: all(len(each.network.connected()) == 4 for each in nodes))
        bootstrap.scope.cancel()
        await bootstrap.stopped.wait()
        await until(lambda: not any(each.introducer.bootstrap_connected() for each in nodes))
        a, b = nodes[0], nodes[3]
        serve_blobs(a.network, seeded)
        fetcher = BlobFetcher(b.network, BlobStore(tmp_path / "fetched"))
        assert data == await fetcher.fetch(
            content_id(data),
            max_bytes=len(data),
            providers=lambda: [a.network.peer],
            timeout=20,
        )
        assert set(a.introducer.known.records) == {each.network.peer for each in nodes[1:]}
        # A newcomer that knows a member can do without the bootstrap peer, too.
        async with node(5, a.network.addresses) as newcomer:
            await until(lambda: len(newcomer.network.connected()) == 4)


async def test_swarms_are_not_mixed_up() -> None:
    bootstrap = Bootstrap()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        addresses = await nursery.start(bootstrap.run)
        ours = [await stack.enter_async_context(node(n, addresses)) for n in (1, 2)]
        other = await stack.enter_async_context(node(3, addresses, swarm=OTHER))
        await other.introducer.first_contact(10)
        await until(lambda: all(len(each.network.connected()) == 2 for each in ours))
        assert other.introducer.known.records == {}
        assert len(other.network.connected()) == 1
        bootstrap.scope.cancel()


async def test_a_node_returns_by_the_peers_it_remembers(tmp_path: Path) -> None:
    known = tmp_path / "peers.json"
    bootstrap = Bootstrap()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        addresses = await nursery.start(bootstrap.run)
        a = await stack.enter_async_context(node(1, addresses))
        async with node(2, addresses, known) as b:
            await until(lambda: len(b.network.connected()) == 2)
            await until(
                lambda: b.introducer.known._registry.peer_records(SWARM, trio.current_time()) != []
            )
        bootstrap.scope.cancel()
        await bootstrap.stopped.wait()
        assert len(json.loads(known.read_bytes())["records"]) == 1
        async with node(2, addresses, known) as b:
            await b.introducer.first_contact(20)
            assert b.network.connected() == {a.network.peer}
            assert not b.introducer.bootstrap_connected()


@pytest.mark.parametrize("ahead", [3600, 30 * 86_400])
@pytest.mark.parametrize("disk", ["kept", "lost"])
async def test_a_node_whose_clock_was_once_ahead_gets_back_in(
    tmp_path: Path, ahead: int, disk: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before: its records were refused by all, without any report, until that time came."""
    now = 1_800_000_000
    path = tmp_path / "starts"
    bootstrap = Bootstrap()
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(bootstrap.run)
        async with node(1, addresses) as other:
            async with node(
                2, addresses, message_numbers=MonotonicCounter(path, clock=now + ahead)
            ) as wrong:
                me = wrong.network.peer
                await until(lambda: me in other.introducer.known.records)
                refused = other.introducer.known.records[me]
            await until(lambda: me not in other.network.connected())
            if disk == "lost":
                path.unlink()
            async with node(
                2, addresses, message_numbers=MonotonicCounter(path, clock=now + 60)
            ) as right:
                await until(lambda: other.introducer.known.records[me].number > refused.number)
                here = tuple(right.network.addresses)
                await until(lambda: other.introducer.known.records[me].addresses == here)
                await until(lambda: me in other.network.connected())
        bootstrap.scope.cancel()
    warnings = [
        record for record in caplog.records if "newer record of this node" in record.message
    ]
    assert len(warnings) == (1 if disk == "lost" else 0)


def test_what_is_newer_holds_no_longer_for_being_contradicted() -> None:
    """Before: each older record that was refused extended the newer one by another ten minutes."""
    now, world = 0.0, AddressSource(None, Scope.WORLD)
    known = KnownPeers(
        *(SWARM, identity(1).peer, Registry(), None),
        clock=lambda: now,
        sources=lambda _: world,
        scope_of=scope_of,
    )
    newer, older = (
        open_peer_record(seal_peer_record(identity(2), SWARM, [], number), SWARM)
        for number in (3600, 60)
    )
    assert known.receive(newer, world)
    now = 500.0
    assert not known.receive(older, world)
    assert known.records == {newer.peer: newer}
    now = 601.0
    known.forget_old({newer.peer})
    assert known.records == {newer.peer: newer}
    known.forget_old(set())
    assert known.records == {}


async def test_strangers_take_no_places_of_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: a node with 64 connections of any kind dialled no member of its swarm any more."""
    monkeypatch.setattr(introductions, "MAX_CONNECTED", 2)
    async with networks(3) as (other, *strangers):
        record = seal_peer_record(identity(1), SWARM, other.addresses, 1)
        async with node(9, []) as one:
            for stranger in strangers:
                await stranger.connect(one.network.addresses[0])
            await until(lambda: len(one.network.connected()) == 2)
            one.introducer.known.receive(
                open_peer_record(record, SWARM), one.network.source_of(strangers[0].peer)
            )
            await until(lambda: other.peer in one.network.connected(), 20.0)


async def test_a_node_that_was_cut_off_for_long_finds_its_peers_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before: after ten minutes without a connection it had forgotten all peers, dialled nobody, and had
    forgotten most of those on its disk, too."""
    monkeypatch.setattr(known_peers, "_KNOWN_SECONDS", 1.0)
    monkeypatch.setattr(wire_introductions, "PEER_RECORD_SECONDS", 1.0)
    bootstrap = Bootstrap()
    listen = (f"/ip4/127.0.0.1/tcp/{free_port()}",)
    other, here = identity(2).peer, tmp_path / "peers"
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(bootstrap.run)
        async with node(1, addresses, here) as one:
            async with node(2, addresses, listen=listen):
                await until(lambda: other in one.network.connected())
                bootstrap.scope.cancel()
                await bootstrap.stopped.wait()
            await until(lambda: not one.network.connected())
            await trio.sleep(3.0)
            # It knows nobody, so it has to be dialled.
            async with node(2, [], listen=listen):
                await until(lambda: other in one.network.connected())
    assert [record.peer for record in PeersFile(here, SWARM).load()] == [other]


def test_peers_do_not_age_while_nobody_is_connected() -> None:
    now, world = 0.0, AddressSource(None, Scope.WORLD)
    near = AddressSource(identity(3).peer, Scope.LOCAL)
    registry = Registry()
    known = KnownPeers(
        *(SWARM, identity(1).peer, registry, None),
        clock=lambda: now,
        sources=lambda _: near,
        scope_of=scope_of,
    )
    told, itself, me = (
        open_peer_record(seal_peer_record(identity(number), SWARM, [], 60), SWARM)
        for number in (2, 3, 1)
    )
    known.receive(told, world)
    for record in (itself, me):
        registry.add(record, now)
    for _ in range(100):
        now += 60.0
        known.renew()
    known.forget_old(set())
    assert known.records == {told.peer: told, itself.peer: itself}
    assert (known.source(told.peer), known.source(itself.peer)) == (world, near)
    now += 601.0
    known.forget_old(set())
    assert known.records == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"records": 5}',
        b'{"records": [5]}',
        b'{"records": ["%%%"]}',
        b'{"records": ["AAAA"]}',
        b"[" * 100_000,
        b" " * 1_000_000,
    ],
)
async def test_a_damaged_memory_is_ignored(tmp_path: Path, content: bytes) -> None:
    known = tmp_path / "peers.json"
    known.write_bytes(content)
    async with networks(1) as (network,):
        introducer = Introducer(network, identity(1), SWARM, [], known)
        assert introducer.known.remembered == []
        # Nothing worth remembering came in its place, so it is not touched.
        await introducer._save()
        assert known.read_bytes() == content


async def test_nobody_to_introduce_us_is_reported_with_reasons() -> None:
    async with networks(1) as (silent,):
        addresses = [closed_address(98), silent.addresses[0]]
        async with node(2, addresses) as lonely:
            with pytest.raises(NoBootstrap) as caught:
                await lonely.introducer.first_contact(20)
        assert caught.value.outcomes == {
            addresses[0]: "connection refused",
            addresses[1]: "connected, but it sends no introductions (refused)",
        }
        assert addresses[0] + ": connection refused" in str(caught.value)
    async with node(2, []) as lonely:
        with pytest.raises(NoBootstrap, match="no address to try"):
            await lonely.introducer.first_contact(20)
    async with networks(1) as (network,):
        with pytest.raises(BadAddress):
            Introducer(network, identity(1), SWARM, ["nonsense"])


async def test_a_bootstrap_peer_that_comes_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introductions, "_FIRST_RETRY_SECONDS", 0.05)
    async with networks(1) as (late,), node(2, late.addresses) as early:
        with pytest.raises(NoBootstrap):
            await early.introducer.first_contact(20)
        IntroductionService(late, Registry())
        await until(early.introducer._introduced.is_set)
        await early.introducer.first_contact(0)


async def ask(asker: Network, peer: Any, record: bytes | None, swarm: SwarmId = SWARM) -> list[Any]:
    request = IntroductionRequest(swarm=swarm, record=record).encode()
    answer = await asker.request(peer, PROTOCOL, request, max_response=1 << 20, timeout=60)
    return list(decode_response(answer).records)


async def test_only_a_peer_itself_can_be_introduced() -> None:
    async with star(3) as (hub, a, b):
        IntroductionService(hub, Registry(), {SWARM})
        mine = seal_peer_record(identity(2), SWARM, a.addresses, 1)
        assert await ask(a, hub.peer, mine) == []
        assert await ask(b, hub.peer, None) == [mine]
        # Of another swarm it knows no peer and takes none, but asking is not an offence.
        assert await ask(a, hub.peer, seal_peer_record(identity(2), OTHER, [], 1), OTHER) == []
        assert await ask(b, hub.peer, None, OTHER) == []
        assert not hub.refuses(a.peer)
        # Whether the reason arrives or the connection is closed before is a matter of luck.
        with pytest.raises(RequestError, match=r"impersonation|closed"):
            await ask(b, hub.peer, mine)
        await until(lambda: hub.connected() == {a.peer})


async def test_a_crowd_of_invented_peers_does_not_keep_real_ones_away() -> None:
    async with star(2) as (hub, real):
        registry = Registry()
        IntroductionService(hub, registry)
        for number in range(1000, 1060):
            sealed = seal_peer_record(identity(number), SWARM, [closed_address(number)], 1)
            registry.add(introductions.open_peer_record(sealed, SWARM), trio.current_time())
        await ask(real, hub.peer, seal_peer_record(identity(2), SWARM, real.addresses, 1))
        async with node(3, hub.addresses) as newcomer:
            await until(lambda: real.peer in newcomer.network.connected())


_MEASURE = """
import sys, trio, psutil
from distro_node.crypto.identity import Identity
from distro_node.node.bootstrap import BootstrapSettings, run_bootstrap
from distro_node.node.settings.components import LineSettings

def ready(addresses):
    print(addresses[0], flush=True)

line = LineSettings(listen=(sys.argv[1],))
settings = BootstrapSettings(identity=Identity.from_seed(bytes(32)), line=line)
async def main():
    async def until_asked():
        await trio.to_thread.run_sync(sys.stdin.readline)
        print(psutil.Process().memory_info().rss, "torch" in sys.modules, flush=True)
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(until_asked)
        await run_bootstrap(settings, ready=ready)
trio.run(main)
"""


@pytest.fixture
def separate() -> Iterator[subprocess.Popen[str]]:
    """Run a bootstrap peer in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MEASURE, LOOPBACK.listen[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.e2e
async def test_a_bootstrap_peer_is_small(separate: subprocess.Popen[str]) -> None:
    """Under 150 MB and without torch, with some nodes connected; it ends when told to."""
    assert separate.stdin is not None
    assert separate.stdout is not None
    address = (await trio.to_thread.run_sync(separate.stdout.readline)).strip()
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(node(n, [address])) for n in range(1, 6)]
        await until(lambda: all(len(each.network.connected()) == 5 for each in nodes))
        separate.stdin.write("\n")
        separate.stdin.flush()
        resident, torch = (await trio.to_thread.run_sync(separate.stdout.readline)).split()
        assert int(resident) < 150e6
        assert torch == "False"
        assert await trio.to_thread.run_sync(separate.wait) == 0
        await until(lambda: not any(each.introducer.bootstrap_connected() for each in nodes))
