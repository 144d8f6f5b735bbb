"""Runs of a benchmark of learning: stored when finished, with the same search for a rate in every
variant.

A benchmark defines one run (`Bench.train`). Here runs are looked up, stored one per line in a file,
and requested: first around a usual rate with one seed, then at the best of these rates with the
reported seeds.
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
"""The seed with which rates are chosen; it is reported only if there is no other."""
MOST_RATES = 7


@dataclass(kw_only=True)
class Run:
    """One run. A benchmark adds the fields that it needs."""

    way: str
    rate: float
    seed: int
    loss: float
    curve: list[tuple[int, float]]
    bytes_a_round: float
    """What a member sends: an update, or the whole gradient."""
    reduction: float
    """The ratio of the whole model's gradient to what is sent."""
    top_k: int | None
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


R = TypeVar("R")
Kept = TypeVar("Kept", bound=Run)
Swept = dict[str, tuple[list[Kept], list[Kept]]]
"""By variant: the runs with which its rate was chosen, and those that are reported."""


class Bench(ABC, Generic[Kept]):
    """The existing runs, and how to make more. `settings` are what a run depends on."""

    def __init__(
        self, kind: type[Kept], options: argparse.Namespace, settings: dict[str, Any]
    ) -> None:
        self.options = options
        self.settings = settings
        self.runs: list[Kept] = []
        self.going = Going(None, {})
        """The current run."""
        self._file: Path | None = None
        if options.work:
            options.work.mkdir(parents=True, exist_ok=True)
            file = self._file = options.work / "runs.jsonl"
            self.runs = read_runs(file, kind)

    @abstractmethod
    def train(self, way: str, rate: float, seed: int) -> Kept:
        """Make one run."""

    @abstractmethod
    def default_rate(self, way: str) -> float:
        """Return the rate around which the search for a variant's rate begins."""

    def run(self, way: str, rate: float, seed: int) -> Kept:
        """Return one run, trained unless it exists."""
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
        """Return the requested runs: trained if they do not exist, or with --known only looked up."""
        if self.options.known:
            return self._known(ways)
        swept: Swept[Kept] = {way: (self._tried(way), []) for way in ways}
        for seed in self.options.seeds:
            for way in ways:
                tried, reported = swept[way]
                reported.append(self.run(way, best_of(tried).rate, seed))
        return swept

    def _tried(self, way: str) -> list[Kept]:
        """Return the runs with the sweep's seed, by ascending rate, extended until the best is not
        at the edge or `MOST_RATES` are tried."""
        usual = self.default_rate(way)
        runs = [self.run(way, factor * usual, SWEEP_SEED) for factor in (0.5, 1.0, 2.0)]
        while len(runs) < MOST_RATES and (best := best_of(runs)) in (runs[0], runs[-1]):
            factor = 0.5 if best is runs[0] else 2.0
            runs.append(self.run(way, factor * best.rate, SWEEP_SEED))
            runs.sort(key=lambda run: run.rate)
        return runs

    def _known(self, ways: Sequence[str]) -> Swept[Kept]:
        """Return the existing runs: the sweep's, and those of the seeds that all variants have."""
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
    """Add the options of a benchmark that has a `Bench`."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--variants", nargs="+", choices=ways)
    parser.add_argument("--known", action="store_true", help="train nothing, report what is there")
    parser.add_argument("--work", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")


def check_seeds(options: argparse.Namespace) -> None:
    """Exit if a seed that chooses the rates is among those reported."""
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
    """Train a trial with our updates, or with dense AdamW; return the outcome as fields of a `Run`.
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
    """Return a loss; for a diverged run one that is worse than all others, since JSON has no
    infinity."""
    return loss if math.isfinite(loss) else 1e9


def fitting_top_k(table: Sequence[ParameterSpec], whole: int, target: int) -> int | None:
    """Return the greatest number of coefficients per block with which an update is at least `target`
    times smaller than `whole` bytes; None if there is none."""
    sizes = {k: update_layout(table, 64, k).body_bytes for k in range(1, 129)}
    return max((k for k, size in sizes.items() if size * target <= whole), default=None)


def best_of(runs: Sequence[Kept]) -> Kept:
    """Return the run with the lowest loss."""
    return min(runs, key=lambda run: run.loss)


def summed_up(tried: Sequence[Run], reported: Sequence[Run]) -> dict[str, Any]:
    """Return a variant's JSON: its mean loss over the seeds, and how it was trained."""
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
    """Return by how many percent losses are above the compared ones, seed by seed."""
    return [100 * (loss / other - 1) for loss, other in zip(losses, beside, strict=True)]


def mean_curve(runs: Sequence[Run]) -> tuple[list[int], list[float]]:
    """Return the rounds, without the one before the first, and the mean loss of all runs after each."""
    rounds = [number for number, _ in runs[0].curve][1:]
    means = [statistics.fmean(run.curve[i + 1][1] for run in runs) for i in range(len(rounds))]
    return rounds, means


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 for one value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def read_runs(file: Path, kind: type[R]) -> list[R]:
    """Return the runs in a file of one run per line, without a truncated line. The file is not
    changed."""
    if not file.exists():
        return []
    content = file.read_bytes()
    return [kind(**json.loads(line)) for line in content[: _whole_lines(content)].splitlines()]


def append_run(file: Path, run: Any) -> None:
    """Append a run, a dataclass, overwriting a truncated line; wait until it is on disk."""
    if file.exists():
        content = file.read_bytes()
        if (whole := _whole_lines(content)) < len(content):
            os.truncate(file, whole)
    with file.open("a") as stream:
        stream.write(json.dumps(asdict(run)) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _whole_lines(content: bytes) -> int:
    """Return the bytes of a file up to its last line end: a kill during a write leaves a truncated
    line."""
    return content.rfind(b"\n") + 1
