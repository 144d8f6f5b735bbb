"""What strangers may do for as long as they like: it is bounded, and others are served meanwhile."""

from __future__ import annotations

import multiprocessing
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import Identity, PeerId
from distro_node.node.network import requests
from distro_node.node.network.addresses import id_of
from distro_node.node.network.discovery.introductions import PROTOCOL as INTRODUCE
from distro_node.node.network.discovery.introductions import Introducer, IntroductionService
from distro_node.node.network.errors import RequestError
from distro_node.node.network.network import Network, open_network
from distro_node.node.network.streams import write_frame
from distro_node.node.session import sync
from distro_node.protocol.chain.sync import SYNC_PROTOCOL, SyncQuery, SyncResponse, read_answer
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.introductions import (
    IntroductionResponse,
    Registry,
    seal_peer_record,
)
from distro_node.protocol.wire.manifest import SwarmId
from fuzz import inventory
from libp2p.custom_types import TProtocol
from libp2p.peer.envelope import seal_record as seal_library_record
from libp2p.peer.peer_record import PeerRecord
from libp2p.pubsub.pb import rpc_pb2
from multiaddr import Multiaddr
from network import victim
from network.attacks import Attacker, Window, announcements, attack_together, forged_answers
from network.hostile import hostile
from network.support import ECHO, LOOPBACK, echo, identity, networks, star, until
from network.victim import Target
from simulation.chain import Chain

# Private here: `_host`: a stranger obeys none of a node's own bounds.
SWARM = SwarmId(content_id(b"strangers"))
LARGE = bytes(4 << 20)


async def large(peer: PeerId, request: bytes) -> bytes:
    return LARGE


async def test_who_does_not_read_the_answer_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "_REPLY_SECONDS", 0.5)
    monkeypatch.setattr(requests, "_SLOWEST_BYTES_PER_SECOND", 1e9)
    async with star(3) as (node, slow, honest):
        node.serve(ECHO, large, max_request=16, max_concurrent=2, max_per_peer=2)

        async def ask() -> bytes:
            return await honest.request(node.peer, ECHO, b"x", max_response=len(LARGE), timeout=60)

        for _ in range(2):
            stream = await slow._host.new_stream(id_of(node.peer), [TProtocol(ECHO)])
            await write_frame(stream, b"x")
        served = 0

        async def until_served() -> None:
            nonlocal served
            while not served:
                try:
                    served = len(await ask())
                except RequestError as error:
                    if error.reason != "busy":
                        raise
                    await trio.sleep(0.05)

        with trio.fail_after(60):
            await until_served()
        assert served == len(LARGE)


def test_every_handler_is_served_with_these_bounds() -> None:
    """Except for circuits, whose streams stay open: they have bounds, and tests, of their own."""
    by_themselves = {"/libp2p/circuit/relay/0.2.0/hop", "/libp2p/circuit/relay/0.2.0/stop"}
    assert inventory.doors("set_stream_handler") == {
        *by_themselves,
        "node.network.requests:TProtocol(protocol)",
    }


async def visit(node: Network, count: int) -> None:
    """Let `count` visitors connect one after the other and disconnect."""
    for _ in range(count):
        async with open_network(LOOPBACK, Identity.generate()) as visitor:
            await visitor.connect(node.addresses[0])
            await until(lambda visitor=visitor: visitor.peer in node.connected())


async def look_after(count: int, most: int) -> None:
    """Let visitors connect to a node with room for `most`, and check that nothing of them is left."""
    settings = replace(LOOPBACK, max_connections=most)
    async with open_network(settings, identity(70)) as node, networks(1) as (honest,):
        node.serve(ECHO, echo, max_request=16, max_concurrent=4)
        await visit(node, count)
        await until(lambda: not node.connected())
        assert len(node._host.get_peerstore().peer_ids()) <= 1
        pubsub = node.gossip.pubsub
        assert not pubsub.peers
        assert not pubsub.peer_topics
        await honest.connect(node.addresses[0])
        assert await honest.request(node.peer, ECHO, b"x", max_response=1, timeout=60) == b"x"


async def test_visitors_leave_nothing_behind_and_the_door_open() -> None:
    """Before: after as many visitors as a host has room for it accepted no more for good."""
    await look_after(20, most=16)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_eleven_hundred_visitors() -> None:
    """Before: the thousandth ended gossip, and the node with it."""
    await look_after(1100, most=256)


async def test_a_long_answer_of_nothing_is_decoded_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before: 65,536 empty entries, or as many envelopes, blocked the loop for a third of a second."""
    chain = Chain(2)
    answers = [SyncResponse(1, (), (b"",) * 65_536, ()), SyncResponse(1, (), (), (b"x",) * 9)]
    threads: list[bool] = []

    def note(data: bytes) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return read_answer(data)

    async def answer(peer: PeerId, request: bytes) -> bytes:
        return encode(answers.pop(0))

    monkeypatch.setattr(sync, "read_answer", note)
    async with star(2) as (node, liar):
        liar.serve(SYNC_PROTOCOL, answer, max_request=512, max_concurrent=2)
        for _ in range(2):
            found = await sync.ask_peer(node, chain.manifest, SyncQuery(liar.peer, 0))
            assert found is not None
    assert threads == [False, True]


async def test_topics_of_a_stranger_are_short_and_few() -> None:
    async with networks(1) as (node,), hostile(node) as peer:
        rpc = rpc_pb2.RPC()
        rpc.subscriptions.add(subscribe=True, topicid="x" * 300_000)
        await peer.send_rpc(rpc)
        for number in range(40):
            rpc = rpc_pb2.RPC()
            rpc.subscriptions.add(subscribe=True, topicid=f"topic-{number}")
            await peer.send_rpc(rpc)
        rpc = rpc_pb2.RPC()
        rpc.subscriptions.add(subscribe=False, topicid="topic-0")
        await peer.send_rpc(rpc)
        topics: Any = node.gossip.pubsub.peer_topics
        await until(lambda: "topic-15" in topics and "topic-0" not in topics)
        assert len(topics) < 17
        assert max(map(len, topics)) < 128


async def test_records_of_a_hundred_thousand_addresses_are_not_opened() -> None:
    async with networks(1) as (node,), hostile(node) as peer:
        private = peer.network._host.get_private_key()
        addresses = [Multiaddr(f"/ip4/10.0.{n >> 8 & 255}.{n & 255}/tcp/1") for n in range(50)]
        record = PeerRecord(peer.id, addresses * 2000)
        envelope = seal_library_record(record, private).marshal_envelope()
        # One message has a MiB at most.
        rpc = rpc_pb2.RPC(senderRecord=envelope[: 900 << 10])
        await peer.send_rpc(rpc)
        honest = PeerRecord(peer.id, addresses)
        sealed = seal_library_record(honest, private).marshal_envelope()
        await peer.send_rpc(rpc_pb2.RPC(senderRecord=sealed))
        await peer.wait_until_read()
        store: Any = node._host.get_peerstore()
        known = store.addrs(peer.id) if peer.id in store.peer_ids() else []
        assert not set(addresses) & set(known)
        assert peer.network.peer in node.connected()


async def test_nothing_can_be_pushed_at_a_node() -> None:
    async with networks(1) as (node,), hostile(node) as peer:
        for protocol in ("/ipfs/id/push/1.0.0", "/ipfs/id/1.0.0", "/ipfs/ping/1.0.0"):
            with pytest.raises(Exception, match=r"."):
                await peer.open(protocol)
        assert peer.network.peer in node.connected()


async def garbage(peer: PeerId, request: bytes) -> bytes:
    return b"\xc1" * 1000


async def crowd(peer: PeerId, request: bytes) -> bytes:
    """Return invented peers, at addresses without a listener."""
    invented = [Identity.generate() for _ in range(64)]
    return IntroductionResponse(
        tuple(
            seal_peer_record(one, SWARM, [f"/ip4/127.0.0.1/tcp/1/p2p/{id_of(one.peer)}"], 2**62)
            for one in invented
        )
    ).encode()


async def silence(peer: PeerId, request: bytes) -> bytes:
    await trio.sleep_forever()
    raise AssertionError


async def test_hostile_bootstrap_peers_keep_nobody_out() -> None:
    async with networks(5) as opened:
        *liars, honest, newcomer = opened
        for liar, handler in zip(liars, (garbage, crowd, silence), strict=True):
            liar.serve(INTRODUCE, handler, max_request=1 << 20, max_concurrent=8)
        IntroductionService(honest, Registry(), {SWARM})
        member = identity(1005)
        async with open_network(LOOPBACK, member) as there:
            await there.connect(honest.addresses[0])
            bootstrap = [each.addresses[0] for each in (*liars, honest)]
            own = Introducer(there, member, SWARM, [honest.addresses[0]])
            introducer = Introducer(newcomer, identity(5), SWARM, bootstrap)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(own.run)
                nursery.start_soon(introducer.run)
                await introducer.first_contact(60)
                await until(lambda: there.peer in newcomer.connected())
                nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("attack", [forged_answers, announcements])
async def test_rounds_go_on_under(attack: Any, tmp_path: Path) -> None:
    """Forged ledger entries and envelopes in answers; announcements as fast as they go through."""
    here, there = multiprocessing.Pipe()
    window = Window(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(victim.serve, tmp_path, there)

        async def receive() -> Any:
            return await trio.to_thread.run_sync(
                here.recv,
                abandon_on_cancel=True,  # pyright: ignore[reportCallIssue]
            )

        async def ask() -> victim.Figures:
            here.send("figures")
            return await receive()

        target = await receive()
        for number in (1, 2):
            one = trio.CapacityLimiter(1)
            nursery.start_soon(Attacker(number, target, window).run, attack, one)
        await window.all_ready.wait()
        window.open(1e6)
        before = await ask()
        # They get through: rounds go on despite the attack, not for lack of one.
        while (now := await ask()).received < before.received + (1 << 20):  # noqa: ASYNC110  (it is asked)
            await trio.sleep(0.05)
        while (later := await ask()).round < now.round + 5:  # noqa: ASYNC110  (likewise)
            await trio.sleep(0.05)
        # Nothing that they send is on the disk: a round of a lone member is two kilobytes there.
        assert later.disk - before.disk < (16 << 10) * (later.round - before.round + 1)
        nursery.cancel_scope.cancel()


class Wire:
    """Both ends of a pipe to attackers, in a test: they are told to begin when `go` is set."""

    def __init__(self, node: Network) -> None:
        self.node = node
        self.sent: list[Any] = []
        self.there = 0
        self.go = threading.Event()

    def send(self, word: Any) -> None:
        self.sent.append(word)
        self.there = max(self.there, len(self.node.connected()))

    def recv(self) -> str:
        assert self.go.wait(60)
        return "go"


async def test_attackers_begin_when_all_are_there() -> None:
    async with networks(1) as (node,):
        wire = Wire(node)
        target = Target(node.addresses[0], 1, bytes(32))
        wire.go.set()
        await attack_together(["pings"], target, 3, 0.1, 60.0, wire)
        assert wire.sent == [3, "over"]
        assert wire.there == 3


async def test_attackers_that_are_not_there_are_not_counted() -> None:
    async with networks(1) as (node,):
        wire = Wire(node)
        nowhere = "/ip4/127.0.0.1/tcp/1/p2p/" + node.addresses[0].rpartition("/")[2]
        wire.go.set()
        await attack_together(["pings"], Target(nowhere, 1, bytes(32)), 2, 0.1, 0.5, wire)
        assert wire.sent == [0, "over"]
