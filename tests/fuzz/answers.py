"""A node's handling of the answers to its own requests, which come from strangers as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import httpcore
import msgpack
import trio
from distro_node.crypto.envelope import seal
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import peer_text
from distro_node.node.content.mirrors import Mirrors
from distro_node.node.network.circuit_client import Circuits
from distro_node.node.network.dial_policy import AddressSource, Scope
from distro_node.node.network.discovery.introductions import Introducer
from distro_node.node.network.discovery.version_query import query_versions
from distro_node.node.network.errors import DialError
from distro_node.node.network.exchange.chunks import ask_holdings
from distro_node.node.network.nat.dial_back import ask_dial_back
from distro_node.node.network.negotiation import proposal, read_agreement
from distro_node.node.network.streams import FrameOversized, StreamEnded, read_reply
from distro_node.node.util.protocol_version import explain_versions
from distro_node.protocol.chain.fork_search import ChainComparison, FetchBackoff
from distro_node.protocol.chain.initial_sync import InitialSync
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import SyncQuery, answer_to, read_answer
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.introductions import VersionMessage
from fuzz.decoders import STRANGER, SWARM
from fuzz.handlers import Line
from fuzz.loops import idle
from fuzz.targets import Target, packed, repacked
from fuzz.wires import Stream, prefixed
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status
from multiaddr import Multiaddr
from simulation.chain import Chain
from simulation.swarm import identity

# Private here: `_introduce`, `_mirrors`, `_web`, `_pools`: what takes an answer, with the wire left out.
# A machine asks this often at most before its input has run out.
_STEPS = 12
_PROTOCOL = "/test/asked/1"
_BLOB = b"what was asked for" * 20


def targets() -> Iterator[Target]:
    """Yield one target for each kind of answer."""
    yield Target(
        "catching up",
        _catch_up,
        (_honest(_chains()[1].ledger, 2), packed([9, [], [], []])),
        ("answers while a node catches up",),
        allowed=(),
        most=16_384,
    )
    yield Target(
        "comparing chains",
        _compare,
        (_honest(_chains()[2].ledger, 0), packed([9, [bytes(32)], [], []])),
        ("answers while two chains are compared",),
        allowed=(),
        most=16_384,
    )
    yield Target(
        "being introduced",
        partial(idle.run, _introduced),
        (packed([_addresses(), 5]), packed([_addresses(), 5], [[], 2**63 - 1])),
        ("the answer to an introduction",),
        allowed=(),
        most=8192,
    )
    yield Target(
        "being told a version",
        partial(idle.run, _told_a_version),
        (VersionMessage(2).encode(),),
        ("which version a peer speaks",),
        allowed=(),
        most=64,
    )
    reserved = HopMessage(type=HopMessage.STATUS, status=Status.OK)
    reserved.reservation.expire = 2**40
    reserved.reservation.addrs.append(Multiaddr(_addresses()[0]).to_bytes())
    yield Target(
        "reservation",
        partial(idle.run, _reserve),
        (prefixed(reserved), prefixed(HopMessage(type=HopMessage.STATUS))),
        ("a relay's answer",),
        allowed=(DialError,),
        structured=False,
    )
    yield Target(
        "holdings",
        partial(idle.run, _holdings),
        (b"\xff\x80", b""),
        ("which chunks a peer has",),
        allowed=(),
        structured=False,
        most=64,
    )
    yield Target(
        "being called back",
        partial(idle.run, _called_back),
        (b"\1\0" + b"93.184.216.34",),
        ("what came of a call back",),
        structured=False,
        most=64,
    )
    yield Target(
        "reply",
        partial(idle.run, _reply),
        (
            proposal(_PROTOCOL) + b"\0\0\0\0\5hello",
            proposal(_PROTOCOL) + b"\1\0\0\0\4busy",
            # What answers in its place.
            proposal("na"),
        ),
        ("the reply to any request", "node.network.negotiation:read_agreement"),
        # An unknown status is a `ValueError`; the caller turns all of these into a `RequestError`.
        allowed=(FrameOversized, StreamEnded, ValueError),
        structured=False,
        most=512,
    )
    length = len(_BLOB)
    yield Target(
        "mirror",
        partial(idle.run, _mirror),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + _BLOB,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            b"HTTP/1.1 302 Found\r\nLocation: http://b.example/\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
        ),
        ("a mirror's answer",),
        allowed=(),
        structured=False,
    )


@cache
def _chains() -> tuple[Chain, Chain, Chain]:
    """Return a node's chain, the same chain some rounds later, and another from its second round on."""
    short = Chain(4)
    short.grow()
    other, long = short.fork(), short.fork()
    for chain, silent in ((long, ()), (other, [identity(3).peer])):
        for number in range(4):
            chain.grow(silent=silent if number == 0 else ())
    return short, long, other


def _honest(ledger: Ledger, start: int) -> bytes:
    """Return the answers of a peer with this ledger, one request after another."""
    answers = []
    last = len(ledger) - 1
    probes = (start - 1,) if start else tuple(range(last + 1))
    for asked, most in ((probes, 0), ((last,), 0), ((), 1024), ((), 1024)):
        question = SyncQuery(STRANGER.peer, start, asked, most).request(ledger.swarm)
        height, ids, rounds, _ = answer_to(question, ledger, lambda round_: [])
        entries = [msgpack.unpackb(ledger.raw(round_)) for round_ in rounds]
        answers.append([height, [bytes(each) for each in ids], entries, []])
    return packed(*answers)


def _answers(data: bytes) -> list[bytes]:
    """Return the answers in an input, in their wire form."""
    try:
        parts = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, RecursionError, msgpack.UnpackException):
        return [data]
    found: list[bytes] = []
    for part in parts if isinstance(parts, list) else [parts]:
        match part:
            case [height, ids, [*entries], envelopes]:
                raw = tuple(e if isinstance(e, bytes) else repacked(e) for e in entries)
                found.append(repacked([height, ids, raw, envelopes]))
            case _:
                found.append(repacked(part))
    return found


def _drive(machine: Any, data: bytes, questions: Callable[[float], list[SyncQuery]]) -> None:
    answers = _answers(data)
    for step in range(_STEPS):
        now = float(step)
        asked = questions(now)
        if machine.done:
            return
        for question in asked:
            raw = answers.pop(0) if answers else None
            try:
                answer = None if raw is None else read_answer(raw)
            except ProtocolError:
                answer = None
            machine.on_answer(question.peer, answer, now)


def _catch_up(data: bytes) -> object:
    ledger = _chains()[0].ledger
    machine = InitialSync(ledger.truncated(len(ledger)))
    peers = [STRANGER.peer, identity(42).peer]
    _drive(machine, data, lambda now: machine.requests(peers, now))
    return machine.drain()


def _compare(data: bytes) -> object:
    ledger = _chains()[1].ledger
    ours = ledger.truncated(len(ledger))
    peers = [identity(3).peer, STRANGER.peer]
    machine = ChainComparison(ours, peers, FetchBackoff(), me=identity(0).peer, abandoned=False)
    _drive(machine, data, machine.requests)
    return machine.better_than(ours)


def _addresses() -> list[str]:
    return [f"/ip4/93.184.216.34/tcp/4001/p2p/{peer_text(STRANGER.peer)}"]


async def _introduced(data: bytes) -> object:
    async with trio.open_nursery() as nursery:
        line: Any = Line(nursery)
        line.request = _answering(_introductions(data))
        line.source_of = lambda peer: AddressSource(peer, Scope.MACHINE)
        line.scope_of = lambda host: Scope.WORLD
        line.addresses = _addresses()
        introducer = Introducer(line, identity(0), SWARM)
        await introducer._introduce(STRANGER.peer)
        for peer in introducer.known.records:
            introducer.known.source(peer)
        nursery.cancel_scope.cancel()


async def _told_a_version(data: bytes) -> object:
    async with trio.open_nursery() as nursery:
        line: Any = Line(nursery)
        line.request = _answering(data)
        versions = await query_versions(line, [STRANGER.peer])
        nursery.cancel_scope.cancel()
    return explain_versions(versions)


def _introductions(data: bytes) -> bytes:
    try:
        parts = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, RecursionError, msgpack.UnpackException):
        return data
    if not isinstance(parts, list):
        return data
    peers = (STRANGER, identity(42), identity(43))
    return repacked(
        [[seal(peers[n % 3], "peer", SWARM, repacked(p)[:2900]) for n, p in enumerate(parts[:70])]]
    )


async def _reserve(data: bytes) -> object:
    async def open_stream(peer: object, protocol: str) -> Any:
        return Stream(data)

    host: Any = SimpleNamespace(set_stream_handler=lambda *_: None)
    swarm: Any = None
    circuits = Circuits(host, swarm, open_stream=open_stream, refuses=lambda peer: False)
    return await circuits.reserve(STRANGER.peer)


async def _holdings(data: bytes) -> object:
    async with trio.open_nursery() as nursery:
        line: Any = Line(nursery)
        line.request = _answering(data)
        return await ask_holdings(line, STRANGER.peer, ContentId(bytes(32)), 9)


async def _called_back(data: bytes) -> object:
    async with trio.open_nursery() as nursery:
        line: Any = Line(nursery)
        line.request = _answering(data)
        return await ask_dial_back(line, STRANGER.peer, [4001, 4002])


async def _reply(data: bytes) -> object:
    stream = Stream(data)
    agreed = await read_agreement(stream, _PROTOCOL, 5.0)
    return await read_reply(stream, 256, 5.0) if agreed else None


async def _mirror(data: bytes) -> object:
    mirrors = Mirrors(["http://a.example/"])
    mirror: Any = mirrors._mirrors[0]
    # In two halves: the parser may receive any pieces.
    pieces = [data[: len(data) // 2], data[len(data) // 2 :]]
    pool = httpcore.AsyncConnectionPool(network_backend=httpcore.AsyncMockBackend(pieces))
    mirror._web._pools[False] = pool
    async with pool:
        return await mirrors.get(content_id(_BLOB), len(_BLOB))


def _answering(data: bytes) -> Callable[..., Any]:
    async def request(*_: object, **__: object) -> bytes:
        await trio.lowlevel.checkpoint()
        return data

    return request
