"""Runs of a benchmark of learning: kept when they are finished, rates found alike for every variant.

A benchmark says what one run is (`Bench.train`). Here runs are looked up, kept in a file of one a line,
and asked for: around a usual rate with one seed, then with the best of these rates and the seeds that
are reported.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from dense import AdamW
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec
from going import Going
from training import Trial, Trouble, Variant
from training import train as train_trial

SWEEP_SEED = 0
"""With it the rates are chosen; it is not reported, but where no other is there."""
MOST_RATES = 7


@dataclass(kw_only=True)
class Run:
    """One run. What a benchmark wants to know besides it adds."""

    way: str
    rate: float
    seed: int
    loss: float
    curve: list[tuple[int, float]]
    bytes_a_round: float
    """What a member sends: an update, or the whole gradient."""
    reduction: float
    """How many times less that is than the gradient of the whole model."""
    top_k: int | None
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


R = TypeVar("R")
Kept = TypeVar("Kept", bound=Run)
Swept = dict[str, tuple[list[Kept], list[Kept]]]
"""By variant: the runs with which its rate was chosen, and those that are reported."""


class Bench(ABC, Generic[Kept]):
    """The runs that are there, and how more are made. `settings` say what a run depends on."""

    def __init__(
        self, kind: type[Kept], options: argparse.Namespace, settings: dict[str, Any]
    ) -> None:
        self.options = options
        self.settings = settings
        self.runs: list[Kept] = []
        self.going = Going(None, {})
        """The run under way."""
        self._file: Path | None = None
        if options.work:
            options.work.mkdir(parents=True, exist_ok=True)
            file = self._file = options.work / "runs.jsonl"
            self.runs = read_runs(file, kind)

    @abstractmethod
    def train(self, way: str, rate: float, seed: int) -> Kept:
        """Make one run."""

    @abstractmethod
    def usual_rate(self, way: str) -> float:
        """Where the search for a variant's rate begins."""

    def run(self, way: str, rate: float, seed: int) -> Kept:
        """One run, unless it is there."""
        wanted = (way, rate, seed, self.settings)
        for known in self.runs:
            if (known.way, known.rate, known.seed, known.settings) == wanted:
                return known
        named = {"way": way, "rate": rate, "seed": seed, "settings": self.settings}
        self.going = Going(self._file and self._file.parent, named)
        made = self.train(way, rate, seed)
        made.settings, made.seconds = self.settings, round(self.going.seconds, 1)
        print(
            f"{way:12} rate {rate:g}, seed {seed}: {made.loss:.4f} at {made.reduction:,.0f}x "
            f"({made.seconds:.0f} s)",
            flush=True,
        )
        self.runs.append(made)
        if self._file is not None:
            append_run(self._file, made)
        self.going.end()
        return made

    def sweep(self, ways: Sequence[str]) -> Swept[Kept]:
        """What is asked for: trained where it is not there, or with --known only looked up."""
        if self.options.known:
            return self._known(ways)
        swept: Swept[Kept] = {way: (self._tried(way), []) for way in ways}
        for seed in self.options.seeds:
            for way in ways:
                tried, reported = swept[way]
                reported.append(self.run(way, best_of(tried).rate, seed))
        return swept

    def _tried(self, way: str) -> list[Kept]:
        """The runs with the sweep's seed, by ascending rate; the best is not at the edge."""
        usual = self.usual_rate(way)
        runs = [self.run(way, factor * usual, SWEEP_SEED) for factor in (0.5, 1.0, 2.0)]
        while len(runs) < MOST_RATES and (best := best_of(runs)) in (runs[0], runs[-1]):
            factor = 0.5 if best is runs[0] else 2.0
            runs.append(self.run(way, factor * best.rate, SWEEP_SEED))
            runs.sort(key=lambda run: run.rate)
        return runs

    def _known(self, ways: Sequence[str]) -> Swept[Kept]:
        """What is there: the sweep's runs, and those of the seeds that all have."""
        mine = [run for run in self.runs if run.settings == self.settings]
        swept = {}
        for way in ways:
            tried = [run for run in mine if (run.way, run.seed) == (way, SWEEP_SEED)]
            if not tried:
                sys.exit(f"there is no run of {way} in --work yet")
            tried.sort(key=lambda run: run.rate)
            rate = best_of(tried).rate
            reported = {run.seed: run for run in mine if (run.way, run.rate) == (way, rate)}
            swept[way] = tried, reported
        common = set.intersection(*(set(reported) for _, reported in swept.values()))
        seeds = [seed for seed in self.options.seeds if seed in common] or [SWEEP_SEED]
        self.options.seeds = seeds
        return {
            way: (tried, [reported[seed] for seed in seeds])
            for way, (tried, reported) in swept.items()
        }


def add_arguments(parser: argparse.ArgumentParser, ways: Sequence[str]) -> None:
    """The options of whoever has a `Bench`."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--variants", nargs="+", choices=ways)
    parser.add_argument("--known", action="store_true", help="train nothing, report what is there")
    parser.add_argument("--work", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")


def check_seeds(options: argparse.Namespace) -> None:
    """Exit where a seed is to be reported that chooses the rates."""
    if SWEEP_SEED in options.seeds:
        sys.exit(f"seed {SWEEP_SEED} chooses the rates and is not reported: give others")


def outcome(
    name: str,
    rate: float,
    trial: Trial,
    *,
    whole: int,
    dense: float,
    ours: OptimizerSpec | None,
    going: Going,
) -> dict[str, Any]:
    """Train a trial with our updates, or with dense AdamW; what came of it, as fields of a `Run`.
    `whole`: bytes of the whole model's gradient; `dense`: of what is sent without our updates."""
    sent, top_k = dense, None
    if ours is not None:
        top_k = ours.top_k
        sent = float(update_layout(trial.table, ours.chunk, top_k).body_bytes)
    variant = Variant(name=name, rate=rate, optimizer=ours or AdamW())
    done = train_trial(variant, Trouble(), trial, lambda number, loss: None, going)
    return {
        "way": name,
        "rate": rate,
        "loss": finite(done.heldout_loss),
        "curve": done.curve,
        "bytes_a_round": sent,
        "reduction": whole / sent,
        "top_k": top_k,
    }


def finite(loss: float) -> float:
    """A loss; of what came apart one that is worse than all else, since JSON has no word for it."""
    return loss if math.isfinite(loss) else 1e9


def fitting_top_k(table: Sequence[ParameterSpec], whole: int, target: int) -> int | None:
    """The most coefficients a block with which an update is at least so many times smaller than `whole`
    bytes; None where there are none."""
    sizes = {k: update_layout(table, 64, k).body_bytes for k in range(1, 129)}
    return max((k for k, size in sizes.items() if size * target <= whole), default=None)


def best_of(runs: Sequence[Kept]) -> Kept:
    """The one with the lowest loss."""
    return min(runs, key=lambda run: run.loss)


def summed_up(tried: Sequence[Run], reported: Sequence[Run]) -> dict[str, Any]:
    """What is written of a variant as JSON: its mean loss over the seeds, and how it was trained."""
    losses, rates = [run.loss for run in reported], [run.rate for run in tried]
    first = reported[0]
    return {
        "loss": statistics.fmean(losses),
        "error": standard_error(losses),
        "losses": losses,
        "rate": first.rate,
        "tried": {f"{run.rate:g}": run.loss for run in tried},
        "at_edge": first.rate in (min(rates), max(rates)),
        "reduction": first.reduction,
        "bytes_a_round": first.bytes_a_round,
        "top_k": first.top_k,
    }


def percents(losses: Sequence[float], beside: Sequence[float]) -> list[float]:
    """By how many percent losses are above those beside them, seed by seed."""
    return [100 * (loss / other - 1) for loss, other in zip(losses, beside, strict=True)]


def mean_curve(runs: Sequence[Run]) -> tuple[list[int], list[float]]:
    """Rounds, without the one before the first, and the mean loss of all runs after each."""
    rounds = [number for number, _ in runs[0].curve][1:]
    means = [statistics.fmean(run.curve[i + 1][1] for run in runs) for i in range(len(rounds))]
    return rounds, means


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; 0 of one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def read_runs(file: Path, kind: type[R]) -> list[R]:
    """The runs in a file of one run a line, without a line that was cut off. The file stays as it is."""
    if not file.exists():
        return []
    content = file.read_bytes()
    return [kind(**json.loads(line)) for line in content[: _whole_lines(content)].splitlines()]


def append_run(file: Path, run: Any) -> None:
    """Add a run, a dataclass, in place of a line that was cut off; wait until it is on the disk."""
    if file.exists():
        content = file.read_bytes()
        if (whole := _whole_lines(content)) < len(content):
            os.truncate(file, whole)
    with file.open("a") as stream:
        stream.write(json.dumps(asdict(run)) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _whole_lines(content: bytes) -> int:
    """How many bytes of a file are lines with an end: who is killed while writing leaves one without."""
    return content.rfind(b"\n") + 1
