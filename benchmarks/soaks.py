"""What the simulators share: soaks of all families of faults, and the report of a failure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from simulation.faults import Family

Chunk = Callable[[Sequence[tuple[Family, range]]], tuple[dict[str, Any], Sequence[Any]]]
"""Runs seeds of several families; returns their figures and the failures, of either simulator."""


def soak(
    path: Path, seeds: range, commit: str, shares: Sequence[tuple[Family, int]], run: Chunk
) -> int:
    """Run all families, a chunk of seeds at a time, appending to `path`; resume at its end. Return the
    exit status: 1 after a violation."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {line["first"] for line in lines if line["commit"] == commit}
    size, violations = sum(share for _, share in shares), 0
    for first in range(seeds.start, seeds.stop, size):
        if first in done:
            continue
        parts, start = [], first
        for family, share in shares:
            parts.append((family, range(start, start + share)))
            start += share
        figures, failures = run(parts)
        line = {"first": first, "commit": commit, **figures}
        line["failures"] = [f"{failure.command}: {failure.text}" for failure in failures]
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        violations += len(failures)
        print(f"{first:6} … {start - 1:6}: {len(failures)} violations", flush=True)
        for failure in failures:
            print(f"    {failure.command}\n    {failure.text}", flush=True)
    return 1 if violations else 0


def summarise_soak(path: Path, counts: Iterable[str]) -> dict[str, Any]:
    """Add up these counts of all lines; also return the tested versions, by lines, and the failures."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {count: sum(line.get(count, 0) for line in lines) for count in counts} | {
        "commits": dict(Counter(line["commit"] for line in lines)),
        "failures": [failure for line in lines for failure in line["failures"]],
    }


def show_failure(smallest: Any) -> None:
    """Print a failure that was shrunk, with what a person needs."""
    scenario = smallest.scenario
    print(f"\nVIOLATION of {smallest.invariant!r} with seed {scenario.seed}: {smallest.text}")
    print(f"  repeat it: {smallest.command}")
    print(f"  {scenario.members} members, fault model {scenario.model}; it needs no more than:")
    for index, lies in scenario.liars:
        print(f"    node {index} lies: {', '.join(lies) or 'not at all'}")
    for line in [*map(str, scenario.schedule.actions), "what happened:", *smallest.trace]:
        print(f"    {line}")
