"""The network between simulated nodes: lines, distances, gossip, downloads, and what goes wrong.

What is modelled, and how plainly:

- Nodes lie in a unit square. The latency between two grows with their distance; every message has some
  jitter on top, so messages overtake each other.
- Gossip goes over a mesh in which each node has about eight neighbours, all of them if there are no
  more. A message takes the quickest path, relayed by the nodes in between, around cut links; each hop
  costs the latency and the time to push the message to half of the neighbours over the line upward.
  Bytes are counted as if every node passed every message on to all neighbours but the one that it
  came from, which is the most that a mesh without control messages sends; those are not modelled.
- Loss and duplication befall the delivery to one node as a whole: relaying mends lost packets, but the
  queues of the implementation drop messages, and that is what has to be survived.
- Downloads and what else is large queue for the uploader's line and for the downloader's; small messages
  do not wait behind them, as they have streams of their own.
- A cut link carries nothing in that direction. Whoever is in `mute` passes nothing on, so that it may
  hear both sides of a cut without being a bridge.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MESH_DEGREE = 8

# What a message weighs on the wire beside its envelope: topic, framing, the relay's own signature.
_GOSSIP_BYTES = 120


@dataclass(frozen=True, kw_only=True)
class Links:
    """What lines the nodes have. Latencies in seconds one way, lines in bytes a second."""

    latency_min: float = 0.02
    latency_max: float = 0.08
    """Between the two corners farthest apart."""
    jitter: float = 0.5
    """A message takes up to so much longer than the latency."""
    up: float = 12.5e6
    down: float = 12.5e6
    spread: float = 0.0
    """A node's line is narrower than these by up to this factor, to the power of e."""


LAN = Links(latency_min=0.0002, latency_max=0.001, up=125e6, down=125e6)
HOME = Links(latency_min=0.01, latency_max=0.12, up=1.25e6, down=12.5e6, spread=0.5)


@dataclass
class Line:
    """One node's connection; `…_free` is when what queues for it is through."""

    x: float
    y: float
    up: float
    down: float
    up_free: float = 0.0
    down_free: float = 0.0


@dataclass(frozen=True)
class Route:
    """The way of a message to one node: seconds, and seconds a byte."""

    target: int
    seconds: float
    per_byte: float


class Network:
    """Who reaches whom, when. Nodes are known by their numbers."""

    def __init__(self, links: Links, chance: random.Random) -> None:
        self.links = links
        self.loss = 0.0
        self.duplication = 0.0
        self.failing = 0.0
        """The share of requests (sync, downloads) that fail."""
        self.messages = 0
        self.gossip_bytes = 0
        self.said_bytes = 0
        self.other_bytes = 0
        """Of answers to sync requests."""
        self.mute: frozenset[int] = frozenset()
        """Who says what it says, and relays nobody."""
        self.update_bytes = 0
        self._chance = chance
        self._lines: dict[int, Line] = {}
        self._present: list[int] = []
        self._cuts: set[tuple[int, int]] = set()
        self._mesh: dict[int, list[int]] | None = None
        self._routes: dict[int, list[Route]] = {}
        self._sends = 0

    # Who is there

    def join(self, node: int) -> None:
        """A node is reachable from now on."""
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
        """A node is gone."""
        if node in self._present:
            self._present.remove(node)
            self._changed()

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Carry nothing from the first to the second of each pair."""
        self._cuts.update(pairs)
        self._changed()

    def mend(self, pairs: Iterable[tuple[int, int]] | None = None) -> None:
        """End these cuts, or all."""
        self._cuts = set() if pairs is None else self._cuts - set(pairs)
        self._changed()

    def reaches(self, source: int, target: int) -> bool:
        """Whether a packet would get through."""
        return (source, target) not in self._cuts and target in self._lines

    def connected(self, one: int, other: int) -> bool:
        """Whether the two can talk to each other directly."""
        return self.reaches(one, other) and self.reaches(other, one)

    # What is sent

    def latency(self, source: int, target: int) -> float:
        """A packet's way, with this packet's jitter."""
        return self._base(source, target) * (1 + self.links.jitter * self._chance.random())

    def gossip(self, sender: int, size: int) -> list[tuple[float, int]]:
        """The deliveries of a message that is published now: (delay, node), the soonest first."""
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
        """The median time of a message from a member to another, over the pairs of some senders."""
        delays = [
            route.seconds * (1 + self.links.jitter / 2) + (size + _GOSSIP_BYTES) * route.per_byte
            for sender in self._present[:40]
            for route in self.routes(sender)
        ]
        return sorted(delays)[len(delays) // 2] if delays else self.links.latency_max

    def routes(self, sender: int) -> list[Route]:
        """The ways of what a node publishes to all that it reaches."""
        if self._mesh is None:
            self._mesh = self._weave()
        if sender not in self._routes:
            self._routes[sender] = self._find_routes(sender, self._mesh)
        return self._routes[sender]

    def fails(self) -> bool:
        """Whether this request fails."""
        return self.failing > 0 and self._chance.random() < self.failing

    def transfer(self, source: int, target: int, size: int, now: float) -> float:
        """Begin a transfer; when it is through. It takes its turn on both lines."""
        up, down = self._lines[source], self._lines[target]
        begin = max(now, up.up_free, down.down_free)
        up.up_free = max(now, up.up_free) + size / up.up
        down.down_free = max(now, down.down_free) + size / down.down
        return begin + size / min(up.up, down.down) + self.latency(source, target)

    def least_busy(self, sources: Sequence[int]) -> int:
        """Of some nodes the one whose line upward is free first."""
        return min(sources, key=lambda node: self._lines[node].up_free)

    # Private

    def _changed(self) -> None:
        self._mesh = None
        self._routes = {}

    def _base(self, source: int, target: int) -> float:
        a, b = self._lines[source], self._lines[target]
        distance = math.hypot(a.x - b.x, a.y - b.y) / math.sqrt(2)
        links = self.links
        return links.latency_min + distance * (links.latency_max - links.latency_min)

    def _weave(self) -> dict[int, list[int]]:
        """A mesh of those present: a ring, so that it hangs together, and random links."""
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
        """Dijkstra's shortest paths over the links that are not cut."""
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
