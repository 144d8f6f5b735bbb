"""Attacks of strangers on a node, each for the length of a window, by one attacker or fifty at once.

Every attacker prepares itself (connects, signs its messages), reports that, and waits until all are
ready: so what is measured from then on is the attack of all of them. An attacker that is disconnected
comes back under another name. `run` is the main function of the process that contains all attackers of a
run.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import trio
from distro_node.crypto.envelope import sign
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import Identity, PeerId
from distro_node.node.listing.entries import (
    LIST_PROTOCOL,
    MANIFEST_PROTOCOL,
    PUBLISH_PROTOCOL,
)
from distro_node.node.network.circuit_client import HOP, STOP
from distro_node.node.network.discovery.introductions import PROTOCOL as INTRODUCE
from distro_node.node.network.discovery.member_names import PROTOCOL as NAMES
from distro_node.node.network.discovery.version_query import PROTOCOL as VERSION_QUERY
from distro_node.node.network.errors import RequestError
from distro_node.node.network.exchange.blobs import PART_PROTOCOL as PARTS
from distro_node.node.network.exchange.blobs import PROTOCOL as BLOBS
from distro_node.node.network.exchange.blobs import REST_PROTOCOL as RESTS
from distro_node.node.network.exchange.chunks import PROTOCOL as CHUNKS
from distro_node.node.network.exchange.update_relay_client import PROTOCOL as RELAY
from distro_node.node.network.nat.dial_back import PROTOCOL as DIAL_BACK
from distro_node.node.network.nat.dial_back import encode_ports
from distro_node.node.network.nat.hole_punching import PROTOCOL as PUNCH
from distro_node.node.network.network import open_network
from distro_node.protocol.chain.sync import (
    MAX_ENTRIES,
    MAX_SYNC_RESPONSE_BYTES,
    SYNC_PROTOCOL,
    SyncRequest,
    SyncResponse,
    decode_request,
    decode_response,
)
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.introductions import IntroductionRequest
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.messages import (
    NO_BLOCK,
    Announcement,
    Certificate,
    Decided,
    Heartbeat,
    Message,
    Record,
    RecordId,
    SignedBallot,
)
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    TYPE_DATA,
    TYPE_PING,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
)
from libp2p.utils.varint import encode_uvarint
from network.hostile import GOSSIP, Hostile, hostile
from network.support import ECHO, LOOPBACK
from network.victim import PAST, Target, past
from simulation.keys import identity

# Private here: `_host`, `_write_frame`: an attacker signs anything with its own keys, and writes frames
# that no honest peer would.

# Attackers that connect at a time: they share one core, and the node limits a handshake to six seconds.
_AT_ONCE = 8
# Messages that all attackers together sign before they begin, so that the attack does not wait for their
# own signatures.
_SIGNED = 12_000


class Window:
    """The time in which all attack. Times are of the machine's steady clock."""

    def __init__(self, peers: int) -> None:
        self.peers = peers
        self.ready = 0
        """Attackers that have prepared themselves."""
        self.all_ready = trio.Event()
        self.end = float("inf")
        self._open = trio.Event()

    def open(self, seconds: float) -> None:
        """Start the window now."""
        self.end = time.monotonic() + seconds
        self._open.set()

    def prepared(self) -> None:
        """Count one more attacker that is ready."""
        self.ready += 1
        if self.ready == self.peers:
            self.all_ready.set()

    async def begins(self) -> None:
        await self._open.wait()

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end


class Attacker:
    """One hostile peer."""

    def __init__(self, number: int, target: Target, window: Window) -> None:
        self.number = number
        """From 1 on."""
        self.peers = window.peers
        self.target = target
        self._window = window
        self._ready = False
        self._names = 0

    def name(self) -> Identity:
        """Return its identity for the next connection; the first one is a former member's."""
        self._names += 1
        past = self._names == 1 and self.number <= PAST
        return identity(self.number) if past else Identity.generate()

    async def begin(self) -> None:
        """Report that it is ready, and wait for the others."""
        if not self._ready:
            self._ready = True
            self._window.prepared()
        await self._window.begins()

    @property
    def at_it(self) -> bool:
        """Whether the window is still open."""
        return not self._window.over

    async def stay(self) -> None:
        """Do nothing until the end."""
        await trio.sleep(max(0.0, self._window.end - time.monotonic()))

    async def run(self, attack: Attack, connecting: trio.CapacityLimiter) -> None:
        """Attack until the end, under a new name after each disconnection."""
        while self.at_it:
            # Any reaction of the node, or the library, is part of the test.
            with suppress(Exception):
                if attack in BARE:
                    await attack(self)
                    continue
                async with AsyncExitStack() as stack:
                    async with connecting:
                        victim: Any = _Address(self.target.address)
                        peer = await stack.enter_async_context(hostile(victim, self.name()))
                    await attack(self, peer)
            await trio.sleep(0.2)


@dataclass(frozen=True)
class _Address:
    """What `hostile` needs to know of a node."""

    address: str

    @property
    def addresses(self) -> list[str]:
        return [self.address]


async def nothing(me: Attacker) -> None:
    """The node's own cost, with an honest peer that sends a request now and then."""
    await me.begin()
    await me.stay()


async def silent(me: Attacker) -> None:
    """Connections that send nothing, renewed when they are closed (60 each)."""
    _, _, host, _, port, *_ = me.target.address.split("/")
    await _knock(me, host, int(port))


async def page_readers(me: Attacker) -> None:
    """The same at the metrics page."""
    await _knock(me, "127.0.0.1", me.target.page)


async def _knock(me: Attacker, host: str, port: int) -> None:
    await me.begin()
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            while me.at_it:
                with suppress(OSError, trio.BrokenResourceError):
                    stream = await trio.open_tcp_stream(host, port)
                    await stream.receive_some(1)
                    await stream.aclose()
                await trio.sleep(0.1)

        for _ in range(60):
            nursery.start_soon(wait)


async def visitors(me: Attacker) -> None:
    """One peer after the other that connects, stays for a moment and disconnects."""
    await me.begin()
    while me.at_it:
        with suppress(Exception):
            async with open_network(LOOPBACK, Identity.generate()) as network:
                await network.connect(me.target.address)
                await trio.sleep(0.1)


async def idle(me: Attacker) -> None:
    """Five connections each under names of their own, that stay."""
    async with AsyncExitStack() as stack:
        for _ in range(5):
            network = await stack.enter_async_context(open_network(LOOPBACK, Identity.generate()))
            with suppress(Exception):
                await network.connect(me.target.address)
        await me.begin()
        await me.stay()


async def credits(me: Attacker, peer: Hostile) -> None:
    """Window updates that no one requested, on a stream and on none."""
    stream = await peer.open(ECHO)
    number = stream.muxed_stream.stream_id
    frame = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_WINDOW_UPDATE, 0, number, 2**32 - 1)
    none = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_WINDOW_UPDATE, 0, 2**31 + 1, 1)
    await me.begin()
    while me.at_it:
        await peer.muxer._write_frame((frame + none) * 2500)


async def places(me: Attacker, peer: Hostile) -> None:
    """Reservations at the relay, requested repeatedly."""
    await me.begin()
    while me.at_it and _node(peer) in peer.network.connected():
        with suppress(Exception):
            await peer.network.circuits.reserve(_node(peer))
        await trio.lowlevel.checkpoint()


async def calls_back(me: Attacker, peer: Hostile) -> None:
    """Dial-backs at four ports, as often as they are done."""
    await _ask_without_end(me, peer, DIAL_BACK, encode_ports([1, 2, 3, 4]))


async def introductions(me: Attacker, peer: Hostile) -> None:
    """Introduction requests in the swarm, for ever."""
    request = IntroductionRequest(SwarmId(ContentId(me.target.swarm)), None)
    await _ask_without_end(me, peer, INTRODUCE, request.encode())


async def histories(me: Attacker, peer: Hostile) -> None:
    """Requests for the chain from its beginning, for ever."""
    request = SyncRequest(SwarmId(ContentId(me.target.swarm)), 0, (), MAX_ENTRIES)
    await _ask_without_end(me, peer, SYNC_PROTOCOL, encode(request))


async def states(me: Attacker, peer: Hostile) -> None:
    """Requests for the swarm's largest initial blob, for ever."""
    largest = max(past()[1], key=len)
    await _ask_without_end(me, peer, BLOBS, bytes(content_id(largest)))


async def _ask_without_end(me: Attacker, peer: Hostile, protocol: str, request: bytes) -> None:
    await me.begin()
    while me.at_it and _node(peer) in peer.network.connected():
        with suppress(RequestError):
            await peer.network.request(
                _node(peer), protocol, request, max_response=MAX_SYNC_RESPONSE_BYTES, timeout=5
            )
        await trio.lowlevel.checkpoint()


async def half_handshakes(me: Attacker) -> None:
    """The beginning of a handshake, a byte a second, on 60 connections (slowloris)."""
    _, _, host, _, port, *_ = me.target.address.split("/")
    await me.begin()
    async with trio.open_nursery() as nursery:

        async def dribble() -> None:
            while me.at_it:
                with suppress(OSError, trio.BrokenResourceError):
                    stream = await trio.open_tcp_stream(host, int(port))
                    for byte in b"\x13/multistream/1.0.0\n" * 10:
                        await stream.send_all(bytes([byte]))
                        await trio.sleep(1.0)
                await trio.sleep(0.1)

        for _ in range(60):
            nursery.start_soon(dribble)


async def slow_pages(me: Attacker) -> None:
    """The head of a request at the metrics page, a byte a second, on 60 connections (slowloris)."""
    await me.begin()
    async with trio.open_nursery() as nursery:

        async def dribble() -> None:
            while me.at_it:
                with suppress(OSError, trio.BrokenResourceError):
                    stream = await trio.open_tcp_stream("127.0.0.1", me.target.page)
                    for byte in itertools.cycle(b"X-Header: 1\r\n"):
                        await stream.send_all(bytes([byte]))
                        await trio.sleep(1.0)
                await trio.sleep(0.1)

        for _ in range(60):
            nursery.start_soon(dribble)


async def trickles(me: Attacker, peer: Hostile) -> None:
    """Requests of each protocol, sent at a byte a second (slowloris), eight of each at a time."""

    async def dribble(protocol: str) -> None:
        stream = await peer.open(protocol)
        for byte in _BEGUN[protocol]:
            await stream.write(bytes([byte]))
            await trio.sleep(1.0)

    await _on_each_protocol(me, peer, dribble, at_once=8)


async def half_open(me: Attacker, peer: Hostile) -> None:
    """Streams of each protocol that are opened and send nothing, eight of each at a time."""

    async def wait(protocol: str) -> None:
        stream = await peer.open(protocol)
        # Until the node ends it.
        await stream.read(1)

    await _on_each_protocol(me, peer, wait, at_once=8)


async def nameless(me: Attacker, peer: Hostile) -> None:
    """Streams that never negotiate a protocol, 200 at a time."""

    async def wait() -> None:
        while me.at_it:
            with suppress(Exception):
                stream = await peer.muxer.open_stream()
                await stream.write(b"\x13")
                await stream.read(1)
            await trio.sleep(0.1)

    await me.begin()
    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(wait)


async def long_prefixes(me: Attacker, peer: Hostile) -> None:
    """Frames of each protocol that announce 1 GB, and send the beginning."""

    async def announce(protocol: str) -> None:
        stream = await peer.open(protocol)
        await stream.write(ONE_GB[protocol] + bytes(50_000))
        await stream.read(1)

    await _on_each_protocol(me, peer, announce, at_once=2)


async def long_frames(me: Attacker, peer: Hostile) -> None:
    """A muxer frame that announces 1 GB, on a stream."""
    stream = await peer.muxer.open_stream()
    header = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, stream.stream_id, 1 << 30)
    await me.begin()
    await peer.muxer._write_frame(header + bytes(60_000))
    while me.at_it:
        await peer.muxer._write_frame(bytes(60_000))


PROTOCOLS = (
    *(
        BLOBS,
        RESTS,
        PARTS,
        CHUNKS,
        RELAY,
        DIAL_BACK,
        PUNCH,
        INTRODUCE,
        SYNC_PROTOCOL,
        VERSION_QUERY,
        ECHO,
    ),
    *(PUBLISH_PROTOCOL, LIST_PROTOCOL, MANIFEST_PROTOCOL, NAMES),
    *(str(HOP), str(STOP), str(GOSSIP)),
)
"""Every protocol that a node serves."""
ONE_GB = dict.fromkeys(PROTOCOLS, (1 << 30).to_bytes(4, "big"))
ONE_GB |= dict.fromkeys(map(str, (HOP, STOP, GOSSIP)), encode_uvarint(1 << 30))
"""By protocol, the prefix that announces 1 GB: four bytes in ours, a varint in the library's."""
# The beginnings of longer frames.
_BEGUN = dict.fromkeys(PROTOCOLS, (100).to_bytes(4, "big") + bytes(90))
_BEGUN |= dict.fromkeys(map(str, (HOP, STOP, GOSSIP)), encode_uvarint(100) + bytes(90))


async def _on_each_protocol(
    me: Attacker, peer: Hostile, act: Callable[[str], Awaitable[None]], at_once: int
) -> None:
    async def again_and_again(protocol: str) -> None:
        while me.at_it and _node(peer) in peer.network.connected():
            # Not all protocols are served here, and the responses do not matter.
            with suppress(Exception):
                await act(protocol)
            await trio.sleep(0.1)

    await me.begin()
    async with trio.open_nursery() as nursery:
        for protocol in PROTOCOLS:
            for _ in range(at_once):
                nursery.start_soon(again_and_again, protocol)


async def unread(me: Attacker, peer: Hostile) -> None:
    """Full windows on 200 streams that are never read."""
    muxer, streams = peer.muxer, []
    await me.begin()
    for _ in range(200):
        stream = await muxer.open_stream()
        streams.append(stream)
    for stream in streams:
        for _ in range(4):
            header = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, stream.stream_id, 60_000)
            await muxer._write_frame(header + bytes(60_000))
    await me.stay()


async def slow_readers(me: Attacker, peer: Hostile) -> None:
    """Requests on 100 streams whose answers are not read."""
    await me.begin()
    streams = []
    for _ in range(100):
        with suppress(Exception):
            stream = await peer.open(ECHO)
            await stream.write((60_000).to_bytes(4, "big") + bytes(60_000))
            streams.append(stream)
    await me.stay()


async def pings(me: Attacker, peer: Hostile) -> None:
    """Frames without content, as many as go through."""
    frames = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_PING, FLAG_SYN, 0, 7) * 5000
    await me.begin()
    while me.at_it:
        await peer.muxer._write_frame(frames)


async def prunes(me: Attacker, peer: Hostile) -> None:
    """PRUNE, GRAFT and IHAVE about topics of 300,000 characters, all different."""

    def make(number: int) -> rpc_pb2.RPC:
        rpc, topic = rpc_pb2.RPC(), f"{number}" + "x" * 300_000
        rpc.control.prune.add(topicID=topic, backoff=10**9)
        rpc.control.graft.add(topicID=topic)
        rpc.control.ihave.add(topicID=topic, messageIDs=[b"i" * 40])
        return rpc

    await _say_over_and_over(me, peer, make)


async def subscriptions(me: Attacker, peer: Hostile) -> None:
    """Subscriptions to topics and their cancellations, one per message."""

    def make(number: int) -> rpc_pb2.RPC:
        rpc = rpc_pb2.RPC()
        rpc.subscriptions.add(subscribe=number % 2 == 0, topicid=f"t{number // 2 % 1000}")
        return rpc

    await _say_over_and_over(me, peer, make)


async def ihaves(me: Attacker, peer: Hostile) -> None:
    """IHAVE of 1,000 invented messages in our topic."""

    def make(number: int) -> rpc_pb2.RPC:
        rpc = rpc_pb2.RPC()
        ids = [(number * 1000 + n).to_bytes(46, "big") for n in range(1000)]
        rpc.control.ihave.add(topicID=me.target.topic, messageIDs=ids)
        return rpc

    await _say_over_and_over(me, peer, make)


async def grafts(me: Attacker, peer: Hostile) -> None:
    """GRAFT and PRUNE alternately in our topic, as many as go through."""

    def make(number: int) -> rpc_pb2.RPC:
        rpc = rpc_pb2.RPC()
        if number % 2:
            rpc.control.prune.add(topicID=me.target.topic, backoff=1)
        else:
            rpc.control.graft.add(topicID=me.target.topic)
        return rpc

    await _say_over_and_over(me, peer, make)


async def records(me: Attacker, peer: Hostile) -> None:
    """Signed records of 900 kB with every message."""
    await _say_over_and_over(me, peer, lambda number: rpc_pb2.RPC(senderRecord=bytes(900_000)))


async def forgeries(me: Attacker, peer: Hostile) -> None:
    """Gossip with a bad signature."""
    key = peer.network._host.get_public_key().serialize()

    def make(number: int) -> rpc_pb2.RPC:
        message = rpc_pb2.Message(
            data=bytes(300), topicIDs=[me.target.topic], from_id=peer.id.to_bytes()
        )
        message.seqno, message.key, message.signature = number.to_bytes(8, "big"), key, bytes(64)
        return rpc_pb2.RPC(publish=[message] * 10)

    await _say_over_and_over(me, peer, make)


async def forged_answers(me: Attacker, peer: Hostile) -> None:
    """Hints at more records, and at another chain. A node that asks is told of a chain that diverges
    from its own at the end, and gets megabytes of forged ledger entries (from even numbers), or of
    unsigned envelopes (from odd ones)."""
    swarm = SwarmId(ContentId(me.target.swarm))
    height = (await _ask_chain(peer, swarm, ())).height
    unsigned = replace(
        sign(peer.identity, "heartbeat", swarm, encode(Heartbeat(height, 1))), signature=bytes(64)
    )
    envelopes = () if me.number % 2 == 0 else (unsigned.encode(),) * 30_000

    async def answer(asker: PeerId, data: bytes) -> bytes:
        request = decode_request(data)
        if request.most:
            before = await _ask_chain(peer, swarm, (max(0, request.round - 1),))
            parent = RecordId(ContentId(before.ids[0])) if before.ids else NO_BLOCK
            entries = () if envelopes else _forged_entries(request.round, parent, _node(peer))
            said = SyncResponse(request.round + 1000, (), entries, envelopes)
        else:
            true = await _ask_chain(peer, swarm, request.probes)
            ids = (*true.ids[:-1], content_id(os.urandom(8))) if true.ids else ()
            said = SyncResponse(true.height, ids, (), ())
        return encode(said)

    peer.network.serve(SYNC_PROTOCOL, answer, max_request=1 << 10, max_concurrent=8)
    said = _signed(peer, me.target, "heartbeat", lambda n: Heartbeat(height + n % 40, n))
    await me.begin()
    for message in said:
        if not me.at_it:
            return
        await peer.send_rpc(rpc_pb2.RPC(publish=[message]))
        # Slower than an author's rate limit, so that each message is read.
        await trio.sleep(0.1)


async def announcements(me: Attacker, peer: Hostile) -> None:
    """Announcements of updates for the rounds to come, signed by itself and all different, thousands a
    second if they go through."""
    swarm = SwarmId(ContentId(me.target.swarm))
    height = (await _ask_chain(peer, swarm, ())).height

    def make(number: int) -> Announcement:
        update = content_id(peer.id.to_bytes() + number.to_bytes(8, "big"))
        parent = RecordId(content_id(b"parent"))
        return Announcement(height + number % 8, parent, update, 1000, 100, 2.0, 7)

    said = _signed(peer, me.target, "announcement", make)
    ready = list(itertools.islice(said, _SIGNED // me.peers))
    await me.begin()
    for first in range(0, len(ready), 10):
        if not me.at_it:
            return
        await peer.send_rpc(rpc_pb2.RPC(publish=ready[first : first + 10]))
    while me.at_it:
        await peer.send_rpc(rpc_pb2.RPC(publish=list(itertools.islice(said, 10))))


async def _say_over_and_over(
    me: Attacker, peer: Hostile, make: Callable[[int], rpc_pb2.RPC]
) -> None:
    await me.begin()
    for number in itertools.count():
        if not me.at_it:
            return
        await peer.send_rpc(make(number))


def _signed(
    peer: Hostile, target: Target, kind: str, make: Callable[[int], Message]
) -> Iterator[rpc_pb2.Message]:
    """Yield valid gossip without end: it is the attacker's own, and impersonates no other peer."""
    keys = peer.network._host.get_private_key()
    # Not from 0 on: an attacker that comes back must not look like one that repeats itself.
    for number in itertools.count(random.getrandbits(40)):
        body = encode(make(number))
        envelope = sign(peer.identity, kind, SwarmId(ContentId(target.swarm)), body)
        said = rpc_pb2.Message(
            data=envelope.encode(), topicIDs=[target.topic], from_id=peer.id.to_bytes()
        )
        said.seqno = number.to_bytes(8, "big")
        words = PUBSUB_SIGNING_PREFIX.encode() + said.SerializeToString()
        said.key, said.signature = keys.get_public_key().serialize(), keys.sign(words)
        yield said


async def _ask_chain(peer: Hostile, swarm: SwarmId, probes: tuple[int, ...]) -> SyncResponse:
    """Return the chain's height, and the ids of these rounds' records, as the node reports them to any
    peer."""
    request = encode(SyncRequest(swarm, 0, probes, 0))
    answer = await peer.network.request(
        _node(peer), SYNC_PROTOCOL, request, max_response=MAX_SYNC_RESPONSE_BYTES, timeout=10
    )
    return decode_response(answer)


def _forged_entries(round: int, parent: RecordId, founder: PeerId) -> tuple[bytes, ...]:
    """Return some megabytes of well-formed entries that follow a record, with an invalid signature."""
    signers = (SignedBallot(founder, b"\x00", bytes(64)),)
    record = Record(round, parent, 7, (), (), (), None)
    certificate = Certificate("finalize", round, parent, 1, record.id, signers)
    return (encode(Decided(record, certificate)),) * 10_000


def _node(peer: Hostile) -> PeerId:
    return PeerId(peer.muxer.peer_id.to_bytes()[-32:])


Attack = Callable[..., Awaitable[None]]
BARE: tuple[Attack, ...] = (
    *(nothing, silent, page_readers, visitors, idle),
    *(half_handshakes, slow_pages),
)
TALKING: tuple[Attack, ...] = (
    credits,
    places,
    calls_back,
    introductions,
    histories,
    states,
    unread,
    slow_readers,
    pings,
    prunes,
    subscriptions,
    ihaves,
    grafts,
    forgeries,
    forged_answers,
    announcements,
    records,
    trickles,
    half_open,
    nameless,
    long_prefixes,
    long_frames,
)
ATTACKS: dict[str, Attack] = {
    attack.__name__.replace("_", " "): attack for attack in (*BARE, *TALKING)
}


async def attack_together(
    names: list[str], target: Target, peers: int, seconds: float, patience: float, wire: Any
) -> None:
    """Run `peers` attackers; with several attacks they take turns. Send the number of ready attackers
    once all are ready or `patience` seconds have passed, wait for a message, and send another one when
    the window of `seconds` is over."""
    window = Window(peers)
    connecting = trio.CapacityLimiter(_AT_ONCE)
    async with trio.open_nursery() as nursery:
        for number in range(peers):
            attack = ATTACKS[names[number % len(names)]]
            attacker = Attacker(number + 1, target, window)
            nursery.start_soon(attacker.run, attack, connecting)
        with trio.move_on_after(patience):
            await window.all_ready.wait()
        wire.send(window.ready)
        await trio.to_thread.run_sync(wire.recv)
        window.open(seconds)
        await trio.sleep(seconds)
        wire.send("over")
        nursery.cancel_scope.cancel()


def run(wire: Any) -> None:
    """Run the attackers of one order after the other, as the main function of a process."""
    while (order := wire.recv()) is not None:
        trio.run(attack_together, *order, wire)
