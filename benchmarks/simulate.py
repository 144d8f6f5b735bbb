"""The protocol under faults and at scale, in virtual time: the daemon's own state machines.

    python benchmarks/simulate.py [--members N] [--rounds N] [--seeds A:B]
                                  [--faults none|crash|network|liars|all|cut|down|audits|committees]
                                  [--overlap] [--json FILE]
    python benchmarks/simulate.py --scale [--members N ...] [--json FILE]
    python benchmarks/simulate.py --floor [--members N ...] [--json FILE]
    python benchmarks/simulate.py --pace [--json FILE]
    python benchmarks/simulate.py --mutations

Each seed determines a swarm and a schedule of faults; `tests/simulation/` lists the invariants,
which are checked at every moment. A failing run is shrunk and printed, with the command that repeats
it, and the exit status is 1. `--soak FILE` goes through all families and appends a line for every
hundred seeds, so that it can be stopped and continued. One process, one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from simulation.faults import FAMILIES, Family
from simulation.floor import floor_table
from simulation.mutations import table
from simulation.scale import FIBRE, GoodCase, pace_table, run_good_case
from simulation.scenario import Failure, run_seed, shrink
from soaks import show_failure, soak, summarise_soak

SCALE = (4, 16, 64, 256, 1000)
# How a soak divides its seeds: families that have found most get most.
_SOAK: tuple[tuple[Family, int], ...] = (
    ("all", 20),
    ("liars", 18),
    ("cut", 14),
    ("network", 12),
    ("crash", 12),
    ("down", 8),
    ("audits", 8),
    ("committees", 6),
    ("none", 2),
)
# The figures that are summed over a soak's lines.
_COUNTS = (
    "seeds",
    "violations",
    "liars_outnumbered_the_others",
    "rounds_decided",
    "chain_changes",
    "virtual_hours",
    "processor_seconds",
)


@dataclass
class Totals:
    """The outcome of a number of seeds."""

    seeds: int = 0
    violations: int = 0
    rounds_decided: int = 0
    forks: int = 0
    excused: int = 0
    messages: float = 0.0
    gossip_bytes: float = 0.0
    virtual_seconds: float = 0.0
    processor_seconds: float = 0.0
    decide_delays: list[float] = field(default_factory=list)
    by_invariant: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """Return the figures, as in the JSON file."""
        rounds = max(1, self.rounds_decided)
        delays = sorted(self.decide_delays) or [0.0]
        return {
            "seeds": self.seeds,
            "violations": self.violations,
            "by_invariant": dict(self.by_invariant),
            "liars_outnumbered_the_others": self.excused,
            "rounds_decided": self.rounds_decided,
            "chain_changes": self.forks,
            "decide_delays": {
                "median": statistics.median(delays),
                "p90": delays[int(0.9 * (len(delays) - 1))],
                "max": delays[-1],
            },
            "messages_per_member_round": self.messages / rounds,
            "protocol_bytes_per_member_round": self.gossip_bytes / rounds,
            "virtual_hours": self.virtual_seconds / 3600,
            "processor_seconds": self.processor_seconds,
        }


def run_seeds(
    seeds: range,
    family: Family,
    members: int | None,
    rounds: int | None,
    totals: Totals,
    *,
    overlap: bool = False,
) -> list[Failure]:
    """Run seeds of one family and add up their outcomes."""
    failures = []
    for seed in seeds:
        began = time.process_time()
        outcome = run_seed(seed, family, members=members, rounds=rounds, overlap=overlap)
        totals.processor_seconds += time.process_time() - began
        totals.seeds += 1
        totals.rounds_decided += outcome.rounds
        totals.forks += outcome.forks
        totals.excused += outcome.excused
        totals.messages += outcome.messages * outcome.rounds
        totals.gossip_bytes += outcome.gossip_bytes * outcome.rounds
        totals.virtual_seconds += outcome.seconds
        if family == "none":
            totals.decide_delays += outcome.delays
        if outcome.failure is not None:
            totals.violations += 1
            totals.by_invariant[outcome.failure.invariant] += 1
            failures.append(outcome.failure)
    return failures


def run_chunk(parts: Sequence[tuple[Family, range]]) -> tuple[dict[str, Any], list[Failure]]:
    """Run a soak's chunk."""
    totals, failures = Totals(), []
    for family, seeds in parts:
        failures += run_seeds(seeds, family, None, None, totals)
    return totals.summary(), failures


def print_scale(cases: list[GoodCase]) -> None:
    """Print the table of sizes."""
    print("one-way delay: median time of a message to a member. Updates of 2.8 MB.\n")
    print(
        f"{'n':>5} {'one-way':>9} {'to decide':>10} {'delays':>7} {'messages':>9} "
        f"{'said':>9} {'on wires':>10} {'of bytes':>9} {'processor':>10}"
    )
    print(
        f"{'':5} {'ms':>9} {'ms':>10} {'':7} {'/m/round':>9} "
        f"{'kB/m/rnd':>9} {'kB/m/rnd':>10} {'%':>9} {'s/round':>10}"
    )
    for case in cases:
        print(
            f"{case.members:5} {1e3 * case.one_way:9.1f} {1e3 * case.decide:10.1f} "
            f"{case.decide_delays:7.2f} {case.messages:9.2f} {case.said_bytes / 1e3:9.2f} "
            f"{case.gossip_bytes / 1e3:10.1f} {100 * case.share:9.3f} {case.processor:10.2f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="The protocol under faults and at scale.")
    parser.add_argument(
        "--members", type=int, nargs="*", help="how many; drawn by the seed if left out"
    )
    parser.add_argument("--rounds", type=int, help="at least so many rounds a run")
    parser.add_argument("--seeds", default="0:20", metavar="A:B", help="from A to B - 1")
    parser.add_argument("--faults", choices=FAMILIES, default="all")
    parser.add_argument("--overlap", action="store_true", help="updates computed a round ahead")
    parser.add_argument("--scale", action="store_true", help="the good case at growing sizes")
    parser.add_argument("--floor", action="store_true", help="the least that three steps can take")
    parser.add_argument("--pace", action="store_true", help="deadlines on a LAN and on home lines")
    parser.add_argument(
        "--mutations", action="store_true", help="faults put in, and what finds them"
    )
    parser.add_argument("--soak", type=Path, metavar="FILE", help="all families; continues FILE")
    parser.add_argument("--summarise", type=Path, metavar="FILE", help="add up a soak's FILE")
    parser.add_argument("--commit", default="", help="what to write beside a soak's figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    members = options.members[0] if options.members else None
    status = 0
    if options.scale:
        cases = []
        for count in options.members or SCALE:
            cases.append(run_good_case(count, rounds=options.rounds))
            print(f"{count} members done", file=sys.stderr, flush=True)
        print_scale(cases)
        result: Any = [asdict(case) for case in cases]
    elif options.floor:
        floors = floor_table(options.members or list(SCALE), FIBRE)
        result = [asdict(floor) for floor in floors]
    elif options.pace:
        result = pace_table()
    elif options.mutations:
        result = table()
        print("\n".join(result))
    elif options.soak:
        return soak(options.soak, range(first, last), options.commit, _SOAK, run_chunk)
    elif options.summarise:
        result = summarise_soak(options.summarise, _COUNTS)
        print(json.dumps(result, indent=2))
    else:
        totals = Totals()
        failures = []
        for start in range(first, last, 50):
            chunk = range(start, min(last, start + 50))
            failures += run_seeds(
                chunk, options.faults, members, options.rounds, totals, overlap=options.overlap
            )
            print(
                f"seeds {first} to {chunk[-1]}: {totals.violations} violations, "
                f"{totals.rounds_decided} rounds, {totals.processor_seconds:.0f} s of processor",
                flush=True,
            )
        result = {"faults": options.faults, "overlap": options.overlap} | totals.summary()
        for key, value in result.items():
            print(f"  {key:34} {value}")
        for failure in failures[:3]:
            show_failure(shrink(failure))
        status = 1 if failures else 0
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
