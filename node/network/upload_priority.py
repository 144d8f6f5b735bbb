"""Two priorities for uploads over one internet connection: traffic that a round waits for, and traffic
that can wait.

While a member sends its update, newcomers get a fiftieth of the upload; between updates they get all of
it, but keep the queue before the line short (see `ledbat`), so that the next update does not wait long
behind their bytes. With an upload of 20 Mbit/s an update then takes 7 % longer than alone
(benchmarks/results).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import trio

from .ledbat import Window
from .rate_limits import Rate
from .socket_buffers import Gauge, gauge

# The newcomers' share of the upload while a round's bytes are sent. This share, and the queue that an
# update finds, delay the update; both together may take a twentieth of its time.
_BULK_SHARE = 0.02
# An urgent transfer that has stalled for this long (the other end has frozen) does not count.
_STANDSTILL_SECONDS = 1.0
# At 10 Mbit/s the kernel has sent the rest of a finished transfer in this time. If it has not, the other
# end reads slowly and our line is free. The tail also never counts for longer than the transfer itself
# took.
_LONGEST_TAIL_SECONDS = 0.5
# The other end gives up after ten seconds of silence, and four transfers may be waiting for their turn.
_LONGEST_WAIT_SECONDS = 2.0
# Small pieces keep a small share steady.
_BULK_PIECE_BYTES = 8 << 10
_MAX_BULK_BUDGET = 8 * _BULK_PIECE_BYTES
# How often to check for room on the line: this many times per round trip, within these bounds in
# seconds. The lower bound costs little CPU time, the upper one is below the targeted queue delay.
_CHECKS_PER_ROUND_TRIP = 8
_CHECK_INTERVAL_SECONDS = (0.002, 0.01)


class UploadPriorities:
    """The priorities of one line with the limit `rate`."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._urgent = 0
        # When an urgent transfer last sent something.
        self._last_urgent = float("-inf")
        # Bytes that the bulk priority may send while the urgent one is active.
        self._bulk_budget = 0.0
        # Set, and replaced, when an urgent transfer sends something or ends.
        self._changed = trio.Event()
        self._bulk: WeakKeyDictionary[Any, _Bulk] = WeakKeyDictionary()
        self._tails: list[_Tail] = []

    def bulk(self, connection: Any) -> Priority:
        """Return the priority for traffic that can wait, over the muxer `connection`."""
        if connection not in self._bulk:
            self._bulk[connection] = _Bulk(self, gauge(connection))
        return self._bulk[connection]

    @contextmanager
    def urgent(self, connection: Any) -> Iterator[Priority]:
        """Yield a priority for one transfer that a round waits for, over a muxer."""
        self._urgent += 1
        began = self._last_urgent = trio.current_time()
        try:
            yield _Urgent(self)
        finally:
            self._urgent -= 1
            took = trio.current_time() - began
            self._tails.append(_Tail(gauge(connection), min(took, _LONGEST_TAIL_SECONDS)))
            self._forget_tails()
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _is_busy(self) -> bool:
        if self._urgent > 0 and trio.current_time() - self._last_urgent < _STANDSTILL_SECONDS:
            return True
        self._forget_tails()
        return bool(self._tails)

    def _forget_tails(self) -> None:
        self._tails = [tail for tail in self._tails if tail.is_under_way()]


class _Tail:
    """The tail of a finished urgent transfer, which the line has not sent yet."""

    def __init__(self, read: Gauge, longest: float) -> None:
        self._read = read
        self._until = trio.current_time() + longest
        sample = read()
        self._end = 0 if sample is None else sample.acknowledged + sample.in_flight + sample.unsent

    def is_under_way(self) -> bool:
        """Whether the last bytes have not arrived yet."""
        sample = self._read()
        return sample is not None and sample.acknowledged < self._end and sample.now < self._until


class Priority:
    """Sending permission for a transfer; used like a `Rate`, whose limit it obeys."""

    def __init__(self, priorities: UploadPriorities) -> None:
        self._priorities = priorities

    def piece(self, most: int) -> int:
        """Return how many bytes, at most `most`, to send at once."""
        return self._priorities._rate.piece(most)

    async def spend(self, size: int) -> None:
        """Wait until `size` bytes may be sent."""
        await self._priorities._rate.spend(size)


class _Urgent(Priority):
    async def spend(self, size: int) -> None:
        priorities = self._priorities
        await super().spend(size)
        priorities._last_urgent = trio.current_time()
        priorities._bulk_budget = min(
            _MAX_BULK_BUDGET,
            priorities._bulk_budget + size * _BULK_SHARE / (1 - _BULK_SHARE),
        )
        priorities._notify()


class _Bulk(Priority):
    def __init__(self, priorities: UploadPriorities, read: Gauge) -> None:
        super().__init__(priorities)
        self._read = read
        self._window = Window()

    def piece(self, most: int) -> int:
        if self._priorities._is_busy():
            most = min(most, _BULK_PIECE_BYTES)
        elif self._read() is not None:
            most = min(most, self._window.piece)
        return super().piece(most)

    async def spend(self, size: int) -> None:
        priorities = self._priorities
        with trio.move_on_after(_LONGEST_WAIT_SECONDS):
            while (wait := self._wait(size)) is not None:
                await wait()
        # May become negative: bytes sent after the longest wait are owed.
        priorities._bulk_budget = priorities._bulk_budget - size if priorities._is_busy() else 0.0
        await super().spend(size)

    def _wait(self, size: int) -> Callable[[], Awaitable[Any]] | None:
        """Return a function that waits until `size` bytes may be sent, or until it is time to check
        again; None if they may be sent now."""
        priorities = self._priorities
        if priorities._is_busy():
            self._window.pause_learning()
            return None if priorities._bulk_budget >= size else self._wait_for_change
        sample = self._read()
        if sample is None or self._window.admits(size, sample):
            return None
        least, most = _CHECK_INTERVAL_SECONDS
        pause = min(max(least, sample.round_trip / _CHECKS_PER_ROUND_TRIP), most)
        return partial(trio.sleep, pause)

    async def _wait_for_change(self) -> None:
        # The arrival of a transfer's last bytes triggers no event, so wake up after a while.
        seconds = _STANDSTILL_SECONDS if self._priorities._urgent else _CHECK_INTERVAL_SECONDS[1]
        with trio.move_on_after(seconds):
            await self._priorities._changed.wait()
