"""Runs that train a small Llama on the standard library's sources, and their reports.

What frontier.py, local_steps.py and growth.py share: a bench whose runs read the same text, a table
that compares each way with others of the same seeds, and a plot of loss over bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec
from runs import (
    Bench,
    Run,
    Swept,
    add_arguments,
    check_seeds,
    finite,
    percents,
    standard_error,
    summed_up,
)
from training import Optimizer, Setting, Trial, Trouble, Variant, read_corpus, train

MUON = "dense Muon"
Beside = Mapping[str, Mapping[str, str]]
"""By way: the other way that it is compared with, by the comparison's name in the JSON."""
_COLUMNS = {"above_muon": "above Muon", "beside": "beside"}


@dataclass(kw_only=True)
class Tried(Run):
    """One run."""

    parameters: int
    members: int | None = None
    """Members that trained; None in runs from before it was stored."""
    optimizer: dict[str, Any] | None = None
    """The program's settings; None if something else trained, or in runs from before they were
    stored."""


class TextBench(Bench[Tried]):
    """The runs of one size of model and one number of tokens."""

    def __init__(self, options: argparse.Namespace) -> None:
        text = read_corpus([Path(sysconfig.get_paths()["stdlib"])], [])
        self._text, self._heldout = text
        names = ("hidden", "layers", "steps", "workers", "sequences")
        settings = {name: getattr(options, name) for name in names}
        settings["text_sha256"] = hashlib.sha256(text[0].tobytes()).hexdigest()[:16]
        super().__init__(Tried, options, settings)

    def trial(self, seed: int, **other: int) -> Trial:
        """Return a model to train; `other`: settings that differ from the command line's."""
        chosen = argparse.Namespace(**{**vars(self.options), **other})
        return Trial(Setting.of(chosen, seed), self._text, self._heldout)

    def trained(
        self, way: str, rate: float, trial: Trial, optimizer: Optimizer, larger: int = 1
    ) -> Tried:
        """Train with the program, or with dense averaging. `larger`: the steps in a round."""
        variant = Variant(name=way, rate=rate, optimizer=optimizer)
        curve = train(variant, Trouble(), trial, lambda number, loss: None, self.going).curve
        sent, top_k = 2.0 * trial.elements, None
        if isinstance(optimizer, OptimizerSpec):
            top_k = optimizer.top_k
            sent = float(update_layout(trial.table, optimizer.chunk, top_k).body_bytes)
        steps = [(number * larger, loss) for number, loss in curve]
        done = self.tried(way, rate, trial, steps, sent / larger, top_k)
        done.optimizer = asdict(optimizer) if isinstance(optimizer, OptimizerSpec) else None
        return done

    def tried(
        self,
        way: str,
        rate: float,
        trial: Trial,
        curve: Sequence[tuple[int, float]],
        sent: float,
        top_k: int | None,
    ) -> Tried:
        """Return what is stored of a run. `sent`: the mean bytes that a member sends per step."""
        return Tried(
            way=way,
            rate=rate,
            seed=trial.setting.seed,
            loss=finite(curve[-1][1]),
            curve=[(number, finite(loss)) for number, loss in curve],
            bytes_a_round=sent,
            reduction=2.0 * trial.elements / sent,
            top_k=top_k,
            parameters=trial.elements,
            members=trial.setting.workers,
        )


def parsed(
    description: str, ways: Sequence[str], arguments: Sequence[str] | None, *, sequences: int = 2
) -> argparse.Namespace:
    """Return the parsed command line of such a benchmark."""
    parser = argparse.ArgumentParser(description=description)
    add_arguments(parser, ways)
    Setting.add_arguments(parser, steps=400, sequences=sequences)
    parser.set_defaults(hidden=64, layers=2)
    return ready(parser, arguments)


def ready(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line, after checking the seeds and setting one thread for training."""
    options = parser.parse_args(arguments)
    check_seeds(options)
    torch.set_num_threads(1)
    return options


def chosen_ways(bench: Bench[Tried], ways: Sequence[str]) -> list[str]:
    """Return the requested ways; with --known, the existing ones."""
    options = bench.options
    chosen = [way for way in ways if options.variants is None or way in options.variants]
    if options.known:
        there = {run.way for run in bench.runs if run.settings == bench.settings}
        chosen = [way for way in chosen if way in there]
    return chosen


def document(swept: Swept[Tried], settings: dict[str, Any], beside: Beside) -> dict[str, Any]:
    """Return the JSON."""
    ways: dict[str, Any] = {}
    for way, (tried, reported) in swept.items():
        found = ways[way] = summed_up(tried, reported)
        for name, other in beside.get(way, {}).items():
            if other in swept and other != way:
                apart = percents(found["losses"], [run.loss for run in swept[other][1]])
                found[name] = {
                    "of": other,
                    "percent": float(np.mean(apart)),
                    "error": standard_error(apart),
                }
    parameters = next(reported[0].parameters for _, reported in swept.values())
    return {"parameters": parameters, "settings": settings, "ways": ways}


def print_table(written: dict[str, Any]) -> None:
    """Print a line for each way."""
    print(f"\n{written['parameters']:,} parameters")
    print(
        f"{'way':52}{'rate':>8}{'loss':>8}{'seeds':>6}"
        f"{''.join(f'{title:>16}' for title in _COLUMNS.values())}{'bytes':>9}"
    )
    for way, found in written["ways"].items():
        words = [
            f"{found[name]['percent']:+.1f} ± {found[name]['error']:.1f} %" if name in found else ""
            for name in _COLUMNS
        ]
        edge = "!" if found["at_edge"] else " "
        print(
            f"{way:52}{found['rate']:8g}{edge}{found['loss']:7.3f}{len(found['losses']):6}"
            f"{''.join(f'{word:>16}' for word in words)}{found['reduction']:8.0f}×"
        )


def report(options: argparse.Namespace, written: dict[str, Any]) -> None:
    """Print the results, and write them to the file that the command line names."""
    print_table(written)
    if options.json:
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def plot_over_bytes(
    file: Path,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    bytes_label: str,
    levels: Mapping[str, float] | None = None,
) -> None:
    """Plot losses over bytes, each line by its name; `levels` are losses that have no bytes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6))
    for name, loss in (levels or {}).items():
        axes.axhline(loss, linestyle="--", color="grey")
        axes.annotate(name, (0, loss), xycoords=("axes fraction", "data"))
    for name, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), "o-", label=name)
    axes.set(xscale="log", xlabel=bytes_label, ylabel="held-out loss (nats per byte)")
    axes.legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(file)
