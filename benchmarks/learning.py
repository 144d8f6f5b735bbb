"""Held-out loss of the program's training at few bytes, beside dense Muon and AdamW on the same samples.

    python benchmarks/learning.py [STUDY] [--ways NAME …] [--top-k K … | --fewer TIMES …]
        [--data text|digits|tuned|adapters] [--size SIZE …] [--members N …] [--sequences N …]
        [--length N] [--rounds N …] [--rates RATE …] [--seeds SEED …] [--device cpu] [--work DIR]
        [--known] [--predict NAME=VALUE …] [--json FILE] [--plot FILE]

A way to train is a row of `WAYS` (`--list` prints them), a study a row of `STUDIES`: the options that
one question needs, each of which the command line may replace. Options with several values are
combined, and each combination is a comparison in which all ways read the same samples from the same
start. `--top-k` runs each way that sends coefficients with each of these numbers; `--fewer` with the
largest number whose update is that many times smaller than the dense gradient.

Rates: half, once and twice the usual one with seed 0, which is not reported, and further while the
best is at the edge, or those of `--rates`; then all `--seeds` at the best. `--seeds` without a value
reports seed 0. With `--work` every finished run is stored, and long ones every five minutes: the same
command resumes after a kill. `--known` trains nothing and reports what is there.

The table has the distance to each peer in percent, the mean over seeds with its standard error, and in
the JSON the margin within which two one-sided tests call the two equivalent. Where settings differ, a
plane is fitted through the distances to dense Muon over the logarithms of what differs; `--predict`
evaluates it, with the standard deviation of a measurement there.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from command_line import new_parser, write_json
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec
from learners.dense import AdamW, Dense, Muon
from learners.digits import ImageTrial, digits
from learners.fits import fit, percent_above
from learners.local_steps import LocalSteps
from learners.program import OPTIMIZERS, Program
from learners.runs import Bench, Swept, summary
from learners.shared_masks import SharedMasks
from learners.trial import Setting, Trial, digest, standard_library
from learners.tuning import TuningTrial, reference, source_code, trained_base
from learners.way import Method

MUON, ADAMW = "dense Muon", "dense AdamW"
PEERS = {"above_muon": MUON, "above_adamw": ADAMW}
_DEFAULT, _SIGNS = OPTIMIZERS["default"], OPTIMIZERS["signs"]
_SPARSELOCO = LocalSteps(steps=10, outer_rate=1.0, outer_momentum=0.0, chosen=64)
# Of a displacement: an error feedback that keeps 0.95, and the exact scaled step.
_EXCHANGE = OptimizerSpec(momentum=0.95, preconditioner="none", step="scaled")
# What takes the gradient's place is even already; an error feedback that keeps 0.95.
_OF_STEPS = replace(_DEFAULT, preconditioner="none", smoothing=0.0, momentum=0.95)
_EVENED = replace(_DEFAULT, smoothing=0.0, momentum=0.95)
_SWIFT = replace(_DEFAULT, smoothing=0.5, momentum=0.95)

WAYS: dict[str, tuple[Method, float]] = {
    MUON: (Dense(optimizer=Muon()), 2e-3),
    ADAMW: (Dense(optimizer=AdamW()), 2e-3),
    "default": (Program(optimizer=_DEFAULT), 4e-3),
    "signs": (Program(optimizer=_SIGNS), 8e-3),
    "default, momentum 0.95, smoothing 0.5": (Program(optimizer=_SWIFT), 4e-3),
    "DeMo's settings": (
        Program(
            optimizer=OptimizerSpec(momentum=0.999, preconditioner="none", outlier_filter=False)
        ),
        4e-3,
    ),
    "default, a quarter lies": (Program(optimizer=_DEFAULT, flipped=0.25), 4e-3),
    "default, half are late": (Program(optimizer=_DEFAULT, late=0.5), 4e-3),
    "default, half are absent": (Program(optimizer=_DEFAULT, absent=0.5), 4e-3),
    "default, overlap": (Program(optimizer=_DEFAULT, overlap=True), 4e-3),
    **{
        f"default, overlap, {ahead:g} of a step ahead": (
            Program(optimizer=_DEFAULT, overlap=True, ahead=ahead),
            4e-3,
        )
        for ahead in (0.5, 0.7, 1.0)
    },
    "signs, overlap": (Program(optimizer=_SIGNS, overlap=True), 8e-3),
    **{
        f"{name}, {steps} local steps": (replace(method, steps=steps), 4e-3)
        for steps in (4, 5, 10, 15, 20, 30)
        for name, method in (
            ("DiLoCo", LocalSteps(steps=1)),
            ("MuLoCo", LocalSteps(steps=1, inner=Muon())),
            ("SparseLoCo", _SPARSELOCO),
            ("SparseLoCo with Muon", replace(_SPARSELOCO, inner=Muon())),
            *(
                (
                    f"program's exchange, {type(inner).__name__}",
                    LocalSteps(steps=1, inner=inner, outer_rate=1.0, exchange=_EXCHANGE),
                )
                for inner in (Muon(), AdamW())
            ),
        )
    },
    **{
        f"{name}, H = {steps}": (replace(method, local_steps=steps), 4e-3)
        for steps in (4, 15, 30)
        for name, method in (
            ("local steps", Program(optimizer=_OF_STEPS)),
            ("local steps, momentum kept", Program(optimizer=_OF_STEPS, keeps_momentum=True)),
            ("local steps, made even", Program(optimizer=_EVENED)),
            ("local steps, default's exchange", Program(optimizer=_DEFAULT)),
            ("default, one gradient", Program(optimizer=_DEFAULT, moves=False)),
        )
    },
    "shared masks": (SharedMasks(optimizer=_DEFAULT), 4e-3),
    "shared masks, a quarter drawn": (SharedMasks(optimizer=_DEFAULT, drawn=0.25), 4e-3),
    "shared masks, all drawn": (SharedMasks(optimizer=_DEFAULT, drawn=1.0), 4e-3),
}
"""By name: the method, and the rate at which the search for its best one starts."""

SIZES = {
    "digits": (32, 1),
    "tiny": (64, 1),
    "0.14M": (64, 2),
    "0.3M": (64, 5),
    "0.9M": (128, 4),
    "3M": (192, 6),
    "60M": (640, 11),
    "125M": (768, 16),
}
"""Width and layers; of a U-Net: of its first level, and of each level."""

_PEERS = [MUON, ADAMW]
STUDIES: dict[str, dict[str, Any]] = {
    "short": {"ways": [*_PEERS, "default"]},
    "large-shares": {
        "ways": [*_PEERS, "default"],
        "members": [4],
        "sequences": [128],
        "rounds": [1000],
        "top_k": [2, 8, 32],
    },
    "local-steps": {
        "ways": [*_PEERS, "default", *(way for way in WAYS if way.endswith(" local steps"))]
    },
    # 32, 120 and 240 coefficients of a block are the bytes of 8 in every round, at 4, 15 and 30 steps.
    "own-steps": {
        "ways": [
            "default",
            *(way for way in WAYS if ", H = " in way),
            *(f"program's exchange, {inner}, 4 local steps" for inner in ("Muon", "AdamW")),
        ],
        "size": ["tiny"],
        "members": [2],
        "rounds": [240],
        "top_k": [8, 32, 120, 240],
    },
    "masks": {
        "ways": [MUON, "default", *(way for way in WAYS if way.startswith("shared masks"))],
        "top_k": [8, 64],
    },
    "overlap": {"ways": [MUON, *(way for way in WAYS if "default" in way[:7] or "overlap" in way)]},
    "troubles": {
        "ways": [
            "default",
            *(
                f"default, {what}"
                for what in ("a quarter lies", "half are late", "half are absent")
            ),
        ]
    },
    "in-common": {"ways": ["default"], "sequences": [2, 8, 16], "rates": [8e-3]},
    "tuning": {
        "ways": [ADAMW, "signs", "default"],
        "data": "tuned",
        "members": [4],
        "rounds": [200],
        "fewer": [1000, 3000, 10_000],
    },
    "digits": {
        "ways": [ADAMW, "signs", "default"],
        "data": "digits",
        "size": ["digits"],
        "members": [4],
        "sequences": [16],
        "rounds": [500],
        "fewer": [500, 2000],
    },
}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's options, with the study's where it gives none."""
    parser = new_parser(__doc__)
    parser.add_argument("study", nargs="?", choices=list(STUDIES), default="short", metavar="STUDY")
    parser.add_argument("--list", action="store_true", help="print ways and studies, and end")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), metavar="NAME")
    parser.add_argument("--data", choices=["text", "digits", "tuned", "adapters"], default="text")
    parser.add_argument("--size", nargs="+", choices=list(SIZES), default=["0.14M"])
    parser.add_argument("--members", type=int, nargs="+", default=[8])
    parser.add_argument("--sequences", type=int, nargs="+", default=[2], help="of each member")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--rounds", type=int, nargs="+", default=[400])
    parser.add_argument("--base-rounds", type=int, default=2000, help="before tuning")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--top-k", type=int, nargs="+", default=[], help="coefficients a block")
    chosen.add_argument("--fewer", type=int, nargs="+", default=[], help="times fewer bytes")
    parser.add_argument("--rates", type=float, nargs="+", default=[])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--micro-batch", type=int, default=256)
    parser.add_argument("--work", type=Path, metavar="DIR")
    parser.add_argument("--known", action="store_true")
    parser.add_argument("--predict", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.set_defaults(**STUDIES[parser.parse_args(arguments).study])
    options = parser.parse_args(arguments)
    if 0 in options.seeds:
        parser.error("seed 0 chooses the rates and is not reported: give others, or none")
    if options.known and options.work is None:
        parser.error("--known reports the runs in --work: give that as well")
    return options


def settings_of(options: argparse.Namespace) -> Iterator[Setting]:
    """Yield the setting of each comparison."""
    for size, members, sequences, rounds in itertools.product(
        options.size, options.members, options.sequences, options.rounds
    ):
        hidden, layers = SIZES[size]
        yield Setting(
            data=options.data,
            hidden=hidden,
            layers=layers,
            members=members,
            sequences=sequences,
            length=options.length,
            rounds=rounds,
            device=options.device,
            micro_batch=options.micro_batch,
        )


def bench_of(setting: Setting, options: argparse.Namespace) -> Bench:
    """Return the runs of a setting, with the data that it names."""
    if setting.data == "text":
        text, heldout = standard_library()
        about: dict[str, Any] = {"text_sha256": digest(text)}
        trial = partial(Trial, setting, text=text, heldout=heldout)
    elif setting.data == "digits":
        about = {"images_sha256": digest(digits())}
        trial = partial(ImageTrial, setting, images=digits())
    else:
        about = {
            "base_rounds": options.base_rounds,
            "code_sha256": digest(source_code()),
            "text_sha256": digest(reference()[0]),
        }
        base = trained_base(replace(setting, sequences=2), options.base_rounds, options.work)
        trial = partial(TuningTrial, setting, base=base, adapters=setting.data == "adapters")
    return Bench(
        settings=asdict(setting) | about,
        trial=lambda seed: trial(seed=seed),
        work=options.work,
        known=options.known,
    )


def chosen_ways(options: argparse.Namespace, trial: Trial) -> dict[str, tuple[Method, float]]:
    """Return the requested ways, each with every number of coefficients."""
    top_ks = {f"k = {k}": k for k in options.top_k}
    for times in options.fewer:
        fitting = fitting_top_k(trial, times)
        if fitting is None:
            sys.exit(f"no update of this model is {times} times smaller: give a larger --size")
        top_ks[f"{times:,} times fewer bytes"] = fitting
    found: dict[str, tuple[Method, float]] = {}
    for name in options.ways:
        method, rate = WAYS[name]
        variants = {f"{name}, {words}": method.at(k) for words, k in top_ks.items()}
        fixed = not variants or all(each == method for each in variants.values())
        found |= {
            way: (each, rate) for way, each in ({name: method} if fixed else variants).items()
        }
    return found


def fitting_top_k(trial: Trial, times: int) -> int | None:
    """Return the greatest number of coefficients a block with which an update is this many times
    smaller than the dense gradient; None if there is none."""
    sizes = {k: update_layout(trial.table, 64, k).body_bytes for k in range(1, 129)}
    return max((k for k, size in sizes.items() if size * times <= trial.dense_bytes), default=None)


def comparison(setting: Setting, settings: dict[str, Any], swept: Swept) -> dict[str, Any]:
    """Return the JSON of one setting."""
    ways = {way: summary(tried, reported) for way, (tried, reported) in swept.items()}
    for way, found in ways.items():
        for name, peer in PEERS.items():
            if peer in ways and peer != way:
                found[name] = percent_above(found["losses"], ways[peer]["losses"])
        top_k = top_k_of(found["choices"])
        if top_k:
            # How often a coefficient of a full block was sent by anyone in the run.
            found["top_k"] = top_k
            found["visits"] = setting.rounds * top_k * setting.members / 64**2
    parameters = next(reported[0].parameters for _, reported in swept.values())
    return {"settings": settings, "parameters": parameters, "ways": ways}


def top_k_of(choices: dict[str, Any]) -> int | None:
    """Return the number of coefficients a block of a way's choices."""
    spec = choices.get("exchange") or choices.get("optimizer") or {}
    return spec.get("top_k")


def plane(comparisons: Sequence[dict[str, Any]], predict: Sequence[str]) -> dict[str, Any] | None:
    """Return what follows from all distances to dense Muon of the program's way; None where they
    determine no plane."""
    points = [
        (
            {
                "parameters": each["parameters"],
                "members": each["settings"]["members"],
                "tokens": each["settings"]["sequences"] * each["settings"]["length"],
                "rounds": each["settings"]["rounds"],
                "k": found["top_k"],
            },
            found["above_muon"]["percent"],
        )
        for each in comparisons
        for way, found in each["ways"].items()
        if way.partition(", k = ")[0] == "default" and "above_muon" in found
    ]
    names = (
        [n for n in points[0][0] if len({place[n] for place, _ in points}) > 1] if points else []
    )
    try:
        fitted = fit([({name: place[name] for name in names}, value) for place, value in points])
    except ValueError:
        return None
    written: dict[str, Any] = {"above_muon": asdict(fitted), "measurements": len(points)}
    wanted = {name: float(value) for name, value in (word.split("=") for word in predict)}
    if names and set(names) <= set(wanted):
        value, deviation = fitted.at({name: wanted[name] for name in names})
        written["predicted"] = {"at": wanted, "percent": value, "deviation": deviation}
    return written


def print_comparison(written: dict[str, Any]) -> None:
    """Print a line for each way."""
    s = written["settings"]
    print(
        f"\n{written['parameters']:,} parameters, {s['members']} members × {s['sequences']} × "
        f"{s['length']}, {s['rounds']:,} rounds, {s['data']}; ! the best rate is at the edge"
    )
    print(
        f"{'way':48}{'rate':>9} {'loss':>7}{'seeds':>6}{'above Muon':>16}{'above AdamW':>16}"
        f"{'bytes':>9}{'visits':>8}{'common':>8}"
    )
    for way, found in written["ways"].items():
        above = "".join(f"{_percent(found.get(name)):>16}" for name in PEERS)
        visits = format(found["visits"], ".1f") if "visits" in found else ""
        common = found["figures"].get("common")
        print(
            f"{way:48}{found['rate']:9g}{'!' if found['at_edge'] else ' '}{found['loss']:7.4f}"
            f"{len(found['losses']):6}{above}{found['reduction']:8,.0f}×{visits:>8}"
            f"{'' if common is None else format(common, '.3f'):>8}"
        )


def _percent(above: dict[str, float] | None) -> str:
    if above is None:
        return ""
    error = above["error"]
    return f"{above['percent']:+.1f}{'' if error is None else f' ± {error:.1f}'} %"


def plot(file: Path, comparisons: Sequence[dict[str, Any]]) -> None:
    """Plot the loss over the rounds, and at the end over the bytes that a member sends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        len(comparisons), 2, figsize=(14, 5 * len(comparisons)), squeeze=False
    )
    for each, (curves, ends) in zip(comparisons, grid, strict=True):
        for way, found in each["ways"].items():
            curves.plot(*zip(*found["curve"][1:], strict=True), label=way)
            ends.plot(found["sent"], found["loss"], "o", label=way)
        curves.set(xlabel="rounds", ylabel="held-out loss", title=f"{each['parameters']:,}")
        ends.set(xscale="log", xlabel="bytes that a member sends a round")
        curves.legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(file, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parsed(arguments)
    if options.list:
        for title, names in (("ways", WAYS), ("studies", STUDIES)):
            print(f"{title}:", *(f"  {name}" for name in names), sep="\n")
        return
    if options.device == "cpu":
        torch.set_num_threads(1)
    comparisons: list[dict[str, Any]] = []
    for setting in settings_of(options):
        bench = bench_of(setting, options)
        ways = chosen_ways(options, bench.trial(0))
        swept = bench.sweep(ways, options.rates, options.seeds)
        if not swept:
            sys.exit(f"--work has no run of these ways with {asdict(setting)}")
        comparisons.append(comparison(setting, bench.settings, swept))
        print_comparison(comparisons[-1])
        write_json(options.json, {"study": options.study, "comparisons": comparisons})
    trend = plane(comparisons, options.predict) if len(comparisons) > 1 else None
    if trend:
        terms = ", ".join(f"{n} {v:+.2f}" for n, v in trend["above_muon"]["each"].items())
        print(f"\na doubling adds, in percent above Muon: {terms}")
        if "predicted" in trend:
            found = trend["predicted"]
            print(f"predicted: {found['percent']:+.1f} ± {found['deviation']:.1f} %")
    written = {"study": options.study, "comparisons": comparisons, "trend": trend}
    write_json(options.json, written)
    if options.plot:
        plot(options.plot, comparisons)


if __name__ == "__main__":
    main()
