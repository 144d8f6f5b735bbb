"""A crowd that takes from a relay all it can: the bounds hold, and honest circuits survive."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import PeerId
from distro_node.node.network import circuit_client as circuits
from distro_node.node.network import circuit_relay
from distro_node.node.network.addresses import circuit_through, id_of, peer_of
from distro_node.node.network.cancel_scopes import open_scope
from distro_node.node.network.circuit_client import HOP, STOP
from distro_node.node.network.circuit_relay import CircuitLimits, CircuitRelay
from distro_node.node.network.errors import DialError, RequestError
from distro_node.node.network.network import Network
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from network.support import (
    ECHO,
    identity,
    muxers,
    relay_and,
    requests_open,
    until,
)

# Private here: `_host`, `_ask`: a stranger obeys none of a node's own bounds.
# Private here: `_reserve`, `_run_circuit`: replaced to count calls, and to make one
# machine look like many households.
# Private here: `_reservations`, `_circuits_by_peer`, `_circuits_by_address`, `_connections`: what must
# stay bounded, and be released, shows nowhere else.

LIMITS = CircuitLimits(
    reservations=6,
    reservations_per_address=3,
    circuits=7,
    circuits_per_peer=2,
    circuits_per_address=4,
    circuit_bytes=1 << 20,
)
SEED = 5


class Ledger:
    """The maximum that a relay has granted, updated with each grant."""

    def __init__(self, relay: CircuitRelay, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most: Counter[str] = Counter()
        self._relay = relay
        self._reserve, self._run_circuit = relay._reserve, relay._run_circuit
        monkeypatch.setattr(relay, "_reserve", self.reserve)
        monkeypatch.setattr(relay, "_run_circuit", self.join)

    def reserve(self, peer: PeerId, address: str) -> HopMessage:
        answer = self._reserve(peer, address)
        of_one = Counter(where for _, where in self._relay._reservations.values())
        self._note("reservations", len(self._relay._reservations))
        self._note("reservations_per_address", max(of_one.values(), default=0))
        return answer

    async def join(self, stream: Any, caller: PeerId, callee: PeerId) -> HopMessage | None:
        self._note("circuits", self._relay.circuits)
        self._note("circuits_per_peer", max(self._relay._circuits_by_peer.values()))
        self._note("circuits_per_address", max(self._relay._circuits_by_address.values()))
        return await self._run_circuit(stream, caller, callee)

    def _note(self, name: str, value: int) -> None:
        self.most[name] = max(self.most[name], value)


async def flood(attacker: Network, relay: Network, others: list[PeerId]) -> None:
    """Request reservations and circuits to all others, stay silent, send garbage; never hang up."""
    chance = random.Random(attacker.peer)
    for _ in range(6):
        for message in (
            HopMessage(type=HopMessage.RESERVE),
            *(_call(peer) for peer in chance.sample(others, 3)),
            HopMessage(type=HopMessage.STATUS),
            None,
        ):
            try:
                stream = await attacker.requests.open_stream(relay.peer, HOP)
                if message is not None:
                    await write_delimited_msg(stream, message)
            except circuits.STREAM_FAILURES:
                continue


def _call(peer: PeerId) -> HopMessage:
    message = HopMessage(type=HopMessage.CONNECT)
    message.peer.id = id_of(peer).to_bytes()
    return message


async def swallow(stream: Any) -> None:
    """Accept any call and read for ever."""
    await read_delimited_msg(stream, StopMessage)
    await write_delimited_msg(stream, StopMessage(type=StopMessage.STATUS, status=Status.OK))
    while await stream.read(1 << 16):
        pass


async def test_a_crowd_gets_no_more_than_the_bounds_and_breaks_no_honest_circuit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with relay_and(10, LIMITS) as (relay, (a, b, *crowd)):
        assert relay.circuit_relay is not None
        # The honest pair, and two households with four attackers each.
        houses = {each.peer: f"7.7.0.{1 + n % 2}" for n, each in enumerate(crowd)}

        def house(stream: Any) -> str:
            peer = peer_of(stream.muxed_conn.peer_id)
            assert peer is not None
            return houses.get(peer, "7.7.0.9")

        monkeypatch.setattr(circuit_relay, "host_of", house)
        ledger = Ledger(relay.circuit_relay, monkeypatch)
        for each in crowd:
            each._host.set_stream_handler(STOP, swallow)
        await b.circuits.reserve(relay.peer)
        await a.connect(circuit_through(relay.own_addresses[0], b.peer))
        before = muxers(a), muxers(b)
        targets = [identity(500).peer, a.peer, b.peer, *(each.peer for each in crowd)]
        async with trio.open_nursery() as nursery:
            for each in crowd:
                others = [peer for peer in targets if peer != each.peer]
                nursery.start_soon(flood, each, relay, others)
            for _ in range(20):
                answer = await a.request(
                    b.peer, ECHO, b"still there?", max_response=100, timeout=20
                )
                assert answer == b"still there?"
        assert len(ledger.most) == 5
        for name, most in ledger.most.items():
            assert most <= getattr(LIMITS, name), name
        # The bounds were reached, and everything available was granted.
        assert ledger.most["reservations"] == LIMITS.reservations
        assert relay.circuit_relay.refused.keys() >= {
            "reservations",
            "circuits",
            "no_reservation",
            "malformed",
        }
        assert (muxers(a), muxers(b)) == before
        # The crowd loses its places with its connections, and others get them.
        for each in crowd:
            await each.disconnect(relay.peer)
        await until(lambda: relay.circuit_relay is not None and relay.circuit_relay.circuits == 1)
        assert await a.request(b.peer, ECHO, b"x", max_response=1, timeout=20) == b"x"


async def test_data_beyond_the_limits_ends_the_circuit_that_it_came_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swallowed: list[int] = []

    async def swallow_and_count(stream: Any) -> None:
        await read_delimited_msg(stream, StopMessage)
        await write_delimited_msg(stream, StopMessage(type=StopMessage.STATUS, status=Status.OK))
        number = len(swallowed)
        swallowed.append(0)
        while data := await stream.read(1 << 16):
            swallowed[number] += len(data)

    async with relay_and(4, LIMITS) as (relay, (a, b, caller, callee)):
        monkeypatch.setattr(circuit_relay, "host_of", lambda stream: str(stream.muxed_conn.peer_id))
        callee._host.set_stream_handler(STOP, swallow_and_count)
        for each in (b, callee):
            await each.circuits.reserve(relay.peer)
        await a.connect(circuit_through(relay.own_addresses[0], b.peer))

        async def pour() -> None:
            stream, _ = await caller.circuits._ask(relay.peer, _call(callee.peer))
            with contextlib.suppress(*circuits.STREAM_FAILURES):
                while True:
                    await stream.write(bytes(1 << 16))

        async with trio.open_nursery() as nursery:
            for _ in range(LIMITS.circuits_per_peer):
                nursery.start_soon(pour)
        assert len(swallowed) == LIMITS.circuits_per_peer
        assert 0 < max(swallowed) <= LIMITS.circuit_bytes
        assert a.relayed() == {b.peer}
        assert await a.request(b.peer, ECHO, b"x", max_response=1, timeout=20) == b"x"
        assert caller.connected() == callee.connected() == {relay.peer}


async def test_cancelled_transfers_garbage_and_failures_break_no_circuit() -> None:
    chance = random.Random(SEED)
    answer = bytes(300_000)

    async def large(peer: PeerId, request: bytes) -> bytes:
        return answer

    async def fail(peer: PeerId, request: bytes) -> bytes:
        raise ValueError("a bug")

    async with relay_and(3) as (relay, (a, b, mallory)):
        for each in (a, b):
            await each.circuits.reserve(relay.peer)
            each.serve(ECHO, large, max_request=1 << 20, max_concurrent=100)
            each.serve("/test/fail/1", fail, max_request=1 << 20, max_concurrent=100)
            await mallory.connect(circuit_through(relay.own_addresses[0], each.peer))
        await a.connect(circuit_through(relay.own_addresses[0], b.peer))
        await until(lambda: a.peer in b.connected())
        before = {_between(a, b), _between(b, a), _between(a, relay), _between(b, relay)}
        broken_off = 0
        for _ in range(40):
            asker, asked = chance.sample([a, b], 2)
            limit = chance.randrange(len(answer))
            with open_scope() as scope:

                def cut(size: int, limit: int = limit, scope: Any = scope) -> None:
                    if size >= limit:
                        scope.cancel()

                if chance.random() < 0.3:
                    scope.deadline = trio.current_time() + chance.random() * 0.02
                request = bytes(chance.choice([1, 300_000]))
                await asker.request(
                    asked.peer, ECHO, request, max_response=1 << 20, timeout=20, progress=cut
                )
            broken_off += scope.cancelled_caught
            await _torment(mallory, asked, chance)
        assert broken_off >= 25
        after = {_between(a, b), _between(b, a), _between(a, relay), _between(b, relay)}
        assert after == before, "a connection did not survive"
        for asker, asked in ((a, b), (b, a)):
            with pytest.raises(RequestError, match="failed"):
                await asker.request(asked.peer, "/test/fail/1", b"", max_response=1, timeout=20)
            got = await asker.request(asked.peer, ECHO, b"x", max_response=1 << 20, timeout=20)
            assert got == answer
        # A peer that sends garbage is disconnected at the ends of the circuit; the relay saw none of it.
        for end in (a, b):
            # How much of it was read before the stream was reset is unknown.
            for _ in range(200):
                if end.refuses(mallory.peer):
                    break
                await _torment(mallory, end, chance)
            assert end.refuses(mallory.peer)
        await until(lambda: mallory.connected() == {relay.peer})
        await until(lambda: relay.circuit_relay is not None and relay.circuit_relay.circuits == 1)
        # What is left is the circuit itself.
        await until(lambda: requests_open(a) == requests_open(b) == 1)


def _between(one: Network, other: Network) -> Any:
    (connection,) = one._connections[other.peer]
    return connection


async def _torment(mallory: Network, target: Network, chance: random.Random) -> None:
    """Open a stream of any kind and write garbage into it, if the target still accepts us."""
    protocol = chance.choice([name for name in target._host.multiselect.handlers if name])
    with contextlib.suppress(RequestError, *circuits.STREAM_FAILURES):
        stream = await mallory.requests.open_stream(target.peer, protocol)
        await stream.write(chance.randbytes(chance.randrange(1, 100)))
        await stream.reset()


async def test_calls_cancelled_at_random_leave_nothing_at_the_relay() -> None:
    chance = random.Random(SEED)
    async with relay_and(2) as (relay, (a, b)):
        assert relay.circuit_relay is not None
        await b.circuits.reserve(relay.peer)
        way = circuit_through(relay.own_addresses[0], b.peer)
        cancelled = 0
        for _ in range(30):
            with trio.move_on_after(chance.random() * 0.06) as scope:
                await a.connect(way)
            cancelled += scope.cancelled_caught
            await a.disconnect(b.peer)
        assert cancelled > 0
        await until(lambda: relay.circuit_relay is not None and relay.circuit_relay.circuits == 0)
        assert not relay.circuit_relay._circuits_by_peer
        assert not relay.circuit_relay._circuits_by_address
        try:
            await a.connect(way)
        except DialError as error:
            pytest.fail(str(error))
        assert await a.request(b.peer, ECHO, b"x", max_response=1, timeout=20) == b"x"
