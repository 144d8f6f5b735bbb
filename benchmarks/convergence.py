"""Learning at equal tokens: AdamW with dense averaging beside DisTrO variants, and the bytes of each.

    python benchmarks/convergence.py [--workers 8] [--sequences 2] [--steps 400] [--seeds 0 …]
        [--hidden 128] [--layers 4] [--corpus PATH…] [--heldout PATH…] [--variants …]
        [--rate RATE] [--second-moment BETA] [--weight-decay DECAY]
        [--overlap] [--flipped SHARE] [--late SHARE] [--absent SHARE] [--troubled-only]
        [--device cpu] [--json FILE] [--plot FILE] [--earlier FILE…]

How members are simulated stands in training.py. Bytes are counted as the DisTrO report counts them: a
bf16 all-reduce receives 2 bytes × parameters × (members - 1) a round, ours one update of each other
member. The held-out text is never trained on.

For each of the troubles of the fourth line every variant is trained once more, beside without; with
absent members twice: for as many rounds, and for as many tokens. The table shows the mean over the
seeds and its standard error; what a trouble costs is compared seed by seed. --earlier adds the runs of
other JSON files to the table, the JSON and the plot; without --variants behind it nothing is run.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from distro_node.protocol.wire.manifest import OptimizerSpec
from training import (
    SEQUENCE,
    AdamW,
    Run,
    Setting,
    Trial,
    Trouble,
    Variant,
    read_corpus,
    train,
)

VARIANTS = {
    "adamw": Variant(name="AdamW, dense", rate=2e-3, optimizer=AdamW()),
    "demo": Variant(
        name="DeMo / Psyche: k 8, β 0.999, not preconditioned",
        rate=4e-3,
        optimizer=OptimizerSpec(momentum=0.999, preconditioner="none", audit=False),
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
    "ours-7": Variant(name="ours with k 7", rate=4e-3, optimizer=OptimizerSpec(top_k=7)),
    "ours-6": Variant(name="ours with k 6", rate=4e-3, optimizer=OptimizerSpec(top_k=6)),
    "unaudited": Variant(
        name="ours without the audit", rate=4e-3, optimizer=OptimizerSpec(audit=False)
    ),
}


def chosen_variants(options: argparse.Namespace) -> Iterator[Variant]:
    """The variants of the command line, with what it says of their rates and of AdamW."""
    names = options.variants
    for name in ([] if options.earlier else list(VARIANTS)) if names is None else names:
        variant = VARIANTS[name]
        words = []
        if options.rate is not None:
            variant = replace(variant, rate=options.rate)
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
    """None, unless that is not wanted, and each one of the command line."""
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
    parser.add_argument("--rate", type=float, help="the peak learning rate of all variants")
    parser.add_argument("--second-moment", type=float, help="AdamW's β₂")
    parser.add_argument("--weight-decay", type=float, help="AdamW's")
    parser.add_argument("--overlap", action="store_true", help="gradients a round late")
    parser.add_argument("--flipped", type=float, default=0.0, help="share of lying members")
    parser.add_argument("--late", type=float, default=0.0, help="share that misses each round")
    parser.add_argument("--absent", type=float, default=0.0, help="share away in each round")
    parser.add_argument("--troubled-only", action="store_true", help="no run without a trouble")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--earlier", type=Path, nargs="+", default=[], metavar="FILE")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    runs = [Run(**run) for file in options.earlier for run in json.loads(file.read_text())["runs"]]
    corpus = options.corpus or [Path(sysconfig.get_paths()["stdlib"])]
    about = {"corpus": ", ".join(path.name for path in options.corpus or []) or "stdlib"}
    variants = list(chosen_variants(options))
    text, heldout = read_corpus(corpus, options.heldout or []) if variants else (None, None)
    for seed in options.seeds:
        for variant in variants:
            for trouble in filter(
                lambda trouble: trouble.concerns(variant.optimizer), chosen_troubles(options)
            ):
                began = time.monotonic()
                assert text is not None
                assert heldout is not None
                run = train(
                    variant,
                    trouble,
                    Trial(Setting.of(options, seed), text, heldout),
                    lambda number, loss: print(
                        f"  round {number}, held-out {loss:.3f}", flush=True
                    ),
                )
                run.settings |= about
                print(f"{run.name}, seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
                runs.append(run)
                if options.json:
                    # After each run, so that a long comparison that is cut short is not lost.
                    options.json.write_text(_document(runs))
    if options.json:
        options.json.write_text(_document(runs))
    print_summary(runs)
    if options.plot:
        plot(options.plot, runs)


def _document(runs: Sequence[Run]) -> str:
    return json.dumps({"runs": [asdict(run) for run in runs]}, indent=1) + "\n"


def print_summary(runs: Sequence[Run]) -> None:
    """A table for each setting: means over the seeds, and what each trouble cost."""
    for heading, group in grouped(runs, _setting):
        print(f"\n{heading}")
        print(
            f"{'variant':64} {'rate':>6} {'seeds':>5} {'held-out':>17} {'received/round':>15} "
            f"{'reduction':>10}"
        )
        clean = {_key(run): run.heldout_loss for run in group if " [" not in run.name}
        for (name, rate), same in grouped(group, lambda run: (run.name, run.settings["rate"])):
            losses = [run.heldout_loss for run in same]
            received = statistics.fmean(run.received_bytes_per_round for run in same)
            reduction = statistics.fmean(run.reduction for run in same)
            print(
                f"{name:64} {rate:6g} {len(same):5} {_with_error(losses, '.3f'):>17} "
                f"{received:13,.0f} B {reduction:9.0f}×{_cost(same, clean)}{_audited(same)}"
            )


def grouped(runs: Sequence[Run], key: Any) -> list[tuple[Any, list[Run]]]:
    """The runs by some key, in the order in which the keys first come."""
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
    """Which runs differ by nothing but a trouble, given that they share the setting."""
    return run.name.partition(" [")[0], run.settings["rate"], run.settings["seed"]


def _with_error(values: Sequence[float], form: str) -> str:
    """The mean, and behind ± its standard error where there are several."""
    mean = format(statistics.fmean(values), form)
    if len(values) < 2:
        return mean
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean} ± {format(error, form.lstrip('+'))}"


def _cost(runs: Sequence[Run], clean: dict[tuple[str, float, int], float]) -> str:
    """Against the same variant without trouble, seed by seed, in per cent."""
    pairs = [(run.heldout_loss, clean[_key(run)]) for run in runs if _key(run) in clean]
    if " [" not in runs[0].name or not pairs:
        return ""
    return f"  {_with_error([100 * (loss / beside - 1) for loss, beside in pairs], '+.1f')} %"


def _audited(runs: Sequence[Run]) -> str:
    """Which part of the lies, and of all else, the audit left out."""
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
    """Loss against tokens, and against bytes received, in the largest setting; means over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_tokens, by_bytes) = pyplot.subplots(1, 2, figsize=(14, 6), sharey=True)
    _, largest = max(grouped(runs, _setting), key=lambda group: group[1][0].settings["parameters"])
    for (name, rate), group in grouped(largest, lambda run: (run.name, run.settings["rate"])):
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
    by_tokens.set(xlabel="tokens", ylabel="held-out loss (nats per byte)")
    by_bytes.set(xlabel="bytes received by a member", xscale="log")
    by_tokens.legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
