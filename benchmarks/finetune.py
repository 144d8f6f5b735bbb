"""Fine-tuning at 1,000, 3,000 and 10,000 times fewer bytes than dense gradients of the whole model.

    python benchmarks/finetune.py [--work DIR] [--json FILE] [--plot FILE]
        [--hidden 128] [--layers 2] [--base-steps 600] [--steps 150] [--workers 4] [--sequences 2]
        [--rank 8] [--seeds 1 2 3] [--variants …] [--known]

A byte-level Llama is trained on the source code of Python's standard library, and then tuned on its
language reference, the prose that `help()` shows (`pydoc_data.topics`): both come with Python. Dense
AdamW on all weights is the peer. Beside it all weights, and low-rank adapters, are tuned with our
updates. Of each block they have as many coefficients as fit, so that an update is so many times smaller
than the gradient of the whole model in float32, or one, where none fits. Adapters with dense AdamW tell
apart what adapters cost and what our updates do. All see the same sequences in the same order.

Rates are found alike for every variant, with a seed of its own (0): from a usual one by factors of two,
up and down, until the loss rises on both sides. The best one is taken for the seeds that are reported;
and of all weights and adapters `loss` has whichever was better with seed 0. How members are simulated
stands in training.py.

--work keeps the trained base and each run as soon as it is finished: the same command goes on where it
was broken off, and with more seeds adds their runs to those that are there. --known trains nothing: it
reports what is there, of the seeds that every variant has, or of seed 0 alone, where none is, with which
the rates were chosen as well (`chosen_with_reported` in the JSON).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import sys
import sysconfig
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distro_node.node.trainer.adapters import (
    adapter_parameters,
    adapter_table,
    add_adapters,
    draw_adapters,
    target_names,
)
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.wire.manifest import AdapterSpec, OptimizerSpec, ParameterSpec
from safetensors.torch import load_file, save_file
from training import AdamW, Setting, Trial, Trouble, Variant, train

REDUCTIONS = (1000, 3000, 10_000)
SWEEP_SEED = 0
MOST_RATES = 7
BASE_RATE = 3e-3
HELDOUT_SEQUENCES = 96
# Where the search for a rate begins; adapters take some times the rate of weights.
USUAL = {"full": 2e-3, "lora": 4e-3}
# Source code, and no tables of numbers; the reference itself is what is tuned on.
_LEFT_OUT = {"test", "encodings", "pydoc_data", "idlelib", "lib2to3", "site-packages"}


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to tune: what is trained, and what is sent of it."""

    name: str
    trains: str
    """`full` or `lora`"""
    target: int | None = None
    """How many times fewer bytes; None: dense AdamW."""


WAYS = [
    Way(name="dense", trains="full"),
    Way(name="lora-dense", trains="lora"),
    *(
        Way(name=f"{trains}-{target}", trains=trains, target=target)
        for target in REDUCTIONS
        for trains in ("full", "lora")
    ),
]


@dataclass
class Tuned:
    """One run."""

    way: str
    rate: float
    seed: int
    loss: float
    curve: list[tuple[int, float]]
    bytes_a_round: float
    """What a member sends: an update, or the whole model's gradient."""
    reduction: float
    top_k: int | None
    trained: int
    """Parameters that are trained."""
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def source_code() -> np.ndarray:
    """The standard library's own source."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not _LEFT_OUT & set(path.relative_to(root).parts)
    ]
    return np.frombuffer(b"".join(path.read_bytes() for path in files), dtype=np.uint8)


def reference() -> tuple[np.ndarray, np.ndarray]:
    """The language reference to tune on, and the part of it that is held out: every tenth topic."""
    from pydoc_data.topics import topics

    texts = [text.encode() for _, text in sorted(topics.items())]
    parts = [
        b"".join(texts[i] for i in range(len(texts)) if (i % 10 == 0) is held)
        for held in (False, True)
    ]
    train_text, heldout = (np.frombuffer(part, dtype=np.uint8) for part in parts)
    return train_text, heldout


class Bench:
    """The base, the texts, and the runs that are there."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.text, self.heldout = reference()
        self.code = source_code()
        self.settings = {
            **{
                key: getattr(options, key)
                for key in (
                    "hidden",
                    "layers",
                    "base_steps",
                    "steps",
                    "workers",
                    "sequences",
                    "rank",
                )
            },
            "code_sha256": _digest(self.code),
            "text_sha256": _digest(self.text),
        }
        self.runs: list[Tuned] = []
        self._file = None
        if options.work:
            options.work.mkdir(parents=True, exist_ok=True)
            self._file = options.work / "runs.jsonl"
            self.runs = _finished(self._file)
        self.base = self._base()

    def setting(self, seed: int, *, steps: int | None = None) -> Setting:
        options = self.options
        return Setting(
            workers=options.workers,
            sequences=options.sequences,
            steps=options.steps if steps is None else steps,
            hidden=options.hidden,
            layers=options.layers,
            seed=seed,
            device="cpu",
        )

    def _base(self) -> dict[str, torch.Tensor]:
        options = self.options
        named = {
            key: self.settings[key]
            for key in ("hidden", "layers", "base_steps", "workers", "sequences", "code_sha256")
        }
        file = options.work and options.work / f"base-{_name(named)}.safetensors"
        if file and file.exists():
            return load_file(file)
        trial = self._trial(self.setting(0, steps=options.base_steps), self.code)
        variant = Variant(name="base", rate=BASE_RATE, optimizer=AdamW())
        train(variant, Trouble(), trial, lambda n, loss: print(f"base {n}: {loss:.3f}", flush=True))
        weights = {
            spec.name: parameter.detach().clone()
            for spec, parameter in zip(trial.table, trial.parameters, strict=True)
        }
        if file:
            save_file(weights, file.with_suffix(".partial"))
            os.replace(file.with_suffix(".partial"), file)
        return weights

    def _trial(self, setting: Setting, text: np.ndarray) -> Trial:
        return Trial(setting, text, self.heldout, HELDOUT_SEQUENCES)

    def trial(self, way: Way, seed: int) -> Trial:
        """The base, ready to be tuned in this way."""
        trial = self._trial(self.setting(seed), self.text)
        with torch.no_grad():
            for spec, parameter in zip(trial.table, trial.parameters, strict=True):
                parameter.copy_(self.base[spec.name])
        if way.trains == "lora":
            _adapt(trial, self.options.rank, seed)
        return trial

    def run(self, way: Way, rate: float, seed: int) -> Tuned:
        """One run, unless it is there."""
        for known in self.runs:
            if (known.way, known.rate, known.seed, known.settings) == (
                way.name,
                rate,
                seed,
                self.settings,
            ):
                return known
        began = time.process_time()
        trial = self.trial(way, seed)
        whole = 4 * sum(tensor.numel() for tensor in self.base.values())
        if way.target is None:
            top_k, sent, optimizer = None, float(whole), AdamW()
            if way.trains == "lora":
                sent = 4.0 * trial.elements
        else:
            top_k = fitting_top_k(trial.table, whole, way.target)
            optimizer = OptimizerSpec(top_k=top_k)
            sent = float(update_layout(trial.table, optimizer.chunk, top_k).body_bytes)
        variant = Variant(name=way.name, rate=rate, optimizer=optimizer)
        done = train(variant, Trouble(), trial, lambda number, loss: None)
        tuned = Tuned(
            way=way.name,
            rate=rate,
            seed=seed,
            # What came apart is worse than all else, and JSON has no word for it.
            loss=done.heldout_loss if math.isfinite(done.heldout_loss) else 1e9,
            curve=done.curve,
            bytes_a_round=sent,
            reduction=whole / sent,
            top_k=top_k,
            trained=trial.elements,
            settings=self.settings,
            seconds=round(time.process_time() - began, 1),
        )
        print(
            f"{way.name:12} rate {rate:g}, seed {seed}: {tuned.loss:.4f} at {tuned.reduction:,.0f}x "
            f"({tuned.seconds:.0f} s)",
            flush=True,
        )
        self.runs.append(tuned)
        if self._file is not None:
            with self._file.open("a") as stream:
                stream.write(json.dumps(asdict(tuned)) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        return tuned

    def tried(self, way: Way) -> list[Tuned]:
        """The runs with the sweep's seed, by ascending rate; the best is not at the edge."""
        runs = [self.run(way, factor * USUAL[way.trains], SWEEP_SEED) for factor in (0.5, 1.0, 2.0)]
        while len(runs) < MOST_RATES and (best := best_of(runs)) in (runs[0], runs[-1]):
            factor = 0.5 if best is runs[0] else 2.0
            runs.append(self.run(way, factor * best.rate, SWEEP_SEED))
            runs.sort(key=lambda run: run.rate)
        return runs

    def known(self, ways: list[Way]) -> dict[str, tuple[list[Tuned], list[Tuned]]]:
        """What is there, by variant: the sweep's runs, and those of the seeds that all have."""
        mine = [run for run in self.runs if run.settings == self.settings]
        swept = {}
        for way in ways:
            tried = [run for run in mine if (run.way, run.seed) == (way.name, SWEEP_SEED)]
            if not tried:
                sys.exit(f"there is no run of {way.name} in --work yet")
            tried.sort(key=lambda run: run.rate)
            rate = best_of(tried).rate
            reported = {run.seed: run for run in mine if (run.way, run.rate) == (way.name, rate)}
            swept[way.name] = tried, reported
        common = set.intersection(*(set(reported) for _, reported in swept.values()))
        seeds = [seed for seed in self.options.seeds if seed in common] or [SWEEP_SEED]
        self.options.seeds = seeds
        return {
            name: (tried, [reported[seed] for seed in seeds])
            for name, (tried, reported) in swept.items()
        }


def best_of(runs: list[Tuned]) -> Tuned:
    """The one with the lowest loss."""
    return min(runs, key=lambda run: run.loss)


def fitting_top_k(table: list[ParameterSpec], whole: int, target: int) -> int:
    """The most coefficients a block with which an update is at least so many times smaller than `whole`
    bytes; 1 where none is."""
    sizes = {k: update_layout(table, 64, k).body_bytes for k in range(1, 129)}
    return max((k for k, size in sizes.items() if size * target <= whole), default=1)


def _adapt(trial: Trial, rank: int, seed: int) -> None:
    """Put adapters into a trial's model, and make them what is trained."""
    targets = target_names(trial.model)
    table = adapter_table(trial.model, rank, targets)
    adapter = AdapterSpec(
        rank=rank,
        alpha=2.0 * rank,
        targets=targets,
        # Of the base here nobody has to be told.
        base=bytes(32),  # pyright: ignore[reportArgumentType]
        base_parameters=tuple(trial.table),
    )
    add_adapters(trial.model, adapter)
    named = adapter_parameters(trial.model)
    trial.table = list(table)
    trial.parameters = [named[spec.name] for spec in table]
    draw_adapters(trial.parameters, table, seed)


def summary(bench: Bench, swept: dict[str, tuple[list[Tuned], list[Tuned]]]) -> dict[str, Any]:
    """The document: `loss` by reduction, `dense`, and all that they come from."""
    ways = {}
    for name, (tried, reported) in swept.items():
        losses = [run.loss for run in reported]
        ways[name] = {
            "loss": statistics.fmean(losses),
            "error": _error(losses),
            "losses": losses,
            "rate": reported[0].rate,
            "tried": {f"{run.rate:g}": run.loss for run in tried},
            "at_edge": reported[0].rate in (min(r.rate for r in tried), max(r.rate for r in tried)),
            "reduction": reported[0].reduction,
            "bytes_a_round": reported[0].bytes_a_round,
            "top_k": reported[0].top_k,
            "trained": reported[0].trained,
        }
    before = swept["dense"][0][0].curve[0][1] if "dense" in swept else None
    document = {
        "settings": bench.settings,
        "seeds": list(bench.options.seeds),
        "chosen_with_reported": SWEEP_SEED in bench.options.seeds,
        "parameters": sum(tensor.numel() for tensor in bench.base.values()),
        "base": before,
        "ways": ways,
        "loss": {},
        "chosen": {},
        "reduction": {},
        "percent": {},
    }
    if "dense" in ways:
        dense = document["dense"] = ways["dense"]["loss"]
        for way in ways.values():
            way["percent"] = 100 * (way["loss"] / dense - 1)
            apart = zip(way["losses"], ways["dense"]["losses"], strict=True)
            way["percent_error"] = _error([100 * (loss / beside - 1) for loss, beside in apart])
    for target in REDUCTIONS:
        both = [each for each in (f"full-{target}", f"lora-{target}") if each in swept]
        if len(both) < 2:
            continue
        best = min(both, key=lambda name: best_of(swept[name][0]).loss)
        document["chosen"][str(target)] = best.partition("-")[0]
        for key in ("loss", "reduction", "percent"):
            if key in ways[best]:
                document[key][str(target)] = ways[best][key]
    return document


def print_summary(document: dict[str, Any]) -> None:
    if document["base"] is not None:
        print(f"\nbefore tuning: {document['base']:.4f} nats a byte")
    print(f"{'way':12} {'rate':>8} {'k':>3} {'trained':>9} {'bytes':>9} {'fewer':>8} {'loss':>17}")
    for name, way in document["ways"].items():
        edge = " (the edge of what was tried)" if way["at_edge"] else ""
        percent = f"{way['percent']:+.2f} % of dense" if "percent" in way else ""
        print(
            f"{name:12} {way['rate']:8g} {way['top_k'] or '':>3} {way['trained']:9,} "
            f"{way['bytes_a_round']:9,.0f} {way['reduction']:7,.0f}x {way['loss']:.4f} ± "
            f"{way['error']:.4f}  {percent}{edge}"
        )


def plot(path: Path, swept: dict[str, tuple[list[Tuned], list[Tuned]]]) -> None:
    """Held-out loss against the bytes that a member sends: at the end, and on the way."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (ends, ways) = pyplot.subplots(1, 2, figsize=(14, 5.5))
    steps = next(iter(swept.values()))[1][0].settings["steps"]
    for label, names in (
        ("all weights, our updates", [f"full-{target}" for target in REDUCTIONS]),
        ("adapters, our updates", [f"lora-{target}" for target in REDUCTIONS]),
        ("all weights, dense AdamW", ["dense"]),
        ("adapters, dense AdamW", ["lora-dense"]),
    ):
        points = [swept[name][1] for name in names if name in swept]
        if points:
            ends.errorbar(
                [runs[0].bytes_a_round * steps for runs in points],
                [statistics.fmean(run.loss for run in runs) for runs in points],
                [_error([run.loss for run in runs]) for runs in points],
                marker="o",
                label=label,
            )
    if "dense" in swept:
        dense = statistics.fmean(run.loss for run in swept["dense"][1])
        ends.axhline(dense, linewidth=0.5, color="black")
        for percent in (1, 3):
            ends.axhline(dense * (1 + percent / 100), linewidth=0.5, linestyle=":", color="black")
    for name, (_, runs) in swept.items():
        numbers = [number for number, _ in runs[0].curve][1:]
        means = [statistics.fmean(run.curve[i + 1][1] for run in runs) for i in range(len(numbers))]
        ways.plot([number * runs[0].bytes_a_round for number in numbers], means, label=name)
    for axes in (ends, ways):
        axes.set(xscale="log", xlabel="bytes that a member sends", ylabel="held-out nats a byte")
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def _error(values: list[float]) -> float:
    """The standard error of the mean; 0 of one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _finished(file: Path) -> list[Tuned]:
    """The runs of a file; what was cut off in the middle of a line is taken away."""
    if not file.exists():
        return []
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(file, len(whole))
    return [Tuned(**json.loads(line)) for line in whole.splitlines()]


def _digest(text: np.ndarray) -> str:
    return hashlib.sha256(text.tobytes()).hexdigest()[:16]


def _name(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tuning with few bytes beside dense AdamW.")
    Setting.add_arguments(parser, steps=150, sequences=2)
    parser.set_defaults(workers=4, layers=2)
    parser.add_argument("--base-steps", type=int, default=600)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--variants", nargs="+", choices=[way.name for way in WAYS])
    parser.add_argument("--known", action="store_true", help="train nothing, report what is there")
    parser.add_argument("--work", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args()
    if SWEEP_SEED in options.seeds:
        sys.exit(f"seed {SWEEP_SEED} chooses the rates and is not reported: give others")
    torch.set_num_threads(1)
    bench = Bench(options)
    ways = [way for way in WAYS if options.variants is None or way.name in options.variants]
    if options.known:
        swept = bench.known(ways)
    else:
        swept = {way.name: (bench.tried(way), []) for way in ways}
        for seed in options.seeds:
            for way in ways:
                tried, reported = swept[way.name]
                reported.append(bench.run(way, best_of(tried).rate, seed))
    document = summary(bench, swept)
    print_summary(document)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.plot:
        plot(options.plot, swept)


if __name__ == "__main__":
    main()
