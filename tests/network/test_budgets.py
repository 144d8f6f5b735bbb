"""Budgets of the network: authors, gossip's answers, downloads, frames and messages.

Each is tested at the class that keeps it; tests that take connections are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import trio
import trio.testing
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.network import connection, pubsub
from distro_node.node.network.author_rate_limit import AuthorRateLimit
from distro_node.node.network.connection import GuardedConnection
from distro_node.node.network.cpu_budget import CpuBudget
from distro_node.node.network.exchange.blobs import BlobFetcher, FetchFailed
from distro_node.node.network.gossip_router import BoundedGossipSub
from distro_node.node.network.push_tree import PushTree
from distro_node.protocol.util.token_bucket import TokenBuckets, TokenRate
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE

# Private here: `_plausible`: what the library is handed; `_budgets`: the bound of a table shows nowhere
# else.


def _peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


# Authors


def test_authors_have_a_pace() -> None:
    limit = AuthorRateLimit()
    admitted = [sum(limit.take(b"author", now) for _ in range(2000)) for now in (0.0, 1.0)]
    assert admitted == [1024, 80]
    assert limit.take(b"another", 1.0)


def test_asking_costs_nothing() -> None:
    """Old messages that another peer repeats are read, and must not silence their author."""
    limit = AuthorRateLimit()
    assert all(limit.would_admit(b"author", 0.0) for _ in range(2000))
    assert limit.take(b"author", 0.0)


def test_so_many_authors_are_known() -> None:
    limit = AuthorRateLimit()
    for number in range(5000):
        limit.take(_peer(number), 0.0)
    assert len(limit._budgets) == 4096


# Gossip


def _router(**parts: Any) -> BoundedGossipSub:
    """Return the router without a network."""
    router: Any = BoundedGossipSub.__new__(BoundedGossipSub)
    own = {"mesh": {"ours": set()}, "_answers": TokenBuckets(4096), "_tree": PushTree()}
    vars(router).update(own | parts)
    return router


def _sent_again(wanted: list[bytes]) -> int:
    """Return how many of thirty messages of 200 kB a peer gets that requests them five times at once."""
    message = rpc_pb2.Message(data=bytes(200_000))
    router, sent = _router(mcache=dict.fromkeys(NAMES, message)), 0

    async def send(self: Any, iwant: rpc_pb2.ControlIWant, sender: ID) -> None:
        nonlocal sent
        sent += len(iwant.messageIDs)

    async def ask() -> None:
        for _ in range(5):
            await router.handle_iwant(rpc_pb2.ControlIWant(messageIDs=wanted), ID(b"peer"))

    with patch.object(GossipSub, "handle_iwant", send):
        trio.run(ask, clock=trio.testing.MockClock())
    return sent


NAMES = [b"message %d" % number for number in range(30)]


def test_what_is_sent_again_has_a_budget() -> None:
    assert _sent_again(NAMES) == 10


def test_what_is_named_twice_is_sent_once() -> None:
    assert _sent_again(NAMES[:1] * 10) == 5


def _plausible(**parts: Any) -> rpc_pb2.ControlMessage:
    return _router()._plausible(rpc_pb2.ControlMessage(**parts))


def test_topics_are_ours() -> None:
    """And few of them are read: each foreign one would leave something behind."""
    graft = [rpc_pb2.ControlGraft(topicID=topic) for topic in ("theirs", "ours", "ours")]
    assert [one.topicID for one in _plausible(graft=graft).graft] == ["ours"]


def test_few_topics_are_read() -> None:
    graft = [rpc_pb2.ControlGraft(topicID=topic) for topic in ("a", "b", "c", "d", "ours")]
    assert not _plausible(graft=graft).graft


def test_identifiers_are_so_many_and_so_long() -> None:
    iwant = [rpc_pb2.ControlIWant(messageIDs=[b"x" * 15, b"x" * 17] + [b"x" * 16] * 2000)]
    kept = _plausible(iwant=iwant).iwant[0].messageIDs
    assert len(kept) == 1024
    assert set(map(len, kept)) == {16}


def test_nobody_is_named_by_a_prune() -> None:
    """Others do not decide which peers we dial."""
    prune = rpc_pb2.ControlPrune(topicID="ours", peers=[rpc_pb2.PeerInfo(peerID=b"somebody")])
    assert not _plausible(prune=[prune]).prune[0].peers


# Downloads


class _Taken:
    """A network that records the bounds of downloads without running them; a store that is empty."""

    def __init__(self) -> None:
        self.bounds: list[int] = []

    def spawn(self, run: object, *what: Any) -> None:
        self.bounds += [download.max_bytes for download in what]

    def get(self, cid: ContentId) -> None:
        return None


def test_downloads_are_bounded() -> None:
    """Whatever size was announced."""
    stub: Any = _Taken()

    async def ask() -> None:
        await BlobFetcher(stub, stub).fetch(
            content_id(b"long"), max_bytes=1 << 40, providers=list, timeout=0.0
        )

    with pytest.raises(FetchFailed):
        trio.run(ask)
    assert stub.bounds == [16 << 20]


# CPU time


def test_the_cpu_budget_has_a_rate() -> None:
    """After the first hundred, ten a second, on a mock clock."""

    async def spend() -> float:
        turns, began = CpuBudget(TokenRate(100.0, 10.0)), trio.current_time()
        for _ in range(200):
            await turns.spend()
        return trio.current_time() - began

    assert 9.0 < trio.run(spend, clock=trio.testing.MockClock(autojump_threshold=0)) < 11.0


class _Line:
    """A line on which any request is answered at once; it also replaces the traffic counters."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, n: int | None = None) -> bytes:
        return self._data

    def __getattr__(self, name: str) -> Any:
        return self if name == "download" else lambda *what: None


def _seconds(make: Callable[[], Any], n: int) -> float:
    """Return how long two thousand reads of `n` bytes take, on a mock clock."""

    async def read() -> float:
        reader, began = make(), trio.current_time()
        for _ in range(2000):
            await reader.read(n)
        return trio.current_time() - began

    return trio.run(read, clock=trio.testing.MockClock(autojump_threshold=0))


def _connection(data: bytes) -> float:
    with patch.object(connection, "BufferedNoise", lambda inner: inner):
        return _seconds(lambda: GuardedConnection(_Line(data)), HEADER_SIZE)


def test_frames_have_a_pace() -> None:
    """They cost CPU time whatever they contain; those with data pay for themselves."""
    assert 4.5 < _connection(b"") < 5.5
    assert _connection(bytes(512)) == 0.0


def test_messages_have_a_pace() -> None:
    def reads(data: bytes) -> float:
        stub: Any = _Line(data)
        return _seconds(lambda: pubsub._CountingStream(stub, stub), 1)

    assert 9.5 < reads(b"") < 10.5
    assert reads(bytes(128)) == 0.0
