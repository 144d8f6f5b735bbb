"""Two priorities on one upload line: what a round waits for, and what can wait.

While a member sends its update, newcomers get a fiftieth of what goes up; in between they get all of it,
but keep the line's queue short (see `ledbat`), so that the next update does not wait long behind them.
On a line of 20 Mbit/s an update then takes 7 % longer than alone (benchmarks/results).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import trio

from .ledbat import Window
from .queues import Gauge, gauge
from .rates import Rate

# The newcomers' part of the upload while a round's bytes go up. A round loses this and the time in the
# queue that an update finds; it may lose a twentieth.
_SHARE = 0.02
# A transfer of a round's bytes that stands still for so long (the other end has frozen) does not count.
_STANDSTILL_SECONDS = 1.0
# At 10 Mbit/s the kernel has sent the rest of a finished transfer in this time. If it has not, the other
# end reads slowly and our line is free; nor does the end take longer than the rest took.
_LONGEST_TAIL_SECONDS = 0.5
# The other end gives up after ten seconds of silence; four transfers may be waiting for their turn.
_LONGEST_WAIT_SECONDS = 2.0
# Small pieces, so that a small share is a steady one.
_PATIENT_PIECE_BYTES = 8 << 10
_MOST_SAVED_BYTES = 8 * _PATIENT_PIECE_BYTES
# How often to look whether there is room on the line: so many times in a round trip, and at least and at
# most so many seconds apart. The first costs little processor time, the second is less than the queue
# that is aimed at.
_LOOKS = 8
_LOOK_SECONDS = (0.002, 0.01)


class UploadPriorities:
    """The priorities of one line whose limit, if any, is `rate`."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._urgent = 0
        self._last = float("-inf")
        # What the patient priority may send beside the urgent one.
        self._saved = 0.0
        self._moved = trio.Event()
        self._patient: WeakKeyDictionary[Any, _Patient] = WeakKeyDictionary()
        self._tails: list[_Tail] = []

    def patient(self, connection: Any) -> Priority:
        """The priority of what can wait and goes over `connection`, a muxer."""
        if connection not in self._patient:
            self._patient[connection] = _Patient(self, gauge(connection))
        return self._patient[connection]

    @contextmanager
    def urgent(self, connection: Any) -> Iterator[Priority]:
        """A priority for one transfer of what a round waits for, over a muxer."""
        self._urgent += 1
        began = self._last = trio.current_time()
        try:
            yield _Urgent(self)
        finally:
            self._urgent -= 1
            took = trio.current_time() - began
            self._tails.append(_Tail(gauge(connection), min(took, _LONGEST_TAIL_SECONDS)))
            self._forget_tails()
            self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    def _is_busy(self) -> bool:
        if self._urgent > 0 and trio.current_time() - self._last < _STANDSTILL_SECONDS:
            return True
        self._forget_tails()
        return bool(self._tails)

    def _forget_tails(self) -> None:
        self._tails = [tail for tail in self._tails if tail.is_under_way()]


class _Tail:
    """The end of a round's transfer, which we are done with and the line is not."""

    def __init__(self, read: Gauge, longest: float) -> None:
        self._read = read
        self._until = trio.current_time() + longest
        sample = read()
        self._end = 0 if sample is None else sample.acknowledged + sample.in_flight + sample.unsent

    def is_under_way(self) -> bool:
        """Whether the last of it has yet to arrive."""
        sample = self._read()
        return sample is not None and sample.acknowledged < self._end and sample.now < self._until


class Priority:
    """What a transfer asks for leave to send; like a `Rate`, which it obeys."""

    def __init__(self, priorities: UploadPriorities) -> None:
        self._priorities = priorities

    def piece(self, most: int) -> int:
        """How many bytes, `most` at most, should be sent at once."""
        return self._priorities._rate.piece(most)

    async def spend(self, size: int) -> None:
        """Wait until so many bytes may be sent."""
        await self._priorities._rate.spend(size)


class _Urgent(Priority):
    async def spend(self, size: int) -> None:
        priorities = self._priorities
        await super().spend(size)
        priorities._last = trio.current_time()
        priorities._saved = min(_MOST_SAVED_BYTES, priorities._saved + size * _SHARE / (1 - _SHARE))
        priorities._move()


class _Patient(Priority):
    def __init__(self, priorities: UploadPriorities, read: Gauge) -> None:
        super().__init__(priorities)
        self._read = read
        self._window = Window()

    def piece(self, most: int) -> int:
        if self._priorities._is_busy():
            most = min(most, _PATIENT_PIECE_BYTES)
        elif self._read() is not None:
            most = min(most, self._window.piece)
        return super().piece(most)

    async def spend(self, size: int) -> None:
        priorities = self._priorities
        with trio.move_on_after(_LONGEST_WAIT_SECONDS):
            while (wait := self._wait(size)) is not None:
                await wait()
        # What was sent for patience's sake is owed.
        priorities._saved = priorities._saved - size if priorities._is_busy() else 0.0
        await super().spend(size)

    def _wait(self, size: int) -> Callable[[], Awaitable[Any]] | None:
        """What to wait for before so many bytes may go; None: nothing."""
        priorities = self._priorities
        if priorities._is_busy():
            self._window.rest()
            return None if priorities._saved >= size else self._standstill
        sample = self._read()
        if sample is None or self._window.admits(size, sample):
            return None
        least, most = _LOOK_SECONDS
        pause = min(max(least, sample.round_trip / _LOOKS), most)
        return partial(trio.sleep, pause)

    async def _standstill(self) -> None:
        # Nobody says when what is left of a transfer has arrived.
        seconds = _STANDSTILL_SECONDS if self._priorities._urgent else _LOOK_SECONDS[1]
        with trio.move_on_after(seconds):
            await self._priorities._moved.wait()
