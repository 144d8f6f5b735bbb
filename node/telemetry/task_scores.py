"""Scores of the model after some round, measured by lm-eval or, where samples have right answers, on the
held-out ones, and bound to the record of that round."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

from ...protocol.wire.structure import ADDITION, Length, Range, StructureError, from_plain

_Short = Annotated[str, Length(1, 128)]

HELDOUT = "heldout"
"""The task of answering the held-out samples: naming the class of each, or preferring the chosen answer
of a pair by more than the initial model does."""

# A task's main number is the first of these metrics that it has.
_MAIN = ("acc_norm", "acc", "exact_match", "f1", "word_perplexity", "perplexity")
# Tasks whose main number is the plain accuracy (`acc`), as in published tables.
_PLAIN = frozenset({"winogrande"})


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One measured number."""

    task: _Short
    """The task's name in lm-eval, or `HELDOUT`."""
    metric: _Short
    """The metric's name in lm-eval."""
    value: float
    """The measured value."""
    error: float | None
    """Its standard error."""
    samples: Annotated[int, Range(0, 2**40)] | None
    """Number of questions asked."""


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """Scores of the model at tasks after some round, measured by `distro-node evaluate`, or by the node
    itself if its samples have right answers."""

    swarm: _Short
    """The swarm-id."""
    round: Annotated[int, Range(0, 2**62)]
    """The round after which the model was measured."""
    record: Annotated[str, Length(64, 64)]
    """The id of that round's record, in hex."""
    fingerprint: Annotated[str, Length(16, 16)]
    """Fingerprint of the measured parameters, in hex."""
    time: float
    """Seconds since 1970."""
    fewshot: Annotated[int, Range(0, 1024)] | None
    """Examples before each question; None: each task's default."""
    limit: Annotated[int, Range(1, 2**40)] | None
    """Maximum number of questions per task; None: all."""
    lm_eval: _Short | None
    """The version of lm-eval; null for an accuracy on the held-out samples, which needs none."""
    tasks: Annotated[tuple[TaskScore, ...], Length(0, 1024)]
    """All measured numbers."""
    chat: bool = field(default=False, metadata=ADDITION)
    """Whether questions were asked through the model's chat template."""

    def main(self) -> dict[str, TaskScore]:
        """Return the main number of each task."""
        found: dict[str, TaskScore] = {}
        for score in self.tasks:
            known = found.get(score.task)
            if known is None or _rank(score) < _rank(known):
                found[score.task] = score
        return found


def heldout_accuracy(
    swarm: str, round: int, record: str, fingerprint: int, share: float, samples: int
) -> TaskScores:
    """Return the share of right answers on `samples` held-out samples as scores, with the standard error
    of a binomial share."""
    error = math.sqrt(share * (1 - share) / max(1, samples - 1))
    return TaskScores(
        swarm=swarm,
        round=round,
        record=record,
        fingerprint=f"{fingerprint:016x}",
        time=time.time(),
        fewshot=None,
        limit=None,
        lm_eval=None,
        tasks=(TaskScore(task=HELDOUT, metric="acc", value=share, error=error, samples=samples),),
    )


def _rank(score: TaskScore) -> int:
    order = ("acc", *_MAIN) if score.task in _PLAIN else _MAIN
    # After a comma comes the filter of the answers.
    metric = score.metric.partition(",")[0]
    return order.index(metric) if metric in order else len(order)


def read_scores(plain: Any) -> TaskScores | None:
    """Decode scores from the output of `to_plain`; None for anything else."""
    try:
        return from_plain(TaskScores, plain, named=True)
    except StructureError:
        return None
