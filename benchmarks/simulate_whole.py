"""Whole node processes under faults, in virtual time: the entire daemon except libp2p and torch.

    python benchmarks/simulate_whole.py [--seeds A:B,…] [--json FILE]
        [--faults none|crash|network|liars|all|cut|down|audits|committees]
    python benchmarks/simulate_whole.py --soak FILE [--seeds A:B] [--commit TEXT]
    python benchmarks/simulate_whole.py --summarise FILE [--json FILE]

`tests/simulation/whole/` documents what is simulated, and its invariants. A failing run is shrunk
and printed, with the command that repeats it, and the exit status is 1. `--soak FILE` goes through
all families and appends a line for every twenty seeds, so that it can be stopped and continued. One
process, one thread; it restarts itself with the fixed seed for Python's hashes with which runs are
repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from simulation.faults import FAMILIES, Family
from simulation.whole.scenario import Failure, run_seed, shrink
from soaks import show_failure, soak, summarise_soak

_HASH_SEED = "0"
# How a soak divides its seeds.
_SOAK: tuple[tuple[Family, int], ...] = (
    ("all", 5),
    ("crash", 4),
    ("liars", 4),
    ("cut", 3),
    ("network", 2),
    ("committees", 3),
    ("audits", 2),
    ("down", 1),
    ("none", 1),
)
# The figures that are summed over a soak's lines.
_COUNTS = (
    "seeds",
    "violations",
    "liars_outnumbered_the_others",
    "rounds_decided",
    "processes_started",
    "chain_changes",
    "virtual_hours",
    "processor_seconds",
)


@dataclass
class Totals:
    """The outcome of a number of seeds."""

    seeds: int = 0
    rounds_decided: int = 0
    processes: int = 0
    chain_changes: int = 0
    excused: int = 0
    virtual_seconds: float = 0.0
    processor_seconds: float = 0.0
    violations: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """Return the figures, as in the JSON file."""
        return {
            "seeds": self.seeds,
            "violations": self.violations.total(),
            "by_invariant": dict(self.violations),
            "liars_outnumbered_the_others": self.excused,
            "rounds_decided": self.rounds_decided,
            "processes_started": self.processes,
            "chain_changes": self.chain_changes,
            "virtual_hours": self.virtual_seconds / 3600,
            "processor_seconds": self.processor_seconds,
            "processor_seconds_a_seed": self.processor_seconds / max(1, self.seeds),
        }


def run_seeds(seeds: range, family: Family, totals: Totals) -> list[Failure]:
    """Run seeds of one family and add up their outcomes."""
    failures = []
    for seed in seeds:
        began = time.process_time()
        outcome = run_seed(seed, family)
        totals.processor_seconds += time.process_time() - began
        totals.seeds += 1
        totals.rounds_decided += outcome.rounds
        totals.processes += outcome.starts
        totals.chain_changes += outcome.forks
        totals.excused += outcome.excused
        totals.virtual_seconds += outcome.seconds
        if outcome.failure is not None:
            totals.violations[outcome.failure.invariant] += 1
            failures.append(outcome.failure)
    return failures


def run_chunk(parts: Sequence[tuple[Family, range]]) -> tuple[dict[str, Any], list[Failure]]:
    """Run a soak's chunk."""
    totals, failures = Totals(), []
    for family, seeds in parts:
        failures += run_seeds(seeds, family, totals)
    return totals.summary(), failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Whole node processes under faults.")
    parser.add_argument("--seeds", default="0:20", metavar="A:B,…", help="from A to B - 1")
    parser.add_argument("--faults", choices=FAMILIES, default="all")
    parser.add_argument("--soak", type=Path, metavar="FILE", help="all families; continues FILE")
    parser.add_argument("--summarise", type=Path, metavar="FILE", help="add up a soak's FILE")
    parser.add_argument("--commit", default="", help="what to write beside a soak's figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != _HASH_SEED:
        environment = {**os.environ, "PYTHONHASHSEED": _HASH_SEED}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    # Nodes in trouble log a lot, as intended.
    logging.disable(logging.WARNING)
    ranges = [range(*map(int, part.split(":"))) for part in options.seeds.split(",")]
    if options.soak:
        return soak(options.soak, ranges[0], options.commit, _SOAK, run_chunk)
    if options.summarise:
        text = json.dumps(summarise_soak(options.summarise, _COUNTS), indent=2)
        print(text)
        if options.json:
            options.json.write_text(text + "\n")
        return 0
    totals, failures = Totals(), []
    for number, seed in enumerate(itertools.chain(*ranges), 1):
        failures += run_seeds(range(seed, seed + 1), options.faults, totals)
        print(
            f"{number} seeds, up to {seed}: {len(failures)} violations, {totals.rounds_decided} rounds, "
            f"{totals.processor_seconds:.0f} s of processor",
            file=sys.stderr,
            flush=True,
        )
    result = {"faults": options.faults} | totals.summary()
    for key, value in result.items():
        print(f"  {key:28} {value}")
    for failure in failures[:3]:
        show_failure(shrink(failure))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
