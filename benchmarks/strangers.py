"""What strangers can cost a node: disk, memory, handles, processor, and whether honest peers are
served and rounds go on meanwhile.

    python benchmarks/strangers.py [ATTACK ...] [--seconds 8] [--json FILE]

A node's network runs in a process of its own, with gossip, introductions, calls back, a relay of
circuits, a metrics page and a protocol that echoes. Against it each attack runs with one hostile peer
and with fifty, from other processes, while an honest peer asks for an echo twenty times a second. Then
two real nodes train, first by themselves, and then with all attacks at once on one of them. On loopback,
where no line is in the attackers' way. docs/threats.md has the table.
"""

# ruff: noqa: E402  (the tests' package is found only after the path is set)
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import trio
from distro_node.crypto.identity import Identity
from distro_node.node.network.circuit_relay import CircuitLimits
from distro_node.node.network.discovery.introductions import PROTOCOL as INTRODUCE
from distro_node.node.network.discovery.introductions import IntroductionService
from distro_node.node.network.errors import RequestError
from distro_node.node.network.nat.dial_back import PROTOCOL as DIAL_BACK
from distro_node.node.network.nat.dial_back import DialBack, encode_ports
from distro_node.node.network.network import NetworkSettings, open_network
from distro_node.node.telemetry.metrics import Metrics
from distro_node.protocol.wire.introductions import IntroductionRequest, Registry
from distro_node.protocol.wire.manifest import SwarmId
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    TYPE_DATA,
    TYPE_PING,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
# This folder's `network.py` would be taken for the tests' package.
sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]

from e2e.support import Node, Swarm
from network.hostile import Hostile, hostile
from network.support import ECHO, LOOPBACK, echo

# Of the swarm that is attacked; the attackers' processes are told by their environment.
_TOPIC_VARIABLE = "DISTRO_STRANGERS_TOPIC"
TOPIC = os.environ.get(_TOPIC_VARIABLE, "swarm")
_PAGE_VARIABLE = "DISTRO_STRANGERS_PAGE"
CROWD = 50
# What stands beside the attacks: whether two nodes that train go on under all of them.
ROUNDS = "rounds"


@dataclass(frozen=True)
class Cost:
    """What an attack cost the node, beyond what it takes at rest."""

    attack: str
    peers: int
    memory_mib: float
    """The most it took while the attack lasted."""
    left_mib: float
    """What it still took five seconds after the end."""
    handles: int
    processor: float
    """Of one core."""
    disk_mib: float
    echo_median_ms: float
    echo_longest_ms: float
    echoes_lost: int


class Victim:
    """What an attacker knows of the node."""

    def __init__(self, address: str) -> None:
        self.addresses = [address]
        self.peer = address


@dataclass(frozen=True)
class Rounds:
    """How many rounds two nodes finished while everything ran against one of them."""

    peers: int
    calm_per_minute: float
    attacked_per_minute: float


async def serve(tell: Any) -> None:
    """Be the node."""
    settings = NetworkSettings(listen=LOOPBACK.listen, carry=CircuitLimits())
    async with open_network(settings, Identity.generate()) as network:
        network.serve(ECHO, echo, max_request=1 << 16, max_concurrent=64)
        IntroductionService(network, Registry())
        DialBack(network)
        page = Metrics(version="strangers").serve(("127.0.0.1", 0))
        await network.subscribe(TOPIC, lambda sender, data: None)
        tell.send((network.addresses[0], page.url))
        await trio.sleep_forever()


async def silent(address: str, end: float) -> None:
    """Connections that say nothing, renewed when they are closed (60 each)."""
    _, _, host, _, port, *_ = address.split("/")
    await knock(host, int(port), end)


async def page_readers(address: str, end: float) -> None:
    """The same at the metrics page."""
    await knock("127.0.0.1", int(os.environ[_PAGE_VARIABLE]), end)


async def knock(host: str, port: int, end: float) -> None:
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            while time.monotonic() < end:
                with suppress(OSError, trio.BrokenResourceError):
                    stream = await trio.open_tcp_stream(host, port)
                    with trio.move_on_after(end - time.monotonic()):
                        await stream.receive_some(1)
                    await stream.aclose()
                await trio.sleep(0.1)

        for _ in range(60):
            nursery.start_soon(wait)


async def unread(peer: Hostile, end: float) -> None:
    """Full windows on 200 streams that nobody reads."""
    muxer, streams = peer.muxer, []
    for _ in range(200):
        stream = await muxer.open_stream()
        streams.append(stream)
    for stream in streams:
        for _ in range(4):
            header = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, stream.stream_id, 60_000)
            await muxer._write_frame(header + bytes(60_000))
    await trio.sleep(max(0.0, end - time.monotonic()))


async def pings(peer: Hostile, end: float) -> None:
    """Frames without anything in them, as many as go through."""
    frames = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_PING, FLAG_SYN, 0, 7) * 5000
    while time.monotonic() < end:
        await peer.muxer._write_frame(frames)


async def say_over_and_over(peer: Hostile, end: float, make: Callable[[int], rpc_pb2.RPC]) -> None:
    number = 0
    while time.monotonic() < end:
        with trio.move_on_after(5):
            await peer.say(make(number))
        number += 1


async def prunes(peer: Hostile, end: float) -> None:
    """PRUNE, GRAFT and IHAVE about topics of 300,000 characters, each another."""

    def make(number: int) -> rpc_pb2.RPC:
        rpc, topic = rpc_pb2.RPC(), f"{number}" + "x" * 300_000
        rpc.control.prune.add(topicID=topic, backoff=10**9)
        rpc.control.graft.add(topicID=topic)
        rpc.control.ihave.add(topicID=topic, messageIDs=[b"i" * 40])
        return rpc

    await say_over_and_over(peer, end, make)


async def subscriptions(peer: Hostile, end: float) -> None:
    """Subscribing to topics and taking it back, a message each."""

    def make(number: int) -> rpc_pb2.RPC:
        rpc = rpc_pb2.RPC()
        rpc.subscriptions.add(subscribe=number % 2 == 0, topicid=f"t{number // 2 % 1000}")
        return rpc

    await say_over_and_over(peer, end, make)


async def ihaves(peer: Hostile, end: float) -> None:
    """IHAVE of 1,000 invented messages in our topic."""

    def make(number: int) -> rpc_pb2.RPC:
        rpc = rpc_pb2.RPC()
        ids = [(number * 1000 + n).to_bytes(46, "big") for n in range(1000)]
        rpc.control.ihave.add(topicID=TOPIC, messageIDs=ids)
        return rpc

    await say_over_and_over(peer, end, make)


async def forgeries(peer: Hostile, end: float) -> None:
    """Messages with a bad signature; whoever is refused for it comes back under another name."""
    key = peer.network._host.get_public_key().serialize()

    def make(number: int) -> rpc_pb2.RPC:
        message = rpc_pb2.Message(data=bytes(300), topicIDs=[TOPIC], from_id=peer.id.to_bytes())
        message.seqno, message.key, message.signature = number.to_bytes(8, "big"), key, bytes(64)
        return rpc_pb2.RPC(publish=[message] * 10)

    await say_over_and_over(peer, end, make)


async def announcements(peer: Hostile, end: float) -> None:
    """Messages that it has signed itself, as many as go through, each another."""
    keys = peer.network._host.get_private_key()

    def message(number: int) -> rpc_pb2.Message:
        said = rpc_pb2.Message(data=bytes(300), topicIDs=[TOPIC], from_id=peer.id.to_bytes())
        said.seqno = number.to_bytes(8, "big")
        words = PUBSUB_SIGNING_PREFIX.encode() + said.SerializeToString()
        said.key, said.signature = keys.get_public_key().serialize(), keys.sign(words)
        return said

    def make(number: int) -> rpc_pb2.RPC:
        return rpc_pb2.RPC(publish=[message(10 * number + n) for n in range(10)])

    await say_over_and_over(peer, end, make)


async def records(peer: Hostile, end: float) -> None:
    """Signed records of 900 kB with every message."""
    await say_over_and_over(peer, end, lambda number: rpc_pb2.RPC(senderRecord=bytes(900_000)))


async def slow_readers(peer: Hostile, end: float) -> None:
    """Requests on 100 streams whose answers are not read."""
    streams = []
    for _ in range(100):
        with suppress(Exception):
            stream = await peer.open(ECHO)
            await stream.write((60_000).to_bytes(4, "big") + bytes(60_000))
            streams.append(stream)
    await trio.sleep(max(0.0, end - time.monotonic()))


async def visitors(address: str, end: float) -> None:
    """One after the other, each another peer that connects, is there for a moment and goes."""
    while time.monotonic() < end:
        with suppress(Exception):
            async with open_network(LOOPBACK, Identity.generate()) as network:
                await network.connect(address)
                await trio.sleep(0.1)


async def idle(address: str, end: float) -> None:
    """Five connections each under names of their own, that stay."""
    async with AsyncExitStack() as stack:
        for _ in range(5):
            network = await stack.enter_async_context(open_network(LOOPBACK, Identity.generate()))
            with suppress(Exception):
                await network.connect(address)
        await trio.sleep(max(0.0, end - time.monotonic()))


async def credits(peer: Hostile, end: float) -> None:
    """Credit that nobody asked for, on a stream and on none."""
    stream = await peer.open(ECHO)
    number = stream.muxed_stream.stream_id
    frame = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_WINDOW_UPDATE, 0, number, 2**32 - 1)
    none = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_WINDOW_UPDATE, 0, 2**31 + 1, 1)
    while time.monotonic() < end:
        await peer.muxer._write_frame((frame + none) * 2500)


async def places(peer: Hostile, end: float) -> None:
    """Places at the relay, asked for again and again."""
    relay = peer.muxer.peer_id.to_bytes()[-32:]
    while time.monotonic() < end:
        with suppress(Exception):
            await peer.network.circuits.reserve(relay)


async def ask_without_end(peer: Hostile, end: float, protocol: str, request: bytes) -> None:
    node = peer.muxer.peer_id.to_bytes()[-32:]
    while time.monotonic() < end:
        with suppress(RequestError):
            await peer.network.request(node, protocol, request, max_response=1 << 20, timeout=5)


async def calls_back(peer: Hostile, end: float) -> None:
    """Being called back at four ports, as often as it is done."""
    await ask_without_end(peer, end, DIAL_BACK, encode_ports([1, 2, 3, 4]))


async def introductions(peer: Hostile, end: float) -> None:
    """Asking whom one knows in a swarm that is none, for ever."""
    request = IntroductionRequest(SwarmId(os.urandom(32)), None)
    await ask_without_end(peer, end, INTRODUCE, request.encode())


Attack = Callable[[Any, float], Awaitable[None]]
BARE: tuple[Attack, ...] = (silent, page_readers, visitors, idle)
TALKING: tuple[Attack, ...] = (
    credits,
    places,
    calls_back,
    introductions,
    unread,
    slow_readers,
    pings,
    prunes,
    subscriptions,
    ihaves,
    forgeries,
    announcements,
    records,
)
ATTACKS: dict[str, Attack] = {
    attack.__name__.replace("_", " "): attack for attack in (*BARE, *TALKING)
}


async def attack_alone(attack: Attack, address: str, end: float) -> None:
    """Be one attacker until the end, under a new name whenever it is thrown out."""
    while time.monotonic() < end:
        with suppress(Exception), trio.move_on_after(end - time.monotonic()):
            if attack in BARE:
                await attack(address, end)
                continue
            victim: Any = Victim(address)
            async with hostile(victim) as peer:
                await attack(peer, end)
        await trio.sleep(0.2)


def attack_many(names: list[str], address: str, peers: int, seconds: float, together: Any) -> None:
    """Be so many attackers, in a process; of several attacks each takes the next."""
    together.wait()
    end = time.monotonic() + seconds

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(peers):
                attack = ATTACKS[names[number % len(names)]]
                nursery.start_soon(attack_alone, attack, address, end)

    trio.run(run)


def honest(address: str, seconds: float, together: Any, tell: Any) -> None:
    """Ask for an echo, and tell how long each took in seconds; below 0, that none came."""
    together.wait()
    end = time.monotonic() + seconds
    waits: list[float] = []

    async def run() -> None:
        async with open_network(LOOPBACK, Identity.generate()) as network:
            while time.monotonic() < end:
                begun = time.monotonic()
                try:
                    peer = await network.connect(address, timeout=5)
                    await network.request(peer, ECHO, b"x", max_response=1, timeout=5)
                    waits.append(time.monotonic() - begun)
                except Exception:
                    waits.append(-1.0)
                await trio.sleep(0.05)

    trio.run(run)
    tell.send(waits)


def measure(name: str, peers: int, seconds: float) -> Cost:
    """Run one attack against a node of its own."""
    context = multiprocessing.get_context("spawn")
    hear, tell = context.Pipe(False)
    node = context.Process(target=trio.run, args=(serve, tell), daemon=True)
    node.start()
    address, page = hear.recv()
    os.environ[_PAGE_VARIABLE] = page.rpartition(":")[2].partition("/")[0]
    process = psutil.Process(node.pid)
    counts = [peers // 2, peers - peers // 2] if peers > 1 else [1]
    hear, tell = context.Pipe(False)
    together = context.Barrier(len(counts) + 2)
    helpers = [context.Process(target=honest, args=(address, seconds, together, tell), daemon=True)]
    for count in counts:
        arguments = ([name], address, count, seconds, together)
        helpers.append(context.Process(target=attack_many, args=arguments, daemon=True))
    for helper in helpers:
        helper.start()
    time.sleep(1.0)
    memory, handles = process.memory_info().rss, process.num_fds()
    used, before = sum(process.cpu_times()[:2]), process.io_counters()
    together.wait()
    begun = time.monotonic()
    end = begun + seconds
    most, most_handles = memory, handles
    while time.monotonic() < end and node.is_alive():
        most = max(most, process.memory_info().rss)
        most_handles = max(most_handles, process.num_fds())
        time.sleep(0.05)
    spent = sum(process.cpu_times()[:2]) - used
    took = time.monotonic() - begun
    after = process.io_counters()
    waits = hear.recv()
    for helper in helpers:
        helper.join(20)
        helper.kill()
    time.sleep(5.0)
    left = process.memory_info().rss
    node.kill()
    node.join()
    answered = sorted(wait for wait in waits if wait >= 0.0) or [float("inf")]
    return Cost(
        attack=name,
        peers=peers,
        memory_mib=round((most - memory) / 2**20, 1),
        left_mib=round((left - memory) / 2**20, 1),
        handles=most_handles - handles,
        processor=round(spent / took, 2),
        disk_mib=round((after.write_bytes - before.write_bytes) / 2**20, 1),
        echo_median_ms=round(1e3 * answered[len(answered) // 2], 1),
        echo_longest_ms=round(1e3 * answered[-1], 1),
        echoes_lost=sum(wait < 0.0 for wait in waits),
    )


def measure_rounds(peers: int, seconds: float) -> Rounds:
    """Let two nodes train in peace and then with all attacks at once on the founder."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder) / "swarm") as swarm:
        swarm.create()
        nodes = swarm.start("founder", "other")
        calm = rounds_in(nodes, seconds)
        status = nodes[0].told()
        assert status.line is not None
        assert status.node.metrics is not None
        os.environ[_TOPIC_VARIABLE] = f"distro/{swarm.manifest.swarm.hex()}"
        os.environ[_PAGE_VARIABLE] = status.node.metrics.rpartition(":")[2].partition("/")[0]
        counts = [peers // 2, peers - peers // 2] if peers > 1 else [1]
        together = context.Barrier(len(counts) + 1)
        address = status.line.addresses[0]
        # One hostile peer does one thing after the other would be too kind: it gossips the worst.
        names = list(ATTACKS) if peers > 1 else ["prunes"]
        helpers = [
            context.Process(
                target=attack_many,
                args=(names, address, count, seconds, together),
                daemon=True,
            )
            for count in counts
        ]
        for helper in helpers:
            helper.start()
        together.wait()
        attacked = rounds_in(nodes, seconds)
        for helper in helpers:
            helper.kill()
            helper.join()
    return Rounds(peers, calm, attacked)


def rounds_in(nodes: list[Node], seconds: float) -> float:
    """Rounds a minute that all of the nodes applied."""
    begun, before = time.monotonic(), min(node.round for node in nodes)
    time.sleep(seconds)
    after, took = min(node.round for node in nodes), time.monotonic() - begun
    return round(60.0 * (after - before) / took, 1)


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description="What strangers can cost a node.")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join((*ATTACKS, ROUNDS)))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--peers", type=int, nargs="*", default=[1, CROWD])
    parser.add_argument("--round-seconds", type=float, default=40.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    unknown = [name for name in options.attacks if name not in {*ATTACKS, ROUNDS}]
    if unknown:
        parser.error(f"no such attack: {', '.join(unknown)}")
    result: dict[str, Any] = {"costs": {}, "rounds": {}}
    if options.json and options.json.exists():
        # What is measured anew takes the place of what is there.
        result = json.loads(options.json.read_text())
    costs = result["costs"]
    print(f"{'attack':<14}{'peers':>6}{'MiB':>8}{'left':>7}{'handles':>9}{'core':>6}", end="")
    print(f"{'disk':>6}{'echo ms':>9}{'longest':>9}{'lost':>6}")
    for name in options.attacks or (*ATTACKS, ROUNDS):
        for peers in options.peers:
            if name == ROUNDS:
                found = measure_rounds(peers, options.round_seconds)
                result["rounds"][str(peers)] = asdict(found)
                print(found, flush=True)
                continue
            cost = measure(name, peers, options.seconds)
            costs.setdefault(name, {})[str(peers)] = asdict(cost)
            print(
                f"{cost.attack:<14}{cost.peers:>6}{cost.memory_mib:>8}{cost.left_mib:>7}"
                f"{cost.handles:>9}{cost.processor:>6}{cost.disk_mib:>6}"
                f"{cost.echo_median_ms:>9}{cost.echo_longest_ms:>9}{cost.echoes_lost:>6}",
                flush=True,
            )
        result |= {"cores": os.cpu_count(), "load": os.getloadavg(), "seconds": options.seconds}
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
