"""Bulk that keeps a queue short: its share of a line, in virtual time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from distro_node.node.network.ledbat import (
    FEWEST_BYTES,
    SLOWEST_BYTES_PER_SECOND,
    TARGET_SECONDS,
    TcpSample,
    Window,
)

TICK = 0.001
LINE = 2_500_000.0
"""Bytes per second: 20 Mbit/s."""
PACKET_BYTES = 1_460


@dataclass
class Sender:
    """A connection over the line; TCP's own window holds it back beyond `allowed` bytes."""

    distance: float
    """The round trip without any queue."""
    window: Window | None
    begins: float = 0.0
    allowed: float = 1e9
    jitter: Callable[[], float] = lambda: 0.0
    written: float = 0.0
    sent: float = 0.0
    arrived: float = 0.0
    round_trip: float = 0.0
    deviation: float = 0.0
    shortest: float = 1e9
    under_way: deque[tuple[float, float, float]] = field(default_factory=deque)
    """When the acknowledgement arrives, the bytes, and the round trip."""

    def receive_acknowledgements(self, now: float) -> None:
        while self.under_way and self.under_way[0][0] <= now:
            _, size, round_trip = self.under_way.popleft()
            self.arrived += size
            # As TCP does (RFC 6298).
            first = self.shortest == 1e9
            difference = abs(round_trip - self.round_trip)
            self.deviation += (difference - self.deviation) / 4 if not first else 0.0
            self.round_trip += (round_trip - self.round_trip) / (1 if first else 8)
            self.shortest = min(self.shortest, round_trip)

    def write(self, now: float) -> None:
        if self.window is None:
            self.written = self.arrived + self.allowed
            return
        # The packet before any transfer, from which TCP knows the round trip.
        self.written = max(self.written, PACKET_BYTES)
        if not self.arrived:
            return
        while True:
            sample = TcpSample(
                now=now,
                round_trip=self.round_trip,
                deviation=self.deviation,
                shortest=self.shortest,
                acknowledged=int(self.arrived),
                in_flight=int(self.sent - self.arrived),
                unsent=int(self.written - self.sent),
            )
            if not self.window.admits(self.window.piece, sample):
                return
            self.written += self.window.piece

    def send(self, line: Line) -> None:
        limit = min(self.written, self.arrived + self.allowed)
        while self.sent < limit:
            size = min(PACKET_BYTES, limit - self.sent)
            self.sent += size
            line.queue += size
            round_trip = self.distance + line.queue / LINE + self.jitter()
            # A later acknowledgement covers everything before it.
            last = self.under_way[-1][0] if self.under_way else 0.0
            self.under_way.append((max(last, line.now + round_trip), size, round_trip))


class Line:
    """A queue that is emptied at `LINE`, and the senders that fill it."""

    def __init__(self, *senders: Sender) -> None:
        self.senders = senders
        self.now = 0.0
        self.queue = 0.0

    def run(self, seconds: float) -> list[float]:
        """Return the queue, in seconds, at each tick."""
        seen = []
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            self.queue = max(0.0, self.queue - LINE * TICK)
            for sender in self.senders:
                if self.now < sender.begins:
                    continue
                sender.receive_acknowledgements(self.now)
                sender.write(self.now)
                sender.send(self)
            seen.append(self.queue / LINE)
        return seen


@pytest.mark.parametrize("distance", [0.001, 0.02, 0.15])
def test_an_idle_line_is_filled_and_its_queue_is_short(distance: float) -> None:
    sender = Sender(distance, Window())
    line = Line(sender)
    line.run(5.0)
    before = sender.arrived
    queue = line.run(20.0)
    assert sender.arrived - before > 0.97 * 20.0 * LINE
    # Over a long distance it oscillates: the effect of a step is known a round trip later.
    assert max(queue) < 0.05
    assert sum(queue) / len(queue) < 0.03


def test_others_go_first_but_not_alone() -> None:
    sender = Sender(0.02, Window())
    # As many bytes in flight as make a queue of 0.2 s, whatever we do.
    other = Sender(0.02, None, begins=10.0, allowed=0.22 * LINE)
    line = Line(sender, other)
    line.run(15.0)
    before = sender.arrived
    line.run(10.0)
    assert 0.5 * SLOWEST_BYTES_PER_SECOND < (sender.arrived - before) / 10.0 < 0.1 * LINE
    # And the line is used again when they end.
    line.senders = (sender,)
    line.run(3.0)
    before = sender.arrived
    line.run(2.0)
    assert sender.arrived - before > 0.9 * 2.0 * LINE


def test_several_newcomers_make_no_longer_queue_than_one() -> None:
    senders = [Sender(distance, Window()) for distance in (0.01, 0.01, 0.05, 0.15)]
    line = Line(*senders)
    line.run(10.0)
    before = [sender.arrived for sender in senders]
    queue = line.run(15.0)
    got = [sender.arrived - begun for sender, begun in zip(senders, before, strict=True)]
    assert sum(got) > 0.97 * 15.0 * LINE
    assert min(got) > 0.5 * SLOWEST_BYTES_PER_SECOND * 15.0
    assert sum(queue) / len(queue) < 1.5 * TARGET_SECONDS


def test_who_came_to_a_full_line_learns_how_far_it_is() -> None:
    """At first it mistakes the existing queue for distance, and adds one of its own."""
    first, second = Sender(0.01, Window()), Sender(0.01, Window(), begins=10.0)
    line = Line(first, second)
    line.run(12.0)
    assert second.shortest > 0.015
    line.run(30.0)
    assert second.shortest == pytest.approx(0.01, abs=0.005)
    before = first.arrived
    queue = line.run(10.0)
    assert sum(queue) / len(queue) < 1.3 * TARGET_SECONDS
    assert first.arrived - before > 0.1 * 10.0 * LINE


def test_the_jitter_of_a_wireless_line_is_no_queue() -> None:
    chance = random.Random(1)
    sender = Sender(0.005, Window(), jitter=lambda: chance.uniform(0.0, 0.03))
    line = Line(sender)
    line.run(5.0)
    before = sender.arrived
    line.run(10.0)
    assert sender.arrived - before > 0.8 * 10.0 * LINE


def test_what_tcp_holds_back_is_not_piled_up_in_the_kernel() -> None:
    """Over a long and lossy path TCP sends little, and no queue shows what waits for it."""
    sender = Sender(0.15, Window(), allowed=100_000.0)
    line = Line(sender)
    line.run(20.0)
    before = sender.arrived
    line.run(10.0)
    assert sender.arrived - before > 0.9 * 10.0 * 100_000.0 / 0.15
    assert sender.written - sender.sent < 50_000.0


def test_what_others_of_ours_send_meanwhile_is_not_learned_from() -> None:
    window = Window()

    def sample(arrived: int, round_trip: float) -> TcpSample:
        return TcpSample(
            now=1.0,
            round_trip=round_trip,
            deviation=0.0,
            shortest=0.01,
            acknowledged=arrived,
            in_flight=1 << 30,
            unsent=0,
        )

    arrived = 0
    while window.size < 100_000:
        arrived += 10_000
        assert not window.admits(1, sample(arrived, 0.01))
    before = window.size
    window.pause_learning()
    window.admits(1, sample(arrived + 1_000_000, 0.2))
    assert window.size == before
    window.admits(1, sample(arrived + 2_000_000, 0.2))
    assert window.size < before


def test_the_least_is_always_let_through() -> None:
    window = Window()
    full = TcpSample(
        now=1.0,
        round_trip=2.0,
        deviation=0.0,
        shortest=0.01,
        acknowledged=1,
        in_flight=0,
        unsent=0,
    )
    assert window.size == FEWEST_BYTES
    assert window.admits(10 * FEWEST_BYTES, full)
