"""From circuits to direct connections: which side begins, when it is tried, and what triggers a try."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import PeerId
from distro_node.node.network.dial_policy import AddressSource, Scope
from distro_node.node.network.errors import DialError
from distro_node.node.network.nat import upgrades
from distro_node.node.network.nat.upgrades import Upgrades
from distro_node.node.network.network import Network
from network.support import relayed_pair, until

DEAD, NEW = "/ip4/192.168.7.7/tcp/4001", "/ip4/7.7.0.1/tcp/4001"


class Attempts:
    """A node's attempts at a peer that it is relayed to; none of them succeeds."""

    def __init__(self, network: Network, peer: PeerId) -> None:
        self.dialled: list[str] = []
        self.punched: list[PeerId] = []
        self.public_endpoints: tuple[tuple[str, int], ...] = ()
        relayed = SimpleNamespace(addresses=(DEAD, "/p2p/relay/p2p-circuit/p2p/peer"))
        self.records: dict[PeerId, Any] = {peer: relayed}
        self.known = self
        target: Any = network
        target.connect = self.connect

    def source(self, peer: PeerId) -> AddressSource:
        return AddressSource(peer, Scope.WORLD)

    async def connect(
        self, address: str, timeout: float, *, direct: bool, source: AddressSource
    ) -> None:
        assert direct
        assert source.scope is Scope.WORLD
        self.dialled.append(address)
        raise DialError(address, "nobody is there")

    async def punch(self, peer: PeerId) -> bool:
        self.punched.append(peer)
        return False


@asynccontextmanager
async def trying(smaller: bool) -> AsyncIterator[tuple[Attempts, PeerId]]:
    """Yield the attempts of one of a relayed pair, the one with the smaller id or the other."""
    async with relayed_pair() as (_, a, b), trio.open_nursery() as nursery:
        one, other = sorted((a, b), key=lambda each: each.peer, reverse=not smaller)
        attempts: Any = Attempts(one, other.peer)
        nursery.start_soon(Upgrades(one, attempts, attempts).run)
        yield attempts, other.peer
        nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrades, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(upgrades, "_FIRST_RETRY_SECONDS", 0.01)


async def test_holes_are_punched_once_it_is_known_where_the_world_sees_us() -> None:
    async with trying(smaller=True) as (attempts, peer):
        await until(lambda: len(attempts.dialled) >= 3)
        assert not attempts.punched
        attempts.public_endpoints = (("7.7.0.1", 4001),)
        await until(lambda: len(attempts.punched) >= 2)
        assert set(attempts.punched) == {peer}
        assert set(attempts.dialled) == {DEAD}


async def test_one_of_the_two_begins() -> None:
    async with trying(smaller=False) as (attempts, _):
        attempts.public_endpoints = (("7.7.0.1", 4001),)
        await until(lambda: len(attempts.dialled) >= 5)
        assert not attempts.punched


async def test_what_is_new_is_tried_soon_however_often_the_old_was_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upgrades, "_LAST_RETRY_SECONDS", 1e9)
    async with trying(smaller=True) as (attempts, peer):
        # By now the next turn is more than a second away, and so on.
        await until(lambda: len(attempts.dialled) >= 8)
        attempts.records[peer] = SimpleNamespace(addresses=(DEAD, NEW))
        await until(lambda: NEW in attempts.dialled)
        assert len(attempts.dialled) <= 12
