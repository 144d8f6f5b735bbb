"""Where the loss between dense Muon and the program goes: one change at a time, rates found for each.

    python benchmarks/frontier.py --work DIR [--hidden 64] [--layers 2] [--steps 400] [--seeds 1 2 3]
        [--variants …] [--known] [--json FILE] [--plot FILE]

From the top each line differs from the one above it by one choice, from dense Muon down to the
program; then come possible improvements, each of which differs from the program by what its name
says. A loss is in held-out nats per byte, at equal tokens. Members and texts are simulated as in
convergence.py (training.py), and recipes.py describes the choices. Last come a new swarm's defaults,
with the program's own code.

Every run is stored in --work when finished, a long one every five minutes as well, and
the same command resumes after a kill (going.py; runs with committees restart). Rates: half, once and
twice the usual one with a seed that is not reported, and further beyond the edge while the best is
there; then the seeds with the best. --known trains nothing and reports the stored runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from defaults import OPTIMIZERS
from dense import Muon
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec
from panels import Panels
from recipes import Recipe
from recipes import train as train_recipe
from runs import Swept, mean_curve
from speakers import Speakers
from text_runs import MUON, TextBench, Tried, chosen_ways, document, parsed, report
from training import Optimizer, Trial

BLOCK = 64 * 64
"""Number of coefficients in a block."""
OURS = Recipe()
"""The program with `preconditioner = "orthogonal"` and `step = "sign"`, in floating point."""
NOW = "and smoothed by 0.7: the default now"
_BLOCKS = Recipe(when="momentum", others="adam", own=False, top_k=None, send="value", step="scaled")
_ALL = replace(_BLOCKS, others="same")
_GRADIENT = replace(_ALL, when="gradient")
_OWN = replace(_GRADIENT, own=True)
_SIGN_STEP = replace(_OWN, step="sign")
_TOP_K = replace(_SIGN_STEP, top_k=8)
_APART = replace(OURS, when="momentum", unsent=0.95)
_SCALED = replace(OURS, smoothing=0.5, step="both")
OURS_NOW = replace(OURS, smoothing=0.7, divided=False, rounds=5, momentum=0.97, step="both")
"""The program with `preconditioner = "muon"` and `step = "scaled"`."""
_HEARD = replace(OURS, smooth=0.95, step="blocks")
"""Only received coefficients enter the momentum that is made orthogonal, so all members have the
same one."""


def _sums(top_k: int, counted: int) -> Recipe:
    """A few members sum, for all, what is sent of each block, and pass on the strongest."""
    return replace(OURS_NOW, send="value", top_k=top_k, counted=counted)


def speaking(speakers: Speakers | Panels) -> Recipe:
    """Return a recipe with the program's gradients, in which members send signs to a block's
    aggregators."""
    return replace(OURS_NOW, momentum=0.0, top_k=None, committees=speakers)


DOWN: dict[str, Recipe | Muon] = {
    MUON: Muon(),
    "blocks of 64 × 64 instead of matrices": _BLOCKS,
    "embedding, head and norms by the same rule": _ALL,
    "the gradient made orthogonal, before the momentum": _GRADIENT,
    "every member has a momentum of its own": _OWN,
    "the sign of the sum": _SIGN_STEP,
    "8 coefficients a block, which leave the momentum": _TOP_K,
    "their signs only: the program": OURS,
}
"""From dense Muon to the program."""
CLOSER: dict[str, Recipe] = {
    "gradient smoothed, 0.5": replace(OURS, smoothing=0.5),
    "gradient smoothed, 0.8": replace(OURS, smoothing=0.8),
    "gradient smoothed, 0.8, a step ahead": replace(OURS, smoothing=0.8, ahead=True),
    "gradient smoothed, 0.8, momentum 0.9": replace(OURS, smoothing=0.8, momentum=0.9),
    "gradient smoothed, 0.5, not divided": replace(OURS, smoothing=0.5, divided=False),
    "gradient smoothed, 0.5, five rounds": replace(OURS, smoothing=0.5, rounds=5),
    "one round of the quintic": replace(OURS, rounds=1),
    "gradient smoothed, 0.5, the sum scaled": _SCALED,
    "and momentum 0.97": replace(_SCALED, momentum=0.97),
    "and not divided": replace(_SCALED, momentum=0.97, divided=False),
    "and five rounds": replace(_SCALED, momentum=0.97, divided=False, rounds=5),
    NOW: OURS_NOW,
    "now, signs of the sum": replace(OURS_NOW, step="sign"),
    "now, vectors scaled as well": replace(OURS_NOW, step="scaled"),
    "now, values": replace(OURS_NOW, send="value"),
    "now, 2 coefficients": replace(OURS_NOW, top_k=2),
    "now, 6 coefficients": replace(OURS_NOW, top_k=6),
    "now, 32 coefficients": replace(OURS_NOW, top_k=32),
    "now, the sum made orthogonal": replace(OURS_NOW, step="matrix"),
    "now, a momentum of the sums": replace(OURS_NOW, smooth=0.5),
    "now, a random basis": replace(OURS_NOW, basis="random"),
    "now, one speaks for all, 64 coefficients": replace(OURS_NOW, own=False, top_k=64),
    "the same, values": replace(OURS_NOW, own=False, top_k=64, send="value"),
    "now, the strongest 32 of sums of 32 values": _sums(32, 32),
    "now, the strongest 64 of sums of 64 values": _sums(64, 64),
    "now, the strongest 64 of sums of all values": _sums(BLOCK, 64),
    "now, one speaks for all of a block, by 1 bit of 2": speaking(Speakers(rotation_steps=2)),
    "now, one speaks for all of a block, by 1 bit of 4": speaking(Speakers(rotation_steps=4)),
    "now, one speaks for all of a block, by 1 bit of 8": speaking(Speakers(rotation_steps=8)),
    "now, one speaks for all of a block, 32 coefficients by 1 bit of 8": speaking(
        Speakers(rotation_steps=8, top_k=32)
    ),
    "now, one speaks for all of a block, 32 coefficients by 1 bit of 16": speaking(
        Speakers(rotation_steps=16, top_k=32)
    ),
    "now, one speaks for all of a block, 19 coefficients by 1 bit of 10": speaking(
        Speakers(rotation_steps=10, top_k=19)
    ),
    "now, one speaks for all of a block, 28 coefficients by 1 bit of 12": speaking(
        Speakers(rotation_steps=12, top_k=28)
    ),
    "now, panels of three, by 1 bit of 4": speaking(Panels(rotation_steps=4)),
    "now, panels of three, by 1 bit of 8": speaking(Panels(rotation_steps=8)),
    "now, two speak for all of a block, by 1 bit of 8": speaking(
        Speakers(rotation_steps=8, top_k=32, each=2)
    ),
    "whole matrices, gradient": replace(OURS, even="matrix"),
    "a quarter stays in the momentum": replace(OURS, keep=0.25),
    "half stays in the momentum": replace(OURS, keep=0.5),
    "the momentum made orthogonal": replace(OURS, when="momentum"),
    "the same, what is unsent kept apart": _APART,
    "the same, momentum 0.9": replace(_APART, momentum=0.9),
    "the same, all of what is unsent": replace(_APART, unsent=1.0),
    "gradient orthogonal, what is unsent kept apart": replace(OURS, unsent=0.95),
    "a momentum of the sums, orthogonal": _HEARD,
    "the same, members without a momentum": replace(_HEARD, momentum=0.0, unsent=1.0),
    "the same, and nothing else is orthogonal": replace(
        _HEARD, when="never", momentum=0.0, unsent=1.0
    ),
    "nothing else is orthogonal, members with a momentum": replace(_HEARD, when="never"),
    "the sum made orthogonal": replace(OURS, step="matrix"),
    "the sum scaled": replace(OURS, step="both"),
    "values, and the sum scaled": replace(OURS, send="value", step="scaled"),
    "momentum 0.9": replace(OURS, momentum=0.9),
    "momentum 0.98": replace(OURS, momentum=0.98),
    "Adam for embedding, head and norms": replace(OURS, others="adam"),
    "a momentum of the sums": replace(OURS, smooth=0.5),
    "2 coefficients": replace(OURS, top_k=2),
    "4 coefficients": replace(OURS, top_k=4),
    "32 coefficients": replace(OURS, top_k=32),
    "32 coefficients, half stays": replace(OURS, top_k=32, keep=0.5),
    "32 coefficients, the sum made orthogonal": replace(OURS, top_k=32, step="matrix"),
}
"""Changes to the program."""
ITSELF: dict[str, OptimizerSpec] = {
    "now, by the program's own code": replace(OPTIMIZERS["default"], top_k=8),
    "now, by the program's own code, 6 coefficients": replace(OPTIMIZERS["default"], top_k=6),
}
"""With integers, the bound of a scaled step and the outlier filter."""
WAYS: dict[str, Recipe | Optimizer] = {**DOWN, **CLOSER, **ITSELF}
# Where the search for a rate starts.
USUAL = {"scaled": 4e-3, "both": 4e-3, "matrix": 4e-3, "blocks": 4e-3, "sign": 8e-3}


class Frontier(TextBench):
    """The runs of one size."""

    def default_rate(self, way: str) -> float:
        """Return the rate at which the search starts."""
        recipe = WAYS[way]
        return USUAL[recipe.step if isinstance(recipe, Recipe) else "scaled"]

    def train(self, way: str, rate: float, seed: int) -> Tried:
        """Make one run."""
        trial = self.trial(seed)
        recipe = WAYS[way]
        if isinstance(recipe, Recipe):
            return follow(self, way, rate, trial, recipe)
        return self.trained(way, rate, trial, recipe)


def follow(bench: TextBench, way: str, rate: float, trial: Trial, recipe: Recipe) -> Tried:
    """Train by a recipe."""
    curve = train_recipe(recipe, rate, trial, going=bench.going)
    return bench.tried(way, rate, trial, curve, bytes_each(recipe, trial), recipe.top_k)


def bytes_each(recipe: Recipe, trial: Trial) -> float:
    """Return the bytes that a member receives in a round for each of the others.

    Where a few members compute the sums for all, every member computes those of its share of the
    blocks: it receives this share of each update, and the sum of each other share.
    """
    if recipe.speakers is not None:
        return recipe.speakers.received(trial)
    sent = update_bytes(recipe, recipe.top_k, trial)
    members = trial.setting.workers
    if not recipe.own and recipe.top_k is not None:
        return sent / members
    if recipe.counted is None:
        return sent
    return (sent + update_bytes(recipe, recipe.counted, trial)) / members


def update_bytes(recipe: Recipe, top_k: int | None, trial: Trial) -> float:
    """Return the size of an update with k coefficients per block; for None or all of them: 16 bits
    each."""
    if top_k is None or top_k == BLOCK:
        return 2.0 * trial.elements
    layout = update_layout(trial.table, 64, top_k)
    # Values would take 16 bits more than signs, each.
    return float(layout.body_bytes + (2 * layout.coefficients if recipe.send == "value" else 0))


def beside(ways: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return, for each way, its comparison with dense Muon, and with the line above it or the
    program."""
    found = {}
    for index, way in enumerate(ways):
        above = ways[max(index - 1, 0)] if way in DOWN else list(DOWN)[-1]
        found[way] = {"above_muon": MUON, "beside": above}
    return found


def plot(file: Path, swept: Swept[Tried]) -> None:
    """Plot loss over the rounds, means over the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6))
    for way, (_, reported) in swept.items():
        rounds, losses = mean_curve(reported)
        axes.plot(rounds, losses, "-" if way in DOWN else "--", label=way)
    axes.set(xlabel="rounds", ylabel="held-out loss (nats per byte)")
    axes.legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parsed("Where the loss between Muon and the program goes.", list(WAYS), arguments)
    bench = Frontier(options)
    ways = chosen_ways(bench, list(WAYS))
    swept = bench.sweep(ways)
    written = document(swept, bench.settings, beside(ways))
    for way, found in written["ways"].items():
        found["recipe"] = asdict(WAYS[way])
    report(options, written)
    if options.plot:
        plot(options.plot, swept)


if __name__ == "__main__":
    main()
