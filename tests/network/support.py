"""Shared helpers of the network tests: networks on loopback, and waiting for a condition."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import trio
from distro_node.crypto.identity import Identity, PeerId
from distro_node.node.network.addresses import circuit_through
from distro_node.node.network.circuit_relay import CircuitLimits
from distro_node.node.network.network import Network, NetworkSettings, open_network

# Private here: `_muxers`, `_connections`: streams that are left open show nowhere else.

LOOPBACK = NetworkSettings(listen=("/ip4/127.0.0.1/tcp/0",))
ECHO = "/test/echo/1"
PATIENCE_SECONDS = 120.0
"""Timeout of a test for what must happen. It goes on at once when it happens; a busy machine with one
CPU has taken a minute for what takes a second."""


def free_port() -> int:
    """Return a TCP port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def identity(number: int) -> Identity:
    """Return the same identity for a number in every run."""
    return Identity.from_seed(number.to_bytes(4, "big") * 8)


@asynccontextmanager
async def networks(count: int) -> AsyncIterator[list[Network]]:
    """Open some networks on loopback, not connected to each other."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(open_network(LOOPBACK, identity(number + 1)))
            for number in range(count)
        ]


@asynccontextmanager
async def star(count: int) -> AsyncIterator[list[Network]]:
    """Open some networks of which the first is connected to all others."""
    async with networks(count) as opened:
        for other in opened[1:]:
            await opened[0].connect(other.addresses[0], timeout=PATIENCE_SECONDS)
            await until(lambda other=other: opened[0].peer in other.connected())
        yield opened


async def echo(peer: PeerId, request: bytes) -> bytes:
    return request


@asynccontextmanager
async def relay_and(
    count: int, limits: CircuitLimits | None = None
) -> AsyncIterator[tuple[Network, list[Network]]]:
    """Open a relay, and others that are connected only to it and serve `ECHO`."""
    settings = replace(LOOPBACK, circuit_limits=limits or CircuitLimits())
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(open_network(settings, identity(99)))
        others = await stack.enter_async_context(networks(count))
        for other in others:
            other.serve(ECHO, echo, max_request=1 << 22, max_concurrent=8)
            await other.connect(relay.addresses[0])
        yield relay, others


@asynccontextmanager
async def relayed_pair() -> AsyncIterator[tuple[Network, Network, Network]]:
    """Open a relay and two networks that are connected only through it."""
    settings = replace(LOOPBACK, circuit_limits=CircuitLimits())
    async with open_network(settings, identity(99)) as relay, networks(2) as (a, b):
        for each in (a, b):
            await each.connect(relay.addresses[0])
        await b.circuits.reserve(relay.peer)
        await a.connect(circuit_through(relay.own_addresses[0], b.peer))
        await until(lambda: a.peer in b.relayed())
        yield relay, a, b


async def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition, and fail if it does not come true."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110  (any condition, most of them in the library)
            await trio.sleep(0.01)


def muxers(network: Network) -> Sequence[Any]:
    """Return the yamux connections of a network."""
    return list(network._muxers())


def requests_open(network: Network) -> int:
    """Return how many streams are open on a network's connections, except for gossip's and
    identify's."""
    quiet = ("/meshsub/", "/ipfs/")
    streams = [s for group in network._connections.values() for c in group for s in c.streams]
    return sum(not str(stream.get_protocol()).startswith(quiet) for stream in streams)
