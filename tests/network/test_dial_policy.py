"""No peer can make us dial what it likes, and we do not dial unresponsive targets for long."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import Identity, PeerId, peer_text
from distro_node.node.network import dial_policy, network
from distro_node.node.network.dial_policy import AddressSource, DialPolicy, Scope, scope_of
from distro_node.node.network.discovery import introductions
from distro_node.node.network.discovery.introductions import PROTOCOL, Introducer
from distro_node.node.network.errors import DialError
from distro_node.node.network.network import open_network
from distro_node.protocol.util.token_bucket import TokenRate
from distro_node.protocol.wire.introductions import (
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
    IntroductionRequest,
    IntroductionResponse,
    seal_peer_record,
)
from distro_node.protocol.wire.manifest import SwarmId
from network.support import LOOPBACK, PATIENCE_SECONDS, identity, networks, star, until

# Private here: `_swarm`, `_connections`: faults of libp2p that a test can't cause from outside.
# Private here: `_budgets`, `_dial_outcomes`: the bound of a table, and the end of hundreds of dials,
# show nowhere else.

SWARM = SwarmId(bytes(range(32)))
TELLER = PeerId(bytes(32))
FAR, LOCAL, HERE = (
    AddressSource(TELLER, scope) for scope in (Scope.WORLD, Scope.LOCAL, Scope.MACHINE)
)


@pytest.mark.parametrize(
    ("host", "scope"),
    [
        ("127.0.0.1", Scope.MACHINE),
        ("127.1.2.3", Scope.MACHINE),
        ("0.0.0.0", Scope.MACHINE),
        ("::1", Scope.MACHINE),
        ("::ffff:127.0.0.1", Scope.MACHINE),
        ("10.0.0.1", Scope.LOCAL),
        ("192.168.1.1", Scope.LOCAL),
        ("169.254.169.254", Scope.LOCAL),
        ("100.64.0.1", Scope.LOCAL),
        ("fe80::1%eth0", Scope.LOCAL),
        ("fd00::1", Scope.LOCAL),
        ("::ffff:192.168.1.1", Scope.LOCAL),
        ("8.8.8.8", Scope.WORLD),
        ("2001:4860:4860::8888", Scope.WORLD),
    ],
)
def test_how_near_an_address_is(host: str, scope: Scope) -> None:
    assert scope_of(host) is scope


@pytest.mark.parametrize(
    ("source", "allowed"),
    [(FAR, ["8.8.8.8"]), (LOCAL, ["8.8.8.8", "10.0.0.1"])],
)
def test_near_addresses_need_an_introduction_by_somebody_near(
    source: AddressSource, allowed: list[str]
) -> None:
    hosts = ["8.8.8.8", "10.0.0.1", "127.0.0.1"]
    policy = DialPolicy()
    assert [host for host in hosts if policy.refusal(source, host, 0.0) is None] == allowed
    assert all(policy.refusal(HERE, host, 0.0) is None for host in hosts)


@pytest.mark.parametrize(
    ("host", "scope"),
    [
        ("2a02:77::1", Scope.LOCAL),
        ("2a02:77::ffff:5", Scope.LOCAL),
        ("2a02:77:0:1::1", Scope.WORLD),
        ("7.7.0.1", Scope.LOCAL),
        ("::ffff:7.7.0.1", Scope.LOCAL),
        ("7.7.0.2", Scope.WORLD),
        ("127.0.0.1", Scope.MACHINE),
    ],
)
def test_global_addresses_of_our_household_are_near(host: str, scope: Scope) -> None:
    policy = DialPolicy(lambda: ["192.168.1.7", "7.7.0.1", "2a02:77::5"])
    assert policy.scope_of(host) is scope
    assert (policy.refusal(FAR, host, 0.0) is None) == (scope is Scope.WORLD)
    assert (policy.refusal(LOCAL, host, 0.0) is None) == (scope is not Scope.MACHINE)


async def test_nobody_makes_us_punch_holes_in_our_own_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialled: list[tuple[str, int]] = []

    async def dial(swarm: Any, peer: Any, target: tuple[str, int], *_: Any) -> bool:
        dialled.append(target)
        return True

    monkeypatch.setattr(network, "dial_from", dial)
    monkeypatch.setattr(network, "reachable_hosts", lambda: ["2a02:77::5"])
    monkeypatch.setattr(network.Network, "listening_port", lambda self, version: 4001)
    async with networks(1) as (a,):
        for host in ("2a02:77::1", "2a02:78::1"):
            await a.dial_from_port(TELLER, host, 4001, 1.0, as_responder=False)
    assert dialled == [("2a02:78::1", 4001)]


def calls(policy: DialPolicy, sources: list[AddressSource], hosts: list[str], now: float) -> int:
    return sum(policy.refusal(source, host, now) is None for source in sources for host in hosts)


def test_an_introducer_has_a_budget_whatever_it_introduces() -> None:
    policy = DialPolicy()
    hosts = [f"8.8.{n // 256}.{n % 256}" for n in range(2000)]
    assert calls(policy, [FAR], hosts, 0.0) == 256
    assert calls(policy, [FAR], hosts, 10.0) == 10
    # Another source is not kept waiting.
    assert (
        calls(policy, [AddressSource(PeerId(bytes([1]) * 32), Scope.WORLD)], hosts[:100], 10.0)
        == 100
    )


def test_a_target_has_a_budget_whoever_introduces_it() -> None:
    sources = [AddressSource(PeerId(bytes([n]) * 32), Scope.WORLD) for n in range(50)]
    policy = DialPolicy()
    assert calls(policy, sources, ["8.8.8.8"], 0.0) == 16
    assert calls(policy, sources, ["8.8.8.8"], 60.0) == 6
    # The owner of one address in IPv6 has 2^64.
    assert calls(policy, sources, [f"2001:4860:4860::{n:x}" for n in range(50)], 60.0) == 16
    # Many may share a device in our own network.
    near = [AddressSource(PeerId(bytes([n]) * 32), Scope.LOCAL) for n in range(100)]
    assert calls(policy, near, ["10.0.0.1"], 60.0) == 64


def test_a_call_that_is_answered_costs_nothing() -> None:
    policy = DialPolicy()
    for _ in range(1000):
        assert policy.refusal(FAR, "8.8.8.8", 0.0) is None
        policy.refund(FAR, "8.8.8.8", 0.0)


def test_a_crowd_of_introducers_does_not_fill_the_memory() -> None:
    policy = DialPolicy()
    for number in range(20_000):
        source = AddressSource(PeerId(number.to_bytes(32, "big")), Scope.WORLD)
        assert policy.refusal(source, f"8.{number >> 8 & 255}.{number & 255}.1", 0.0) is None
    assert len(policy._budgets) == 4096


async def test_on_one_machine_everybody_is_near_at_whatever_address() -> None:
    async with star(2) as (a, b):
        assert a.source_of(b.peer) == AddressSource(b.peer, Scope.MACHINE)
        assert b.source_of(a.peer) == AddressSource(a.peer, Scope.MACHINE)
        await a.disconnect(b.peer)
        await until(lambda: not a.connected())
        # Its earlier reports count as before.
        assert a.source_of(b.peer).scope is Scope.MACHINE
        assert a.source_of(PeerId(bytes(32))).scope is Scope.WORLD


async def test_a_name_does_not_lead_into_our_network_either() -> None:
    async with networks(2) as (a, b):
        port = b.addresses[0].split("/")[4]
        address = f"/dns4/localhost/tcp/{port}/p2p/{peer_text(b.peer)}"
        with pytest.raises(DialError, match="outside of it"):
            await a.connect(address, source=FAR)
        assert await a.connect(address, source=HERE) == b.peer


async def test_names_that_peers_report_occupy_few_threads_and_cost_their_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silence, names = threading.Event(), set[str]()
    real = socket.getaddrinfo

    def slow(host: Any, *arguments: Any, **options: Any) -> Any:
        if str(host).startswith("silent"):
            names.add(host)
            silence.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(host, *arguments, **options)

    def address(number: int) -> str:
        return f"/dns4/silent{number}.example/tcp/4001/p2p/{peer_text(identity(9).peer)}"

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(dial_policy, "_SOURCE_BUDGET", TokenRate(40.0, 0.0))
    async with networks(2) as (a, b):

        async def dial(number: int) -> None:
            with pytest.raises(DialError):
                await a.connect(address(number), timeout=1.0, source=FAR)

        try:
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(dial, number)
                await until(lambda: len(names) >= 16)
                assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
                # Our own names are looked up meanwhile.
                port = b.addresses[0].split("/")[4]
                own = f"/dns4/localhost/tcp/{port}/p2p/{peer_text(b.peer)}"
                assert await a.connect(own, timeout=PATIENCE_SECONDS) == b.peer
            # A name is charged before it is looked up.
            with pytest.raises(DialError, match="too many failed dials"):
                await a.connect(address(51), timeout=PATIENCE_SECONDS, source=FAR)
            assert len(names) == 16
        finally:
            silence.set()


def test_names_are_charged_and_refunded() -> None:
    policy = DialPolicy()
    assert [policy.lookup_refusal(FAR, 0.0) for _ in range(256)] == [None] * 256
    assert policy.lookup_refusal(FAR, 0.0) is not None
    policy.refund_lookups(FAR, 2, 0.0)
    assert [policy.lookup_refusal(FAR, 0.0) is None for _ in range(3)] == [True, True, False]


async def test_what_the_library_raises_at_a_dial_is_a_dial_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with networks(2) as (a, b):

        async def broken(*_: Any) -> None:
            raise KeyError("peer ID not found")

        monkeypatch.setattr(a._swarm, "dial_addr", broken)
        with pytest.raises(DialError, match="peer ID not found"):
            await a.connect(b.addresses[0])


async def test_what_the_library_raises_at_a_farewell_is_a_farewell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with star(2) as (a, b):
        (connection,) = a._connections[b.peer]
        real = connection.close

        async def broken() -> None:
            await real()
            raise KeyError("peer ID not found")

        monkeypatch.setattr(connection, "close", broken)
        await a.disconnect(b.peer)
        await until(lambda: not a.connected())


@asynccontextmanager
async def liar(port: int) -> AsyncIterator[str]:
    """Run a bootstrap peer that invents 64 peers per answer, all of them at a port of ours."""
    async with open_network(LOOPBACK, Identity.generate()) as opened:

        async def answer(peer: PeerId, data: bytes) -> bytes:
            records = []
            for _ in range(64):
                nobody = Identity.generate()
                ending = f"/tcp/{port}/p2p/{peer_text(nobody.peer)}"
                hosts = [f"/ip4/127.0.0.{number}{ending}" for number in range(1, 9)]
                records.append(seal_peer_record(nobody, SWARM, hosts, 1))
            return IntroductionResponse(records=tuple(records)).encode()

        opened.serve(PROTOCOL, answer, max_request=MAX_REQUEST_BYTES, max_concurrent=16)
        yield opened.addresses[0]


@asynccontextmanager
async def introduced(bootstrap: str, known: Path | None = None) -> AsyncIterator[Introducer]:
    async with open_network(LOOPBACK, identity(1)) as opened, trio.open_nursery() as nursery:
        introducer = Introducer(opened, identity(1), SWARM, [bootstrap], known)
        nursery.start_soon(introducer.run)
        yield introducer
        nursery.cancel_scope.cancel()


class Victim:
    """A third party that counts connections."""

    def __init__(self) -> None:
        self.knocks = 0

    async def knocked(self, stream: Any) -> None:
        self.knocks += 1
        await stream.aclose()


@asynccontextmanager
async def third_party() -> AsyncIterator[tuple[Victim, int]]:
    victim = Victim()
    listeners = await trio.open_tcp_listeners(0, host="0.0.0.0")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, victim.knocked, listeners)
        yield victim, listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introductions, "_SOON_SECONDS", 0.05)
    monkeypatch.setattr(introductions, "_FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(introductions, "_NEXT_ADDRESS_SECONDS", 0.01)
    monkeypatch.setattr(introductions, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(introductions, "_POLITE_SECONDS", 0.0)


async def test_a_liar_on_this_machine_spends_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    small = TokenRate(at_once=40.0, per_second=0.0)
    monkeypatch.setattr(dial_policy, "_SOURCE_BUDGET", small)
    async with third_party() as (victim, port), liar(port) as address:
        async with introduced(address) as introducer:
            await until(lambda: len(introducer._dial_outcomes) > 300)
        assert 0 < victim.knocks <= 40


async def test_a_liar_far_away_sends_us_nowhere_near(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quick(monkeypatch)
    # All peers count as far away.
    monkeypatch.setattr(network, "scope_of_connection", lambda *_: Scope.WORLD)
    known = tmp_path / "peers.json"
    async with third_party() as (victim, port), liar(port) as address:
        async with introduced(address, known) as introducer:
            await until(lambda: len(introducer._dial_outcomes) > 300)
            assert len(introducer.known.records) > 60
        assert not victim.knocks
        # Nor after a restart, when they would be our own knowledge.
        assert not known.exists() or not json.loads(known.read_text())["records"]


async def test_who_was_met_is_remembered_wherever_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(network, "scope_of_connection", lambda *_: Scope.WORLD)
    known = tmp_path / "peers.json"

    async with open_network(LOOPBACK, identity(2)) as other:
        async with introduced(other.addresses[0], known) as introducer:
            await until(lambda: bool(other.connected()))
            record = seal_peer_record(identity(2), SWARM, other.addresses, 5)
            await other.request(
                identity(1).peer,
                PROTOCOL,
                IntroductionRequest(swarm=SWARM, record=record).encode(),
                max_response=MAX_RESPONSE_BYTES,
                timeout=5,
            )
            assert other.peer in introducer.known.records
        assert len(json.loads(known.read_text())["records"]) == 1
