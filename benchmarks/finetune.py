"""Fine-tuning at 1,000, 3,000 and 10,000 times fewer bytes than dense gradients of the whole model.

    python benchmarks/finetune.py [--work DIR] [--json FILE] [--plot FILE]
        [--hidden 128] [--layers 2] [--base-steps 600] [--steps 150] [--workers 4] [--sequences 2]
        [--rank 8] [--seeds 1 2 3] [--variants …] [--known]

A byte-level Llama is trained on the source code of Python's standard library, and then tuned on its
language reference, the prose that `help()` shows (`pydoc_data.topics`): both come with Python. Dense
AdamW on all weights is the peer. For comparison all weights, and low-rank adapters, are tuned with
our updates. These have as many coefficients per block as fit into an update that is the given number
of times smaller than the gradient of the whole model in float32, or one where none fits. Names
ending in `-now` have a new swarm's defaults, the others `orthogonal` and sign steps. Adapters with
dense AdamW separate the cost of adapters from that of our updates. All see the same sequences in the
same order.

Rates are found in the same way for every variant, with a seed of its own (0): from a usual one by
factors of two, up and down, until the loss rises on both sides. The best one is used for the
reported seeds; between all weights and adapters with sign steps `loss` has the one that was better
with seed 0. training.py describes how members are simulated.

--work stores the trained base and each run when finished: the same command resumes an
interrupted one, and with more seeds adds their runs. --known trains nothing: it reports the stored
runs, for the seeds that every variant has, or for seed 0 alone if there are none; then the rates
were chosen with the same seed (`chosen_with_reported` in the JSON).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from defaults import OPTIMIZERS
from dense import AdamW
from distro_node.node.trainer.models.adapters import (
    adapter_parameters,
    adapter_table,
    add_adapters,
    draw_adapters,
    target_names,
)
from distro_node.protocol.wire.manifest import AdapterSpec
from going import name_of
from runs import (
    SWEEP_SEED,
    Bench,
    Run,
    Swept,
    add_arguments,
    best_of,
    check_seeds,
    fitting_top_k,
    mean_curve,
    outcome,
    percents,
    standard_error,
    summed_up,
)
from safetensors.torch import load_file, save_file
from training import Setting, Trial, Trouble, Variant, train

REDUCTIONS = (1000, 3000, 10_000)
BASE_RATE = 3e-3
HELDOUT_SEQUENCES = 96
# Where the search for a rate starts; adapters need several times the rate of weights.
USUAL = {"full": 2e-3, "lora": 4e-3}
# Only source code, no tables of numbers; the reference itself is the text to tune on.
_LEFT_OUT = {"test", "encodings", "pydoc_data", "idlelib", "lib2to3", "site-packages"}


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to tune: what is trained, and what is sent of it."""

    trains: str
    """`full` or `lora`"""
    target: int | None = None
    """How many times fewer bytes; None: dense AdamW."""
    kind: str = "signs"
    """How members train, unless densely (defaults.py)."""


WAYS = {
    "dense": Way(trains="full"),
    "lora-dense": Way(trains="lora"),
    **{
        f"{trains}-{target}{suffix}": Way(trains=trains, target=target, kind=kind)
        for kind, suffix in (("signs", ""), ("default", "-now"))
        for target in REDUCTIONS
        for trains in ("full", "lora")
    },
}


@dataclass(kw_only=True)
class Tuned(Run):
    """One run."""

    trained: int
    """Number of trained parameters."""


def source_code() -> np.ndarray:
    """Return the standard library's own source code."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not _LEFT_OUT & set(path.relative_to(root).parts)
    ]
    return np.frombuffer(b"".join(path.read_bytes() for path in files), dtype=np.uint8)


def reference() -> tuple[np.ndarray, np.ndarray]:
    """Return the language reference to tune on, and its held-out part: every tenth topic."""
    from pydoc_data.topics import topics

    texts = [text.encode() for _, text in sorted(topics.items())]
    parts = [
        b"".join(texts[i] for i in range(len(texts)) if (i % 10 == 0) is held)
        for held in (False, True)
    ]
    train_text, heldout = (np.frombuffer(part, dtype=np.uint8) for part in parts)
    return train_text, heldout


class Tuning(Bench[Tuned]):
    """The base, the texts, and the stored runs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.text, self.heldout = reference()
        self.code = source_code()
        settings = {
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
        super().__init__(Tuned, options, settings)
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
        file = options.work and options.work / f"base-{name_of(named)}.safetensors"
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
        """Return a trial with the base, ready to be tuned in this way."""
        trial = self._trial(self.setting(seed), self.text)
        with torch.no_grad():
            for spec, parameter in zip(trial.table, trial.parameters, strict=True):
                parameter.copy_(self.base[spec.name])
        if way.trains == "lora":
            _adapt(trial, self.options.rank, seed)
        return trial

    def default_rate(self, way: str) -> float:
        """Return the rate at which the search for a variant's best rate starts."""
        return USUAL[WAYS[way].trains]

    def train(self, way: str, rate: float, seed: int) -> Tuned:
        """Make one run."""
        how = WAYS[way]
        trial = self.trial(how, seed)
        whole = 4 * sum(tensor.numel() for tensor in self.base.values())
        ours = None
        if how.target is not None:
            # Where no update is that small, the smallest one.
            top_k = fitting_top_k(trial.table, whole, how.target) or 1
            ours = replace(OPTIMIZERS[how.kind], top_k=top_k)
        dense = 4.0 * trial.elements if how.trains == "lora" else float(whole)
        done = outcome(way, rate, trial, whole=whole, dense=dense, ours=ours, going=self.going)
        return Tuned(seed=seed, trained=trial.elements, **done)


def _adapt(trial: Trial, rank: int, seed: int) -> None:
    """Insert adapters into a trial's model, and train only them."""
    targets = target_names(trial.model)
    table = adapter_table(trial.model, rank, targets)
    adapter = AdapterSpec(
        rank=rank,
        alpha=2.0 * rank,
        targets=targets,
        # The base is local, so its id is not needed.
        base=bytes(32),  # pyright: ignore[reportArgumentType]
        base_parameters=tuple(trial.table),
    )
    add_adapters(trial.model, adapter)
    named = adapter_parameters(trial.model)
    trial.table = list(table)
    trial.parameters = [named[spec.name] for spec in table]
    draw_adapters(trial.parameters, table, seed)


def summary(bench: Tuning, swept: Swept[Tuned]) -> dict[str, Any]:
    """Return the document: `loss` by reduction, `dense`, and the figures they come from."""
    ways: dict[str, Any] = {
        name: {**summed_up(tried, reported), "trained": reported[0].trained}
        for name, (tried, reported) in swept.items()
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
            apart = percents(way["losses"], ways["dense"]["losses"])
            way["percent_error"] = standard_error(apart)
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


def plot(path: Path, swept: Swept[Tuned]) -> None:
    """Plot held-out loss against the bytes that a member sends: at the end, and during the run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (ends, ways) = pyplot.subplots(1, 2, figsize=(14, 5.5))
    steps = next(iter(swept.values()))[1][0].settings["steps"]
    for label, names in (
        *(
            (f"{trained}, our updates{words}", [f"{trains}-{each}{suffix}" for each in REDUCTIONS])
            for suffix, words in (("", ""), ("-now", ", the default now"))
            for trains, trained in (("full", "all weights"), ("lora", "adapters"))
        ),
        ("all weights, dense AdamW", ["dense"]),
        ("adapters, dense AdamW", ["lora-dense"]),
    ):
        points = [swept[name][1] for name in names if name in swept]
        if points:
            ends.errorbar(
                [runs[0].bytes_a_round * steps for runs in points],
                [statistics.fmean(run.loss for run in runs) for runs in points],
                [standard_error([run.loss for run in runs]) for runs in points],
                marker="o",
                label=label,
            )
    if "dense" in swept:
        dense = statistics.fmean(run.loss for run in swept["dense"][1])
        ends.axhline(dense, linewidth=0.5, color="black")
        for percent in (1, 3):
            ends.axhline(dense * (1 + percent / 100), linewidth=0.5, linestyle=":", color="black")
    for name, (_, runs) in swept.items():
        numbers, means = mean_curve(runs)
        ways.plot([number * runs[0].bytes_a_round for number in numbers], means, label=name)
    for axes in (ends, ways):
        axes.set(xscale="log", xlabel="bytes that a member sends", ylabel="held-out nats a byte")
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def _digest(text: np.ndarray) -> str:
    return hashlib.sha256(text.tobytes()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tuning with few bytes beside dense AdamW.")
    Setting.add_arguments(parser, steps=150, sequences=2)
    parser.set_defaults(workers=4, layers=2)
    parser.add_argument("--base-steps", type=int, default=600)
    parser.add_argument("--rank", type=int, default=8)
    add_arguments(parser, [*WAYS])
    options = parser.parse_args()
    check_seeds(options)
    torch.set_num_threads(1)
    bench = Tuning(options)
    swept = bench.sweep([way for way in WAYS if way in (options.variants or WAYS)])
    document = summary(bench, swept)
    print_summary(document)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.plot:
        plot(options.plot, swept)


if __name__ == "__main__":
    main()
