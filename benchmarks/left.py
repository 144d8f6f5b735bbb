"""The remaining runs of the benchmarks that take days.

    python benchmarks/left.py [--json FILE]

For each setting of frontier.py, growth.py, ladder.py and local_steps.py it reads the stored runs in
`results/` and reports how many of the script's ways were run, for how many the best rate is between
two others that were tried, how many were run with three seeds besides the sweep's, and how long it
would take, at the speed of the stored runs, to complete all of that for every way. It trains
nothing. The same table is in README.md, copied by hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import frontier
import growth
import ladder
import local_steps
from runs import SWEEP_SEED, best_of, read_runs
from text_runs import Tried

RESULTS = Path(__file__).resolve().parent / "results"

WAYS: dict[str, Collection[str]] = {
    "frontier": frontier.WAYS,
    "growth": growth.WAYS,
    "ladder": ladder.WAYS,
    "local-steps": local_steps.WAYS,
}
"""The ways of each script, by the name of its results."""
_SEEDS = frozenset({1, 2, 3})


@dataclass(frozen=True)
class Left:
    """A setting of one script, and what was run of it."""

    script: str
    parameters: int
    sequences: int
    """Of all members together, in a round."""
    rounds: int
    ways: int
    """Ways that the script has, or had."""
    run: int
    found: int
    """Ways whose best rate is between two others."""
    seeds: int
    """Ways that were run with three seeds besides the sweep's, at their best rate."""
    hours_run: float
    """Hours of one core, for the runs whose time was stored."""
    hours_left: float
    """Hours of one core; a lower bound, as a best rate at the edge again takes another run."""


def left_of(script: str, ways: Collection[str], runs: Sequence[Tried]) -> Left:
    """Return what is left of a setting; `runs` are all its runs."""
    usual = statistics.fmean(run.seconds for run in runs if run.seconds)
    by_way: dict[str, list[Tried]] = {way: [] for way in ways}
    for run in runs:
        by_way.setdefault(run.way, []).append(run)
    found = seeds = 0
    seconds = 0.0
    for mine in by_way.values():
        rates, known = _missing(mine)
        timed = [run.seconds for run in mine if run.seconds]
        seconds += (rates + len(_SEEDS - known)) * (statistics.fmean(timed) if timed else usual)
        found += rates == 0
        seeds += known >= _SEEDS
    settings = runs[0].settings
    return Left(
        script=script.replace("-", "_") + ".py",
        parameters=runs[0].parameters,
        sequences=settings["workers"] * settings["sequences"],
        rounds=settings["steps"],
        ways=len(by_way),
        run=sum(bool(mine) for mine in by_way.values()),
        found=found,
        seeds=seeds,
        hours_run=sum(run.seconds for run in runs) / 3600,
        hours_left=seconds / 3600,
    )


def _missing(runs: Sequence[Tried]) -> tuple[int, set[int]]:
    """Return the least number of rates still to be tried, and the seeds with which the best one was
    run."""
    tried = sorted((run for run in runs if run.seed == SWEEP_SEED), key=lambda run: run.rate)
    if not tried:
        return 3, set()
    best = best_of(tried)
    edges = (best is tried[0]) + (best is tried[-1])
    return edges, {run.seed for run in runs if run.rate == best.rate}


def everything(folder: Path = RESULTS) -> Iterator[Left]:
    """Yield all settings of all scripts."""
    for script, ways in WAYS.items():
        groups: dict[str, list[Tried]] = defaultdict(list)
        for file in sorted(folder.glob(f"*-{script}-runs.jsonl")):
            for run in read_runs(file, Tried):
                groups[json.dumps([run.parameters, run.settings])].append(run)
        for runs in groups.values():
            yield left_of(script, ways, runs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the report."""
    parser = argparse.ArgumentParser(description="What is left to run.")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    settings = list(everything())
    print(
        f"{'script':16}{'parameters':>11}{'sequences':>10}{'rounds':>8}{'ways':>6}{'run':>5}{'rate':>6}"
        f"{'seeds':>6}{'h run':>7}{'h left':>8}"
    )
    for each in settings:
        print(
            f"{each.script:16}{each.parameters:11,}{each.sequences:10}{each.rounds:8,}{each.ways:6}{each.run:5}"
            f"{each.found:6}{each.seeds:6}{each.hours_run:7.1f}{each.hours_left:8.0f}"
        )
    if options.json:
        options.json.write_text(
            json.dumps([asdict(each) for each in settings], indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
