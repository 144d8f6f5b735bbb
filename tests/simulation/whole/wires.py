"""The lines between simulated processes: connections that break, streams on them, and time.

The model, and its simplifications:

- A connection is one ordered flow of bytes each way, like TCP. A piece leaves when the sender's line is
  free, takes the latency of the two ends with some jitter, and never overtakes an earlier one. If the
  receiver's line is slower, it waits there. A writer waits until its piece has left. Windows are
  unlimited.
- Over a cut link nothing arrives; what was sent arrives once it is mended. After `SILENT_SECONDS` both
  ends notice, and the connection breaks.
- A process that dies loses its connections: the others get a reset at once from its kernel, or notice
  after `SILENT_SECONDS` if the whole machine went dark.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio
from distro_node.node.network.addresses import id_of
from distro_node.node.network.liveness import SILENT_SECONDS
from libp2p.network.stream.exceptions import StreamClosed, StreamReset

if TYPE_CHECKING:
    from simulation.whole.network import SimulatedNetwork

# The kernel of a dead process resets its connections.
_RESET_SECONDS = 0.02
# Headers of frames, muxer and encryption.
_OVERHEAD_BYTES = 60
# A connection takes three round trips: TCP, encryption, muxer.
_HANDSHAKES = 3


@dataclass
class Line:
    """The line of one machine."""

    latency: float = 0.02
    """Seconds to the middle of the network."""
    up: float = 1.25e6
    """Bytes per second."""
    down: float = math.inf
    """Bytes per second."""
    free: float = 0.0
    """When its send queue will be empty."""
    full: float = 0.0
    """When everything on its way here will have arrived."""


class Wires:
    """All lines. `run` must be running."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"wires {seed}")
        self.lines: dict[int, Line] = {}
        self.nodes: dict[str, SimulatedNetwork] = {}
        """The listening networks, by address."""
        self.loss = 0.0
        """Fraction of gossip messages that are lost on each hop."""
        self.messages = itertools.count()
        """Numbers for gossip messages."""
        self._cut: dict[tuple[int, int], int] = {}
        self._held: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._links: list[Link] = []
        self._due: list[tuple[float, int, Context, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._news = trio.Event()

    async def run(self) -> None:
        """Run the events that are due, for ever."""
        while True:
            self._news = trio.Event()
            with trio.move_on_at(self._due[0][0] if self._due else float("inf")):
                await self._news.wait()
            while self._due and self._due[0][0] <= trio.current_time():
                _, _, context, act = heapq.heappop(self._due)
                context.run(act)
                # Otherwise the last event would keep its objects alive.
                del context, act

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Schedule an event at a time."""
        earliest = self._due[0][0] if self._due else float("inf")
        heapq.heappush(self._due, (time, next(self._numbers), copy_context(), act))
        if time < earliest:
            self._news.set()

    def line(self, index: int) -> Line:
        """Return the line of a machine, the same for all processes that run on it."""
        return self.lines.setdefault(index, Line())

    def delay(self, one: int, other: int) -> float:
        """Draw how long a message takes from one machine to another."""
        seconds = self.line(one).latency + self.line(other).latency
        return seconds * (1.0 + 0.5 * self.chance.random())

    # Cuts

    def is_cut(self, one: int, other: int) -> bool:
        """Whether nothing arrives at `other` from `one`."""
        return self._cut.get((one, other), 0) > 0

    def cut(self, pairs: list[tuple[int, int]]) -> None:
        """Cut the link from the first of each pair to the second."""
        for pair in pairs:
            self._cut[pair] = self._cut.get(pair, 0) + 1
        for link in list(self._links):
            one, other = (end.home.index for end in link.ends)
            if (one, other) in pairs or (other, one) in pairs:
                self.at(trio.current_time() + SILENT_SECONDS, lambda link=link: self._give_up(link))

    def mend(self, pairs: list[tuple[int, int]]) -> None:
        """Undo a cut; what was sent meanwhile arrives."""
        for pair in pairs:
            self._cut[pair] -= 1
            if not self._cut[pair]:
                for act in self._held.pop(pair, []):
                    self.at(trio.current_time() + self.delay(*pair), act)

    def _give_up(self, link: Link) -> None:
        one, other = (end.home.index for end in link.ends)
        if self.is_cut(one, other) or self.is_cut(other, one):
            link.break_off()

    # Connections

    def carry(self, one: int, other: int, size: int, last: float, act: Callable[[], None]) -> float:
        """Send a piece that must not overtake what arrives at `last`; return when it arrives.

        Over a cut link it waits for the end of the cut.
        """
        line, now = self.line(one), trio.current_time()
        line.free = max(line.free, now) + (size + _OVERHEAD_BYTES) / line.up
        arrival = max(last + 1e-6, line.free + self.delay(one, other))
        there = self.line(other)
        if there.down < math.inf:
            there.full = max(there.full, arrival) + (size + _OVERHEAD_BYTES) / there.down
            arrival = there.full

        def arrive() -> None:
            if self.is_cut(one, other):
                self._held.setdefault((one, other), []).append(act)
            else:
                act()

        self.at(arrival, arrive)
        return arrival

    async def connect(self, caller: SimulatedNetwork, address: str) -> Link:
        """Connect to the network at an address. Raises `OSError`; over a cut it takes for ever."""
        there = self.nodes.get(address)
        for _ in range(_HANDSHAKES):
            if there is None:
                await trio.sleep(_RESET_SECONDS)
                raise ConnectionRefusedError(address)
            if self.is_cut(caller.index, there.index) or self.is_cut(there.index, caller.index):
                await trio.sleep_forever()
            await trio.sleep(2 * self.delay(caller.index, there.index))
            there = self.nodes.get(address)
        if there is None or not caller.is_open:
            raise ConnectionResetError(address)
        link = Link(self, caller, there)
        self._links.append(link)
        for end in link.ends:
            end.home.arrived(end)
        return link

    def gone(self, link: Link) -> None:
        """Note that a connection has ended."""
        if link in self._links:
            self._links.remove(link)

    def vanish(self, network: SimulatedNetwork, *, dark: bool) -> None:
        """Break the connections of a dead process, sooner or later."""
        self.nodes = {a: n for a, n in self.nodes.items() if n is not network}
        for link in list(self._links):
            if any(end.home is network for end in link.ends):
                after = SILENT_SECONDS if dark else _RESET_SECONDS
                self.at(trio.current_time() + after, link.break_off)


class Link:
    """One connection."""

    def __init__(self, wires: Wires, caller: SimulatedNetwork, called: SimulatedNetwork) -> None:
        self.wires = wires
        self.ends = (End(self, caller), End(self, called))
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]
        self.ends[0].dialled = True

    def break_off(self) -> None:
        """End it for both sides."""
        self.wires.gone(self)
        for end in self.ends:
            end.shut()


class End:
    """One end of a connection, which replaces the library's muxer."""

    other: End

    def __init__(self, link: Link, home: SimulatedNetwork) -> None:
        self.link = link
        self.home = home
        self.dialled = False
        self.event_shutting_down = trio.Event()
        # By stream, as in the library: set when something has arrived and is still to be read.
        self.stream_events: dict[int, trio.Event] = {}
        self.stream_buffers: dict[int, bytearray] = {}
        self.streams: dict[int, Stream] = {}
        self.last = 0.0
        """When the last piece that was sent from here arrives."""
        self.sent = self.received = 0

    @property
    def peer_id(self) -> Any:
        """The peer at the other end."""
        return id_of(self.other.home.peer)

    def send(self, size: int, act: Callable[[], None]) -> None:
        """Send a piece; call `act` when it arrives, if the connection is still open."""
        one, other = self.home.index, self.other.home.index
        self.sent += size

        def arrive() -> None:
            self.other.received += size
            if not self.other.event_shutting_down.is_set():
                act()

        self.last = self.link.wires.carry(one, other, size, self.last, arrive)

    def shut(self) -> None:
        """Note that the connection has ended."""
        if not self.event_shutting_down.is_set():
            self.event_shutting_down.set()
            for stream in list(self.streams.values()):
                stream.break_off()
            self.home.departed(self)

    def hear(self, number: int) -> None:
        """Wake the reader of a stream."""
        event = self.stream_events.get(number)
        if event is not None:
            event.set()


class Stream:
    """One end of a stream; it replaces both the library's stream and its muxed stream."""

    def __init__(self, end: End, number: int) -> None:
        self.conn = self.muxed_conn = end
        self.muxed_stream = self
        self.stream_id = number
        self.reset_received = False
        self._broken = False
        self._read_ended = self._write_ended = False
        end.streams[number] = self
        end.stream_events[number] = trio.Event()
        self._buffer = end.stream_buffers[number] = bytearray()

    @property
    def closed(self) -> bool:
        """Whether both sides have ended it, or one has reset it."""
        return self._broken or (self._read_ended and self._write_ended)

    def set_protocol(self, protocol: str) -> None:
        """Do nothing: nobody asks."""

    async def read(self, count: int) -> bytes:
        """Return at most `count` bytes, none at the end."""
        while not self._buffer or self._broken:
            if self._broken:
                raise StreamReset
            if self._read_ended:
                return b""
            event = self.conn.stream_events[self.stream_id]
            if event.is_set():
                self.conn.stream_events[self.stream_id] = event = trio.Event()
            await event.wait()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes; return when they have left."""
        if self._broken:
            raise StreamReset
        if self._write_ended:
            raise StreamClosed
        there = self.conn.other

        def arrive() -> None:
            buffer = there.stream_buffers.get(self.stream_id)
            if buffer is not None:
                buffer += data
                there.hear(self.stream_id)

        self.conn.send(len(data), arrive)
        await trio.sleep_until(self.conn.home.wires.line(self.conn.home.index).free)
        if self._broken:
            raise StreamReset

    async def close_write(self) -> None:
        """End our direction."""
        await trio.lowlevel.checkpoint()
        if not self._write_ended and not self._broken:
            self._write_ended = True
            self.conn.send(12, lambda: self._tell(Stream.ended))
            self._forget_if_closed()

    close = close_write

    async def reset(self) -> None:
        """Reset the stream."""
        if not self.closed:
            self.conn.send(12, lambda: self._tell(Stream.was_reset))
        self.break_off()

    def break_off(self) -> None:
        """Drop the stream on this side."""
        self._broken = True
        self._forget_if_closed()

    def _tell(self, what: Callable[[Stream], None]) -> None:
        there = self.conn.other.streams.get(self.stream_id)
        if there is not None:
            what(there)

    def ended(self) -> None:
        """Note that the other side has ended its direction."""
        self._read_ended = True
        self.conn.hear(self.stream_id)
        self._forget_if_closed()

    def was_reset(self) -> None:
        """Note that the other side has reset it."""
        self.reset_received = True
        self.break_off()

    def _forget_if_closed(self) -> None:
        if self.closed and self.conn.streams.pop(self.stream_id, None) is not None:
            del self.conn.stream_buffers[self.stream_id]
            self.conn.stream_events.pop(self.stream_id).set()
