"""A crowd of strangers locks no peer out, and their messages delay no others."""

from __future__ import annotations

import struct
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing
from distro_node.node.network import connection_limits
from distro_node.node.network import network as network_module
from distro_node.node.network.connection_limits import HandshakeLimit, choose_eviction
from distro_node.node.network.cpu_budget import CpuBudget
from distro_node.node.network.network import open_network
from distro_node.protocol.util.token_bucket import TokenRate
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.yamux.yamux import FLAG_SYN, TYPE_PING, YAMUX_HEADER_FORMAT
from network.hostile import hostile
from network.support import (
    ECHO,
    LOOPBACK,
    PATIENCE_SECONDS,
    echo,
    identity,
    muxers,
    networks,
    star,
    until,
)

# Private here: `_waiting`: leftovers show nowhere else.
# Private here: `_write_frame`: frames that no node of ours would send.


def test_who_waits_longest_where_most_come_from_gives_up() -> None:
    door, gone = HandshakeLimit(), []
    leaves = [door.enter("8.8.8.8", lambda n=n: gone.append(n)) for n in range(100)]
    honest = door.enter("9.9.9.9", lambda: gone.append("honest"))
    for number in range(100, 1000):
        leaves.append(door.enter("8.8.8.8", lambda n=number: gone.append(n)))
    assert len(door) == connection_limits.MAX_HANDSHAKES
    assert gone == list(range(1001 - connection_limits.MAX_HANDSHAKES))
    honest()
    for leave in leaves:
        leave()
    assert len(door) == 0
    assert not door._waiting


def test_nobody_is_alone_at_an_address_of_ipv6() -> None:
    door, gone = HandshakeLimit(), []
    door.enter("9.9.9.9", lambda: gone.append("honest"))
    for number in range(500):
        door.enter(f"2001:4860::{number:x}", lambda: gone.append("crowd"))
    assert "honest" not in gone


def test_the_oldest_guest_of_the_largest_crowd_leaves() -> None:
    candidates = [("a", "1.1.1.1"), ("b", "2.2.2.2"), ("c", "2.2.2.2"), ("d", "3.3.3.3")]
    assert choose_eviction(candidates) == "b"
    assert choose_eviction([]) is None


async def test_strangers_who_send_nothing_keep_nobody_out() -> None:
    """Before: with 256 such connections, renewed as they end, 0 of 12 honest peers got in."""
    async with networks(1) as (victim,), AsyncExitStack() as stack:
        _, _, host, _, port, *_ = victim.addresses[0].split("/")
        for _ in range(300):
            silent = await trio.open_tcp_stream(host, int(port))
            stack.push_async_callback(silent.aclose)
        async with open_network(LOOPBACK, identity(50)) as honest:
            await honest.connect(victim.addresses[0], timeout=5)
            await until(lambda: honest.peer in victim.connected())


async def test_newcomers_get_in_although_all_places_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network_module, "_SPARE_CONNECTIONS", 2)
    settings = replace(LOOPBACK, max_connections=6)
    async with open_network(settings, identity(99)) as victim, networks(9) as others:
        friend, *crowd = others
        victim.is_exempt = lambda peer: peer == friend.peer
        await friend.connect(victim.addresses[0])
        for each in crowd:
            await each.connect(victim.addresses[0], timeout=PATIENCE_SECONDS)
            await until(lambda each=each: each.peer in victim.connected())
            await until(lambda: len(victim.connected()) <= 4)
        assert friend.peer in victim.connected()
        assert crowd[-1].peer in victim.connected()
        assert victim.traffic.rejected["crowded_out"] == 5


async def test_who_uses_up_its_budget_waits(autojump_clock: trio.testing.MockClock) -> None:
    patience = CpuBudget(TokenRate(at_once=100.0, per_second=10.0))
    begun = trio.current_time()
    for _ in range(300):
        await patience.spend()
    assert trio.current_time() - begun == pytest.approx(20.0, abs=0.2)
    # Earned tokens are used at once, and nothing accumulates beyond the bound.
    await trio.sleep(1000)
    patience.earn(1000)
    begun = trio.current_time()
    for _ in range(100):
        await patience.spend()
    assert trio.current_time() == begun
    await patience.spend(10)
    assert trio.current_time() > begun


async def test_empty_frames_do_not_keep_the_processor_busy() -> None:
    """Before: each was handled at once, some 5,000 in a row between two turns of any other task."""
    async with star(2) as (a, b):
        b.serve(ECHO, echo, max_request=10, max_concurrent=4)
        (sending,), (receiving,) = muxers(a), muxers(b)
        answered = 0
        real = receiving._write_frame

        async def counting(frame: bytes) -> None:
            nonlocal answered
            answered += 1
            await real(frame)

        receiving._write_frame = counting
        ping = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_PING, FLAG_SYN, 0, 7)
        begun = trio.current_time()
        for _ in range(4):
            await sending._write_frame(ping * 5000)
        await trio.sleep(0.5)
        took = trio.current_time() - begun
        # The initial tokens, those earned, and 20,000 times 12 bytes of honest traffic.
        assert answered <= 1100 + 200 * took + 20_000 * 12 / 512


async def test_tiny_gossip_messages_do_not_keep_the_processor_busy() -> None:
    async with networks(1) as (victim,), hostile(victim) as peer:
        begun, handled = trio.current_time(), 0
        real = victim.gossip.pubsub.handle_subscription

        def counting(origin_id: Any, sub_message: Any) -> None:
            nonlocal handled
            handled += 1
            real(origin_id, sub_message)

        victim.gossip.pubsub.handle_subscription = counting
        rpc = rpc_pb2.RPC()
        rpc.subscriptions.add(subscribe=False, topicid="t")
        with trio.move_on_after(2):
            for _ in range(20_000):
                await peer.send_rpc(rpc)
        took = trio.current_time() - begun
        assert 100 < handled <= 600 + 100 * took
