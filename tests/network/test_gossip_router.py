"""A peer's control messages in gossip cost us little, and never the node."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio
from distro_node.node.network import author_rate_limit
from distro_node.node.network.gossip_router import SendQueue
from distro_node.node.network.network import Network
from distro_node.protocol.util.token_bucket import TokenRate
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.envelope import seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from libp2p.pubsub import pubsub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX, signature_validator
from network.hostile import hostile, invented
from network.support import PATIENCE_SECONDS, networks, star, until

# Private here: `_host`: a stranger signs and stores what it likes.
# Private here: `_check_back_off`: the library's, replaced by ours.
# Private here: `_tree`: what is kept of peers that have left.
# Private here: `_pending_messages`: what the library would keep shows only in bytes much later.

TOPIC = "swarm"


def accept(sender: Any, data: bytes) -> None:
    return None


async def test_a_peer_that_refuses_our_gossip_takes_no_place_once_it_has_left() -> None:
    """Before: it stayed in the mesh for ever, and four of them kept all others out of it."""
    async with networks(1) as (victim,):
        await victim.subscribe(TOPIC, accept)
        router = victim.gossip.router
        async with hostile(victim, offers_gossip=False) as peer:
            rpc = rpc_pb2.RPC()
            rpc.control.graft.add(topicID=TOPIC)
            await peer.send_rpc(rpc)
            await peer.wait_until_read()
            router._tree.note_copy(peer.id, b"author", b"message")
            assert peer.id in router.mesh[TOPIC]
            assert not victim.gossip.pubsub.peers
        await until(lambda: not router.mesh[TOPIC] and not router._tree.peers(), 10.0)


async def test_nobody_is_dialled_because_of_a_prune() -> None:
    """Before: a thousand dials of a third party, our own identity lost, the node ended."""
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
            await peer.send_rpc(rpc)
        await peer.wait_until_read()
        assert len(store.peer_ids()) == 1
        await victim.publish(TOPIC, b"still here")
        assert victim.connected() == {peer.network.peer}
        assert not knocks
        nursery.cancel_scope.cancel()


async def test_topics_that_are_not_ours_leave_nothing_behind() -> None:
    """Before: 1.2 GB of topics from one peer in half a minute, for ever."""
    async with networks(1) as (victim,), hostile(victim) as peer:
        await victim.subscribe(TOPIC, accept)
        router = victim.gossip.router
        for number in range(20):
            rpc = rpc_pb2.RPC()
            long = f"{number}" + "x" * 10_000
            rpc.control.prune.add(topicID=long, backoff=10**9)
            rpc.control.graft.add(topicID=long)
            rpc.control.ihave.add(topicID=long, messageIDs=[b"i"])
            await peer.send_rpc(rpc)
        await peer.wait_until_read()
        tables = (router.back_off, router.ihave_message_limits, router.graft_flood_tracking)
        assert not any("x" * 100 in repr(table) for table in tables)


async def test_ihaves_and_grafts_in_our_topic_cost_little_and_keep_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """IHAVE of 1,000 invented messages at a time, and GRAFT and PRUNE alternately, while a friend sends
    messages: within one second we request ten of them, and nothing that we keep grows with their
    number."""
    floods, ids = 120, 1000
    # The clock is stopped, so everything is sent within one second of the library's.
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    async with star(2) as (victim, friend), hostile(victim) as peer:
        inboxes = [await node.subscribe(TOPIC, accept) for node in (victim, friend)]
        await peer.subscribe(TOPIC)
        router = victim.gossip.router
        await until(lambda: all(n.gossip.router.mesh.get(TOPIC) for n in (victim, friend)))
        sent: list[rpc_pb2.RPC] = []
        sends = router.send_rpc

        def send(to: ID, rpc: rpc_pb2.RPC, **options: Any) -> Any:
            if to == peer.id:
                sent.append(rpc)
            return sends(to, rpc, **options)

        monkeypatch.setattr(router, "send_rpc", send)
        for number in range(floods):
            rpc = rpc_pb2.RPC()
            invented_ids = [(number * ids + n).to_bytes(16, "big") for n in range(ids)]
            rpc.control.ihave.add(topicID=TOPIC, messageIDs=invented_ids)
            if number % 2:
                rpc.control.prune.add(topicID=TOPIC, backoff=1)
            else:
                rpc.control.graft.add(topicID=TOPIC)
            await peer.send_rpc(rpc)
            if number % 40 == 0:
                await _goes_through(friend, inboxes[0])
        await peer.wait_until_read()
        await _goes_through(friend, inboxes[0])
        await _goes_through(victim, inboxes[1])
        asked = [len(i.messageIDs) for rpc in sent for i in rpc.control.iwant]
        assert asked == [ids] * int(router.max_ihave_messages_per_second)
        # At most one PRUNE of ours for each GRAFT.
        assert sum(len(rpc.control.prune) for rpc in sent) <= floods // 2
        kept = (router.ihave_message_limits, router.graft_flood_tracking, router.back_off)
        assert max(len(repr(table)) for table in kept) < 2000
        assert peer.id not in router.mesh[TOPIC]
        assert victim.connected() == {friend.peer, peer.network.peer}


async def test_nothing_is_kept_for_a_peer_without_a_subscription() -> None:
    """Every peer of a node that came back sent it the same hundred messages; and a bootstrap peer, which
    subscribes to nothing, filled a queue for ever."""
    async with star(3) as (a, b, _):
        await a.subscribe(TOPIC, accept)
        await until(lambda: len(a.gossip.pubsub.peers) == 2)
        sent = [b"%d" % number for number in range(20)]
        for data in sent:
            await a.publish(TOPIC, data)
        assert not a.gossip.router._pending_messages
        # What b has missed it gets once, within the budget for messages that are sent again.
        at_b = await b.subscribe(TOPIC, accept)
        with trio.fail_after(PATIENCE_SECONDS):
            assert sorted([(await at_b.receive())[1] for _ in sent]) == sorted(sent)


async def test_a_prune_holds_for_an_hour_at_most_and_is_forgotten_then() -> None:
    async with networks(1) as (victim,), hostile(victim) as peer:
        await victim.subscribe(TOPIC, accept)
        rpc = rpc_pb2.RPC()
        rpc.control.prune.add(topicID=TOPIC, backoff=10**12)
        await peer.send_rpc(rpc)
        await peer.wait_until_read()
        router = victim.gossip.router
        assert router.back_off[TOPIC][peer.id] <= trio.current_time() + 3600
        assert router._check_back_off(peer.id, TOPIC)
        router.back_off[TOPIC][peer.id] -= 3600
        assert not router._check_back_off(peer.id, TOPIC)
        await until(lambda: TOPIC not in router.back_off)


async def test_a_clock_that_was_ahead_leaves_nobody_alone_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before: a peer that was pruned while the clock was an hour ahead was left alone for an hour."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    async with networks(1) as (victim,), hostile(victim) as peer:
        await victim.subscribe(TOPIC, accept)
        rpc = rpc_pb2.RPC()
        rpc.control.prune.add(topicID=TOPIC, backoff=20)
        await peer.send_rpc(rpc)
        await peer.wait_until_read()
        router = victim.gossip.router
        monkeypatch.setattr(time, "time", lambda: now)
        assert 0 < router.back_off[TOPIC][peer.id] - trio.current_time() <= 20


async def test_what_is_sent_again_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: any message, as often as it was requested."""
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
            await peer.send_rpc(asked)
        await peer.wait_until_read()
        assert 400_000 < sum(answered) < 3 << 20


def test_what_waits_for_one_peer_is_bounded_in_number_and_in_bytes() -> None:
    small = rpc_pb2.RPC(publish=[rpc_pb2.Message(data=b"vote")])
    large = rpc_pb2.RPC(publish=[rpc_pb2.Message(data=bytes(1 << 20))])
    queue = SendQueue()
    assert sum(queue.push(small) for _ in range(1000)) == 512
    queue = SendQueue()
    assert sum(queue.push(large) for _ in range(10)) == 3
    assert queue.push(small)
    while queue.pop():
        pass
    assert queue.push(large)


async def test_who_passes_forgeries_on_is_refused() -> None:
    async with networks(1) as (victim,), hostile(victim) as peer:
        await victim.subscribe(TOPIC, accept)
        for number in range(4):
            forged = rpc_pb2.Message(data=b"x", topicIDs=[TOPIC], seqno=number.to_bytes(8, "big"))
            forged.from_id = peer.id.to_bytes()
            forged.key = peer.network._host.get_public_key().serialize()
            forged.signature = bytes(64)
            await peer.send_rpc(rpc_pb2.RPC(publish=[forged]))
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


def signed(keys: Any, number: int) -> rpc_pb2.Message:
    """Return the message of this number, as its author signs it."""
    message = rpc_pb2.Message(
        data=number.to_bytes(2, "big"), topicIDs=[TOPIC], seqno=number.to_bytes(8, "big")
    )
    message.from_id = ID.from_pubkey(keys.get_public_key()).to_bytes()
    words = PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString()
    message.key = keys.get_public_key().serialize()
    message.signature = keys.sign(words)
    return message


async def test_messages_of_a_peer_whose_clock_was_ahead_are_accepted() -> None:
    """Its records carry the time; the library drops messages with an older one than the last."""
    received: list[bytes] = []
    async with networks(1) as (victim,), hostile(victim) as peer:
        await victim.subscribe(TOPIC, lambda sender, data: received.append(data))
        keys = peer.network._host.get_private_key()
        for number, seconds in enumerate((10**10, 1)):
            record = PeerRecord(peer.id, [], seq=seconds * 10**9)
            envelope = seal_record(record, keys).marshal_envelope()
            message = signed(keys, number)
            await peer.send_rpc(rpc_pb2.RPC(publish=[message], senderRecord=envelope))
        await until(lambda: received == [b"\0\0", b"\0\1"])


@pytest.mark.parametrize("directly", [True, False])
async def test_who_sends_too_much_is_read_at_the_pace_of_others(
    directly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: all messages of one author were verified and forwarded by all peers to all others."""
    sent, most, judged, verified = 300, 40, 0, 0
    monkeypatch.setattr(author_rate_limit, "_ALLOWANCE", TokenRate(at_once=most, per_second=0.0))

    def judge(sender: Any, data: bytes) -> None:
        nonlocal judged
        judged += len(data) == 2

    def verify(message: Any) -> bool:
        nonlocal verified
        verified += len(message.data) == 2
        return signature_validator(message)

    async with star(2) as (victim, friend), hostile(victim) as peer:
        inbox = await friend.subscribe(TOPIC, accept)
        await victim.subscribe(TOPIC, judge)
        await until(lambda: all(n.gossip.router.mesh.get(TOPIC) for n in (victim, friend)))
        monkeypatch.setattr(pubsub, "signature_validator", verify)
        keys: Any = peer.network._host.get_private_key()
        if not directly:
            # Forwarded by a peer that is not the author.
            keys = create_new_key_pair(bytes(32)).private_key
        for number in range(sent):
            await peer.send_rpc(rpc_pb2.RPC(publish=[signed(keys, number)]))
        await until(lambda: victim.traffic.rejected["too_many"] == sent - most)
        assert judged == most
        # What reached the friend was verified there, too.
        assert verified <= 2 * most if directly else verified >= sent
        await victim.publish(TOPIC, b"heard")
        passed_on = 0
        with trio.fail_after(30):
            while (await inbox.receive())[1] != b"heard":
                passed_on += 1
        assert passed_on <= most
        # No peer is disconnected for it, and all others are received as before.
        assert peer.network.peer in victim.connected()
        await _goes_through(victim, inbox)


async def test_nobody_is_silenced_by_who_repeats_its_old_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A peer that kept an author's old messages can send them again, faster than the author's own
    limit."""
    sent, most = 60, 40
    monkeypatch.setattr(author_rate_limit, "_ALLOWANCE", TokenRate(at_once=most, per_second=0.0))
    old, fresh = 0, sent.to_bytes(2, "big")

    def judge(sender: Any, data: bytes) -> str | None:
        nonlocal old
        if data == fresh:
            return None
        old += 1
        return "other_round"

    async with star(1) as (victim,), hostile(victim) as peer:
        inbox = await victim.subscribe(TOPIC, judge)
        keys = create_new_key_pair(bytes(32)).private_key
        for number in range(sent):
            await peer.send_rpc(rpc_pb2.RPC(publish=[signed(keys, number)]))
        await until(lambda: old == sent)
        await peer.send_rpc(rpc_pb2.RPC(publish=[signed(keys, sent)]))
        with trio.fail_after(30):
            assert (await inbox.receive())[1] == fresh
        assert not victim.traffic.rejected["too_many"]
