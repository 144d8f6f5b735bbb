"""The network between simulated nodes: lines, distances, gossip, downloads, and faults.

The model, and its simplifications:

- Nodes are points in a unit square. The latency between two grows with their distance; every message has
  some additional jitter, so messages overtake each other.
- Gossip goes over a mesh in which each node has about eight neighbours, or all others if there are
  fewer. A message takes the fastest path, relayed by the nodes in between, around cut links; each hop
  costs the latency and the time to send the message to half of the neighbours over the upload line.
  Bytes are counted as if every node forwarded every message to all neighbours except the one that it
  came from, which is the maximum for a mesh without control messages; those are not modelled.
- Loss and duplication affect the delivery to one node as a whole: relaying makes up for lost packets,
  but the queues of the implementation drop messages, and the protocol has to survive that.
- Downloads and other large transfers queue for the uploader's and the downloader's line; small messages
  do not wait behind them, because they have streams of their own.
- A cut link carries nothing in that direction. Nodes in `mute` relay nothing, so they may receive from
  both sides of a cut without being a bridge.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MESH_DEGREE = 8

# Bytes on the wire in addition to the envelope: topic, framing, the relay's own signature.
_GOSSIP_BYTES = 120


@dataclass(frozen=True, kw_only=True)
class Links:
    """The nodes' lines. Latencies in seconds one way, lines in bytes per second."""

    latency_min: float = 0.02
    latency_max: float = 0.08
    """Between the two corners farthest apart."""
    jitter: float = 0.5
    """Maximum extra time of a message, relative to the latency."""
    up: float = 12.5e6
    down: float = 12.5e6
    spread: float = 0.0
    """A node's line is slower than these by up to e to the power of this."""


LAN = Links(latency_min=0.0002, latency_max=0.001, up=125e6, down=125e6)
HOME = Links(latency_min=0.01, latency_max=0.12, up=1.25e6, down=12.5e6, spread=0.5)


@dataclass
class Line:
    """One node's connection; `…_free` is when its queue will be empty."""

    x: float
    y: float
    up: float
    down: float
    up_free: float = 0.0
    down_free: float = 0.0


@dataclass(frozen=True)
class Route:
    """The path of a message to one node: seconds, and seconds per byte."""

    target: int
    seconds: float
    per_byte: float


class Network:
    """Connectivity and delays. Nodes are identified by their numbers."""

    def __init__(self, links: Links, chance: random.Random) -> None:
        self.links = links
        self.loss = 0.0
        self.duplication = 0.0
        self.failing = 0.0
        """Fraction of requests (sync, downloads) that fail."""
        self.messages = 0
        self.gossip_bytes = 0
        self.said_bytes = 0
        self.other_bytes = 0
        """Bytes of answers to sync requests."""
        self.mute: frozenset[int] = frozenset()
        """Nodes that send their own messages and relay none."""
        self.update_bytes = 0
        self._chance = chance
        self._lines: dict[int, Line] = {}
        self._present: list[int] = []
        self._cuts: set[tuple[int, int]] = set()
        self._mesh: dict[int, list[int]] | None = None
        self._routes: dict[int, list[Route]] = {}
        self._sends = 0

    # Presence

    def join(self, node: int) -> None:
        """Make a node reachable from now on."""
        if node not in self._lines:
            narrow = [math.exp(-self.links.spread * self._chance.random()) for _ in range(2)]
            self._lines[node] = Line(
                self._chance.random(),
                self._chance.random(),
                self.links.up * narrow[0],
                self.links.down * narrow[1],
            )
        if node not in self._present:
            self._present.append(node)
            self._changed()

    def part(self, node: int) -> None:
        """Remove a node."""
        if node in self._present:
            self._present.remove(node)
            self._changed()

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Cut the link from the first to the second of each pair."""
        self._cuts.update(pairs)
        self._changed()

    def mend(self, pairs: Iterable[tuple[int, int]] | None = None) -> None:
        """End these cuts, or all."""
        self._cuts = set() if pairs is None else self._cuts - set(pairs)
        self._changed()

    def reaches(self, source: int, target: int) -> bool:
        """Whether a packet would arrive."""
        return (source, target) not in self._cuts and target in self._lines

    def connected(self, one: int, other: int) -> bool:
        """Whether the two can talk to each other directly."""
        return self.reaches(one, other) and self.reaches(other, one)

    # Transmission

    def latency(self, source: int, target: int) -> float:
        """Return a packet's latency, with this packet's jitter."""
        return self._base(source, target) * (1 + self.links.jitter * self._chance.random())

    def gossip(self, sender: int, size: int) -> list[tuple[float, int]]:
        """Return the deliveries of a message published now: (delay, node), the soonest first."""
        routes = self.routes(sender)
        chance, jitter, loss = self._chance.random, self.links.jitter, self.loss
        size += _GOSSIP_BYTES
        self.messages += 1
        self.said_bytes += size
        self.gossip_bytes += size * self._sends
        if loss or self.duplication:
            routes = [
                route
                for route in routes
                for _ in range((chance() >= loss) * (1 + (chance() < self.duplication)))
            ]
        return sorted(
            [
                (route.seconds * (1 + jitter * chance()) + size * route.per_byte, route.target)
                for route in routes
            ]
        )

    def typical_delay(self, size: int) -> float:
        """Return the median delay of a message between members, over the pairs of some senders."""
        delays = [
            route.seconds * (1 + self.links.jitter / 2) + (size + _GOSSIP_BYTES) * route.per_byte
            for sender in self._present[:40]
            for route in self.routes(sender)
        ]
        return sorted(delays)[len(delays) // 2] if delays else self.links.latency_max

    def routes(self, sender: int) -> list[Route]:
        """Return the paths of a node's messages to all nodes that it reaches."""
        if self._mesh is None:
            self._mesh = self._weave()
        if sender not in self._routes:
            self._routes[sender] = self._find_routes(sender, self._mesh)
        return self._routes[sender]

    def fails(self) -> bool:
        """Whether this request fails."""
        return self.failing > 0 and self._chance.random() < self.failing

    def transfer(self, source: int, target: int, size: int, now: float) -> float:
        """Start a transfer, which queues on both lines, and return when it will be complete."""
        up, down = self._lines[source], self._lines[target]
        begin = max(now, up.up_free, down.down_free)
        up.up_free = max(now, up.up_free) + size / up.up
        down.down_free = max(now, down.down_free) + size / down.down
        return begin + size / min(up.up, down.down) + self.latency(source, target)

    def least_busy(self, sources: Sequence[int]) -> int:
        """Return the node whose upload line is free first."""
        return min(sources, key=lambda node: self._lines[node].up_free)

    # Private helpers

    def _changed(self) -> None:
        self._mesh = None
        self._routes = {}

    def _base(self, source: int, target: int) -> float:
        a, b = self._lines[source], self._lines[target]
        distance = math.hypot(a.x - b.x, a.y - b.y) / math.sqrt(2)
        links = self.links
        return links.latency_min + distance * (links.latency_max - links.latency_min)

    def _weave(self) -> dict[int, list[int]]:
        """Return a mesh of the nodes present: a ring, which keeps it connected, and random links."""
        nodes = list(self._present)
        if len(nodes) <= MESH_DEGREE + 1:
            mesh = {node: [other for other in nodes if other != node] for node in nodes}
        else:
            self._chance.shuffle(nodes)
            links = {tuple(sorted(pair)) for pair in zip(nodes, nodes[1:] + nodes[:1], strict=True)}
            while len(links) < len(nodes) * MESH_DEGREE // 2:
                links.add(tuple(sorted(self._chance.sample(nodes, 2))))
            mesh = {node: [] for node in nodes}
            for one, other in sorted(links):
                mesh[one].append(other)
                mesh[other].append(one)
        self._sends = sum(map(len, mesh.values())) - len(nodes) + 1
        return mesh

    def _find_routes(self, sender: int, mesh: dict[int, list[int]]) -> list[Route]:
        """Find the shortest paths over the links that are not cut, by Dijkstra's algorithm."""
        found: dict[int, Route] = {}
        queue = [(0.0, sender, 0.0)]
        while queue:
            seconds, node, per_byte = heapq.heappop(queue)
            if node in found:
                continue
            found[node] = Route(node, seconds, per_byte)
            neighbours = mesh.get(node, []) if node == sender or node not in self.mute else []
            push = max(1.0, len(neighbours) / 2) / self._lines[node].up
            for other in neighbours:
                if other not in found and self.reaches(node, other):
                    step = push + 1 / self._lines[other].down
                    heapq.heappush(
                        queue, (seconds + self._base(node, other), other, per_byte + step)
                    )
        del found[sender]
        return list(found.values())
