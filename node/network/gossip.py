"""Small messages to a whole swarm: gossipsub, with validation before forwarding.

A message reaches the reader, and further peers, only after the topic's validator has accepted it.
Publishing is paced, since gossipsub silently drops bursts that exceed its queues. A reader that falls
behind loses the oldest messages, which are counted. No part of the program may rely on gossip alone.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID
from libp2p.tools.anyio_service import background_trio_service

from ...crypto.identity import PeerId
from ...protocol.util.token_bucket import TokenRate
from .addresses import peer_of
from .author_rate_limit import AuthorRateLimit
from .cpu_budget import CpuBudget
from .gossip_router import BoundedGossipSub
from .pubsub import HardenedPubsub
from .traffic import Traffic

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 256 << 10
"""Maximum size of a message in bytes: that of an envelope (`crypto/envelope`), which is well below the
1 MiB above which gossipsub drops a message."""

# The pace at which this node publishes, per topic. A lone member of a fast swarm sends ten messages a
# second; if they were delayed, newcomers would follow rounds that its disk has already dropped. The
# library carries this rate: its limit of ten a second per forwarder is part of its spam protection,
# which is off, and its queues are longer here (`library_patches`).
_PUBLISHED = TokenRate(at_once=40.0, per_second=40.0)
# Messages that wait for a slow reader: several rounds of a swarm of hundreds. At 256 KiB each they still
# fit into a node's memory.
_BUFFERED_MESSAGES = 1024
_PROTOCOL = TProtocol("/meshsub/1.1.0")

Validator = Callable[[PeerId, bytes], "str | None"]
Receiver = trio.MemoryReceiveChannel[tuple[PeerId, bytes]]


class Gossip:
    """Gossip of one node. It works within `open_gossip`."""

    def __init__(
        self,
        host: BasicHost,
        traffic: Traffic,
        is_refused: Callable[[PeerId], bool],
        on_rejected: Callable[[PeerId, str], None],
    ) -> None:
        """`is_refused`: whether messages by this peer, or forwarded by it, are dropped; `on_rejected`:
        called with the forwarder and the reason when a message is rejected."""
        self._own = host.get_id()
        self._traffic = traffic
        self._is_refused = is_refused
        self._on_rejected = on_rejected
        # Token buckets for publishing, by topic.
        self._paces: dict[str, CpuBudget] = {}
        self.router = BoundedGossipSub(
            protocols=[_PROTOCOL],
            degree=6,
            degree_low=4,
            degree_high=8,
            heartbeat_interval=1,
            # Spam protection counts messages per forwarder, and drops honest ones in a busy round.
            spam_protection_enabled=False,
            # Swarms of friends share one address; that is not an eclipse attack.
            eclipse_protection_enabled=False,
            adaptive_gossip_enabled=False,
        )
        # Without adaptive gossip, the library never clears these lists of delivery times by topic, so
        # here they stay empty.
        times: Any = defaultdict(lambda: deque(maxlen=0))
        self.router.recent_message_deliveries = times
        self._author_limit = AuthorRateLimit()
        self.pubsub = HardenedPubsub(host, self.router, traffic, self._forged, self._author_limit)
        # The library starts at the seconds since 1970 and counts up; after a restart, or when the clock
        # is set back, numbers would repeat and the messages be dropped as duplicates.
        self.pubsub.counter = secrets.randbits(62)

    async def subscribe(self, topic: str, validate: Validator) -> Receiver:
        """Subscribe to a topic and return a channel of (sender, data).

        `validate(sender, data)` is called before a message is forwarded: it returns None to accept it,
        or a short reason to reject it. Reasons are counted; the ones that no honest peer can cause
        (`malformed`, `oversized`, `invalid`, `bad_signature`, `wrong_swarm`) also penalise the peer that
        forwarded the message. The sender is authenticated; our own messages do not come back. A reader
        that falls behind loses the oldest messages.

        Raises `ValueError` if the topic is subscribed to already.
        """
        if topic in self.pubsub.topic_validators:
            raise ValueError(f"already subscribed to {topic}")
        mailbox = _Mailbox(topic, self._own, self._traffic)
        # `False`: the validator is not asynchronous.
        self.pubsub.set_topic_validator(topic, self._validator(topic, validate), False)
        await self.pubsub.subscribe(topic)
        # The library's own queue holds 32 messages and then drops the newest.
        channels: dict[str, Any] = self.pubsub.subscribed_topics_send
        channels[topic] = mailbox
        return mailbox.receiver

    async def publish(self, topic: str, data: bytes) -> None:
        """Send a message to all subscribers of a topic, paced to forty a second per topic.

        Raises `ValueError` beyond 256 KiB. Delivery is not reported.
        """
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message has at most {MAX_MESSAGE_BYTES} bytes, not {len(data)}")
        if topic not in self._paces:
            self._paces[topic] = CpuBudget(_PUBLISHED)
        await self._paces[topic].spend()
        # Yields to other tasks even when the pace allows sending at once.
        await trio.lowlevel.checkpoint()
        try:
            await self.pubsub.publish(topic, data)
        except Exception:
            # A fault in the library costs one gossip message, not the node.
            log.exception("publishing in %s failed", topic)
            self._traffic.fail(topic)

    def _forged(self, forwarder: ID) -> None:
        via = peer_of(forwarder)
        self._traffic.reject("bad_signature")
        if via is not None:
            self._on_rejected(via, "bad_signature")

    def _validator(self, topic: str, validate: Validator) -> Callable[[ID, Any], bool]:
        def check(forwarder: ID, message: Any) -> bool:
            if forwarder == self._own:
                return True
            via = peer_of(forwarder)
            if via is None or self._is_refused(via):
                return False
            # Messages straight from their author were counted in `pubsub`, before the signature check.
            author, now = bytes(message.from_id), trio.current_time()
            is_forwarded = forwarder.to_bytes() != author
            if is_forwarded and not self._author_limit.would_admit(author, now):
                self._traffic.reject("too_many")
                return False
            reason = self._rejection_reason(topic, validate, message)
            if reason is None and is_forwarded:
                # Rejected messages are not counted, because other peers can repeat an author's old
                # messages at will.
                self._author_limit.take(author, now)
            if reason is not None:
                self._traffic.reject(reason)
                self._on_rejected(via, reason)
            return reason is None

        return check

    def _rejection_reason(self, topic: str, validate: Validator, message: Any) -> str | None:
        sender = peer_of(ID(message.from_id))
        if sender is None or list(message.topicIDs) != [topic]:
            return "malformed"
        if len(message.data) > MAX_MESSAGE_BYTES:
            return "oversized"
        if self._is_refused(sender):
            return "refused_peer"
        try:
            return validate(sender, message.data)
        except Exception:
            # A bug of ours, not the peer's fault; if it escaped, gossip would end.
            log.exception("the validator of %s failed", topic)
            self._traffic.fail(topic)
            return "validator_failed"


@asynccontextmanager
async def open_gossip(gossip: Gossip) -> AsyncIterator[None]:
    """Run the gossip services of a running host."""
    async with background_trio_service(gossip.pubsub), background_trio_service(gossip.router):
        await gossip.pubsub.wait_until_ready()
        try:
            yield
        finally:
            # The library sweeps its table of seen messages in a thread, which would outlive this
            # context.
            gossip.pubsub.seen_messages.stop()


class _Mailbox:
    """Replaces a subscription's channel inside the library."""

    def __init__(self, topic: str, own: ID, traffic: Traffic) -> None:
        self._topic = topic
        self._own = own.to_bytes()
        self._traffic = traffic
        self._send, self.receiver = trio.open_memory_channel[tuple[PeerId, bytes]](
            _BUFFERED_MESSAGES
        )
        # Second receiving end, kept to drop the oldest message even if the reader closes its own.
        self._drain = self.receiver.clone()

    def send_nowait(self, message: Any) -> None:
        # The library also returns our own messages.
        if message.from_id == self._own:
            return
        sender = peer_of(ID(message.from_id))
        assert sender is not None, "the validator accepted a key that is not Ed25519"
        try:
            self._send.send_nowait((sender, message.data))
        except trio.WouldBlock:
            self._drain.receive_nowait()
            self._send.send_nowait((sender, message.data))
            self._traffic.drop(self._topic)

    async def aclose(self) -> None:
        self._send.close()
