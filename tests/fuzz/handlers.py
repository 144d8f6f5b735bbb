"""The request handlers, each as a node serves it, and the gossip of a swarm.

For each input a handler is created by the code that serves it in a node, with a network made of
lists; the input is what a peer may send, up to the handler's own bound.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import trio
import trio.testing
from distro_node.crypto.envelope import SWARM_ID_BYTES, EnvelopeError, open_envelope, seal, sign
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId, peer_text
from distro_node.node.listing.entries import (
    LIST_PROTOCOL,
    MANIFEST_PROTOCOL,
    PUBLISH_PROTOCOL,
    PublishRequest,
    seal_entry,
)
from distro_node.node.listing.listing_service import ListingService
from distro_node.node.listing.swarm_list import SwarmList
from distro_node.node.network.discovery.introductions import PROTOCOL as INTRODUCE
from distro_node.node.network.discovery.introductions import IntroductionService
from distro_node.node.network.discovery.member_names import PROTOCOL as NAMES
from distro_node.node.network.discovery.member_names import MemberNames
from distro_node.node.network.discovery.version_query import PROTOCOL as VERSION_QUERY
from distro_node.node.network.discovery.version_query import serve_version
from distro_node.node.network.errors import NotHere, RequestError
from distro_node.node.network.exchange.blobs import PART_PROTOCOL as PARTS
from distro_node.node.network.exchange.blobs import PROTOCOL as BLOBS
from distro_node.node.network.exchange.blobs import REST_PROTOCOL as RESTS
from distro_node.node.network.exchange.blobs import serve_blobs, serve_parts
from distro_node.node.network.exchange.chunks import PROTOCOL as CHUNKS
from distro_node.node.network.exchange.chunks import serve_chunks
from distro_node.node.network.exchange.update_relay import UpdateRelay
from distro_node.node.network.exchange.update_relay_client import PROTOCOL as RELAY
from distro_node.node.network.nat.dial_back import PROTOCOL as DIAL_BACK
from distro_node.node.network.nat.dial_back import DialBack, encode_ports
from distro_node.node.network.nat.hole_punching import (
    DIAL,
    EXCHANGE,
    HolePunching,
    encode_endpoints,
)
from distro_node.node.network.nat.hole_punching import PROTOCOL as PUNCH
from distro_node.node.network.traffic import Traffic
from distro_node.node.session.sync import serve_sync
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.audit.reputation import EPOCH_ROUNDS
from distro_node.protocol.chain.sync import SYNC_PROTOCOL, SyncRequest
from distro_node.protocol.member.inputs import MessageReceived, Tick
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.introductions import IntroductionRequest, Registry, seal_peer_record
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.messages import (
    MESSAGE_TYPES,
    NO_BLOCK,
    Heartbeat,
    JoinRequest,
    Leave,
    Message,
    Proposal,
)
from distro_node.protocol.wire.relay_requests import relay_request
from fuzz.decoders import SWARM
from fuzz.loops import idle
from fuzz.targets import Target, packed, repacked, unpacked
from simulation.audited_chain import AuditedChain
from simulation.swarm import identity

ASKER = identity(41)
OTHER = identity(42)
_STEP_SECONDS = 30.0


class Line:
    """A node's network: it records what is served, and requests get no answer."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.traffic = Traffic()
        self.peer = identity(0).peer
        self.unsent_bytes = 0
        self.listening_ports = [4001]
        self.listening_port = lambda version: 4001
        self.knows: Callable[[PeerId], bool] = lambda peer: True
        self.served: dict[str, Callable[[PeerId, bytes], Awaitable[Any]]] = {}
        self._nursery = nursery

    def serve(self, protocol: str, handler: Callable[..., Any], **_: object) -> None:
        self.served[protocol] = handler

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._nursery.start_soon(function, *arguments)

    def connected(self) -> frozenset[PeerId]:
        return frozenset({ASKER.peer, OTHER.peer})

    relayed = connected

    def remote(self, peer: PeerId) -> Any:
        return SimpleNamespace(host="93.184.216.34", port=4001)

    async def answers_at(self, peer: PeerId, host: str, port: int, seconds: float) -> bool | None:
        return port % 2 == 0 if port % 3 else None

    async def dial_from_port(self, peer: PeerId, host: str, port: int, *_: Any, **__: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def request(self, *_: object, **__: object) -> bytes:
        raise RequestError("busy", "nobody is there")

    def penalise(self, peer: PeerId, reason: str) -> None:
        pass


def handler(
    name: str,
    protocol: str,
    serve: Callable[[Any], object],
    *seeds: bytes,
    most: int,
    request: Callable[[bytes], bytes] = lambda data: data,
    **options: Any,
) -> Target:
    """Return a target: the handler that `serve` registers under `protocol`, called with `request` of
    an input."""

    async def ask(data: bytes) -> object:
        async with trio.open_nursery() as nursery:
            line = Line(nursery)
            with _without_threads():
                serve(line)
                answer = await line.served[protocol](ASKER.peer, request(data)[:most])
                # Tasks that it started get to run, too.
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            return answer

    return Target(name, partial(idle.run, ask), seeds, (protocol,), most=max(most, 512), **options)


@contextmanager
def _without_threads() -> Iterator[None]:
    """Run functions directly: starting a thread for each input takes longer than the work itself."""
    module: Any = trio.to_thread
    in_thread = module.run_sync

    async def at_once(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    module.run_sync = at_once
    try:
        yield
    finally:
        module.run_sync = in_thread


def targets() -> Iterator[Target]:
    """Yield one target for each protocol with a handler, and for gossip."""
    chain = _chain()
    swarm = chain.manifest.swarm
    yield handler(
        "sync",
        SYNC_PROTOCOL,
        _serve_sync,
        encode(SyncRequest(swarm, 0, (0, 1, 5), 65_536)),
        encode(SyncRequest(swarm, chain.round, (), 10)),
        most=512,
    )
    yield handler(
        "dial back",
        DIAL_BACK,
        DialBack,
        encode_ports([4001, 4002]),
        encode_ports([1, 2, 3, 4]),
        most=8,
        structured=False,
    )
    yield handler(
        "punching",
        PUNCH,
        lambda line: HolePunching(line, {4: "93.184.216.34"}.get),
        EXCHANGE + encode_endpoints((("93.184.216.34", 4001), ("2606:2800::1", 65535))),
        EXCHANGE,
        DIAL,
        most=128,
        structured=False,
    )
    addresses = [f"/ip4/93.184.216.34/tcp/4001/p2p/{peer_text(ASKER.peer)}"]
    record = seal_peer_record(ASKER, SWARM, addresses, 5)
    yield handler(
        "introducing",
        INTRODUCE,
        lambda line: IntroductionService(line, Registry()),
        IntroductionRequest(SWARM, record).encode(),
        IntroductionRequest(SWARM, None).encode(),
        most=3200,
    )
    yield handler(
        "introducing, well signed",
        INTRODUCE,
        lambda line: IntroductionService(line, Registry()),
        packed(bytes(SWARM), [addresses, 5]),
        packed(bytes(32), [[], 2**63 - 1]),
        most=3200,
        request=_introduction,
    )
    entry = seal_entry(
        ASKER,
        SWARM,
        number=5,
        written=1_700_000_000,
        members=3,
        rounds_done=20,
        tokens_per_second=1000,
    )
    yield handler(
        "publishing a swarm",
        PUBLISH_PROTOCOL,
        lambda line: ListingService(line, SwarmList()),
        PublishRequest(SWARM, entry, None).encode(),
        PublishRequest(SWARM, entry, encode({"admission": {"public": True}})).encode(),
        most=4096,
    )
    for name, protocol in (("listing", LIST_PROTOCOL), ("listed manifests", MANIFEST_PROTOCOL)):
        yield handler(
            name,
            protocol,
            lambda line: ListingService(line, SwarmList()),
            b"",
            bytes(32),
            most=32,
            structured=False,
            # The swarm is not listed.
            allowed=(ProtocolError, NotHere),
        )
    yield handler(
        "names of members",
        NAMES,
        lambda line: MemberNames(line, OTHER, SWARM, "a name", {}, lambda: ()),
        bytes(SWARM),
        bytes(32),
        most=32,
        structured=False,
        # It has no name in this swarm.
        allowed=(ProtocolError, NotHere),
    )
    yield handler("versions", VERSION_QUERY, serve_version, b"", b"\0", most=8, structured=False)
    store, blob, listed = _store()
    yield handler(
        "blobs",
        BLOBS,
        lambda line: serve_blobs(line, store),
        blob,
        listed,
        bytes(32),
        most=32,
        structured=False,
    )
    yield handler(
        "rests of blobs",
        RESTS,
        lambda line: serve_blobs(line, store),
        blob + bytes(8),
        listed + (3).to_bytes(8, "big"),
        bytes(32) + b"\xff" * 8,
        most=40,
        structured=False,
    )
    yield handler(
        "parts of sign votes",
        PARTS,
        lambda line: serve_parts(line, store),
        blob,
        listed,
        bytes(32),
        most=32,
        structured=False,
    )
    yield handler(
        "chunks",
        CHUNKS,
        lambda line: serve_chunks(line, store),
        blob,
        listed,
        bytes(32),
        most=32,
        structured=False,
    )
    said = chain.announcement(0)
    sealed = relay_request(
        swarm, identity(0).peer, said, chain.signature(0, "announcement", said)
    ).sealed
    yield handler("relay of updates", RELAY, UpdateRelay, sealed, b"", most=512, structured=False)
    plain = msgpack.unpackb(encode(said))
    yield handler(
        "relay of updates, well signed",
        RELAY,
        UpdateRelay,
        packed(bytes(swarm), plain),
        packed(bytes(swarm), [0, bytes(32), bytes(32), 2**31, 0, 0.5, 0]),
        most=512,
        request=_relayed,
    )
    yield Target(
        "gossip",
        _Listener().receive,
        (*map(packed, _messages(chain)), packed(*_messages(chain))),
        ("gossip",),
        allowed=(),
        most=16_384,
    )


_KINDS = [*MESSAGE_TYPES, "unknown"]


@cache
def _chain() -> AuditedChain:
    """Return a chain whose members audit each other's work, with some disputes."""
    chain = AuditedChain(4).check(2 * EPOCH_ROUNDS)
    chain.disputed()
    chain.grow()
    return chain


def _serve_sync(line: Any) -> None:
    chain = _chain()
    member: Any = SimpleNamespace(
        ledger=chain.ledger,
        messages=lambda round_: [chain.envelope(1, "announcement", chain.announcement(1))],
    )
    serve_sync(line, chain.manifest, member, trio.lowlevel.checkpoint)


@cache
def _store() -> tuple[BlobStore, ContentId, ContentId]:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    store = BlobStore(Path(folder.name) / "blobs")
    blob = store.put(b"a chunk")
    listed = BlobList(kind="shard", size=CHUNK_BYTES + 7, chunks=(content_id(b"none"), blob))
    return store, blob, store.put(listed.encode())


def _introduction(data: bytes) -> bytes:
    parts = unpacked(data, bytes, object)
    if parts is None:
        return data
    swarm, body = parts[0][:32].ljust(32, b"\0"), repacked(parts[1])[:2900]
    sealed = seal(ASKER, "peer", swarm, body)
    return repacked([swarm, sealed])


def _relayed(data: bytes) -> bytes:
    parts = unpacked(data, bytes, object)
    if parts is None:
        return data
    swarm, body = parts[0][:SWARM_ID_BYTES].ljust(SWARM_ID_BYTES, b"\0"), repacked(parts[1])
    return swarm + seal(OTHER, "announcement", swarm, body[:300])


# Gossip


def _messages(chain: AuditedChain) -> list[list[Any]]:
    """Return one message of each kind that the member in `_gossip` uses, by some other member."""
    numbers = {identity(number).peer: number for number in range(4)}
    leader = numbers[chain.leaders[0]]
    record = chain.record()
    ballot = chain.ballot(record.id)
    skip = chain.ballot(NO_BLOCK)
    me = identity(0).peer
    audit = next(entry for entry in chain.audits() if entry.auditor != me)
    (first,) = chain.work.reputation.disputes
    reauditor = next(peer for peer in chain.work.reputation.pending_reauditors(first) if peer != me)
    again = chain.again(reauditor, first)
    parent = chain.ledger.parent
    said: list[tuple[str, int, Message]] = [
        ("announcement", 1, chain.announcement(1)),
        ("join", 10, JoinRequest(chain.round, b"")),
        ("leave", 2, Leave(chain.round)),
        ("heartbeat", 3, Heartbeat(chain.round, 1 << 30)),
        ("proposal", leader, Proposal(1, record)),
        ("vote", 1, ballot),
        ("skip", 2, skip),
        ("finalize", 3, ballot),
        ("evidence", 1, chain.evidence(2)),
        ("audit", numbers[audit.auditor], audit.message(parent(audit.round))),
        ("reaudit", numbers[reauditor], again.message(parent(first.round))),
    ]
    return [
        [_KINDS.index(kind), who, msgpack.unpackb(encode(message))] for kind, who, message in said
    ]


class _Listener:
    """A member that receives gossip. It lives for several inputs, as a node's does."""

    LIFETIME = 32

    def __init__(self) -> None:
        self._count = 0

    def receive(self, data: bytes) -> None:
        """Do as the runner does: validate a message and, if it is valid, process it."""
        chain = _chain()
        swarm = SwarmId(chain.manifest.swarm)
        if self._count % self.LIFETIME == 0:
            self._member, self._now = chain.member(0), 1.0
            self._heard: list[bytes] = []
        self._count += 1
        try:
            for words in _packed_messages(data, swarm):
                self._heard.append(words)
                with suppress(EnvelopeError, ProtocolError):
                    envelope = open_envelope(words, swarm=swarm)
                    received = MessageReceived(envelope)
                    self._member.screen(received, self._now)
                    self._member.handle(received, self._now)
                self._now += 0.01
            # Whatever it has received, time advances.
            last = self._count % self.LIFETIME == 0
            self._now += _STEP_SECONDS if last else 0.1
            self._member.handle(Tick(), self._now)
        except Exception as error:
            self._count = 0
            error.add_note(f"as an input of its own: {packed(*self._heard).hex()}")
            raise


def _packed_messages(data: bytes, swarm: SwarmId) -> Iterator[bytes]:
    """Yield the envelopes in an input, a list: three parts give signer, kind and body; bytes are a
    whole envelope."""
    try:
        parts = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, RecursionError, msgpack.UnpackException):
        yield data
        return
    for part in parts if isinstance(parts, list) else ():
        match part:
            case [int(kind), int(who), body]:
                name = _KINDS[kind % len(_KINDS)]
                yield sign(identity(who % 12), name, swarm, repacked(body)).encode()
            case bytes(raw):
                yield raw
