"""Learning at equal tokens: AdamW and Muon with dense averaging beside DisTrO, and the bytes of each.

    python benchmarks/convergence.py [--workers 8] [--sequences 2] [--steps 400] [--seeds 0 …]
        [--hidden 128] [--layers 4] [--corpus PATH…] [--heldout PATH…] [--variants …]
        [--rates RATE…] [--second-moment BETA] [--weight-decay DECAY]
        [--overlap] [--flipped SHARE] [--late SHARE] [--absent SHARE] [--troubled-only]
        [--device cpu] [--runs FILE] [--json FILE] [--plot FILE] [--earlier FILE…]

training.py describes how members are simulated. Bytes are counted as in the DisTrO report: a bf16
all-reduce receives 2 bytes × parameters × (members - 1) per round, ours one update of each other
member. The held-out text is never trained on.

For each of the troubles in the fourth line of options every variant is trained once more, in
addition to the untroubled run; with absent members twice: for as many rounds, and for as many
tokens. The table shows the mean over the seeds and its standard error; the cost of a trouble is
compared seed by seed.

--rates trains every variant at each of these peak learning rates with the first seed. The rate with
the lowest mean then gets its next seed, until the one with the lowest mean has them all: so a rate
that was lucky with its first seeds is overtaken again. The table has a line for each variant at its
best rate, and below it all rates that were tried.

--runs appends each run to a file when finished, and does not repeat runs that are in it:
the same command resumes a killed sweep, and further commands with the same file add to it. The table
shows everything in it. --earlier adds the runs of other JSON files; those with the same settings and
text are not repeated either. With either of these two nothing is run without --variants.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from defaults import OPTIMIZERS
from dense import AdamW, Muon
from distro_node.node.training.memory_options import StateOptions
from distro_node.protocol.wire.manifest import OptimizerSpec
from runs import append_run, read_runs
from training import (
    SEQUENCE,
    Run,
    Setting,
    Trial,
    Trouble,
    Variant,
    known_settings,
    read_corpus,
    run_name,
    train,
)

VARIANTS = {
    "adamw": Variant(name="AdamW, dense", rate=2e-3, optimizer=AdamW()),
    "muon": Variant(name="Muon, dense", rate=2e-3, optimizer=Muon()),
    "demo": Variant(
        name="DeMo / Psyche: k 8, β 0.999, not preconditioned",
        rate=4e-3,
        optimizer=OptimizerSpec(momentum=0.999, preconditioner="none", outlier_filter=False),
    ),
    "rms": Variant(
        name="k 8, β 0.95, rms", rate=2e-3, optimizer=OptimizerSpec(preconditioner="rms")
    ),
    "rms-damped": Variant(
        name="k 8, β 0.95, rms, damped",
        rate=2e-3,
        optimizer=OptimizerSpec(preconditioner="rms", damping=0.5),
    ),
    "damped": Variant(name="ours, damped", rate=4e-3, optimizer=OptimizerSpec(damping=0.5)),
    "ours": Variant(name="ours: k 8, β 0.95, orthogonal", rate=4e-3),
    "now": Variant(name="the default now", rate=4e-3, optimizer=OPTIMIZERS["default"]),
    "bfloat16": Variant(
        name="ours: k 8, β 0.95, orthogonal [state in bfloat16]",
        rate=4e-3,
        state=StateOptions(precision="bfloat16"),
    ),
    "int8": Variant(
        name="ours: k 8, β 0.95, orthogonal [state in 8 bits]",
        rate=4e-3,
        state=StateOptions(precision="int8"),
    ),
    "ours-32": Variant(name="ours with k 32", rate=4e-3, optimizer=OptimizerSpec(top_k=32)),
    "ours-7": Variant(name="ours with k 7", rate=4e-3, optimizer=OptimizerSpec(top_k=7)),
    "ours-6": Variant(name="ours with k 6", rate=4e-3, optimizer=OptimizerSpec(top_k=6)),
    "unaudited": Variant(
        name="ours without the audit", rate=4e-3, optimizer=OptimizerSpec(outlier_filter=False)
    ),
}


def chosen_variants(options: argparse.Namespace) -> Iterator[Variant]:
    """Yield the variants of the command line, with its options for AdamW."""
    names = options.variants
    if names is None:
        names = [] if options.earlier or options.runs else list(VARIANTS)
    for name in names:
        variant = VARIANTS[name]
        words = []
        if isinstance(variant.optimizer, AdamW):
            optimizer = variant.optimizer
            if options.second_moment is not None:
                optimizer = replace(optimizer, second_moment=options.second_moment)
                words.append(f"β₂ {options.second_moment:g}")
            if options.weight_decay is not None:
                optimizer = replace(optimizer, weight_decay=options.weight_decay)
                words.append(f"decay {options.weight_decay:g}")
            variant = replace(variant, optimizer=optimizer)
        yield replace(variant, name=", ".join([variant.name, *words]))


def chosen_troubles(options: argparse.Namespace) -> Iterator[Trouble]:
    """Yield no trouble, unless that is unwanted, and each trouble of the command line."""
    if not options.troubled_only:
        yield Trouble()
    for name in ("overlap", "flipped", "late", "absent"):
        if value := getattr(options, name):
            yield Trouble(**{name: value})
    if options.absent:
        yield Trouble(absent=options.absent, again=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Held-out loss and bytes of DisTrO beside AdamW.")
    Setting.add_arguments(parser, steps=400, sequences=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--corpus", type=Path, nargs="+", help="files or directories of text")
    parser.add_argument("--heldout", type=Path, nargs="+", help="the same, never trained on")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS))
    parser.add_argument(
        "--rates", type=float, nargs="+", help="peak learning rates, the same for all variants"
    )
    parser.add_argument("--second-moment", type=float, help="AdamW's β₂")
    parser.add_argument("--weight-decay", type=float, help="AdamW's")
    parser.add_argument("--overlap", action="store_true", help="gradients a round late")
    parser.add_argument("--flipped", type=float, default=0.0, help="share of lying members")
    parser.add_argument("--late", type=float, default=0.0, help="share that misses each round")
    parser.add_argument("--absent", type=float, default=0.0, help="share away in each round")
    parser.add_argument("--troubled-only", action="store_true", help="no run without a trouble")
    parser.add_argument("--runs", type=Path, metavar="FILE", help="finished runs, one a line")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--earlier", type=Path, nargs="+", default=[], metavar="FILE")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    runs = [Run(**run) for file in options.earlier for run in json.loads(file.read_text())["runs"]]
    sweep = Sweep(options, runs)
    for variant in chosen_variants(options):
        for trouble in chosen_troubles(options):
            if trouble.concerns(variant.optimizer):
                sweep.train(variant, trouble)
    runs = without_repeats([*runs, *sweep.runs])
    if options.json:
        document = {"runs": [asdict(run) for run in runs]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    print_summary(runs)
    if options.plot:
        plot(options.plot, runs)


class Sweep:
    """Runs over rates and seeds, none of which is done twice."""

    def __init__(self, options: argparse.Namespace, earlier: Sequence[Run]) -> None:
        self._options = options
        self._earlier = earlier
        self.runs = read_runs(options.runs, Run) if options.runs else []
        """The runs of the file, and those added since."""
        self._texts: tuple[np.ndarray, np.ndarray] | None = None

    def train(self, variant: Variant, trouble: Trouble) -> None:
        """Train at every rate with the first seed, and with more seeds at the rate with the lowest
        mean."""
        options = self._options
        losses: dict[float, list[float]] = {rate: [] for rate in options.rates or [variant.rate]}

        def add_seed(rate: float) -> None:
            seed = options.seeds[len(losses[rate])]
            run = self._run(replace(variant, rate=rate), trouble, seed)
            losses[rate].append(run.heldout_loss)

        for rate in losses:
            add_seed(rate)
        while len(losses[best := best_rate(losses)]) < len(options.seeds):
            add_seed(best)

    def _run(self, variant: Variant, trouble: Trouble, seed: int) -> Run:
        options = self._options
        setting = Setting.of(options, seed)
        if self._texts is None:
            corpus = options.corpus or [Path(sysconfig.get_paths()["stdlib"])]
            self._texts = read_corpus(corpus, options.heldout or [])
        text, heldout = self._texts
        about = {
            "corpus": ", ".join(path.name for path in options.corpus or []) or "stdlib",
            # The standard library differs between versions of Python.
            "text_sha256": hashlib.sha256(text.tobytes()).hexdigest()[:16],
            "heldout_sha256": hashlib.sha256(heldout.tobytes()).hexdigest()[:16],
        }
        known = _plain(known_settings(variant, trouble, setting) | about)
        name = run_name(variant, trouble)
        for run in (*self._earlier, *self.runs):
            if run.name == name and known.items() <= run.settings.items():
                return run
        began = time.monotonic()
        run = train(
            variant,
            trouble,
            Trial(setting, text, heldout),
            lambda number, loss: print(f"  round {number}, held-out {loss:.3f}", flush=True),
        )
        run.settings |= about
        seconds = time.monotonic() - began
        print(
            f"{name}, {variant.rate:g}, seed {seed}: {run.heldout_loss:.3f} ({seconds:.0f} s)",
            flush=True,
        )
        run = Run(**_plain(asdict(run)))
        self.runs.append(run)
        if options.runs:
            append_run(options.runs, run)
        return run


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """Return the value as it is read back from a file."""
    return json.loads(json.dumps(value))


def best_rate(losses: dict[float, list[float]]) -> float:
    """Return the rate with the lowest mean; never one with a diverged run, which has no loss."""
    means = {rate: statistics.fmean(values) for rate, values in losses.items()}
    return min(means, key=lambda rate: (math.isnan(means[rate]), means[rate]))


def without_repeats(runs: Sequence[Run]) -> list[Run]:
    """Return, among runs with the same name, setting, rate and seed, only the last."""
    return list({(run.name, _setting(run), *_key(run)): run for run in runs}.values())


def print_summary(runs: Sequence[Run]) -> None:
    """Print a table for each setting: means over the seeds, the rates tried, the cost of each
    trouble."""
    for heading, group in grouped(runs, _setting):
        print(f"\n{heading}")
        print(
            f"{'variant':64} {'rate':>6} {'seeds':>5} {'held-out':>17} {'received/round':>15} "
            f"{'reduction':>10}"
        )
        clean = {_key(run): run.heldout_loss for run in group if " [" not in run.name}
        for name, variant in grouped(group, lambda run: run.name):
            rates = by_rate(variant)
            rate = best_rate(_losses(rates))
            same = rates[rate]
            losses = [run.heldout_loss for run in same]
            received = statistics.fmean(run.received_bytes_per_round for run in same)
            reduction = statistics.fmean(run.reduction for run in same)
            print(
                f"{name:64} {rate:6g} {len(same):5} {_with_error(losses, '.3f'):>17} "
                f"{received:13,.0f} B {reduction:9.0f}×{_cost(same, clean)}{_audited(same)}"
            )
            if len(rates) > 1:
                print(f"    {_tried(rates, rate)}")


def by_rate(runs: Sequence[Run]) -> dict[float, list[Run]]:
    """Return a variant's runs, by ascending rate."""
    return dict(sorted(grouped(runs, lambda run: run.settings["rate"])))


def _losses(rates: dict[float, list[Run]]) -> dict[float, list[float]]:
    return {rate: [run.heldout_loss for run in runs] for rate, runs in rates.items()}


def _tried(rates: dict[float, list[Run]], best: float) -> str:
    """Return all rates with their losses and seeds, and whether a rate beyond them might be better
    still."""
    words = ", ".join(
        f"{rate:g}: {statistics.fmean(values):.3f} ({len(values)})"
        for rate, values in _losses(rates).items()
    )
    edge = "; the best is the " + ("lowest" if best == min(rates) else "highest")
    return f"rates tried (seeds): {words}{'' if min(rates) < best < max(rates) else edge}"


def grouped(runs: Sequence[Run], key: Any) -> list[tuple[Any, list[Run]]]:
    """Group the runs by a key, in the order in which the keys first occur."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.items())


def _setting(run: Run) -> str:
    s = run.settings
    rounds = s["steps"]
    return (
        f"{s['parameters']:,} parameters, {s['workers']} members × {s['sequences']} sequences × "
        f"{SEQUENCE} bytes, {rounds} rounds, {s['corpus']}"
    )


def _key(run: Run) -> tuple[str, float, int]:
    """Return a key that runs share if they differ only by a trouble, given that they share the
    setting."""
    return run.name.partition(" [")[0], run.settings["rate"], run.settings["seed"]


def _with_error(values: Sequence[float], form: str) -> str:
    """Return the mean, followed by ± its standard error where there are several values."""
    mean = format(statistics.fmean(values), form)
    if len(values) < 2:
        return mean
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean} ± {format(error, form.lstrip('+'))}"


def _cost(runs: Sequence[Run], clean: dict[tuple[str, float, int], float]) -> str:
    """Return the cost relative to the same variant without trouble, seed by seed, in per cent."""
    pairs = [(run.heldout_loss, clean[_key(run)]) for run in runs if _key(run) in clean]
    if " [" not in runs[0].name or not pairs:
        return ""
    return f"  {_with_error([100 * (loss / beside - 1) for loss, beside in pairs], '+.1f')} %"


def _audited(runs: Sequence[Run]) -> str:
    """Return the shares of lies and of honest updates that the outlier filter left out."""
    sums = {
        name: sum(run.settings.get("audit", {}).get(name, 0) for run in runs)
        for name in ("lies", "lies_left_out", "honest", "honest_left_out")
    }
    words = []
    if sums["lies"] and sums["lies_left_out"]:
        words.append(f"{sums['lies_left_out'] / sums['lies']:.1%} of the lies")
    if sums["honest_left_out"]:
        words.append(f"{sums['honest_left_out']} of {sums['honest']} honest updates")
    return f"  left out: {', '.join(words)}" if words else ""


def plot(path: Path, runs: Sequence[Run]) -> None:
    """Plot the largest setting: loss against tokens and bytes received, at each best rate, and
    against rate.

    Means over the seeds.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_tokens, by_bytes, rates_axes) = pyplot.subplots(1, 3, figsize=(20, 6), sharey=True)
    _, largest = max(grouped(runs, _setting), key=lambda group: group[1][0].settings["parameters"])
    for name, variant in grouped(largest, lambda run: run.name):
        rates = by_rate(variant)
        rate = best_rate(_losses(rates))
        group = rates[rate]
        setting = group[0].settings
        tokens = setting["workers"] * setting["sequences"] * SEQUENCE
        steps = [step for step, _ in group[0].curve]
        losses = [
            statistics.fmean(loss for _, loss in points)
            for points in zip(*(run.curve for run in group), strict=True)
        ]
        received = statistics.fmean(run.received_bytes_per_round for run in group)
        label = f"{name}, {rate:g}"
        by_tokens.plot([step * tokens for step in steps], losses, label=label)
        by_bytes.plot([step * received for step in steps[1:]], losses[1:], label=label)
        ends = [statistics.fmean(losses) for losses in _losses(rates).values()]
        rates_axes.plot(list(rates), ends, marker="o", label=name)
    lowest = min(run.heldout_loss for run in largest)
    # Values above 4 nats belong to the first few rounds, which are alike for all.
    by_tokens.set(xlabel="tokens", ylabel="held-out loss (nats per byte)", ylim=(lowest - 0.1, 4.0))
    by_bytes.set(xlabel="bytes received by a member", xscale="log")
    rates_axes.set(xlabel="peak learning rate", xscale="log")
    by_tokens.legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
