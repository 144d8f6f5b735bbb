"""Whether a trainer that failed is restarted, with which settings, and after which pause.

A restart mends a driver reset or a killed process. On a desktop the free memory also changes: a
browser or a game takes the GPU. A trainer that ran out of memory is started again with a plan for the
memory that is then free, repeatedly for some minutes, before the node gives up and reports why.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

from ...protocol.util.backoff import BackoffTimer
from ..errors import ExitCode, UserError
from .error_messages import explain_trainer
from .errors import TrainerDied, TrainerFailed
from .trainer_spec import TrainerSpec

_log = logging.getLogger(__name__)

# Pause between restarts. It doubles until a job completes of the kind that failed last.
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
# Failures after which the node gives up. A completed job takes those of its own kind from the count, and
# no others: each new trainer replays rounds, also where every gradient fails.
_MAX_FALSE_STARTS = 5
# Shortages of memory after which the node gives up, counted alike. The pauses between so many shortages
# in a row add up to four minutes.
_MAX_SHORTAGES = 10

# Failures that a restart may mend. Shortages of memory and a device that has vanished are tried again,
# too; anything else that a trainer reports is for the user to mend.
_RESTARTABLE = frozenset({"bad_snapshot", "internal"})


class RestartPolicy:
    """The record of one node's trainer starts, and the decision about the next one."""

    def __init__(self, spec: TrainerSpec) -> None:
        """`spec` holds the owner's settings."""
        self._owner_spec = spec
        self.spec = spec
        """The settings for the next start."""
        self.certified_only = False
        """Whether the next trainer may load only a certified snapshot: the previous trainer may have
        loaded an invalid snapshot."""
        self._pause = BackoffTimer(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        # Whether this trainer has completed a job, and whether any has: then the device exists and has
        # enough memory.
        self._this_one_worked = False
        self._any_worked = False
        # Failures by the kind of job that failed; None: the trainer failed to start or to load.
        self._false_starts: Counter[str | None] = Counter()
        self._shortages: Counter[str | None] = Counter()
        self._failed_job: str | None = None
        self._job: str | None = None

    def job_started(self, job: str) -> None:
        """Record that the trainer starts a job of this kind."""
        self._job = job

    def job_done(self, job: str) -> None:
        """Record that the trainer has completed a job of this kind."""
        self._this_one_worked = self._any_worked = True
        self._job = None
        for failures in (self._false_starts, self._shortages):
            # A trainer that works has started.
            del failures[None], failures[job]
        if self._failed_job in (None, job):
            self._pause.reset()

    def job_dropped(self) -> None:
        """Record that the job started last was put off, or goes on in the background."""
        self._job = None

    def handle(self, failure: TrainerDied | TrainerFailed) -> str:
        """Record why the trainer ended, and return the reason as text for the owner.

        Raises `UserError` if a restart cannot mend the failure, or several tries have not mended it.
        """
        shortage = self._shortage(failure)
        self.spec = self._owner_spec
        if isinstance(failure, TrainerDied) and failure.micro_batch:
            _log.warning("out of memory: the micro-batch is now %d", failure.micro_batch)
            smaller = replace(self._owner_spec.settings, micro_batch=failure.micro_batch)
            self.spec = replace(self._owner_spec, settings=smaller)
        reason = self._try_again(failure) if shortage is None else self._try_for_memory(shortage)
        self._this_one_worked = False
        self._failed_job, self._job = self._job, None
        return reason

    def pause_seconds(self) -> float:
        """Return the pause before the next start, in seconds."""
        return self._pause.after_failure()

    def _shortage(self, failure: TrainerDied | TrainerFailed) -> TrainerFailed | None:
        """Return the failure as a shortage of memory that may pass; None if it is none."""
        if isinstance(failure, TrainerDied):
            # Size of the micro-batch to try next; 0: a single sequence is too much.
            if failure.micro_batch != 0:
                return None
            return TrainerFailed("out_of_memory", f"one sequence does not fit: {failure}")
        if failure.kind == "out_of_memory":
            return failure
        # A model that never fitted is too large; one that has fitted before will fit again once other
        # programs free memory.
        return failure if failure.kind == "model_too_large" and self._any_worked else None

    def _try_for_memory(self, shortage: TrainerFailed) -> str:
        self._shortages[self._job] += 1
        shortages = self._shortages.total()
        if shortages >= _MAX_SHORTAGES:
            problem = f"{shortage}; tried {shortages} times in a row"
            raise explain_trainer(TrainerFailed(shortage.kind, problem), self._owner_spec.blobs)
        if self._this_one_worked:
            self.certified_only = False
        return f"{shortage}; starting again with the memory that is then free"

    def _try_again(self, failure: TrainerDied | TrainerFailed) -> str:
        reason = str(failure)
        if self._this_one_worked:
            self.certified_only = False
        if isinstance(failure, TrainerFailed):
            # While a driver resets, its device is missing for a moment.
            device_returns = failure.kind == "no_device" and self._any_worked
            if failure.kind not in _RESTARTABLE and not device_returns:
                raise explain_trainer(failure, self._owner_spec.blobs) from None
            reason = f"{failure.kind}: {failure}"
            # If it had worked, the snapshot that it loaded was good.
            self.certified_only = not self._this_one_worked
        self._false_starts[self._job] += 1
        false_starts = self._false_starts.total()
        if false_starts >= _MAX_FALSE_STARTS:
            if isinstance(failure, TrainerFailed) and failure.kind == "no_device":
                problem = f"{failure}; tried {false_starts} times in a row"
                raise explain_trainer(TrainerFailed(failure.kind, problem), self._owner_spec.blobs)
            raise UserError(
                ExitCode.TRAINER,
                f"the trainer failed {false_starts} times in a row: {reason}",
                "see the log in the data directory; the node's data is safe",
            )
        return reason
