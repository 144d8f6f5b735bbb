"""What a peer says in gossip's control messages costs us little, and never the node."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio
from distro_node.node.network import gossip_router
from distro_node.node.network.gossip_router import MAX_QUEUED_BYTES, MAX_QUEUED_MESSAGES, SendQueue
from distro_node.node.network.network import Network
from libp2p.peer.envelope import seal_record
from libp2p.peer.peer_record import PeerRecord
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX
from network.hostile import hostile, invented
from network.support import networks, star, until

TOPIC = "swarm"


def accept(sender: Any, data: bytes) -> None:
    return None


async def test_nobody_is_dialled_on_the_word_of_a_prune() -> None:
    """As it was: a thousand calls to a third party, our own identity lost, the node ended."""
    knocks = 0

    async def knocked(stream: Any) -> None:
        nonlocal knocks
        knocks += 1
        await stream.aclose()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with networks(1) as (victim,), hostile(victim) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, knocked, listeners)
        await victim.subscribe(TOPIC, accept)
        store = victim._host.get_peerstore()
        for number in range(100):
            rpc = rpc_pb2.RPC()
            topic = TOPIC if number % 2 else f"t{number}"
            prune = rpc.control.prune.add(topicID=topic, backoff=1)
            for _ in range(16):
                someone, record = invented(port)
                prune.peers.add(peerID=someone.to_bytes(), signedPeerRecord=record)
            await peer.say(rpc)
        await peer.heard()
        assert len(store.peer_ids()) == 1
        await victim.publish(TOPIC, b"still here")
        assert victim.connected() == {peer.network.peer}
        assert not knocks
        nursery.cancel_scope.cancel()


async def test_topics_that_are_not_ours_leave_nothing_behind() -> None:
    """As it was: 1.2 GB of topics from one peer in half a minute, for ever."""
    async with networks(1) as (victim,), hostile(victim) as peer:
        await victim.subscribe(TOPIC, accept)
        router = victim.gossip.router
        for number in range(20):
            rpc = rpc_pb2.RPC()
            long = f"{number}" + "x" * 10_000
            rpc.control.prune.add(topicID=long, backoff=10**9)
            rpc.control.graft.add(topicID=long)
            rpc.control.ihave.add(topicID=long, messageIDs=[b"i"])
            await peer.say(rpc)
        await peer.heard()
        tables = (router.back_off, router.ihave_message_limits, router.graft_flood_tracking)
        assert not any("x" * 100 in repr(table) for table in tables)


async def test_a_prune_holds_for_an_hour_at_most_and_is_forgotten_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with networks(1) as (victim,), hostile(victim) as peer:
        await victim.subscribe(TOPIC, accept)
        rpc = rpc_pb2.RPC()
        rpc.control.prune.add(topicID=TOPIC, backoff=10**12)
        await peer.say(rpc)
        await peer.heard()
        router = victim.gossip.router
        assert router.back_off[TOPIC][peer.id] <= time.time() + 3600
        now = time.time()
        monkeypatch.setattr(gossip_router.time, "time", lambda: now + 3700)
        await until(lambda: TOPIC not in router.back_off)


async def test_what_is_sent_again_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: any message, as often as it was asked for."""
    async with star(2) as (victim, friend), hostile(victim) as peer:
        await victim.subscribe(TOPIC, accept)
        await friend.subscribe(TOPIC, accept)
        await peer.subscribe(TOPIC)
        for _ in range(12):
            await victim.publish(TOPIC, bytes(200_000))
        asked = rpc_pb2.RPC()
        router = victim.gossip.router
        answered: list[int] = []
        monkeypatch.setattr(
            router, "send_rpc", lambda peer, rpc, **_: answered.append(rpc.ByteSize())
        )
        wanted = router.mcache.window(TOPIC)
        assert len(wanted) >= 10
        asked.control.iwant.add(messageIDs=[identifier for identifier in wanted for _ in range(50)])
        for _ in range(5):
            await peer.say(asked)
        await peer.heard()
        assert 400_000 < sum(answered) < 3 << 20


def test_what_waits_for_one_peer_is_bounded_in_number_and_in_bytes() -> None:
    small = rpc_pb2.RPC(publish=[rpc_pb2.Message(data=b"vote")])
    large = rpc_pb2.RPC(publish=[rpc_pb2.Message(data=bytes(1 << 20))])
    queue = SendQueue()
    assert sum(queue.push(small) for _ in range(1000)) == MAX_QUEUED_MESSAGES
    queue = SendQueue()
    assert sum(queue.push(large) for _ in range(10)) == MAX_QUEUED_BYTES // large.ByteSize()
    assert queue.push(small)
    while queue.pop():
        pass
    assert queue.push(large)


async def test_whoever_passes_forgeries_on_is_refused() -> None:
    async with networks(1) as (victim,), hostile(victim) as peer:
        await victim.subscribe(TOPIC, accept)
        for number in range(4):
            forged = rpc_pb2.Message(data=b"x", topicIDs=[TOPIC], seqno=number.to_bytes(8, "big"))
            forged.from_id = peer.id.to_bytes()
            forged.key = peer.network._host.get_public_key().serialize()
            forged.signature = bytes(64)
            await peer.say(rpc_pb2.RPC(publish=[forged]))
        await until(lambda: victim.refuses(peer.network.peer))
        assert victim.traffic.rejected["bad_signature"] == 4


async def test_whatever_the_library_raises_costs_a_message_and_not_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with star(2) as (victim, friend):
        inbox = await friend.subscribe(TOPIC, accept)
        await victim.subscribe(TOPIC, accept)
        await until(lambda: bool(victim.gossip.pubsub.peer_topics.get(TOPIC)))

        def broken(*_: Any) -> Any:
            raise KeyError("from the library")

        with monkeypatch.context() as patch:
            patch.setattr(victim._host, "get_public_key", broken)
            patch.setattr(victim.gossip.router, "fanout_heartbeat", broken)
            await victim.publish(TOPIC, b"lost")
            assert victim.traffic.failures[TOPIC] == 1
            await trio.sleep(1.5)
        await _goes_through(victim, inbox)


async def _goes_through(sender: Network, inbox: Any) -> None:
    with trio.fail_after(5):
        await sender.publish(TOPIC, b"heard")
        assert await inbox.receive() == (sender.peer, b"heard")


async def test_a_peer_whose_clock_was_ahead_is_heard() -> None:
    """Its records carry the time; the library drops messages with an older one than the last."""
    heard: list[bytes] = []
    async with networks(1) as (victim,), hostile(victim) as peer:
        await victim.subscribe(TOPIC, lambda sender, data: heard.append(data))
        keys = peer.network._host.get_private_key()
        for number, seconds in enumerate((10**10, 1)):
            record = PeerRecord(peer.id, [], seq=seconds * 10**9)
            envelope = seal_record(record, keys).marshal_envelope()
            message = rpc_pb2.Message(
                data=bytes([number]), topicIDs=[TOPIC], seqno=number.to_bytes(8, "big")
            )
            message.from_id = peer.id.to_bytes()
            signed = PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString()
            message.key = keys.get_public_key().serialize()
            message.signature = keys.sign(signed)
            await peer.say(rpc_pb2.RPC(publish=[message], senderRecord=envelope))
        await until(lambda: heard == [b"\0", b"\1"])
