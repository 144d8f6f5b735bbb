"""Peers that send almost nothing for as long as they can, or announce far too much, on each protocol.

`benchmarks/strangers.py` measures what fifty of them cost a whole node (`trickles`, `half open`,
`nameless`, `long prefixes`, `long frames`, `half handshakes`, `slow pages`).
"""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
from distro_node.node.network import circuit_client as circuits
from distro_node.node.network import circuit_relay, host, requests
from distro_node.node.network.circuit_client import HOP, STOP
from distro_node.node.network.circuit_relay import CircuitLimits
from distro_node.node.network.network import Network, open_network
from fuzz import inventory
from libp2p.utils.varint import encode_uvarint
from network.attacks import ONE_GB, PROTOCOLS
from network.hostile import GOSSIP, Hostile, hostile
from network.support import ECHO, LOOPBACK, PATIENCE_SECONDS, echo, identity, networks

# A test does not wait for twenty seconds.
_SOON = 0.5


@asynccontextmanager
async def attacked() -> AsyncIterator[tuple[Network, Hostile, Network]]:
    """Open a node that serves what is tried, a hostile peer connected to it, and an honest one."""
    settings = replace(LOOPBACK, circuit_limits=CircuitLimits())
    async with open_network(settings, identity(70)) as node, networks(1) as (honest,):
        node.serve(ECHO, echo, max_request=1 << 10, max_concurrent=4)
        await honest.connect(node.addresses[0], timeout=PATIENCE_SECONDS)
        async with hostile(node) as peer:
            yield node, peer, honest


async def until_ended(stream: Any) -> None:
    """Wait until the node has ended a stream, or its connection; earlier data is ignored."""
    with trio.fail_after(PATIENCE_SECONDS):
        try:
            while await stream.read(1 << 10):
                pass
        # The library reports the end of a stream in several ways.
        except Exception:
            return


async def is_served(node: Network, honest: Network) -> bool:
    answer = await honest.request(
        node.peer, ECHO, b"x", max_response=1, timeout=PATIENCE_SECONDS, idle_timeout=60.0
    )
    return answer == b"x"


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_REQUEST_SECONDS", _SOON)
    monkeypatch.setattr(circuits, "REPLY_TIMEOUT_SECONDS", _SOON)
    monkeypatch.setattr(circuit_relay, "REPLY_TIMEOUT_SECONDS", _SOON)


def test_all_that_a_node_serves_is_attacked() -> None:
    known = {each for each in inventory.doors("serve") if each.startswith("/")}
    assert known <= set(PROTOCOLS)
    assert {str(HOP), str(STOP), str(GOSSIP), ECHO} <= set(PROTOCOLS)


@pytest.mark.usefixtures("in_a_hurry")
@pytest.mark.parametrize("protocol", [ECHO, str(HOP), str(STOP)])
async def test_a_request_that_trickles_in_is_not_waited_for(protocol: str) -> None:
    """All of our protocols are read by the function that reads this one (`test_strangers.py`). A byte at
    a time keeps nothing alive: the timeout is for the whole."""
    begun = (100).to_bytes(4, "big") if protocol == ECHO else encode_uvarint(100)
    async with attacked() as (node, peer, honest):
        stream = await peer.open(protocol)
        await stream.write(begun)
        async with trio.open_nursery() as nursery:

            async def trickle() -> None:
                # It fails as soon as the node has ended the stream.
                with suppress(Exception):
                    while True:
                        await stream.write(b"\x00")
                        await trio.sleep(_SOON / 10)

            nursery.start_soon(trickle)
            await until_ended(stream)
            nursery.cancel_scope.cancel()
        assert await is_served(node, honest)


@pytest.mark.usefixtures("in_a_hurry")
@pytest.mark.parametrize("protocol", [ECHO, str(HOP), str(STOP)])
async def test_a_stream_that_sends_nothing_is_ended(protocol: str) -> None:
    async with attacked() as (node, peer, honest):
        streams = [await peer.open(protocol) for _ in range(8)]
        for stream in streams:
            await until_ended(stream)
        assert await is_served(node, honest)


async def test_a_stream_that_names_no_protocol_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_UPGRADE_SECONDS", _SOON)
    async with attacked() as (node, peer, honest):
        stream = await peer.muxer.open_stream()
        await stream.write(b"\x13/multi")
        await until_ended(stream)
        assert await is_served(node, honest)


@pytest.mark.usefixtures("in_a_hurry")
@pytest.mark.parametrize("protocol", [ECHO, str(HOP), str(STOP), str(GOSSIP)])
async def test_a_length_of_1_gb_is_refused_before_anything_is_taken_for_it(protocol: str) -> None:
    async with attacked() as (node, peer, honest):
        stream = await peer.open(protocol)
        tracemalloc.start()
        try:
            await stream.write(ONE_GB[protocol] + bytes(1000))
            await until_ended(stream)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 64 << 20
        assert await is_served(node, honest)
