"""Gossipsub's router, and what one peer's words may cost it.

The library does what any peer's control messages say: it dials the peers that a PRUNE names, notes down
topics of any number and length with a time until which nothing may be sent to the peer, answers every
GRAFT, and sends any message as often as it is asked for. Here a control message is cut to what an honest
peer has reason to say before the library sees it, our answers are bounded in bytes, and a fault costs
one message rather than the router.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.rpc_queue import PriorityQueue
from libp2p.pubsub.utils import safe_bytes_from_hex

from ...protocol.wire.allowance import Allowance, Budgets

log = logging.getLogger(__name__)

# For one kind in one message: a peer has one thing to say about each topic, and we have a topic or two.
_MAX_TOPICS = 4
# A message id is a peer id and eight bytes.
_MAX_ID_BYTES = 64
# The messages of three seconds, at some hundreds a second.
_MAX_IDS = 1024
# The library asks for a minute; longer than an hour nobody needs to be left alone.
_MAX_BACK_OFF_SECONDS = 3600
# What a peer may have sent again, because it says it has missed it or is new: several rounds of a large
# swarm at once, and then no more than a fifth of a home's upload.
_ANSWER_BYTES = Allowance(at_once=2 << 20, per_second=256 << 10)
# More than there are peers at a time.
_MAX_ANSWERED = 4096
# Waiting to be sent to one peer: the votes of a swarm of hundreds come all at once. With the library's
# 32, 32 % of a burst of 100 messages arrive over two hops; with this, all of them.
MAX_QUEUED_MESSAGES = 512
# A few of the longest. A slow reader misses messages, and asks for what it needs.
MAX_QUEUED_BYTES = 4 << 20


class Router(GossipSub):
    """A `GossipSub` that does for strangers what is reasonable, and survives what the library raises."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._answers: Budgets[ID] = Budgets(_MAX_ANSWERED)

    async def handle_rpc(self, rpc: rpc_pb2.RPC, sender_peer_id: ID) -> None:
        """Do what a control message says, as far as it is reasonable."""
        reasonable = rpc_pb2.RPC(control=self._reasonable(rpc.control))
        await super().handle_rpc(reasonable, sender_peer_id)

    async def handle_iwant(self, iwant_msg: rpc_pb2.ControlIWant, sender_peer_id: ID) -> None:
        """Send again what a peer has missed, within its budget."""
        wanted = rpc_pb2.ControlIWant()
        for identifier in dict.fromkeys(iwant_msg.messageIDs):
            message = self.mcache.get(safe_bytes_from_hex(identifier) or b"")
            if message is not None and self._may_answer(sender_peer_id, message.ByteSize()):
                wanted.messageIDs.append(identifier)
        await super().handle_iwant(wanted, sender_peer_id)

    async def send_recent_messages(self, peer_id: ID, topic: str) -> None:
        """Send a newcomer what it has just missed, within its budget."""
        size = sum(self._size(identifier) for identifier in self.mcache.window(topic))
        if self._may_answer(peer_id, size):
            await super().send_recent_messages(peer_id, topic)

    async def _do_px(self, px_peers: list[rpc_pb2.PeerInfo]) -> None:
        # We have introductions of our own, and dial nobody on the word of a PRUNE.
        return

    async def heartbeat(self) -> None:
        """Look after the mesh, for ever."""
        while True:
            try:
                await super().heartbeat()
            except Exception:
                log.exception("a heartbeat of gossip failed")
                await trio.sleep(self.heartbeat_interval)

    def mesh_heartbeat(self) -> Any:
        """Look after the mesh once, and forget what has been over for long."""
        now = trio.current_time()
        for topic in list(self.back_off):
            for peer in [peer for peer, until in self.back_off[topic].items() if until <= now]:
                del self.back_off[topic][peer]
            if not self.back_off[topic]:
                del self.back_off[topic]
        return super().mesh_heartbeat()

    def _add_back_off(
        self, peer: ID, topic: str, is_unsubscribe: bool, backoff_duration: int = 0
    ) -> None:
        # The library has the wall clock's time here: set back by an hour, it would leave a peer alone
        # for that long.
        usual = self.unsubscribe_back_off if is_unsubscribe else self.prune_back_off
        until = int(trio.current_time()) + (backoff_duration or usual)
        known = self.back_off.setdefault(topic, {})
        known[peer] = max(known.get(peer, until), until)

    def _check_back_off(self, peer: ID, topic: str) -> bool:
        return self.back_off.get(topic, {}).get(peer, 0) > trio.current_time()

    def _reasonable(self, control: rpc_pb2.ControlMessage) -> rpc_pb2.ControlMessage:
        """What an honest peer that speaks our version of the protocol may have meant."""
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
        """Those that are about a topic of ours, one about each."""
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


class SendQueue(PriorityQueue):
    """What waits to be sent to one peer: more messages than with the library, and bounded in bytes."""

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
        if len(identifier) <= _MAX_ID_BYTES:
            result.append(identifier)
    return result
