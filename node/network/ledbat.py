"""How much bulk may be on its way at once, so that it fills a line but not the queue before it.

A small LEDBAT (RFC 6817): a sender watches how much longer a round trip takes than it could. That is the
time that its bytes wait in the queue of some router; the sender has more of them under way while it is
below a target, fewer while it is above. So a new update, or a video call, finds the queue nearly empty,
and other traffic goes first. Nothing here knows sockets or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

TARGET_SECONDS = 0.0125
"""The queue that is aimed at. RFC 6817 allows 0.1 s, but whoever fetches an update waits for it several
times: with 25 ms an update of 2.8 MB at 20 Mbit/s took 11 % longer than alone, with this 7 %."""

FEWEST_BYTES = 16 << 10
"""Always allowed, like `SLOWEST_BYTES_PER_SECOND`: others who fill the line shut no newcomer out."""

SLOWEST_BYTES_PER_SECOND = 64_000
"""A twentieth of a line of 10 Mbit/s."""

MOST_BYTES = 8 << 20
"""More than is ever under way: the kernel itself takes less (see `queues`)."""

# RFC 6817, 2.4.2: cwnd += GAIN * off_target * bytes_newly_acked * MSS / cwnd, at most a packet a round
# trip. On a fast line to a far place that takes minutes; so here it is an eighth of the window a round
# trip, either way. TCP's own window below ours is what keeps the peace with other traffic.
_GAIN = 1 / 8
# At first, the window doubles with each round trip (2.4.2 leaves slow start open) until half of the
# target is reached: the bytes under way by then still add to the queue.
_START_WISH = 0.5
# The part of the window that may lie in the kernel unsent: TCP shall not run dry before we look again.
_UNSENT_SHARE = 0.25
# A sender that begins while a queue stands takes it for distance. So all connections fall silent now and
# then until their bytes have arrived, and begin again with little: the next round trips show how far it
# is (after the periodic slowdowns of LEDBAT++, draft-irtf-iccrg-ledbat-plus-plus). It takes a
# hundredth.
_PERIOD_SECONDS = 30.0
_SILENCE_SECONDS = 2 * TARGET_SECONDS
_LONGEST_SILENCE_SECONDS = 1.0
# Small steps, so that a short queue is a steady one.
_PIECES = 8


@dataclass(frozen=True)
class Sample:
    """What TCP knows of one connection at some moment; seconds and bytes."""

    now: float
    round_trip: float
    """Smoothed."""
    deviation: float
    """The mean by which round trips differ from the smoothed one."""
    shortest: float
    """The shortest round trip of the last minutes."""
    acknowledged: int
    """How many bytes have arrived since the connection began."""
    in_flight: int
    """How many were sent and have not arrived, as far as is known."""
    unsent: int
    """How many the kernel holds because TCP itself does not let them go yet."""


class Window:
    """How many bytes one connection may have under way; all of its transfers share it."""

    def __init__(self) -> None:
        self._size = float(FEWEST_BYTES)
        # Double up to here; afterwards follow the queue.
        self._threshold = float(MOST_BYTES)
        self._acknowledged: int | None = None
        # Whether the window, rather than what there was to send, has been the limit.
        self._refused = False
        self._period: int | None = None
        self._silent_since: float | None = None

    @property
    def size(self) -> int:
        """How many bytes may be under way."""
        return int(self._size)

    @property
    def piece(self) -> int:
        """How many bytes should be sent at once."""
        return self.size // _PIECES

    def rest(self) -> None:
        """Learn nothing from what happens until the next sample: others of us send meanwhile."""
        self._acknowledged = None

    def admits(self, size: int, sample: Sample) -> bool:
        """Whether so many bytes more may be handed to the kernel now."""
        self._learn(sample)
        if self._is_silent(sample):
            return False
        admitted = sample.in_flight + sample.unsent + size <= max(size, self._size)
        self._refused |= not admitted
        return admitted

    def _learn(self, sample: Sample) -> None:
        before, self._acknowledged = self._acknowledged, sample.acknowledged
        if before is None or before >= sample.acknowledged:
            return
        arrived = sample.acknowledged - before
        # Wireless lines delay every packet a little differently: that is no queue.
        jitter = min(sample.deviation, TARGET_SECONDS)
        queue = max(0.0, sample.round_trip - jitter - sample.shortest)
        wish = 1.0 - queue / TARGET_SECONDS
        # What TCP does not let go is a queue too, if one of our own.
        wish = max(-1.0, min(wish, 1.0 - sample.unsent / (_UNSENT_SHARE * self._size)))
        if self._size < self._threshold and wish < _START_WISH:
            self._threshold = self._size
        if self._refused and self._size < self._threshold:
            self._size = min(self._size + arrived, self._threshold)
        elif self._refused or wish < 0.0:
            self._size += _GAIN * wish * arrived
        self._refused = False
        fewest = max(FEWEST_BYTES, SLOWEST_BYTES_PER_SECOND * sample.round_trip)
        self._size = min(max(self._size, fewest), MOST_BYTES)

    def _is_silent(self, sample: Sample) -> bool:
        # By the clock, so that all connections do it at the same time.
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
