"""Background computation of a gradient, on a device that needs several rounds for one.

Meanwhile rounds are decided, and the session applies them to its own parameters. So the computation runs
in its own thread, on a copy of the parameters as they were at its start. `finish` adds the gradient to
the momentum in the main thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ...training.frames import TrainedUpdate
from ..training_session import TrainingSession


class BackgroundGradient:
    """A gradient computed in the background, started at once. It needs memory for a second copy of
    the parameters."""

    def __init__(self, session: TrainingSession, round_number: int, samples: Sequence[int]) -> None:
        self._round = round_number
        self._session = session
        self._samples = tuple(samples)
        self._shadow = session.computation.shadow()
        self._found: tuple[float, int] | None = None
        self._error: Exception | None = None
        self._began, self._seconds = time.perf_counter(), 0.0
        # A daemon thread: a process that is told to exit does not wait for a gradient.
        self._thread = threading.Thread(target=self._compute, daemon=True)
        self._thread.start()

    def is_for(self, round_number: int, samples: Sequence[int]) -> bool:
        """Whether this computation is of these samples and this round: other samples may be assigned for
        the same round later."""
        return (round_number, tuple(samples)) == (self._round, self._samples)

    @property
    def done(self) -> bool:
        """Whether `finish` has a result."""
        return not self._thread.is_alive()

    def finish(self) -> TrainedUpdate:
        """Return the update; call it once `done` is true. Raises what the computation raised."""
        if self._error is not None:
            raise self._error
        assert self._found is not None
        # It is the gradient of one sequence, so with local steps it makes one of them.
        gradients = self._session.as_moved([each.grad for each in self._shadow.parameters])
        return self._session.finish(self._round, *self._found, gradients, self._seconds)

    def _compute(self) -> None:
        try:
            self._found = self._shadow.gradient(self._round, self._samples)
        except Exception as error:
            self._error = error
        self._seconds = time.perf_counter() - self._began
