"""Nodes that cannot be dialled hold reservations at relays and form one swarm all the same."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import PeerId
from distro_node.node import bootstrap as bootstrap_module
from distro_node.node.network import circuit_relay
from distro_node.node.network.addresses import circuit_through
from distro_node.node.network.circuit_relay import CircuitLimits
from distro_node.node.network.network import Network
from distro_node.protocol.wire.manifest import SwarmId
from network.homes import Bootstrap, Home, home
from network.support import relay_and, until

# Private here: `_ask`: a call has to come at the very moment of a renewal.


async def test_homes_find_each_other_through_a_relay_and_survive_its_restart() -> None:
    bootstrap = Bootstrap()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        addresses = await nursery.start(bootstrap.run)
        homes = [await stack.enter_async_context(home(n, addresses)) for n in (1, 2, 3)]
        # A member that can be dialled, too: it is reached without a relay.
        homes.append(await stack.enter_async_context(home(4, addresses, hidden=False)))
        await until(lambda: all(len(each.network.connected()) == 4 for each in homes))
        await until(lambda: [len(each.network.relayed()) for each in homes] == [2, 2, 2, 0])
        await bootstrap.stop()
        await until(lambda: not any(each.network.relayed() for each in homes))
        assert all(homes[3].network.peer in each.network.connected() for each in homes[:3])
        await nursery.start(bootstrap.run)
        await until(lambda: [len(each.network.relayed()) for each in homes] == [2, 2, 2, 0])
        bootstrap.scope.cancel()


async def test_members_alone_put_each_other_through() -> None:
    """No bootstrap peer: two that cannot be dialled meet through a member that can."""
    async with AsyncExitStack() as stack:
        open_to_all = await stack.enter_async_context(home(3, [], hidden=False))
        address = open_to_all.network.addresses[0]
        hidden = [await stack.enter_async_context(home(n, [address])) for n in (1, 2)]
        one, other = hidden
        await until(lambda: one.network.relayed() == {other.network.peer})
        await until(lambda: other.network.relayed() == {one.network.peer})
        assert open_to_all.network.circuit_relay is not None
        # Two, if both have called at the same time.
        assert open_to_all.network.circuit_relay.circuits in (1, 2)
        assert [each.reach.relays for each in hidden] != [[], []]
        # A node that cannot be dialled relays for no other.
        assert [each.network.accepts_reservations for each in hidden] == [False, False]


async def test_a_member_carries_its_swarm_and_no_other() -> None:
    async with AsyncExitStack() as stack:
        member = await stack.enter_async_context(home(3, [], hidden=False))
        address = member.network.addresses[0]
        friend = await stack.enter_async_context(home(1, [address]))
        other = SwarmId(bytes([7]) * 32)
        stranger = await stack.enter_async_context(home(2, [address], swarm=other))
        await until(lambda: member.network.peer in friend.reach.relays)
        circuit_relay = member.network.circuit_relay
        assert circuit_relay is not None
        await until(lambda: circuit_relay.refused["stranger"] > 0)
        assert circuit_relay.has_reservation(friend.network.peer)
        assert not circuit_relay.has_reservation(stranger.network.peer)
        assert not stranger.reach.relays


async def test_a_bootstrap_peer_puts_several_swarms_through_and_mixes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []
    original = bootstrap_module.open_network

    def remember(*arguments: Any) -> Any:
        manager = original(*arguments)

        @asynccontextmanager
        async def opening() -> AsyncIterator[Network]:
            async with manager as network:
                opened.append(network)
                yield network

        return opening()

    monkeypatch.setattr(bootstrap_module, "open_network", remember)
    bootstrap = Bootstrap()
    swarms = [SwarmId(bytes([number]) * 32) for number in range(2)]
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        addresses = await nursery.start(bootstrap.run)
        homes: list[list[Home]] = [
            [
                await stack.enter_async_context(home(10 * place + n, addresses, swarm=swarm))
                for n in (1, 2, 3)
            ]
            for place, swarm in enumerate(swarms)
        ]

        def others(each: Home, swarm: list[Home]) -> set[PeerId]:
            return {other.network.peer for other in swarm} - {each.network.peer}

        await until(
            lambda: all(
                each.network.relayed() == others(each, swarm) for swarm in homes for each in swarm
            ),
            90,
        )
        (network,) = opened
        assert network.circuit_relay is not None
        assert network.circuit_relay.reservations() == 6
        # A circuit for each pair of a swarm's three; two for a pair that called each other at once.
        assert 6 <= network.circuit_relay.circuits <= 12
        bootstrap.scope.cancel()


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_reservation_is_renewed_by_our_own_clock(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """A relay's wall clock may be wrong: an hour ahead, reservations expired; an hour behind, they were
    renewed every two seconds."""
    clock = SimpleNamespace(time=lambda: time.time() + 3600 * hours)
    monkeypatch.setattr(circuit_relay, "time", clock)
    async with relay_and(1) as (relay, (node,)):
        before = trio.current_time()
        reservation = await node.circuits.reserve(relay.peer)
        assert before <= reservation.expires - CircuitLimits().reservation_seconds
        assert reservation.expires - CircuitLimits().reservation_seconds <= trio.current_time()


async def test_calls_come_through_while_a_reservation_is_being_renewed() -> None:
    async with relay_and(2) as (relay, (caller, called)):
        await called.circuits.reserve(relay.peer)
        address = circuit_through(relay.own_addresses[0], called.peer)
        # There is no other moment between a request and its answer.
        ask = called.circuits._ask

        async def slow(*arguments: Any) -> Any:
            await caller.connect(address)
            return await ask(*arguments)

        circuits: Any = called.circuits
        # Replaced for the same reason.
        circuits._ask = slow
        await called.circuits.reserve(relay.peer)
        assert called.peer in caller.relayed()
