"""How the bytes grow with the swarm: more members, fewer coefficients, at equal tokens.

    python benchmarks/growth.py --work DIR [--workers 8] [--sequences 8] [--hidden 64] [--layers 2]
        [--steps 400] [--seeds 1 2 3] [--variants …] [--known] [--json FILE] [--plot FILE]

Every member downloads every update, so with as many coefficients twice the members are twice the bytes.
Here a round always has --workers times --sequences sequences, dealt to 8, 16, 32 or 64 members who send
1 to 8 coefficients of each block of 4,096. Beside them are dense Muon and AdamW, for which it makes no
difference how many share the work. `received` in the JSON is what a member downloads in a round, by
updates of the others.

Runs are kept in --work and taken up again, and rates are found, as in frontier.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec
from runs import Swept
from text_runs import TextBench, Tried, chosen_ways, document, parsed, report
from training import AdamW, Muon, Trouble, Variant, train

MUON = "dense Muon"
_DENSE = {MUON: Muon(), "dense AdamW": AdamW()}
SWARMS = {
    f"{members} members, k = {top_k}": (members, top_k)
    for members in (8, 16, 32, 64)
    for top_k in (8, 4, 2, 1)
}
WAYS = [*_DENSE, *SWARMS]
_FIRST = next(iter(SWARMS))


class Growth(TextBench):
    """The runs of one size of model."""

    def usual_rate(self, way: str) -> float:
        """Where the search begins."""
        return 8e-3 if way in SWARMS else 4e-3

    def train(self, way: str, rate: float, seed: int) -> Tried:
        """One run."""
        optimizer, others, top_k = _DENSE.get(way), {}, None
        if optimizer is None:
            members, top_k = SWARMS[way]
            optimizer = OptimizerSpec(top_k=top_k)
            sequences = self.options.workers * self.options.sequences
            others = {"workers": members, "sequences": sequences // members}
        trial = self.trial(seed, **others)
        variant = Variant(name=way, rate=rate, optimizer=optimizer)
        curve = train(variant, Trouble(), trial, lambda number, loss: None).curve
        sent = 2.0 * trial.elements
        if top_k is not None:
            sent = float(update_layout(trial.table, 64, top_k).body_bytes)
        return self.tried(way, rate, trial, curve, sent, top_k)


def received(way: str, sent: float) -> float | None:
    """What a member downloads in a round; None for dense training, which can be done in many ways."""
    return sent * (SWARMS[way][0] - 1) if way in SWARMS else None


def plot(file: Path, swept: Swept[Tried]) -> None:
    """Loss over the bytes that a member downloads, a line for each number of members."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6))
    lines: dict[str, list[tuple[float, float]]] = {}
    for way, (_, reported) in swept.items():
        loss = sum(run.loss for run in reported) / len(reported)
        down = received(way, reported[0].bytes_a_round)
        if down is None:
            axes.axhline(loss, linestyle="--", color="grey")
            axes.annotate(way, (0, loss), xycoords=("axes fraction", "data"))
        else:
            lines.setdefault(way.partition(",")[0], []).append((down, loss))
    for name, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), "o-", label=name)
    axes.set(
        xscale="log",
        xlabel="bytes that a member downloads a round",
        ylabel="held-out loss (nats per byte)",
    )
    axes.legend()
    figure.tight_layout()
    figure.savefig(file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    options = parsed("How bytes grow with the swarm.", WAYS, arguments, sequences=8)
    bench = Growth(options)
    ways = chosen_ways(bench, WAYS)
    for members in sorted({SWARMS[way][0] for way in ways if way in SWARMS}):
        if options.workers * options.sequences % members:
            sys.exit(
                f"--workers times --sequences has to be a multiple of {members}, the members of a swarm"
            )
    swept = bench.sweep(ways)
    written = document(
        swept, bench.settings, {way: {"above_muon": MUON, "beside": _FIRST} for way in WAYS}
    )
    for way, found in written["ways"].items():
        found["received"] = received(way, found["bytes_a_round"])
    report(options, written)
    if options.plot:
        plot(options.plot, swept)


if __name__ == "__main__":
    main()
