"""What lm-eval measured of a state of the model, bound to the record that led to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from ...protocol.wire.structure import ADDITION, Length, Range, StructureError, from_plain

_Short = Annotated[str, Length(1, 128)]

# The one number of a task that people compare, the first that it has.
_MAIN = ("acc_norm", "acc", "exact_match", "f1", "word_perplexity", "perplexity")
# Published tables give it without the norm.
_PLAIN = frozenset({"winogrande"})


@dataclass(frozen=True, kw_only=True)
class Score:
    """One number that was measured."""

    task: _Short
    """As lm-eval calls it."""
    metric: _Short
    """Likewise."""
    value: float
    """What was measured."""
    error: float | None
    """Its standard error."""
    samples: Annotated[int, Range(0, 2**40)] | None
    """Questions that were asked."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How a state of the model did at tasks, by `distro-node evaluate`."""

    swarm: _Short
    """The swarm-id."""
    round: Annotated[int, Range(0, 2**62)]
    """The state after this round was measured."""
    record: Annotated[str, Length(64, 64)]
    """The id of that round's record, in hex."""
    fingerprint: Annotated[str, Length(16, 16)]
    """The measured parameters' fingerprint, in hex."""
    time: float
    """Seconds since 1970."""
    fewshot: Annotated[int, Range(0, 1024)] | None
    """Examples in front of each question; None: as each task says."""
    limit: Annotated[int, Range(1, 2**40)] | None
    """At most so many questions of a task; None: all."""
    lm_eval: _Short
    """The version of lm-eval."""
    tasks: Annotated[tuple[Score, ...], Length(0, 1024)]
    """All that was measured."""
    chat: bool = field(default=False, metadata=ADDITION)
    """Whether questions were asked through the model's chat template."""

    def main(self) -> dict[str, Score]:
        """The number of each task that people compare."""
        found: dict[str, Score] = {}
        for score in self.tasks:
            known = found.get(score.task)
            if known is None or _rank(score) < _rank(known):
                found[score.task] = score
        return found


def _rank(score: Score) -> int:
    order = ("acc", *_MAIN) if score.task in _PLAIN else _MAIN
    return order.index(score.metric) if score.metric in order else len(order)


def read_scores(plain: Any) -> Scores | None:
    """Read what `to_plain` made; None for anything else."""
    try:
        return from_plain(Scores, plain, named=True)
    except StructureError:
        return None
