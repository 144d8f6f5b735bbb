"""How the bytes grow with the model: four sizes at equal tokens per parameter, and several values of k.

    python benchmarks/ladder.py --work DIR [--sizes 0.14M 0.3M 0.9M 3M] [--tokens 20] [--workers 8]
        [--sequences 2] [--seeds 1 2 3] [--variants …] [--known] [--json FILE] [--plot FILE]

With the same number of coefficients per block, bytes grow in proportion to the model. Whether they
must is shown by the excess loss over dense Muon's: where it stays the same from one size to the
next, the same share of a model is enough; where it grows, a larger model needs a larger share.
`trend` in the JSON is a plane through all of these excess losses (doublings.py), and `k_each` the
factor by which k must grow for each doubling of the parameters to keep the excess; `predicted` is
the plane's value for 1.2 billion parameters. All of this is for `orthogonal` and sign steps; `now`
has the same for the current default.

Runs are stored in --work and resumed, and rates are found, as in frontier.py. A run's time grows
with the square of the size: with 0.9M parameters and 20 tokens for each it takes an hour or two of a
core, with 3M a day, and it can be killed at any time.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from defaults import OPTIMIZERS
from dense import AdamW, Muon
from distro_node.node.create.rates import default_rate
from distro_node.protocol.wire.manifest import OptimizerSpec
from doublings import Doublings, trend
from runs import add_arguments
from text_runs import (
    MUON,
    TextBench,
    Tried,
    chosen_ways,
    document,
    plot_over_bytes,
    print_table,
    ready,
)
from training import SEQUENCE

SIZES = {"0.14M": (64, 2), "0.3M": (64, 5), "0.9M": (128, 4), "3M": (192, 6)}
"""Width and layers."""
_OURS = {f"k = {k}": OptimizerSpec(top_k=k) for k in (2, 8, 32)}
_NOW = {f"k = {k}, the default now": replace(OPTIMIZERS["default"], top_k=k) for k in (8, 32)}
WAYS = {
    MUON: Muon(),
    "dense AdamW": AdamW(),
    **_OURS,
    "k = 8, smoothed": OptimizerSpec(smoothing=0.5),
    **_NOW,
}
_LARGE = {"parameters": 1_204_615_168.0, "k": 8.0}
"""The model and the setting for which the project is made."""


def parameters_of(hidden: int, layers: int) -> int:
    """Return the number of parameters of a model of this width and depth, as training.py builds it."""
    return layers * (13 * hidden + 2) * hidden + (2 * 256 + 1) * hidden


class Rung(TextBench):
    """The runs of one size."""

    def __init__(self, options: argparse.Namespace, size: str) -> None:
        hidden, layers = SIZES[size]
        self.parameters = parameters_of(hidden, layers)
        a_round = options.workers * options.sequences * SEQUENCE
        steps = max(1, round(options.tokens * self.parameters / a_round))
        size_options = vars(options) | {"hidden": hidden, "layers": layers, "steps": steps}
        super().__init__(argparse.Namespace(**size_options))

    def default_rate(self, way: str) -> float:
        """Return the rate at which the search starts."""
        ours = isinstance(WAYS[way], OptimizerSpec)
        # For either step: with the same rates tried, the two are comparable.
        return default_rate(self.parameters, "sign") if ours else 2e-3

    def train(self, way: str, rate: float, seed: int) -> Tried:
        """Make one run."""
        return self.trained(way, rate, self.trial(seed), WAYS[way])


def trend_of(sizes: dict[str, dict[str, Any]], ways: Collection[str] = _OURS) -> dict[str, Any]:
    """Return the plane through the excess losses of these ways over Muon's, in percent, and its
    value for a large model; empty where too little is measured for one."""
    distances = [
        (
            {"parameters": float(measured["parameters"]), "k": float(found["top_k"])},
            found["above_muon"]["percent"],
        )
        for measured in sizes.values()
        for way, found in measured["ways"].items()
        if way in ways and "above_muon" in found
    ]
    found = trend(distances, "parameters")
    if found:
        percent = Doublings(**found["trend"]).at(_LARGE)
        found["predicted"] = {**_LARGE, "percent": percent}
    return found


def plot(file: Path, written: dict[str, Any]) -> None:
    """Plot loss over the bytes that a member sends, a line for each size, and Muon's at the right
    end."""
    lines = defaultdict(list)
    for size, measured in written["sizes"].items():
        for way, found in measured["ways"].items():
            place = found["bytes_a_round"], found["loss"]
            if way in _OURS or way == MUON:
                lines[f"{size} parameters"].append(place)
            if way in _NOW or way == MUON:
                lines[f"{size} parameters, the default now"].append(place)
    plot_over_bytes(
        file, lines, "bytes that a member sends a round; the last is the dense gradient"
    )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="How bytes grow with the model.")
    add_arguments(parser, list(WAYS))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--tokens", type=float, default=20.0, help="for each parameter")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=2, help="a worker's each round")
    parser.add_argument("--device", default="cpu")
    return ready(parser, arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parsed(arguments)
    sizes = {}
    for size in options.sizes:
        bench = Rung(options, size)
        ways = chosen_ways(bench, list(WAYS))
        if options.known and not ways:
            continue
        swept = bench.sweep(ways)
        sizes[size] = document(swept, bench.settings, {way: {"above_muon": MUON} for way in WAYS})
        print_table(sizes[size])
    written: dict[str, Any] = {"tokens": options.tokens, "sizes": sizes, **trend_of(sizes)}
    written["now"] = trend_of(sizes, _NOW)
    if "predicted" in written:
        plane = written["trend"]
        print(
            f"\nabove Muon, in percent: {plane['each']['parameters']:+.2f} for each doubling of the "
            f"parameters, {plane['each']['k']:+.2f} for each of k (the runs lie {plane['residual']:.2f} "
            f"from it); 1.2B at k = 8, a guess: {written['predicted']['percent']:+.0f} %"
        )
    if options.json:
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        plot(options.plot, written)


if __name__ == "__main__":
    main()
