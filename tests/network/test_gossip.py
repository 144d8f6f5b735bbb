"""Gossip: only accepted messages are forwarded, and no peer can bring it down."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from distro_node.crypto.identity import PeerId
from distro_node.node.network import gossip
from distro_node.node.network.addresses import id_of
from distro_node.node.network.cpu_budget import CpuBudget
from distro_node.node.network.gossip import MAX_MESSAGE_BYTES, Receiver
from distro_node.node.network.network import Network
from distro_node.protocol.util.token_bucket import TokenRate
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from network.support import PATIENCE_SECONDS, networks, until
from trio.testing import MockClock

# Private here: `_next_seqno`: the numbers of a hundred messages that are not sent.

TOPIC = "/test/topic"


def accept(sender: PeerId, data: bytes) -> str | None:
    return None


def meshed(network: Network) -> int:
    return len(network.gossip.router.mesh.get(TOPIC, ()))


@asynccontextmanager
async def line(*validators: Any) -> AsyncIterator[tuple[Sequence[Network], list[Receiver]]]:
    """Open networks in a row, each connected to the next only, all in the topic's mesh."""
    async with networks(len(validators)) as opened:
        receivers = [
            await network.subscribe(TOPIC, validator)
            for network, validator in zip(opened, validators, strict=True)
        ]
        for left, right in pairwise(opened):
            await left.connect(right.addresses[0])
        await until(
            lambda: all(
                meshed(network) == (1 if network in (opened[0], opened[-1]) else 2)
                for network in opened
            )
        )
        yield opened, receivers


async def receive(receiver: Receiver) -> tuple[PeerId, bytes]:
    with trio.fail_after(PATIENCE_SECONDS):
        return await receiver.receive()


async def test_messages_reach_everybody_but_their_sender() -> None:
    async with line(accept, accept, accept) as ((a, b, c), (at_a, at_b, at_c)):
        await a.publish(TOPIC, b"from a")
        assert await receive(at_b) == (a.peer, b"from a")
        assert await receive(at_c) == (a.peer, b"from a")
        await c.publish(TOPIC, b"from c")
        # The first message that a receives, so its own did not come back.
        assert await receive(at_a) == (c.peer, b"from c")
        assert b.traffic.sent["gossip"] > len(b"from a")
        assert b.traffic.received["gossip"] > len(b"from a")


async def test_addresses_go_with_the_greeting_and_not_with_each_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are a third of a small message, and over a slow line every byte counts."""
    written: list[tuple[bool, bool]] = []
    genuine = Pubsub.write_msg

    async def write_msg(self: Pubsub, stream: Any, rpc: Any) -> bool:
        written.append((bool(rpc.publish), rpc.HasField("senderRecord")))
        return await genuine(self, stream, rpc)

    monkeypatch.setattr(Pubsub, "write_msg", write_msg)
    async with line(accept, accept, accept) as ((a, _, _), (_, _, at_c)):
        await a.publish(TOPIC, b"from a")
        assert await receive(at_c) == (a.peer, b"from a")
    assert written.count((True, False)) >= 2
    assert (True, True) not in written
    assert (False, True) in written


async def test_what_is_rejected_is_not_passed_on() -> None:
    def no_lies(sender: PeerId, data: bytes) -> str | None:
        return "lie" if b"lie" in data else None

    async with line(accept, no_lies, accept) as ((a, b, c), (_, at_b, at_c)):
        for number in range(5):
            await a.publish(TOPIC, b"lie %d" % number)
        await a.publish(TOPIC, b"truth")
        assert await receive(at_b) == (a.peer, b"truth")
        assert await receive(at_c) == (a.peer, b"truth")
        assert b.traffic.rejected == Counter({"lie": 5})
        assert c.traffic.rejected == Counter()
        # A reason that honest peers cause, too, costs nothing.
        assert b.connected() == {a.peer, c.peer}


async def test_a_validator_of_ours_that_fails_rejects() -> None:
    def fail(sender: PeerId, data: bytes) -> str | None:
        if data == b"trap":
            raise ValueError("a bug")
        return None

    async with line(accept, fail, accept) as ((a, b, _), (_, at_b, at_c)):
        await a.publish(TOPIC, b"trap")
        await a.publish(TOPIC, b"next")
        assert await receive(at_b) == (a.peer, b"next")
        assert await receive(at_c) == (a.peer, b"next")
        assert b.traffic.rejected == Counter({"validator_failed": 1})
        assert b.traffic.failures == Counter({TOPIC: 1})


async def test_who_forwards_what_no_honest_peer_would_is_cut_off() -> None:
    def malformed(sender: PeerId, data: bytes) -> str | None:
        return "malformed" if data == b"bad" else None

    async with line(accept, malformed) as ((a, b), _):
        for _ in range(4):
            await a.publish(TOPIC, b"bad")
        await until(lambda: not b.connected())
        assert b.refuses(a.peer)
        assert b.traffic.rejected["malformed"] >= 4


async def test_garbage_bad_keys_and_other_topics_do_no_harm() -> None:
    async with line(accept, accept, accept) as ((a, b, c), (_, at_b, at_c)):
        target = id_of(b.peer)
        queue: Any = a.gossip.pubsub.peer_queues[target]
        bad_key = rpc_pb2.Message(data=b"x", topicIDs=[TOPIC], seqno=bytes(8), signature=b"s")
        bad_key.from_id = b"\x12\x20" + bytes(32)
        bad_key.key = b"\xff\xffgarbage"
        queue.push(rpc_pb2.RPC(publish=[bad_key]))
        unsigned = rpc_pb2.Message(data=b"forged", topicIDs=[TOPIC], seqno=bytes(8))
        unsigned.from_id = id_of(c.peer).to_bytes()
        queue.push(rpc_pb2.RPC(publish=[unsigned]))
        # Signed, but for two topics at once: only one of them has validated it.
        await a.gossip.pubsub.publish([TOPIC, "other"], b"two topics")
        await until(lambda: b.traffic.rejected["malformed"] == 1)
        stream: Any = a.gossip.pubsub.peers[target]
        await stream.write(b"\x05\xff\xff\xff\xff\xff")
        # The stream is unusable; the next message opens another.
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                await a.publish(TOPIC, b"still there")
                with trio.move_on_after(0.5):
                    assert await at_c.receive() == (a.peer, b"still there")
                    break
        assert await receive(at_b) == (a.peer, b"still there")
        assert b.connected() == {a.peer, c.peer}


async def test_a_large_message_passes_and_a_larger_one_is_refused() -> None:
    async with line(accept, accept) as ((a, b), (_, at_b)):
        largest = bytes(MAX_MESSAGE_BYTES)
        await a.publish(TOPIC, largest)
        assert await receive(at_b) == (a.peer, largest)
        with pytest.raises(ValueError, match="at most"):
            await a.publish(TOPIC, largest + b"\0")
        # Bypasses our own check: the other end has one, too.
        await a.gossip.pubsub.publish(TOPIC, largest + b"\0")
        await until(lambda: b.traffic.rejected == Counter({"oversized": 1}))


async def test_a_burst_arrives_whole() -> None:
    async with line(accept, accept, accept) as ((a, _, _), (_, _, at_c)):
        expected = {b"%d" % number for number in range(12)}
        async with trio.open_nursery() as nursery:
            for data in expected:
                nursery.start_soon(a.publish, TOPIC, data)
        assert {(await receive(at_c))[1] for _ in expected} == expected


async def test_the_library_keeps_no_list_of_all_messages() -> None:
    async with line(accept, accept) as ((a, b), (_, at_b)):
        for _ in range(5):
            await a.publish(TOPIC, b"x")
            await receive(at_b)
        for network in (a, b):
            assert not any(map(len, network.gossip.router.recent_message_deliveries.values()))


async def test_a_slow_reader_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip, "_BUFFERED_MESSAGES", 3)
    async with line(accept, accept) as ((a, b), (_, at_b)):
        for number in range(5):
            await a.publish(TOPIC, b"%d" % number)
        await until(lambda: b.traffic.dropped[TOPIC] == 2)
        assert [(await receive(at_b))[1] for _ in range(3)] == [b"2", b"3", b"4"]


async def test_a_topic_is_subscribed_to_once() -> None:
    async with networks(1) as (a,):
        await a.subscribe(TOPIC, accept)
        with pytest.raises(ValueError, match="already"):
            await a.subscribe(TOPIC, accept)


async def test_sequence_numbers_do_not_repeat_after_a_restart() -> None:
    seen = set()
    for _ in range(2):
        async with networks(1) as (a,):
            seen |= {a.gossip.pubsub._next_seqno() for _ in range(100)}
    assert len(seen) == 200


async def test_publishing_is_paced(autojump_clock: MockClock) -> None:
    pace = CpuBudget(TokenRate(at_once=40.0, per_second=40.0))
    start = trio.current_time()
    times = []

    async def take() -> None:
        await pace.spend()
        times.append(trio.current_time() - start)

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(take)
    assert times[:40] == [0.0] * 40
    assert times[40:] == pytest.approx([(number + 1) / 40 for number in range(160)])
    # Tokens accumulate again, but no more than a burst.
    await trio.sleep(100)
    start = trio.current_time()
    times.clear()
    for _ in range(41):
        await take()
    assert times == pytest.approx([0.0] * 40 + [1 / 40])
