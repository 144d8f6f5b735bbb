"""Gossipsub's router, with bounds on what one peer's control messages can cost.

The library does whatever a peer's control messages request: it dials the peers that a PRUNE names,
stores topics of any number and length with a back-off time, answers every GRAFT, and sends any message
as often as it is requested. Here a control message is reduced, before the library sees it, to what an
honest peer could have sent; our answers are bounded in bytes; and a fault costs one message rather than
the router.

The library also sends each message over all links of the mesh, so that a peer gets it several times.
Here most links carry announcements only (`push_tree`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.mcache import CacheEntry, MessageCache
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.rpc_queue import PriorityQueue
from libp2p.pubsub.utils import safe_bytes_from_hex

from ...protocol.util.token_bucket import TokenBuckets, TokenRate
from .push_tree import MAX_ANNOUNCED, PushTree

log = logging.getLogger(__name__)

# Entries of one kind in a control message: an honest peer sends one per topic, and we have a topic or
# two.
_MAX_TOPICS = 4
_ID_BYTES = 16
# Message ids in one entry: the messages of three seconds, at some hundreds a second.
_MAX_IDS = MAX_ANNOUNCED
# A message is announced this long after it has arrived, so that a peer that gets it over another link,
# however slow its line is, has it by then …
_ANNOUNCED_AFTER_SECONDS = 0.5
# … and with all others of this time, in one message.
_ANNOUNCEMENT_SECONDS = 0.5
# The library's own back-off is a minute; no honest peer needs more than an hour.
_MAX_BACK_OFF_SECONDS = 3600
# Messages sent again to a peer that missed them or is new: several rounds of a large swarm at once, and
# after that at most a fifth of a home's upload.
_ANSWER_BYTES = TokenRate(at_once=2 << 20, per_second=256 << 10)
# Peers whose budget is remembered: more than are connected at a time.
_MAX_ANSWERED = 4096
# Messages waiting to be sent to one peer: the votes of a swarm of hundreds arrive all at once. With the
# library's 32, 32 % of a burst of 100 messages arrive over two hops; with this, all of them.
MAX_QUEUED_MESSAGES = 512
# A few of the longest messages. A slow reader loses messages, and requests the ones that it needs.
MAX_QUEUED_BYTES = 4 << 20


def message_id(message: rpc_pb2.Message) -> bytes:
    """Return what a message is called in announcements and requests: 16 bytes of a hash of its author
    and number, which its signature covers. The library's own ids, the two themselves, have 46 bytes."""
    return hashlib.blake2b(message.from_id + message.seqno, digest_size=_ID_BYTES).digest()


class BoundedGossipSub(GossipSub):
    """A `GossipSub` that limits what strangers can request, sends each message over few links, and
    survives the library's exceptions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.mcache = _ShortIds(self.mcache.window_size, self.mcache.history_size)
        self._tree = PushTree[ID]()
        self._answers: TokenBuckets[ID] = TokenBuckets(_MAX_ANSWERED)
        # The library keeps the messages of half a minute for each connected peer without a subscription,
        # such as a bootstrap peer, and sends them all if it subscribes: every peer of a node that comes
        # back sends it the same ones, outside the budget of `send_recent_messages`, which suffices.
        nothing: Any = _NoMessages()
        self._pending_messages = nothing

    async def handle_rpc(self, rpc: rpc_pb2.RPC, sender_peer_id: ID) -> None:
        """Handle the plausible part of a control message."""
        plausible = rpc_pb2.RPC(control=self._plausible(rpc.control))
        await super().handle_rpc(plausible, sender_peer_id)

    async def run(self) -> None:
        """Run the router until it is cancelled."""
        self.manager.run_daemon_task(self._announce)
        await super().run()

    def note_copy(self, peer: ID, message: rpc_pb2.Message) -> None:
        """Note that a peer sent a message that had already arrived."""
        self._tree.note_copy(peer, message.from_id, message_id(message))

    def remove_peer(self, peer_id: ID) -> None:
        """Forget a peer that has left."""
        super().remove_peer(peer_id)
        self._tree.forget(peer_id)

    async def handle_ihave(self, ihave_msg: rpc_pb2.ControlIHave, sender_peer_id: ID) -> None:
        """Request what a peer has and we lack."""
        self._tree.note_held(sender_peer_id, ihave_msg.messageIDs)
        await super().handle_ihave(ihave_msg, sender_peer_id)

    async def handle_iwant(self, iwant_msg: rpc_pb2.ControlIWant, sender_peer_id: ID) -> None:
        """Send a peer the messages that it has missed and requests, within its budget."""
        wanted = rpc_pb2.ControlIWant()
        for identifier in dict.fromkeys(iwant_msg.messageIDs):
            message = self.mcache.get(safe_bytes_from_hex(identifier) or b"")
            if message is not None and self._may_answer(sender_peer_id, message.ByteSize()):
                wanted.messageIDs.append(identifier)
                self._tree.note_request(sender_peer_id, message.from_id)
        await super().handle_iwant(wanted, sender_peer_id)

    async def send_recent_messages(self, peer_id: ID, topic: str) -> None:
        """Send a new peer the most recent messages, within its budget."""
        size = sum(self._size(identifier) for identifier in self.mcache.window(topic))
        if self._may_answer(peer_id, size):
            await super().send_recent_messages(peer_id, topic)

    def _get_peers_to_send(
        self,
        topic_ids: Iterable[str],
        msg_forwarder: ID,
        origin: ID,
        msg_id: bytes | None = None,
    ) -> Iterable[ID]:
        # Our own messages go to all peers of the mesh, so that no few of them can hold them back.
        topics, now = list(topic_ids), trio.current_time()
        is_own = self.pubsub is not None and origin == self.pubsub.my_id
        for peer in super()._get_peers_to_send(topics, msg_forwarder, origin, msg_id):
            if (
                is_own
                or msg_id is None
                or not self._tree.is_quiet(peer, origin.to_bytes())
                or not self._tree.announce(peer, topics[0], msg_id, now)
            ):
                yield peer

    async def _announce(self) -> None:
        """Tell peers of the messages that they are not sent, for ever."""
        while True:
            await trio.sleep(_ANNOUNCEMENT_SECONDS)
            due = self._tree.due(trio.current_time() - _ANNOUNCED_AFTER_SECONDS)
            for peer, topics in due.items():
                entries = [
                    rpc_pb2.ControlIHave(topicID=topic, messageIDs=identifiers)
                    for topic, identifiers in topics.items()
                ]
                self.send_rpc(peer, rpc_pb2.RPC(control=rpc_pb2.ControlMessage(ihave=entries)))

    async def _do_px(self, px_peers: list[rpc_pb2.PeerInfo]) -> None:
        # Introductions have their own protocol; a PRUNE never makes us dial.
        return

    async def heartbeat(self) -> None:
        """Maintain the mesh, for ever."""
        while True:
            try:
                await super().heartbeat()
            except Exception:
                log.exception("a heartbeat of gossip failed")
                await trio.sleep(self.heartbeat_interval)

    def mesh_heartbeat(self) -> Any:
        """Maintain the mesh once, and drop expired back-off times and peers that have left."""
        now = trio.current_time()
        for topic in list(self.back_off):
            for peer in [peer for peer, until in self.back_off[topic].items() if until <= now]:
                del self.back_off[topic][peer]
            if not self.back_off[topic]:
                del self.back_off[topic]
        self._forget_departed()
        return super().mesh_heartbeat()

    def _forget_departed(self) -> None:
        # The library forgets a departed peer only if it had opened a gossip stream to it, and what
        # arrived last may be handled after that. Such a peer would keep its place in the mesh for ever.
        if self.pubsub is not None:
            peers = self._tree.peers().union(*self.mesh.values())
            for peer in [each for each in peers if not self.pubsub._peer_is_connected(each)]:
                self.remove_peer(peer)

    def _add_back_off(
        self, peer: ID, topic: str, is_unsubscribe: bool, backoff_duration: int = 0
    ) -> None:
        # The library uses the wall clock here: set back by an hour, it would prolong a peer's back-off
        # by that hour.
        usual = self.unsubscribe_back_off if is_unsubscribe else self.prune_back_off
        until = int(trio.current_time()) + (backoff_duration or usual)
        known = self.back_off.setdefault(topic, {})
        known[peer] = max(known.get(peer, until), until)

    def _check_back_off(self, peer: ID, topic: str) -> bool:
        return self.back_off.get(topic, {}).get(peer, 0) > trio.current_time()

    def _plausible(self, control: rpc_pb2.ControlMessage) -> rpc_pb2.ControlMessage:
        """Return the parts of a control message that an honest peer of our protocol version could
        send."""
        kept = rpc_pb2.ControlMessage()
        kept.graft.extend(self._ours(control.graft))
        for prune in self._ours(control.prune):
            kept.prune.add(topicID=prune.topicID, backoff=min(prune.backoff, _MAX_BACK_OFF_SECONDS))
        for ihave in self._ours(control.ihave):
            kept.ihave.add(topicID=ihave.topicID, messageIDs=_identifiers(ihave.messageIDs))
        for iwant in control.iwant[:1]:
            kept.iwant.add(messageIDs=_identifiers(iwant.messageIDs))
        return kept

    def _ours(self, parts: Any) -> list[Any]:
        """Return the entries for our own topics, at most one per topic."""
        found: dict[str, Any] = {}
        for part in parts[:_MAX_TOPICS]:
            if part.topicID in self.mesh:
                found.setdefault(part.topicID, part)
        return list(found.values())

    def _size(self, identifier: bytes) -> int:
        message = self.mcache.get(identifier)
        return message.ByteSize() if message is not None else 0

    def _may_answer(self, peer: ID, size: int) -> bool:
        return self._answers.take(peer, _ANSWER_BYTES, trio.current_time(), size)


class _ShortIds(MessageCache):
    """The recent messages, by the ids that announcements use."""

    def put(self, msg: rpc_pb2.Message) -> None:
        """Add a message."""
        identifier = message_id(msg)
        if identifier not in self.msgs:
            self.msgs[identifier] = msg
            self.history[0].append(CacheEntry(identifier, msg.topicIDs))


class _NoMessages(dict[ID, list[Any]]):
    """Stands in for the library's queues of messages for peers without a subscription; keeps none."""

    def __missing__(self, peer: ID) -> list[Any]:
        return []


class SendQueue(PriorityQueue):
    """The send queue of one peer: longer than the library's, and bounded in bytes."""

    def __init__(self) -> None:
        super().__init__(MAX_QUEUED_MESSAGES)
        self._bytes = 0

    def push(self, rpc: rpc_pb2.RPC, priority: bool = False) -> bool:
        """Add a message; False if there is no room."""
        size = rpc.ByteSize()
        if self._bytes + size > MAX_QUEUED_BYTES or not super().push(rpc, priority):
            return False
        self._bytes += size
        return True

    def pop(self) -> rpc_pb2.RPC | None:
        """Take the next message."""
        rpc = super().pop()
        if rpc is not None:
            self._bytes -= rpc.ByteSize()
        return rpc


def _identifiers(identifiers: Iterable[Any]) -> list[Any]:
    result: list[Any] = []
    for identifier in identifiers:
        if len(result) == _MAX_IDS:
            break
        if len(identifier) == _ID_BYTES:
            result.append(identifier)
    return result
