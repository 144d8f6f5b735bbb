"""A relay does not amplify: it sends to others little more than it receives for them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import trio
from distro_node.node.network.addresses import circuit_through, id_of
from distro_node.node.network.circuit_relay import CircuitLimits
from distro_node.node.network.network import Network
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage
from network.support import relay_and

# Private here: `_ask`, `_muxers`: a stranger that calls and hangs up at once, and a peer's share of the
# traffic.


def wire_of(network: Network, other: Network) -> tuple[int, int]:
    """Return the bytes sent to and received from a peer, over its own connection."""
    wires: list[Any] = [m.secured_conn for m in network._muxers() if m.peer_id == id_of(other.peer)]
    return sum(wire.sent for wire in wires), sum(wire.received for wire in wires)


async def test_what_is_poured_through_a_relay_comes_out_as_much() -> None:
    size = 2 << 20
    async with relay_and(2) as (relay, (attacker, target)):
        await target.circuits.reserve(relay.peer)
        await attacker.connect(circuit_through(relay.own_addresses[0], target.peer))
        target.serve("/test/hole/1", _swallow, max_request=size, max_concurrent=2)
        (before, _), (_, told) = wire_of(relay, target), wire_of(relay, attacker)
        await attacker.request(
            target.peer, "/test/hole/1", bytes(size), max_response=1, timeout=120
        )
        (after, _), (_, heard) = wire_of(relay, target), wire_of(relay, attacker)
        assert after - before > size
        assert (after - before) / (heard - told) < 1.05


async def test_calls_that_are_given_up_at_once_cost_the_caller_as_much_as_the_target() -> None:
    async with relay_and(2, replace(CircuitLimits(), circuits_per_peer=8)) as (relay, pair):
        attacker, target = pair
        await target.circuits.reserve(relay.peer)
        (before, _), (_, told) = wire_of(relay, target), wire_of(relay, attacker)
        call = HopMessage(type=HopMessage.CONNECT)
        call.peer.id = id_of(target.peer).to_bytes()
        for _ in range(100):
            with contextlib.suppress(Exception):
                stream, _ = await attacker.circuits._ask(relay.peer, call)
                await stream.reset()
        await trio.sleep(0.5)
        (after, _), (_, heard) = wire_of(relay, target), wire_of(relay, attacker)
        assert after > before
        assert (after - before) / (heard - told) < 1.2


async def _swallow(peer: object, request: bytes) -> bytes:
    return b""
