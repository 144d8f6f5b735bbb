"""Dial-back: a node learns whether others can dial it, and cannot be used against a third party."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import PeerId, peer_text
from distro_node.node.network.errors import RequestError
from distro_node.node.network.nat import dial_back, reachability
from distro_node.node.network.nat.dial_back import (
    PROTOCOL,
    DialBack,
    DialBackResult,
    Outcome,
    ask_dial_back,
    ports_of,
)
from distro_node.node.network.network import Network
from distro_node.node.network.remote_addr import Remote
from distro_node.protocol.wire.errors import ProtocolError
from multiaddr import Multiaddr
from network.homes import Bootstrap, home
from network.support import identity, relayed_pair, star, until
from trio.testing import MockClock

# Private here: `_host`: the addresses of this machine's interfaces.


async def test_open_and_closed_ports_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_back, "_PAUSE_SECONDS", 0.0)
    async with star(3) as (caller, a, b):
        DialBack(caller)
        (mine,), (others,) = ports_of(a.addresses), ports_of(b.addresses)
        finding = await ask_dial_back(a, caller.peer, [mine, 1, others])
        assert finding is not None
        assert finding.observed == "127.0.0.1"
        # A node listens at the last one, but it is not the asker.
        assert finding.outcomes == {mine: "reached", 1: "failed", others: "failed"}
        # No connection of the dials remains.
        await until(
            lambda: a.connected() == {caller.peer} and caller.connected() == {a.peer, b.peer}
        )


async def test_nobody_is_called_more_often_than_now_and_then() -> None:
    async with star(2) as (caller, a):
        DialBack(caller)
        ports = ports_of(a.addresses)
        first = await ask_dial_back(a, caller.peer, ports)
        second = await ask_dial_back(a, caller.peer, ports)
        assert first is not None
        assert second is not None
        assert [*first.outcomes.values(), *second.outcomes.values()] == ["reached", "untried"]


@pytest.mark.parametrize("question", [b"", b"\x0f", b"\x00\x00", b"\x0f\xa1\x0f\xa1", bytes(10)])
async def test_a_question_that_makes_no_sense_is_refused(question: bytes) -> None:
    async with star(2) as (caller, a):
        DialBack(caller)
        with pytest.raises(RequestError):
            await a.request(caller.peer, PROTOCOL, question, max_response=50, timeout=60)
        assert caller.traffic.rejected.total() == 1


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"\x03127.0.0.1", b"\x01nonsense", b"\x01\xff\xff", b"\x01127.0.0.1\n"),
        *(b"\x01fe80::1%x", b"\x012600::1%eth0"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_the_peers_fault(answer: bytes) -> None:
    async def lie(peer: object, data: bytes) -> bytes:
        return answer

    async with star(2) as (liar, a):
        liar.serve(PROTOCOL, lie, max_request=8, max_concurrent=1)
        with pytest.raises(ProtocolError):
            await ask_dial_back(a, liar.peer, [4001])


async def test_a_node_knows_where_it_stands() -> None:
    bootstrap = Bootstrap()
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(bootstrap.run)
        async with home(1, addresses) as hidden, home(2, addresses, hidden=False) as open_one:
            assert hidden.reach.dialable is None
            await until(lambda: hidden.reach.dialable is False)
            await until(lambda: open_one.reach.dialable is True)
            await until(lambda: bool(hidden.reach.relays))
            assert hidden.reach.verdict == "unreachable"
            assert hidden.reach.observed == "127.0.0.1"
            assert hidden.reach.port == 1
            # A node that can be dialled needs no relay, and is one.
            assert open_one.reach.verdict == "local"
            await until(lambda: open_one.reach.relays == [])
            await until(lambda: "circuit" not in " ".join(open_one.network.addresses))
            await until(lambda: open_one.network.accepts_reservations)
            assert not hidden.network.accepts_reservations
        bootstrap.scope.cancel()


async def test_a_relayed_peer_is_not_called_back() -> None:
    async with relayed_pair() as (_, a, b):
        DialBack(b)
        assert await ask_dial_back(a, b.peer, ports_of(a.addresses)) is None


async def test_where_a_node_was_reached_it_can_be_dialled_and_what_was_not_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a router that forwards the port: no interface has the address that others dial."""
    outcome: Outcome = "reached"

    async def ask(network: Network, peer: PeerId, ports: Sequence[int]) -> DialBackResult:
        return DialBackResult("7.7.0.9", dict.fromkeys(ports, outcome))

    monkeypatch.setattr(reachability, "ask_dial_back", ask)
    monkeypatch.setattr(reachability, "_RENEW_SECONDS", 0.0)
    bootstrap = Bootstrap()
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(bootstrap.run)
        async with home(1, addresses, hidden=False) as node:
            (own,) = node.network.own_addresses
            found = own.replace("127.0.0.1", "7.7.0.9")
            await until(lambda: node.network.addresses == [own, found])
            assert node.reach.verdict == "reachable"
            await until(lambda: not node.reach.relays)
            outcome = "failed"
            await until(lambda: found not in node.network.addresses)
            assert node.reach.verdict == "unreachable"
            await until(lambda: bool(node.reach.relays))
        bootstrap.scope.cancel()


async def test_a_family_that_is_gone_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a move to a network without IPv4 nobody could find out that it is not reached any more."""

    async def ask(network: Network, peer: PeerId, ports: Sequence[int]) -> DialBackResult:
        return DialBackResult("7.7.0.9", dict.fromkeys(ports, "reached"))

    monkeypatch.setattr(reachability, "ask_dial_back", ask)
    monkeypatch.setattr(reachability, "_CHECK_SECONDS", 0.01)
    bootstrap = Bootstrap()
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(bootstrap.run)
        async with home(1, addresses, hidden=False) as node:
            await until(lambda: node.reach.verdict == "reachable")
            moved = [Multiaddr(f"/ip6/2a02:77::1/tcp/4001/p2p/{peer_text(node.network.peer)}")]
            monkeypatch.setattr(node.network._host, "get_addrs", lambda: moved)
            await until(lambda: node.reach.verdict == "unknown")
            assert node.reach.observed is None
            assert node.network.dialable_addresses == [str(moved[0])]
        bootstrap.scope.cancel()


async def test_a_report_on_the_other_family_is_none(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """A peer that is connected in both families may dial the other one than it is asked about."""
    reports = [
        DialBackResult("2a02:77::9", {4001: "reached"}),
        DialBackResult("7.7.0.9", {4001: "failed"}),
    ]
    asked = 0

    async def ask(network: Network, peer: PeerId, ports: Sequence[int]) -> DialBackResult:
        nonlocal asked
        asked += 1
        return reports[min(asked, len(reports)) - 1]

    monkeypatch.setattr(reachability, "ask_dial_back", ask)
    announced: list[object] = []
    network: Any = SimpleNamespace(
        peer=identity(1).peer,
        dialable_addresses=["/ip4/7.7.0.9/tcp/4001"],
        connected=lambda: {identity(2).peer},
        remote=lambda peer: Remote(host="7.7.0.2", port=4001, dialled=True),
        announce=lambda component, addresses: announced.append(addresses),
    )
    introducer: Any = SimpleNamespace(bootstrap_peers=())
    own = reachability.Reachability(network, introducer)
    with trio.move_on_after(60):
        await own.run()
    assert asked == 2
    assert [own.verdict_in(4), own.verdict_in(6)] == ["unreachable", "unknown"]
    assert own.observed == "7.7.0.9"
    assert not announced


async def test_who_is_at_an_address_of_one_link_is_not_called_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with star(2) as (caller, a):
        DialBack(caller)
        there = Remote(host="fe80::1", port=4001, dialled=False)
        monkeypatch.setattr(caller, "remote", lambda peer: there)
        assert await ask_dial_back(a, caller.peer, ports_of(a.addresses)) is None


def test_ports_by_family() -> None:
    addresses = ["/ip4/7.7.0.1/tcp/1", "/ip6/2a02::1/tcp/2", "/dns/a.example/tcp/3"]
    assert ports_of(addresses) == [1, 2, 3]
    assert ports_of(addresses, 4) == [1, 3]
    assert ports_of(addresses, 6) == [2, 3]
