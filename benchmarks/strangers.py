"""What strangers can cost a node: memory, handles, processor, and how long honest peers wait meanwhile.

    python benchmarks/strangers.py [ATTACK ...] [--seconds 8] [--json FILE]

A node's network runs in a process of its own, with gossip, introductions, a relay of circuits and a
protocol that echoes. Against it each attack runs with one hostile peer and with fifty, from other
processes, while an honest peer asks for an echo twenty times a second. On loopback, where no line is in
the attackers' way. docs/threats.md has the table.
"""

# ruff: noqa: E402  (the tests' package is found only after the path is set)
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import struct
import sys
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
from distro_node.node.network.discovery.introductions import IntroductionService
from distro_node.node.network.network import NetworkSettings, open_network
from distro_node.protocol.wire.introductions import Registry
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.yamux.yamux import FLAG_SYN, TYPE_DATA, TYPE_PING, YAMUX_HEADER_FORMAT

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
# This folder's `network.py` would be taken for the tests' package.
sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]

from network.hostile import Hostile, hostile
from network.support import ECHO, LOOPBACK, echo

TOPIC = "swarm"
CROWD = 50


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
    echo_median_ms: float
    echo_longest_ms: float
    echoes_lost: int


class Victim:
    """What an attacker knows of the node."""

    def __init__(self, address: str) -> None:
        self.addresses = [address]
        self.peer = address


async def serve(tell: Any) -> None:
    """Be the node."""
    settings = NetworkSettings(listen=LOOPBACK.listen, carry=CircuitLimits())
    async with open_network(settings, Identity.generate()) as network:
        network.serve(ECHO, echo, max_request=1 << 16, max_concurrent=64)
        IntroductionService(network, Registry())
        await network.subscribe(TOPIC, lambda sender, data: None)
        tell.send(network.addresses[0])
        await trio.sleep_forever()


async def silent(address: str, end: float) -> None:
    """Connections that say nothing, renewed when they are closed (60 each)."""
    _, _, host, _, port, *_ = address.split("/")
    async with trio.open_nursery() as nursery:

        async def knock() -> None:
            while time.monotonic() < end:
                with suppress(OSError, trio.BrokenResourceError):
                    stream = await trio.open_tcp_stream(host, int(port))
                    with trio.move_on_after(end - time.monotonic()):
                        await stream.receive_some(1)
                    await stream.aclose()
                await trio.sleep(0.1)

        for _ in range(60):
            nursery.start_soon(knock)


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


Attack = Callable[[Any, float], Awaitable[None]]
BARE: tuple[Attack, ...] = (silent, visitors, idle)
TALKING: tuple[Attack, ...] = (
    unread,
    slow_readers,
    pings,
    prunes,
    subscriptions,
    ihaves,
    forgeries,
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


def attack_many(name: str, address: str, peers: int, seconds: float, together: Any) -> None:
    """Be so many attackers, in a process."""
    together.wait()
    end = time.monotonic() + seconds

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(peers):
                nursery.start_soon(attack_alone, ATTACKS[name], address, end)

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
    address = hear.recv()
    process = psutil.Process(node.pid)
    counts = [peers // 2, peers - peers // 2] if peers > 1 else [1]
    hear, tell = context.Pipe(False)
    together = context.Barrier(len(counts) + 2)
    helpers = [context.Process(target=honest, args=(address, seconds, together, tell), daemon=True)]
    for count in counts:
        arguments = (name, address, count, seconds, together)
        helpers.append(context.Process(target=attack_many, args=arguments, daemon=True))
    for helper in helpers:
        helper.start()
    time.sleep(1.0)
    memory, handles = process.memory_info().rss, process.num_fds()
    used = sum(process.cpu_times()[:2])
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
        echo_median_ms=round(1e3 * answered[len(answered) // 2], 1),
        echo_longest_ms=round(1e3 * answered[-1], 1),
        echoes_lost=sum(wait < 0.0 for wait in waits),
    )


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description="What strangers can cost a node.")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--peers", type=int, nargs="*", default=[1, CROWD])
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    unknown = [name for name in options.attacks if name not in ATTACKS]
    if unknown:
        parser.error(f"no such attack: {', '.join(unknown)}")
    costs: list[Cost] = []
    print(f"{'attack':<14}{'peers':>6}{'MiB':>8}{'left':>7}{'handles':>9}{'core':>6}", end="")
    print(f"{'echo ms':>9}{'longest':>9}{'lost':>6}")
    for name in options.attacks or ATTACKS:
        for peers in options.peers:
            cost = measure(name, peers, options.seconds)
            costs.append(cost)
            print(
                f"{cost.attack:<14}{cost.peers:>6}{cost.memory_mib:>8}{cost.left_mib:>7}"
                f"{cost.handles:>9}{cost.processor:>6}{cost.echo_median_ms:>9}"
                f"{cost.echo_longest_ms:>9}{cost.echoes_lost:>6}",
                flush=True,
            )
    if options.json:
        result = {"cores": os.cpu_count(), "seconds": options.seconds}
        options.json.write_text(
            json.dumps(result | {"costs": [asdict(c) for c in costs]}, indent=1)
        )


if __name__ == "__main__":
    main()
