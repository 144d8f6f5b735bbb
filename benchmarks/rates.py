"""The best learning rate: where losses were lowest, and what a rule predicts for an untried swarm.

    python benchmarks/rates.py RUNS.jsonl [RUNS.jsonl …] [--optimizer signs | default]
        [--over [parameters members k …]] [--json FILE]

Reads the runs that growth.py, ladder.py and frontier.py store. For every swarm that trained with
this optimizer of defaults.py (with any k), at three rates or more with the best one not at the edge,
the rate is the minimum of a parabola through the best and its two neighbours (losses over the
logarithm of the rate). The rule is a plane through the logarithms of these rates (doublings.py). It
is tested by leaving out each swarm in turn: `costs` is by how many percent the loss would be higher
at the rate that the others predict, by that swarm's own parabola. With an empty --over the rule is
the mean of the others. The rate that `create` takes for a model of this size is assessed in the same
way.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from defaults import OPTIMIZERS
from distro_node.node.create.rates import default_rate
from distro_node.protocol.wire.manifest import OptimizerSpec
from doublings import Doublings, fit
from runs import best_of, read_runs
from text_runs import Tried

PLACES = ("parameters", "members", "k", "steps", "sequences")
"""What a swarm's rate may depend on; sequences are a member's in a round."""


@dataclass(frozen=True, kw_only=True)
class Lowest:
    """A swarm, and the rate at which its loss is lowest."""

    place: dict[str, float]
    rate: float
    loss: float
    """At that rate, by the parabola."""
    bend: float
    """Rise of the loss per squared doubling of distance from that rate."""

    def above(self, rate: float) -> float:
        """Return by how many percent the loss is higher at another rate."""
        return 100 * self.bend * math.log2(rate / self.rate) ** 2 / self.loss


def lowest(runs: Sequence[Tried]) -> Lowest | None:
    """Return the minimum for the runs of one swarm; None if its best rate is at the edge of those
    tried."""
    ordered = sorted(runs, key=lambda run: run.rate)
    best = ordered.index(best_of(ordered))
    if best in (0, len(ordered) - 1):
        return None
    near = ordered[best - 1 : best + 2]
    bend, slope, _ = np.polyfit(
        [math.log2(run.rate / near[1].rate) for run in near], [run.loss for run in near], 2
    )
    away = -slope / (2 * bend)
    return Lowest(
        place=place_of(near[1]),
        rate=near[1].rate * 2**away,
        loss=near[1].loss - float(bend) * away**2,
        bend=float(bend),
    )


def place_of(run: Tried) -> dict[str, float]:
    """Return a swarm's `PLACES`."""
    settings = run.settings
    members = run.members if run.members is not None else settings["workers"]
    each = settings["workers"] * settings["sequences"] / members
    known = (run.parameters, members, run.top_k or 0, settings["steps"], each)
    return dict(zip(PLACES, map(float, known), strict=True))


def swarms(runs: Sequence[Tried], optimizer: OptimizerSpec) -> list[list[Tried]]:
    """Return the runs with this optimizer and any k, by swarm; at each rate the run of the lowest
    seed."""
    groups: dict[str, dict[float, Tried]] = defaultdict(dict)
    for run in sorted(runs, key=lambda run: -run.seed):
        usual = replace(optimizer, top_k=run.top_k) if run.top_k is not None else None
        if usual is not None and run.optimizer == asdict(usual):
            key = json.dumps([run.settings, run.parameters, run.members, run.way])
            groups[key][run.rate] = run
    return [list(by_rate.values()) for by_rate in groups.values()]


def foretold(found: Sequence[Lowest], over: Sequence[str]) -> tuple[Doublings, list[float]]:
    """Return the rule fitted to all swarms over these of `PLACES`, and for each swarm the rate that
    the others predict. Raises `ValueError` if there are too few."""
    measured = [({name: each.place[name] for name in over}, math.log2(each.rate)) for each in found]
    others = [
        2 ** fit([*measured[:index], *measured[index + 1 :]]).at(place)
        for index, (place, _) in enumerate(measured)
    ]
    return fit(measured), others


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="The rate that fits a swarm.")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS.jsonl")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="signs")
    parser.add_argument("--over", nargs="*", choices=PLACES, default=["parameters", "members", "k"])
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    runs = [run for file in options.runs for run in read_runs(file, Tried)]
    optimizer = OPTIMIZERS[options.optimizer]
    groups = swarms(runs, optimizer)
    found = [each for group in groups if (each := lowest(group))]
    try:
        rule, others = foretold(found, options.over)
    except ValueError as error:
        parser.exit(1, f"{error}: train more swarms, each with its best rate not at the edge\n")
    written: dict[str, Any] = {"rule": asdict(rule), "swarms": []}
    titles = f"{'best rate':>12}{'foretold':>12}{'costs':>11}{'create':>12}{'costs':>11}"
    print(f"{'':{14 * len(options.over)}}{titles}")
    for each, rate in zip(found, others, strict=True):
        place = "".join(f"{name} {each.place[name]:<8g}"[:14].ljust(14) for name in options.over)
        taken = default_rate(round(each.place["parameters"]), optimizer.step)
        costs = each.above(rate), each.above(taken)
        print(
            f"{place}{each.rate:12.2g}{rate:12.2g}{costs[0]:+9.2f} %{taken:12.2g}{costs[1]:+9.2f} %"
        )
        told = {"foretold": rate, "costs": costs[0], "create": taken, "create_costs": costs[1]}
        written["swarms"].append(asdict(each) | told)
    for name, slope in rule.each.items():
        print(f"each doubling of {name}: times {2**slope:.2f}")
    if options.json:
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
