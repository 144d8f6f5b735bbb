"""The library's pubsub, hardened against strangers: bounded, counted, and not ended by bad input."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import trio
from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID
from libp2p.pubsub.pubsub import Pubsub

from ...protocol.util.token_bucket import TokenRate
from .author_rate_limit import AuthorRateLimit
from .cancel_scopes import shielded
from .cpu_budget import CpuBudget
from .gossip_router import BoundedGossipSub, message_id
from .traffic import Traffic

log = logging.getLogger(__name__)

MAX_TOPIC_CHARACTERS = 128
"""Our topics are an identifier and a few letters; longer ones would only fill the memory."""

# A peer needs one topic for each of its swarms.
_MAX_TOPICS_PER_PEER = 16
# A message takes two reads, and the same CPU time whatever its size. Reads beyond this rate have to
# wait, but every 128 bytes received earn one more read, so messages as large as a vote never wait.
_BYTES_PER_READ = 128
_READS = TokenRate(at_once=1000.0, per_second=100.0)
# Subscriptions in one message: each starts three tasks in the library.
_MAX_SUBSCRIPTIONS = 32


class HardenedPubsub(Pubsub):
    """A `Pubsub` that counts its bytes in `traffic`, and calls `on_forged` with a peer that forwards
    forgeries.

    Each method below fixes one fault of the library; docs/upstream has a patch for most of them.
    """

    def __init__(
        self,
        host: BasicHost,
        router: BoundedGossipSub,
        traffic: Traffic,
        on_forged: Callable[[ID], None],
        author_limit: AuthorRateLimit,
    ) -> None:
        super().__init__(
            host,
            router,
            msg_id_constructor=message_id,
            strict_signing=True,
            max_subscriptions_per_rpc=_MAX_SUBSCRIPTIONS,
            max_subscriptions_per_peer=_MAX_TOPICS_PER_PEER,
        )
        self._router = router
        self._traffic = traffic
        self._report_forged = on_forged
        self._author_limit = author_limit
        self._registering: set[ID] = set()

    async def write_msg(self, stream: Any, rpc_msg: Any) -> bool:
        """Send a message. The library adds our signed addresses to each one; a published message goes
        without them, which are a third of a small one, since the other kinds carry them to every
        peer."""
        if rpc_msg.publish:
            rpc_msg.ClearField("senderRecord")
        sent = await super().write_msg(stream, rpc_msg)
        if sent:
            self._traffic.count_sent("gossip", rpc_msg.ByteSize())
            self._traffic.upload.note(rpc_msg.ByteSize())
        return sent

    async def stream_handler(self, stream: Any) -> None:
        """Receive from a peer for as long as its stream lasts."""
        counting: Any = _CountingStream(stream, self._traffic)
        await super().stream_handler(counting)

    async def continuously_read_stream(self, stream: Any) -> None:
        """Read a peer's stream. In the library, bytes that are not a message end pubsub. Here they end
        the stream, which is useless from then on; an honest peer opens another."""
        try:
            await super().continuously_read_stream(stream)
        except Exception as error:
            log.info("a gossip stream failed: %r", error)
            with shielded(2):
                await stream.reset()

    async def push_msg(self, msg_forwarder: ID, msg: Any) -> None:
        """Handle a message. In the library a key that does not parse, or an exception of a validator,
        ends pubsub, and forwarding a bad signature costs a peer nothing. Messages of an author beyond
        its rate limit are not verified."""
        if msg_forwarder == self.my_id:
            # It is part of our peer id, and an eighth of a small message.
            msg.ClearField("key")
        elif self._is_msg_seen(msg):
            self._router.note_copy(msg_forwarder, msg)
            return
        if msg.from_id == msg_forwarder.to_bytes() and not (
            msg_forwarder == self.my_id or self._author_limit.take(msg.from_id, trio.current_time())
        ):
            self._traffic.reject("too_many")
            return
        try:
            await super().push_msg(msg_forwarder, msg)
        except Exception as error:
            if msg_forwarder == self.my_id:
                raise
            log.info("a gossip message was dropped: %r", error)
        # The library does not report bad signatures. A message that was neither forwarded nor judged,
        # and not held back for its forwarder's score, must have had one.
        scorer = self._router.scorer
        if (
            not self._is_msg_seen(msg)
            and self.validation_cache.get(self.get_message_id(msg)) is None
            and (scorer is None or scorer.allow_publish(msg_forwarder, list(msg.topicIDs)))
        ):
            self._report_forged(msg_forwarder)

    def handle_subscription(self, origin_id: ID, sub_message: Any) -> None:
        """Handle a subscription. The library bounds the number of a peer's topics, but not their
        length."""
        if len(sub_message.topicid) <= MAX_TOPIC_CHARACTERS:
            super().handle_subscription(origin_id, sub_message)

    def _handle_dead_peer(self, peer_id: ID) -> None:
        # If our gossip stream to a peer breaks while another connection to it is open, the library opens
        # a new one but forgets the peer's subscriptions. The peer, whose own stream is fine, does not
        # repeat them, and would never get another message from us, so they are restored here. An
        # exception here would end the task that waits for closed connections.
        topics = [topic for topic, peers in self.peer_topics.items() if peer_id in peers]
        try:
            super()._handle_dead_peer(peer_id)
        except Exception as error:
            log.info("removing a peer from gossip failed: %r", error)
        if self._peer_is_connected(peer_id):
            for topic in topics:
                self.peer_topics.setdefault(topic, set()).add(peer_id)
            if topics:
                self._peer_subscription_count[peer_id] = len(topics)

    async def _handle_new_peer_with_retry(self, peer_id: ID, timeout: float | None = None) -> None:
        # Each connection of a peer starts this task, which may last as long as the peer wants: when a
        # connection ends it continues with the next. After a thousand of them pubsub ends, and the host
        # with it.
        if peer_id in self._registering:
            return
        self._registering.add(peer_id)
        try:
            await super()._handle_new_peer_with_retry(peer_id, timeout)
        finally:
            self._registering.discard(peer_id)


class _CountingStream:
    def __init__(self, inner: Any, traffic: Traffic) -> None:
        self._inner = inner
        self._traffic = traffic
        self._read_budget = CpuBudget(_READS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self, n: int | None = None) -> bytes:
        await self._read_budget.spend()
        data = await self._inner.read(n)
        self._read_budget.earn(len(data) / _BYTES_PER_READ)
        # The library handles each message in a task of its own, and tasks that start together run in any
        # order: the last message's task must have started before the next message is read.
        await trio.lowlevel.checkpoint()
        self._traffic.count_received("gossip", len(data))
        self._traffic.download.note(len(data))
        return data
