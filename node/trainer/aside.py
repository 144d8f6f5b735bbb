"""A gradient that is computed beside the trainer's other work, on a device that needs several rounds.

Rounds are decided and applied meanwhile, on the session's own parameters. So this one has a copy of the
parameters as they were when it began, and a thread; what it found goes into the momentum when it is
asked for, in the thread that all else runs in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from .frames import Trained
from .session import TrainingSession


class Aside:
    """Begins at once. Beside what training takes it needs the parameters' memory once more."""

    def __init__(self, session: TrainingSession, round_number: int, samples: Sequence[int]) -> None:
        self._round = round_number
        self._session = session
        self._samples = tuple(samples)
        self._shadow = session.shadow()
        self._found: tuple[float, int] | None = None
        self._error: Exception | None = None
        self._began, self._seconds = time.perf_counter(), 0.0
        # A daemon: a process that is told to exit does not wait for a gradient.
        self._thread = threading.Thread(target=self._compute, daemon=True)
        self._thread.start()

    def is_for(self, round_number: int, samples: Sequence[int]) -> bool:
        """Whether it is of these samples, for this round: another lot may be dealt for the same one."""
        return (round_number, tuple(samples)) == (self._round, self._samples)

    @property
    def done(self) -> bool:
        """Whether `finish` has something to return."""
        return not self._thread.is_alive()

    def finish(self) -> Trained:
        """The update, once it is done. Raises what computing it has raised."""
        if self._error is not None:
            raise self._error
        assert self._found is not None
        gradients = [parameter.grad for parameter in self._shadow.parameters]
        return self._session.finish(self._round, *self._found, gradients, self._seconds)

    def _compute(self) -> None:
        try:
            self._found = self._shadow.gradient(self._round, self._samples)
        except Exception as error:
            self._error = error
        self._seconds = time.perf_counter() - self._began
