"""Circuits: peers connected through a relay talk to each other; and the limits of a relay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import PeerId
from distro_node.node.network.addresses import circuit_through, id_of
from distro_node.node.network.circuit_client import HOP, STOP
from distro_node.node.network.circuit_relay import MEMBER_CIRCUITS, CircuitLimits
from distro_node.node.network.errors import DialError, RequestError
from distro_node.node.network.network import Network, open_network
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from network.support import ECHO, LOOPBACK, echo, identity, networks, relay_and, star, until

# Private here: `_host`: a stranger obeys none of a node's own bounds.
# Private here: `_rates_by_address`: what must be released shows nowhere else.
# Private here: `_reservations`, `_open_stream`: a relay that holds an invented reservation, or that
# leads elsewhere.


def through(relay: Network, peer: Network) -> str:
    return circuit_through(relay.own_addresses[0], peer.peer)


async def ask(asker: Network, peer: Network, request: bytes = b"hello") -> bytes:
    return await asker.request(peer.peer, ECHO, request, max_response=1 << 22, timeout=20)


async def test_two_peers_talk_through_a_relay() -> None:
    async with relay_and(2) as (relay, (a, b)):
        assert relay.circuit_relay is not None
        reservation = await b.circuits.reserve(relay.peer)
        assert reservation.addresses == tuple(relay.own_addresses)
        assert await a.connect(through(relay, b)) == b.peer
        await until(lambda: a.peer in b.connected())
        assert a.relayed() == {b.peer}
        assert b.relayed() == {a.peer}
        big = bytes(range(256)) * 8192
        assert await ask(a, b, big) == big
        assert await ask(b, a, big) == big
        assert relay.circuit_relay.circuits == 1
        assert relay.circuit_relay.relayed_bytes > 4 * len(big)
        # Circuit traffic is not counted twice: as itself and as its carrier's.
        assert 2 * len(big) < a.wire_bytes()[0] < 2.2 * len(big)
        await a.disconnect(b.peer)
        await until(lambda: not a.relayed() and not b.relayed())
        await until(lambda: relay.circuit_relay is not None and relay.circuit_relay.circuits == 0)
        assert a.connected() == b.connected() == {relay.peer}


async def test_the_end_of_one_circuit_leaves_the_others_alone() -> None:
    async with relay_and(3) as (relay, (a, b, c)):
        for each in (b, c):
            await each.circuits.reserve(relay.peer)
            await a.connect(through(relay, each))
        await a.disconnect(b.peer)
        await until(lambda: a.peer not in b.connected())
        assert await ask(a, c) == b"hello"
        assert a.relayed() == {c.peer}


async def test_calls_that_cannot_be_put_through() -> None:
    limits = CircuitLimits(circuits_per_peer=1)
    async with relay_and(4, limits) as (relay, (a, b, c, stranger)):
        with pytest.raises(DialError, match="has no reservation"):
            await a.connect(through(relay, b))
        await b.circuits.reserve(relay.peer)
        await c.circuits.reserve(relay.peer)
        assert await a.connect(through(relay, b)) == b.peer
        # One circuit per peer, whichever the caller.
        with pytest.raises(DialError, match="the relay is full"):
            await a.connect(through(relay, c))
        with pytest.raises(DialError, match="the relay is full"):
            await c.connect(through(relay, b))
        # A peer that has no reservation at this relay accepts no calls from it.
        assert relay.circuit_relay is not None
        relay.circuit_relay._reservations[stranger.peer] = (trio.current_time() + 60, "")
        with pytest.raises(DialError, match="cannot reach the peer"):
            await c.connect(through(relay, stranger))
        # Nor does a peer that is not a relay forward anything.
        with pytest.raises(DialError, match="the peer is not a relay"):
            await c.connect(circuit_through(a.own_addresses[0], stranger.peer))
        assert dict(relay.circuit_relay.refused) == {
            "no_reservation": 1,
            "circuits": 2,
            "unreachable": 1,
        }


async def test_reservations_are_bounded_and_lapse() -> None:
    limits = CircuitLimits(reservations=3, reservations_per_address=2, reservation_seconds=100)
    async with relay_and(3, limits) as (relay, (a, b, c)):
        assert relay.circuit_relay is not None
        for each in (a, b, a):
            await each.circuits.reserve(relay.peer)
        with pytest.raises(DialError, match="the relay is full"):
            await c.circuits.reserve(relay.peer)
        assert relay.circuit_relay.reservations() == 2
        relay.circuit_relay._reservations[b.peer] = (trio.current_time(), "127.0.0.1")
        await c.circuits.reserve(relay.peer)
        with pytest.raises(DialError, match="has no reservation"):
            await a.connect(through(relay, b))
        relay.accepts_reservations = False
        with pytest.raises(DialError, match="the relay refuses the request"):
            await c.circuits.reserve(relay.peer)


async def test_a_peer_that_is_gone_takes_no_place() -> None:
    async with relay_and(3, CircuitLimits(reservations=1)) as (relay, (a, b, caller)):
        assert relay.circuit_relay is not None
        await a.circuits.reserve(relay.peer)
        with pytest.raises(DialError, match="the relay is full"):
            await b.circuits.reserve(relay.peer)
        await a.disconnect(relay.peer)
        await until(lambda: a.peer not in relay.connected())
        assert relay.circuit_relay.reservations() == 0
        await b.circuits.reserve(relay.peer)
        await caller.connect(through(relay, b))
        # Connected again, it has to ask again.
        await a.connect(relay.addresses[0])
        with pytest.raises(DialError, match="has no reservation"):
            await caller.connect(through(relay, a))


async def test_strangers_pour_nothing_through_a_member() -> None:
    """Two that are in no swarm of the member's, with keys of their own."""
    async with relay_and(2, MEMBER_CIRCUITS) as (member, (a, b)):
        assert member.circuit_relay is not None
        for stranger in (a, b):
            with pytest.raises(DialError, match="the relay refuses the request"):
                await stranger.circuits.reserve(member.peer)
        with pytest.raises(DialError, match="has no reservation"):
            await a.connect(through(member, b))
        assert member.circuit_relay.reservations() == member.circuit_relay.relayed_bytes == 0
        assert member.circuit_relay.refused["stranger"] == 2
        # Once it is introduced, it is relayed for; its callers call a peer of the swarm.
        member.knows = lambda peer: peer == b.peer
        await b.circuits.reserve(member.peer)
        assert await a.connect(through(member, b)) == b.peer
        assert await ask(a, b) == b"hello"


@pytest.mark.parametrize("bound", ["max_upload", "max_download"])
async def test_circuits_stay_within_the_limits_of_the_line(bound: str) -> None:
    """Before: what a relay received for others was no part of its download limit."""
    settings = replace(LOOPBACK, circuit_limits=CircuitLimits(), **{bound: 500_000.0})
    async with open_network(settings, identity(99)) as relay, networks(2) as (a, b):
        b.serve(ECHO, echo, max_request=1 << 22, max_concurrent=8)
        for each in (a, b):
            await each.connect(relay.addresses[0])
        await b.circuits.reserve(relay.peer)
        await a.connect(through(relay, b))
        began = trio.current_time()
        assert await ask(a, b, bytes(500_000)) == bytes(500_000)
        assert trio.current_time() - began > 1.8


@pytest.mark.parametrize("bound", ["bytes_per_second", "bytes_per_second_per_address"])
async def test_a_relay_keeps_to_its_rate(bound: str) -> None:
    rate, size = 400_000, 1 << 18
    limits = CircuitLimits(**{bound: rate})  # type: ignore[arg-type]
    async with relay_and(3, limits) as (relay, (a, b, c)):
        assert relay.circuit_relay is not None
        for each in (b, c):
            await each.circuits.reserve(relay.peer)
            await a.connect(through(relay, each))
        before, began = relay.circuit_relay.relayed_bytes, trio.current_time()
        async with trio.open_nursery() as nursery:
            # Both directions of both circuits.
            for one, other in ((a, b), (b, a), (a, c)):
                nursery.start_soon(ask, one, other, bytes(size))
        carried = relay.circuit_relay.relayed_bytes - before
        # On any machine it was no faster, except for the burst after a pause.
        assert 6 * size < carried < rate * (trio.current_time() - began + 0.5)
        for each in (b, c):
            await a.disconnect(each.peer)
        await until(
            lambda: relay.circuit_relay is not None and not relay.circuit_relay._rates_by_address
        )


async def test_a_circuit_ends_at_its_limits() -> None:
    async with relay_and(2, CircuitLimits(circuit_bytes=1 << 20)) as (relay, (a, b)):
        await b.circuits.reserve(relay.peer)
        await a.connect(through(relay, b))
        assert await ask(a, b) == b"hello"
        with pytest.raises(RequestError, match="closed"):
            await ask(a, b, bytes(1 << 20))
        await until(lambda: not a.relayed() and not b.relayed())
    async with relay_and(2, CircuitLimits(circuit_seconds=0.5)) as (relay, (a, b)):
        await b.circuits.reserve(relay.peer)
        await a.connect(through(relay, b))
        await until(lambda: not a.relayed() and not b.relayed())
        assert relay.peer in a.connected()


async def test_a_relay_cannot_pass_for_the_peer_it_should_call() -> None:
    """Over a circuit, too, only the owner of the requested key is accepted."""
    async with relay_and(3) as (relay, (a, b, mallory)):
        assert relay.circuit_relay is not None
        await b.circuits.reserve(relay.peer)
        await mallory.circuits.reserve(relay.peer)
        honest = relay.circuit_relay._open_stream

        async def elsewhere(peer: PeerId, protocol: str) -> Any:
            return await honest(mallory.peer if peer == b.peer else peer, protocol)

        relay.circuit_relay._open_stream = elsewhere
        with pytest.raises(DialError, match="another peer answers there"):
            await a.connect(through(relay, b))
        assert b.peer not in a.connected()
        assert mallory.peer not in a.connected()


@pytest.mark.parametrize("words", [b"", b"\x13/multistream/1.0.0\n\x07/noise\n"])
async def test_a_circuit_that_ends_in_the_handshake_is_a_failed_call(words: bytes) -> None:
    """Any peer can accept a call and hang up; that must not end the caller."""
    async with relay_and(2) as (relay, (a, b)):

        async def hang_up(stream: Any) -> None:
            await read_delimited_msg(stream, StopMessage)
            await write_delimited_msg(
                stream, StopMessage(type=StopMessage.STATUS, status=Status.OK)
            )
            await stream.write(words)
            await stream.read(1)
            await stream.reset()

        await b.circuits.reserve(relay.peer)
        b._host.set_stream_handler(STOP, hang_up)
        with pytest.raises(DialError):
            await a.connect(through(relay, b))
        assert a.connected() == {relay.peer}


@pytest.mark.parametrize(
    # Nothing, no length, a message that is none, and more than one may be.
    "garbage",
    [b"", b"\xff" * 50, b"\x05abcde", bytes(70_000)],
)
async def test_garbage_at_a_relay_and_at_its_guests(garbage: bytes) -> None:
    async with relay_and(2) as (relay, (a, b)):
        await b.circuits.reserve(relay.peer)
        for sender, target, protocol in ((a, relay, HOP), (relay, b, STOP)):
            for ending in ("close", "reset"):
                stream: Any = await sender._host.new_stream(id_of(target.peer), [protocol])
                await stream.write(garbage)
                await getattr(stream, ending)()
        await a.connect(through(relay, b))
        # Garbage in the circuit itself, where ciphertext is expected, costs only the circuit.
        (circuit,) = a._connections[b.peer]
        await circuit.muxed_conn.secured_conn.conn.read_writer.read_write_closer.write(garbage)
        await a.connect(through(relay, b))
        assert a.peer in relay.connected()
        assert b.peer in relay.connected()


@pytest.mark.parametrize("words", [b"\xff" * 9 + b"\x7f", b"\xff" * 10, b"\5\xff\xff\xff\xff\xff"])
async def test_a_relay_whose_answer_is_none_is_a_failed_reservation(words: bytes) -> None:
    """Before: a length of more than 64 bits ended the node that had asked."""

    async def answer(stream: Any) -> None:
        await read_delimited_msg(stream, HopMessage)
        await stream.write(words)
        await stream.close()

    async with star(2) as (relay, guest):
        relay._host.set_stream_handler(HOP, answer)
        with pytest.raises(DialError, match="does not answer"):
            await guest.circuits.reserve(relay.peer)
        assert relay.peer in guest.connected()
