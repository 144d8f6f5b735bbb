"""Two lanes on one upload line: what a round waits for, and what can wait.

While a member sends its update, newcomers get a twentieth of what goes up, and all of it in between. So
serving them does not slow a round by more than that, whether the line has a limit set or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from .rates import Rate

# Of what goes up while a round's bytes do. It is what a round may lose to newcomers.
_SHARE = 0.05
# A transfer of a round's bytes that stands still for so long (the other end has frozen) does not count.
_STANDSTILL_SECONDS = 1.0
# The other end gives up after ten seconds of silence; four transfers may be waiting for their turn.
_LONGEST_WAIT_SECONDS = 2.0
# Small pieces, so that a small share is a steady one.
_PATIENT_PIECE_BYTES = 8 << 10
_MOST_SAVED_BYTES = 8 * _PATIENT_PIECE_BYTES


class Lanes:
    """The lanes of one line whose limit, if any, is `rate`."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._urgent = 0
        self._last = float("-inf")
        # What the patient lane may send beside the urgent one.
        self._saved = 0.0
        self._moved = trio.Event()
        self.patient: Lane = _Patient(self)

    @contextmanager
    def urgent(self) -> Iterator[Lane]:
        """A lane for one transfer of what a round waits for."""
        self._urgent += 1
        self._last = trio.current_time()
        try:
            yield _Urgent(self)
        finally:
            self._urgent -= 1
            self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    def _is_busy(self) -> bool:
        return self._urgent > 0 and trio.current_time() - self._last < _STANDSTILL_SECONDS


class Lane:
    """What a transfer asks for leave to send; like a `Rate`, which it obeys."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def piece(self, most: int) -> int:
        """How many bytes, `most` at most, should be sent at once."""
        return self._lanes._rate.piece(most)

    async def spend(self, size: int) -> None:
        """Wait until so many bytes may be sent."""
        await self._lanes._rate.spend(size)


class _Urgent(Lane):
    async def spend(self, size: int) -> None:
        lanes = self._lanes
        await super().spend(size)
        lanes._last = trio.current_time()
        lanes._saved = min(_MOST_SAVED_BYTES, lanes._saved + size * _SHARE / (1 - _SHARE))
        lanes._move()


class _Patient(Lane):
    def piece(self, most: int) -> int:
        return super().piece(min(most, _PATIENT_PIECE_BYTES) if self._lanes._is_busy() else most)

    async def spend(self, size: int) -> None:
        lanes = self._lanes
        with trio.move_on_after(_LONGEST_WAIT_SECONDS):
            while lanes._is_busy() and lanes._saved < size:
                with trio.move_on_after(_STANDSTILL_SECONDS):
                    await lanes._moved.wait()
        # What was sent for patience's sake is owed.
        lanes._saved = lanes._saved - size if lanes._is_busy() else 0.0
        await super().spend(size)
