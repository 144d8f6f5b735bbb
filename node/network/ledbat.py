"""Congestion control for bulk uploads: fill the line without filling the queue before it.

A small LEDBAT (RFC 6817): the sender compares a round trip with the shortest possible one. The
difference is the time that its bytes wait in a router's queue; the sender keeps more bytes in flight
while this delay is below a target, fewer while it is above. So a new update, or a video call, finds the
queue nearly empty, and other traffic has priority. This module uses neither sockets nor clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

TARGET_SECONDS = 0.0125
"""The targeted queue delay. RFC 6817 allows 0.1 s, but fetching an update waits for it several times:
with 25 ms an update of 2.8 MB at 20 Mbit/s took 11 % longer than alone, with this 7 %."""

FEWEST_BYTES = 16 << 10
"""Always allowed, like `SLOWEST_BYTES_PER_SECOND`, so that traffic filling the line cannot lock out a
newcomer."""

SLOWEST_BYTES_PER_SECOND = 64_000
"""A twentieth of a line of 10 Mbit/s."""

MOST_BYTES = 8 << 20
"""More than is ever in flight: the kernel itself accepts less (see `socket_buffers`)."""

# RFC 6817, 2.4.2: cwnd += GAIN * off_target * bytes_newly_acked * MSS / cwnd, at most a packet a round
# trip. On a fast line over a long distance that takes minutes, so here it is an eighth of the window a
# round trip, in either direction. TCP's own window below ours keeps this fair to other traffic.
_GAIN = 1 / 8
# At first, the window doubles with each round trip (2.4.2 leaves slow start open) until the queue delay
# is half of the target: the bytes then in flight still add to the queue.
_START_OFF_TARGET = 0.5
# The part of the window that may be unsent in the kernel: TCP must not run dry before the next check.
_UNSENT_SHARE = 0.25
# A sender that starts while a queue exists takes the queue's delay for the path's own. So all
# connections stop sending from time to time until their bytes have arrived, and restart with a small
# window: the next round trips measure the path without a queue (after the periodic slowdowns of
# LEDBAT++, draft-irtf-iccrg-ledbat-plus-plus). It costs one percent.
_PERIOD_SECONDS = 30.0
_SILENCE_SECONDS = 2 * TARGET_SECONDS
_LONGEST_SILENCE_SECONDS = 1.0
# Small pieces keep a short queue steady.
_PIECES = 8


@dataclass(frozen=True)
class TcpSample:
    """The kernel's TCP state of one connection at one moment; seconds and bytes."""

    now: float
    round_trip: float
    """Smoothed round trip time."""
    deviation: float
    """Mean deviation from the smoothed round trip time."""
    shortest: float
    """The shortest round trip of the last minutes."""
    acknowledged: int
    """Bytes acknowledged since the start of the connection."""
    in_flight: int
    """Bytes sent and not acknowledged yet, as far as is known."""
    unsent: int
    """Bytes that the kernel holds because TCP itself does not send them yet."""


class Window:
    """The bytes that one connection may have in flight, shared by all of its transfers."""

    def __init__(self) -> None:
        self._size = float(FEWEST_BYTES)
        # Double up to this size, then follow the queue.
        self._threshold = float(MOST_BYTES)
        self._acknowledged: int | None = None
        # Whether the window, rather than the data to send, has been the limit.
        self._is_limiting = False
        self._period: int | None = None
        self._silent_since: float | None = None

    @property
    def size(self) -> int:
        """Bytes that may be in flight."""
        return int(self._size)

    @property
    def piece(self) -> int:
        """Bytes to send at once."""
        return self.size // _PIECES

    def pause_learning(self) -> None:
        """Do not learn from the time until the next sample, because other transfers of this node are
        sending."""
        self._acknowledged = None

    def admits(self, size: int, sample: TcpSample) -> bool:
        """Whether `size` more bytes may be handed to the kernel now."""
        self._learn(sample)
        if self._is_silent(sample):
            return False
        admitted = sample.in_flight + sample.unsent + size <= max(size, self._size)
        self._is_limiting |= not admitted
        return admitted

    def _learn(self, sample: TcpSample) -> None:
        before, self._acknowledged = self._acknowledged, sample.acknowledged
        if before is None or before >= sample.acknowledged:
            return
        arrived = sample.acknowledged - before
        # Wireless links delay packets unevenly: that is not a queue.
        jitter = min(sample.deviation, TARGET_SECONDS)
        queue = max(0.0, sample.round_trip - jitter - sample.shortest)
        off_target = 1.0 - queue / TARGET_SECONDS
        # Bytes that TCP does not send yet are a queue as well, our own.
        off_target = max(-1.0, min(off_target, 1.0 - sample.unsent / (_UNSENT_SHARE * self._size)))
        if self._size < self._threshold and off_target < _START_OFF_TARGET:
            self._threshold = self._size
        if self._is_limiting and self._size < self._threshold:
            self._size = min(self._size + arrived, self._threshold)
        elif self._is_limiting or off_target < 0.0:
            self._size += _GAIN * off_target * arrived
        self._is_limiting = False
        fewest = max(FEWEST_BYTES, SLOWEST_BYTES_PER_SECOND * sample.round_trip)
        self._size = min(max(self._size, fewest), MOST_BYTES)

    def _is_silent(self, sample: TcpSample) -> bool:
        # Aligned to the clock, so that all connections pause at the same time.
        period = int(sample.now // _PERIOD_SECONDS)
        if self._period is None:
            self._period = period
        if self._silent_since is None and period != self._period:
            self._period, self._silent_since = period, sample.now
            self._threshold, self._size = self._size, float(FEWEST_BYTES)
        if self._silent_since is None:
            return False
        silent = sample.now - self._silent_since
        if silent < _SILENCE_SECONDS or (sample.in_flight and silent < _LONGEST_SILENCE_SECONDS):
            return True
        self._silent_since = None
        return False
