"""Loss against bytes: local steps between rounds, beside the program, at equal tokens.

    python benchmarks/local_steps.py --work DIR [--hidden 64] [--layers 2] [--steps 400] [--seeds 1 2 3]
        [--variants …] [--known] [--json FILE] [--plot FILE]

DiLoCo, MuLoCo and SparseLoCo as described in local_recipes.py, with 5 to 40 steps per round; the
program, also with fewer and larger rounds; one member that aggregates each block for all
(speakers.py); the program's shared step applied to several local steps; dense AdamW and Muon. All
see the same sequences in the same order, and a loss is in held-out nats per byte. Bytes are those
that a member sends for each of --steps, on average.

Runs are stored in --work and resumed, and rates are found, as in frontier.py; but a killed run with
local steps restarts from the beginning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import local_recipes
from defaults import OPTIMIZERS
from dense import AdamW, Muon
from distro_node.protocol.wire.manifest import OptimizerSpec
from frontier import follow, speaking
from local_recipes import DILOCO, SPARSELOCO, LocalRecipe
from recipes import Recipe
from speakers import Speakers
from text_runs import (
    MUON,
    TextBench,
    Tried,
    chosen_ways,
    document,
    parsed,
    plot_over_bytes,
    report,
)

PROGRAM = "the program, 8 coefficients"


@dataclass(frozen=True)
class Program:
    """The program, with rounds that are `larger` times larger and fewer."""

    optimizer: OptimizerSpec
    larger: int = 1


_NOW = replace(OPTIMIZERS["default"], top_k=8)
_OURS = LocalRecipe(
    steps=4, inner=Muon(), outer_rate=1.0, outer_momentum=0.0, chosen=32, send="sign"
)
WAYS: dict[str, AdamW | Muon | Program | Recipe | LocalRecipe] = {
    MUON: Muon(),
    "dense AdamW": AdamW(),
    PROGRAM: Program(OptimizerSpec()),
    "the program, 2 coefficients": Program(OptimizerSpec(top_k=2)),
    "the program, 32 coefficients": Program(OptimizerSpec(top_k=32)),
    "rounds 4 times larger, 8 coefficients": Program(OptimizerSpec(), larger=4),
    "rounds 4 times larger, 32 coefficients": Program(OptimizerSpec(top_k=32), larger=4),
    "the default now, 8 coefficients": Program(_NOW),
    "the default now, 32 coefficients": Program(replace(_NOW, top_k=32)),
    "the default now, rounds 4 times larger, 32 coefficients": Program(
        replace(_NOW, top_k=32), larger=4
    ),
    "one speaks for all of a block, by 1 bit of 4": speaking(Speakers(rotation_steps=4)),
    "DiLoCo, 10 steps": replace(DILOCO, steps=10),
    "DiLoCo, 20 steps": DILOCO,
    "DiLoCo, 40 steps": replace(DILOCO, steps=40),
    "MuLoCo, 10 steps": replace(DILOCO, steps=10, inner=Muon()),
    "MuLoCo, 20 steps": replace(DILOCO, inner=Muon()),
    "SparseLoCo, 5 steps": replace(SPARSELOCO, steps=5),
    "SparseLoCo, 10 steps": replace(SPARSELOCO, steps=10),
    "SparseLoCo, 20 steps": SPARSELOCO,
    "SparseLoCo with Muon, 5 steps": replace(SPARSELOCO, steps=5, inner=Muon()),
    "SparseLoCo with Muon, 10 steps": replace(SPARSELOCO, steps=10, inner=Muon()),
    "SparseLoCo with Muon, 20 steps": replace(SPARSELOCO, inner=Muon()),
    "the program's step of 4 steps with Muon, 32 coefficients": _OURS,
}


class LocalSteps(TextBench):
    """The runs of one size."""

    def default_rate(self, way: str) -> float:
        """Return the rate at which the search starts."""
        kind = WAYS[way]
        return 8e-3 if isinstance(kind, Program) else 4e-3

    def train(self, way: str, rate: float, seed: int) -> Tried:
        """Make one run."""
        kind = WAYS[way]
        if isinstance(kind, LocalRecipe):
            trial = self.trial(seed)
            curve = local_recipes.train(kind, rate, trial)
            return self.tried(
                way, rate, trial, curve, local_recipes.bytes_a_step(kind, trial), kind.chosen
            )
        if isinstance(kind, Recipe):
            return follow(self, way, rate, self.trial(seed), kind)
        larger, optimizer = (
            (kind.larger, kind.optimizer) if isinstance(kind, Program) else (1, kind)
        )
        options = self.options
        trial = self.trial(
            seed, sequences=options.sequences * larger, steps=options.steps // larger
        )
        return self.trained(way, rate, trial, optimizer, larger)


def plot(file: Path, written: dict[str, Any]) -> None:
    """Plot loss over bytes, a line for each kind of way."""
    lines = defaultdict(list)
    for way, found in written["ways"].items():
        lines[way.partition(", ")[0]].append((found["bytes_a_round"], found["loss"]))
    plot_over_bytes(file, lines, "bytes that a member sends a step")


def described(way: str) -> dict[str, Any]:
    """Return a way's choices, as JSON."""
    kind = WAYS[way]
    return {"kind": type(kind).__name__, **asdict(kind)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parsed("Loss against bytes with local steps.", list(WAYS), arguments)
    bench = LocalSteps(options)
    swept = bench.sweep(chosen_ways(bench, list(WAYS)))
    beside = {way: {"above_muon": MUON, "beside": PROGRAM} for way in WAYS}
    written = document(swept, bench.settings, beside)
    for way, found in written["ways"].items():
        found["choices"] = described(way)
    report(options, written)
    if options.plot:
        plot(options.plot, written)


if __name__ == "__main__":
    main()
