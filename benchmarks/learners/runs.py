"""Runs of ways: stored when finished, with the same search for a learning rate in every way."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint
from .trial import Trial
from .way import Method, described, train

SWEEP_SEED = 0
"""The seed with which rates are chosen; it is reported only where there is no other."""
MOST_RATES = 7
_DIVERGED = 1e9
"""The loss of a diverged run: worse than any other, since JSON has no infinity."""


@dataclass(kw_only=True)
class Run:
    """One run."""

    way: str
    choices: dict[str, Any]
    """The way's own settings, by which a run is found again."""
    rate: float
    seed: int
    settings: dict[str, Any]
    loss: float
    curve: list[tuple[int, float]]
    parameters: int
    sent: float
    """Bytes that a member sends in a round."""
    reduction: float
    """The dense gradient's bytes over these."""
    figures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


Swept = dict[str, tuple[list[Run], list[Run]]]
"""By way: the runs with which its rate was chosen, and those that are reported."""


@dataclass(kw_only=True)
class Bench:
    """The runs of one setting: those that exist, and how to make more."""

    settings: dict[str, Any]
    """Everything that runs depend on, besides way, rate and seed."""
    trial: Callable[[int], Trial]
    """Returns a new model for a seed."""
    work: Path | None
    """The folder with finished runs and checkpoints."""
    known: bool = False
    """Train nothing: report the runs that exist."""

    def __post_init__(self) -> None:
        self.settings = json.loads(json.dumps(self.settings))
        self._runs: list[Run] = []
        if self.work is not None:
            self.work.mkdir(parents=True, exist_ok=True)
            self._runs = read_runs(self.work / "runs.jsonl")

    def sweep(
        self,
        ways: dict[str, tuple[Method, float]],
        rates: Sequence[float],
        seeds: Sequence[int],
    ) -> Swept:
        """Return the runs of these ways, given with the rates around which a search starts: first with
        the sweep's seed at `rates`, or at rates around the usual one; then with all seeds at the best
        rate of each. Ways without any runs are left out if nothing may be trained."""
        tried = {
            way: self._tried(way, method, usual, rates) for way, (method, usual) in ways.items()
        }
        swept: Swept = {way: (runs, []) for way, runs in tried.items() if runs}
        if self.known:
            chosen = {way: best_of(runs).rate for way, (runs, _) in swept.items()}
            there = [
                {run.seed for run in self._of(way, ways[way][0]) if run.rate == chosen[way]}
                for way in swept
            ]
            seeds = [seed for seed in seeds if all(seed in each for each in there)]
        for seed in seeds or [SWEEP_SEED]:
            for way, (runs, reported) in swept.items():
                reported.append(self._run(way, ways[way][0], best_of(runs).rate, seed))
        return swept

    def _tried(self, way: str, method: Method, usual: float, rates: Sequence[float]) -> list[Run]:
        """Return the sweep's runs, by ascending rate. Without `rates`: half, once and twice the usual
        one, and on until the best is not at the edge."""
        if self.known:
            runs = [run for run in self._of(way, method) if run.seed == SWEEP_SEED]
            return sorted(runs, key=lambda run: run.rate)
        chosen = rates or [factor * usual for factor in (0.5, 1.0, 2.0)]
        runs = [self._run(way, method, rate, SWEEP_SEED) for rate in sorted(chosen)]
        while not rates and len(runs) < MOST_RATES and (b := best_of(runs)) in (runs[0], runs[-1]):
            factor = 0.5 if b is runs[0] else 2.0
            runs.append(self._run(way, method, factor * b.rate, SWEEP_SEED))
            runs.sort(key=lambda run: run.rate)
        return runs

    def _of(self, way: str, method: Method) -> list[Run]:
        """Return the existing runs of a way; what it is called does not matter."""
        choices = json.loads(json.dumps(described(method)))
        found = [r for r in self._runs if (r.choices, r.settings) == (choices, self.settings)]
        for run in found:
            run.way = way
        return found

    def _run(self, way: str, method: Method, rate: float, seed: int) -> Run:
        """Return one run, trained unless it exists."""
        for known in self._of(way, method):
            if (known.rate, known.seed) == (rate, seed):
                return known
        named = {
            "settings": self.settings,
            "choices": described(method),
            "rate": rate,
            "seed": seed,
        }
        checkpoint = Checkpoint(self.work, named)
        trial = self.trial(seed)
        outcome = train(method, rate, trial, checkpoint)
        curve = [(n, loss if math.isfinite(loss) else _DIVERGED) for n, loss in outcome.curve]
        made = Run(
            way=way,
            choices=json.loads(json.dumps(described(method))),
            rate=rate,
            seed=seed,
            settings=self.settings,
            loss=curve[-1][1],
            curve=curve,
            parameters=trial.elements,
            sent=outcome.sent,
            reduction=trial.dense_bytes / outcome.sent,
            figures=outcome.figures,
            seconds=round(checkpoint.seconds, 1),
        )
        print(
            f"{way}: rate {rate:g}, seed {seed}: {made.loss:.4f} at {made.reduction:,.0f}× "
            f"({made.seconds:.0f} s)",
            flush=True,
        )
        self._runs.append(made)
        if self.work is not None:
            append_run(self.work / "runs.jsonl", made)
        checkpoint.remove()
        return made


def best_of(runs: Sequence[Run]) -> Run:
    """Return the run with the lowest loss."""
    return min(runs, key=lambda run: run.loss)


def summary(tried: Sequence[Run], reported: Sequence[Run]) -> dict[str, Any]:
    """Return the JSON of one way."""
    first, rates = reported[0], [run.rate for run in tried]
    losses = [run.loss for run in reported]
    return {
        "loss": statistics.fmean(losses),
        "losses": losses,
        "seeds": [run.seed for run in reported],
        "rate": first.rate,
        "tried": {f"{run.rate:g}": run.loss for run in tried},
        "at_edge": first.rate in (min(rates), max(rates)),
        "sent": first.sent,
        "reduction": first.reduction,
        "figures": first.figures,
        "curve": [
            (number, statistics.fmean(run.curve[place][1] for run in reported))
            for place, (number, _) in enumerate(first.curve)
        ],
        "seconds": sum(run.seconds for run in reported),
        "choices": first.choices,
    }


def read_runs(file: Path) -> list[Run]:
    """Return the runs of a file, one a line, without a truncated last line. The file is not changed."""
    if not file.exists():
        return []
    content = file.read_bytes()
    runs = []
    for line in content[: _whole_lines(content)].splitlines():
        try:
            found = Run(**json.loads(line))
        except (TypeError, ValueError):
            sys.exit(f"{file} is not a file of this benchmark's runs: give another --work")
        found.curve = [(number, loss) for number, loss in found.curve]
        runs.append(found)
    return runs


def append_run(file: Path, run: Run) -> None:
    """Append a run, over a truncated line if there is one, and wait until it is on disk."""
    if file.exists():
        content = file.read_bytes()
        if (whole := _whole_lines(content)) < len(content):
            os.truncate(file, whole)
    with file.open("a") as stream:
        stream.write(json.dumps(asdict(run)) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _whole_lines(content: bytes) -> int:
    """Return the bytes up to the last line end: a kill during a write leaves a truncated line."""
    return content.rfind(b"\n") + 1
