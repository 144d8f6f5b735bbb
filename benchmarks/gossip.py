"""How often a gossip message is sent: over a tree of fast links, and over all links as the library does.

    python benchmarks/gossip.py [--rounds 8] [--json FILE]

Real nodes on loopback, all in one process; of all pairs the given part is connected. In each round every
node publishes a message of 250 bytes, about as many as a vote and its envelope. Printed, for the rounds
after the first: copies of a message beside the number of its receivers, kB for a message, announcements
included, and the median time until a node has it.
"""

from __future__ import annotations

import random
import statistics
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import trio
import trio.lowlevel
from command_line import new_parser, write_json
from distro_node.crypto.identity import Identity
from distro_node.node.network.network import Network, NetworkSettings, open_network
from distro_node.node.network.pubsub import HardenedPubsub
from distro_node.node.network.push_tree import PushTree

# Number of nodes, and the part of all pairs that are connected.
SWARMS = ((5, 1.0), (12, 0.5), (20, 0.5))
_TOPIC = "/benchmark"
_LOOPBACK = NetworkSettings(listen=("/ip4/127.0.0.1/tcp/0",))
_CONTENT_BYTES = 250
_MESHED_SECONDS = 4.0
_BETWEEN_SECONDS = 0.02
_ROUND_SECONDS = 2.5


@dataclass(frozen=True)
class Figures:
    """What was measured of one swarm."""

    nodes: int
    connected: float
    tree: bool
    copies: float
    kilobytes: float
    seconds: float
    lost: int


@dataclass
class Counts:
    """What all nodes have sent."""

    copies: int = 0
    sent_bytes: int = 0


async def measure(nodes: int, connected: float, rounds: int, *, tree: bool) -> Figures:
    """Run one swarm."""
    counts, chance = Counts(), random.Random(1)
    write = HardenedPubsub.write_msg

    async def counted(self: Any, stream: Any, rpc: Any) -> bool:
        counts.copies += len(rpc.publish)
        counts.sent_bytes += rpc.ByteSize()
        return await write(self, stream, rpc)

    quiet = PushTree.is_quiet if tree else lambda *_: False
    with (
        patch.object(HardenedPubsub, "write_msg", counted),
        patch.object(PushTree, "is_quiet", quiet),
    ):
        async with trio.open_nursery() as nursery:
            async with AsyncExitStack() as stack:
                opened = [
                    await stack.enter_async_context(open_network(_LOOPBACK, _identity(number)))
                    for number in range(nodes)
                ]
                published: dict[bytes, float] = {}
                delays: dict[bytes, list[float]] = {}
                for network in opened:
                    nursery.start_soon(partial(_listen, network, published, delays))
                await trio.lowlevel.checkpoint()
                for one in range(nodes):
                    for other in range(one):
                        if chance.random() < connected:
                            await opened[one].connect(opened[other].addresses[0], timeout=60.0)
                await trio.sleep(_MESHED_SECONDS)
                for number in range(rounds):
                    if number == 1:
                        counts.copies = counts.sent_bytes = 0
                        delays.clear()
                    for network in opened:
                        content = chance.randbytes(_CONTENT_BYTES)
                        published[content] = trio.current_time()
                        await network.publish(_TOPIC, content)
                        await trio.sleep(_BETWEEN_SECONDS)
                    await trio.sleep(_ROUND_SECONDS)
            nursery.cancel_scope.cancel()
    messages = (rounds - 1) * nodes
    all_delays = [delay for each in delays.values() for delay in each]
    return Figures(
        *(nodes, connected, tree, counts.copies / messages, counts.sent_bytes / messages / 1000),
        seconds=statistics.median(all_delays),
        lost=messages * (nodes - 1) - len(all_delays),
    )


def _identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(4, "big") * 8)


async def _listen(
    network: Network, published: dict[bytes, float], delays: dict[bytes, list[float]]
) -> None:
    """Note when each message arrives at a node."""
    receiver = await network.subscribe(_TOPIC, lambda _sender, _data: None)
    async for _, content in receiver:
        delays.setdefault(content, []).append(trio.current_time() - published[content])


def main() -> None:
    """Measure all swarms both ways."""
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    print(
        f"{'nodes':>6}{'connected':>11}{'':>6}{'copies':>8}{'receivers':>11}{'kB':>7}"
        f"{'seconds':>9}{'lost':>6}"
    )
    found: list[Figures] = []
    for nodes, connected in SWARMS:
        for tree in (True, False):
            measured = partial(measure, nodes, connected, options.rounds, tree=tree)
            figures = trio.run(measured)
            found.append(figures)
            print(
                f"{nodes:>6}{connected:>11.0%}{'tree' if tree else 'all':>6}"
                f"{figures.copies:>8.1f}{nodes - 1:>11}{figures.kilobytes:>7.1f}"
                f"{figures.seconds:>9.3f}{figures.lost:>6}",
                flush=True,
            )
    write_json(options.json, [asdict(each) for each in found])


if __name__ == "__main__":
    main()
