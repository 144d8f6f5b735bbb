"""Hole punching: the messages of the two sides, and what no peer can make us do."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.node.network.errors import RequestError
from distro_node.node.network.nat import hole_punching
from distro_node.node.network.nat.hole_punching import PROTOCOL, HolePunching
from distro_node.node.network.network import Network
from network.support import relayed_pair, until


def seen_at(*hosts: str) -> Callable[[int], str | None]:
    """Return a function from IP version to a node's public address."""
    found = {ipaddress.ip_address(host).version: host for host in hosts}
    return found.get


class Dials:
    """Records what a network would dial, instead of dialling it."""

    def __init__(self, network: Network) -> None:
        self.made: list[tuple[PeerId, str, int, bool]] = []
        target: Any = network
        target.dial_from_port = self.dial

    async def dial(
        self, peer: PeerId, host: str, port: int, timeout: float, *, as_responder: bool
    ) -> bool:
        self.made.append((peer, host, port, as_responder))
        return False


@asynccontextmanager
async def listening_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[Network, Network]]:
    """Open two that are connected through a relay and believe that they listen beyond loopback."""
    monkeypatch.setattr(Network, "listening_port", lambda network, version: 4001)
    async with relayed_pair() as (_, a, b):
        yield a, b


async def test_both_dial_what_the_other_is_seen_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening_pair(monkeypatch) as (a, b):
        dials = Dials(a), Dials(b)
        HolePunching(b, seen_at("7.7.0.2"))
        assert not await HolePunching(a, seen_at("7.7.0.1")).punch(b.peer)
        await until(lambda: bool(dials[1].made))
        # They take different roles, or the handshake would fail.
        assert dials[0].made == [(b.peer, "7.7.0.2", 4001, True)]
        assert dials[1].made == [(a.peer, "7.7.0.1", 4001, False)]


async def test_both_families_are_tried_as_far_as_both_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening_pair(monkeypatch) as (a, b):
        dials = Dials(a), Dials(b)
        HolePunching(b, seen_at("7.7.0.2", "2a02:77::2"))
        assert not await HolePunching(a, seen_at("7.7.0.1", "2a02:77::1")).punch(b.peer)
        await until(lambda: len(dials[1].made) == 2)
        assert {host for _, host, _, _ in dials[0].made} == {"7.7.0.2", "2a02:77::2"}
        assert {host for _, host, _, _ in dials[1].made} == {"7.7.0.1", "2a02:77::1"}


async def test_only_what_both_have_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening_pair(monkeypatch) as (a, b):
        dials = Dials(a), Dials(b)
        HolePunching(b, seen_at("2a02:77::2"))
        assert not await HolePunching(a, seen_at("7.7.0.1")).punch(b.peer)
        assert dials[0].made == dials[1].made == []


async def test_who_does_not_know_where_it_is_seen_does_not_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening_pair(monkeypatch) as (a, b):
        dials = Dials(a), Dials(b)
        HolePunching(b, seen_at())
        assert not await HolePunching(a, seen_at()).punch(b.peer)
        assert not await HolePunching(a, seen_at("7.7.0.1")).punch(b.peer)
        assert dials[0].made == dials[1].made == []


@pytest.mark.parametrize(
    "place",
    [
        "192.168.1.1 4001",
        "127.0.0.1 4001",
        "224.0.0.1 4001",
        "7.7.0.1 80",
        "7.7.0.1 70000",
        "::1 4001",
    ],
)
async def test_nobody_sends_us_into_our_own_network(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    async with listening_pair(monkeypatch) as (a, b):
        dials = Dials(b)
        HolePunching(b, seen_at("7.7.0.2"))
        for question in (b"?" + place.encode(), b"!"):
            answer = await a.request(b.peer, PROTOCOL, question, max_response=64, timeout=60)
            assert answer == b""
        assert dials.made == []


@pytest.mark.parametrize(
    "question",
    [b"", b"x", b"?nonsense", b"?7.7.0.1", b"?7.7.0.1 \xff", b"? ", b"?2600::1%x 4001"],
)
async def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch, question: bytes) -> None:
    async with listening_pair(monkeypatch) as (a, b):
        HolePunching(b, seen_at("7.7.0.2"))
        with pytest.raises(RequestError, match="refuse"):
            await a.request(b.peer, PROTOCOL, question, max_response=64, timeout=60)


async def test_nobody_makes_us_dial_at_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hole_punching, "_PAUSE_SECONDS", 1000.0)
    async with listening_pair(monkeypatch) as (a, b):
        dials = Dials(b)
        HolePunching(b, seen_at("7.7.0.2"))
        for _ in range(3):
            for question in (b"?7.7.0.1 4001", b"!"):
                await a.request(b.peer, PROTOCOL, question, max_response=64, timeout=60)
        await until(lambda: len(dials.made) > 0)
        # The dials that the others could have caused would have come before this answer.
        await a.request(b.peer, PROTOCOL, b"!", max_response=64, timeout=60)
        assert len(dials.made) == 1
