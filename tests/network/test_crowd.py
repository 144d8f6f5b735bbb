"""Many nodes and one bootstrap peer: they form one swarm, and a crowd does not lock others out."""

from __future__ import annotations

import random
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import pytest
import trio
from distro_node.crypto.identity import peer_text
from distro_node.node.bootstrap import bootstrap_status, read_bootstrap
from distro_node.node.network import network as network_module
from distro_node.node.network.network import open_network
from distro_node.node.settings.components import LineSettings
from distro_node.node.storage.relayed_bytes import RelayedBytes
from distro_node.node.telemetry.bootstrap_metrics import BOOTSTRAP_METRICS
from distro_node.node.telemetry.families import registry_of
from distro_node.protocol.wire.introductions import Registry
from network.homes import Bootstrap, home
from network.support import LOOPBACK, identity, networks, relayed_pair, until
from prometheus_client import generate_latest

# Private here: `_dial_outcomes`: whether a node has dialled at all shows nowhere else.

SEED = 20


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_ten_nodes_in_any_order_are_one_swarm_however_late_the_bootstrap_peer() -> None:
    chance = random.Random(SEED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}"
    bootstrap = Bootstrap(line=LineSettings(listen=(listen,)))
    addresses = [f"{listen}/p2p/{peer_text(identity(99).peer)}"]
    numbers = list(range(1, 11))
    chance.shuffle(numbers)
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        # Some cannot be dialled; half of all are there, and have asked in vain, before the bootstrap
        # peer is.
        homes = []
        for place, number in enumerate(numbers):
            if place == 5:
                await until(lambda: all(each.introducer._dial_outcomes for each in homes))
                await nursery.start(bootstrap.run)
            hidden = number % 5 == 0
            homes.append(await stack.enter_async_context(home(number, addresses, hidden=hidden)))
        everybody = {each.network.peer for each in homes} | {identity(99).peer}
        await until(
            lambda: all(
                each.network.connected() == everybody - {each.network.peer} for each in homes
            ),
            480,
        )
        nursery.cancel_scope.cancel()


async def test_a_crowd_behind_one_address_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = iter(["7.7.0.1"] * 3 + ["7.7.0.2"])
    seen: dict[object, str] = {}

    def host(connection: object) -> str:
        if connection not in seen:
            seen[connection] = next(where)
        return seen[connection]

    settings = replace(LOOPBACK, max_connections_per_address=2)
    async with open_network(settings, identity(99)) as hub, networks(4) as others:
        monkeypatch.setattr(network_module, "host_of", host)
        for count, other in enumerate(others, 1):
            await other.connect(hub.addresses[0])
            await until(lambda count=count: len(seen) == count)
        await until(lambda: not others[2].connected())
        assert hub.connected() == {others[n].peer for n in (0, 1, 3)}


async def test_a_bootstrap_peer_reports_its_load() -> None:
    async with relayed_pair() as (relay, *_):
        assert relay.circuit_relay is not None
        relay.circuit_relay.refused["reservations"] += 2
        carried = relay.circuit_relay.relayed_bytes
        carried_before = RelayedBytes(None)
        status = partial(bootstrap_status, relay, carried_before, Registry(), None, 0.0)
        registry = registry_of(BOOTSTRAP_METRICS, partial(read_bootstrap, relay, status))
        page = generate_latest(registry).decode()
        assert carried > 0
        for line in (
            "distro_bootstrap_peers_connected 2.0",
            "distro_bootstrap_reservations 1.0",
            "distro_bootstrap_circuits 1.0",
            'distro_bootstrap_refused_total{reason="reservations"} 2.0',
        ):
            assert line in page
        # Nothing can have arrived in between.
        assert registry.get_sample_value("distro_bootstrap_relayed_bytes_total") == carried
