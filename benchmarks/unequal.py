"""Learning with unequal shares at equal tokens: held-out loss beside equal ones, seed by seed.

    python benchmarks/unequal.py [--shares 1 1 2 2 4 4 9 9] [--steps 200] [--rate 8e-3]
        [--hidden 64] [--layers 2] [--seeds 0 1 2 3 4] [--ways …] [--json FILE]

Results that FILE already has are not computed again.

All ways train the same model from the same start on the same sequences in the same order; they
differ in how a round's sequences are assigned to its members, and in the weight of an update in the
step:

- `equal`: every member has the same number of sequences;
- `by speed`: each has its number in `--shares`, and one sign for each coefficient, as with
  `update_weight = "equal"`;
- `twice`: the same, and an update is weighted by the program's own rule, with `update_weight = "share"`;
- `weighed`: the same, and an update's signs are weighted by its number of sequences;
- `k by share`: an update's number of coefficients is proportional to its sequences; the total is the
  same.

The model's setting is that of the 0.14M parameters of convergence.py. For the simulated members see
training.py. The outlier filter is off: an update that counts several times would agree with itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from distro_node.crypto.identity import PeerId
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import DecodedUpdate, UpdateLayout, update_layout
from distro_node.protocol.sampling.update_weights import by_share
from distro_node.protocol.wire.manifest import OptimizerSpec
from training import Setting, Trial, default_schedule, read_corpus

WAYS = ("equal", "by speed", "twice", "weighed", "k by share")


def train(way: str, trial: Trial, shares: Sequence[int], spec: OptimizerSpec, rate: float) -> float:
    """Return the held-out loss at the end."""
    setting, total = trial.setting, sum(shares)
    counts = [total // len(shares)] * len(shares) if way == "equal" else list(shares)
    kept = [spec.top_k] * len(shares)
    said = spec.top_k
    if way == "k by share":
        said = spec.top_k * len(shares) // total
        kept = [said * share for share in shares]
    layouts = [update_layout(trial.table, spec.chunk, k) for k in kept]
    workers = [LocalOptimizer(layout, trial.parameters, spec) for layout in layouts]
    layout = update_layout(trial.table, spec.chunk, said)
    often = heard(way, counts)
    parameters = [parameter.data for parameter in trial.parameters]
    steps = setting.steps
    schedule = default_schedule(rate, setting.steps)
    for number in range(1, steps + 1):
        batch = np.split(trial.next_batch(), np.cumsum(counts)[:-1])
        updates: list[DecodedUpdate] = []
        loud: list[int] = []
        for worker, share, count in zip(workers, batch, often, strict=True):
            worker.accumulate(trial.gradients(share))
            taken = worker.take(number)
            worker.forget(number)
            cut = pieces(DecodedUpdate(taken.positions, taken.signs), layout)
            updates += cut
            loud += [count] * len(cut)
        for worker in workers:
            worker.yield_to(updates)
        rate_now = learning_rate(schedule, number)
        apply_step(parameters, layout, updates, rate_now, spec.weight_decay, loud, step=spec.step)
    return trial.evaluate()


def heard(way: str, counts: Sequence[int]) -> Sequence[int]:
    """Return the weight of each member's update, given the members' numbers of sequences."""
    if way == "weighed":
        return counts
    if way == "twice":
        peers = [PeerId(index.to_bytes(32, "big")) for index in range(len(counts))]
        found = by_share(dict(zip(peers, counts, strict=True)))
        return [found[peer] for peer in peers]
    return [1] * len(counts)


def pieces(update: DecodedUpdate, layout: UpdateLayout) -> list[DecodedUpdate]:
    """Split an update of more coefficients into several of this layout with the same content.

    The rest of the last one is filled with a coefficient that the update has, with sign zero.
    """
    widths = [tensor.top_k for tensor in layout.tensors]
    count = max(
        -(-positions.shape[1] // width)
        for positions, width in zip(update.positions, widths, strict=True)
    )

    def cut(number: int, *, signs: bool) -> list[np.ndarray]:
        found = []
        for index, width in enumerate(widths):
            own = slice(number * width, (number + 1) * width)
            piece = (update.signs if signs else update.positions)[index][:, own]
            missing = width - piece.shape[1]
            filling = update.positions[index][:, :1].repeat(missing, axis=1)
            if signs:
                filling = np.zeros_like(filling, dtype=np.int8)
            found.append(np.concatenate([piece, filling], axis=1))
        return found

    return [DecodedUpdate(cut(n, signs=False), cut(n, signs=True)) for n in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shares", type=int, nargs="+", default=[1, 1, 2, 2, 4, 4, 9, 9])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=8e-3)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--corpus", type=Path, nargs="+", default=None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if sum(options.shares) % len(options.shares):
        parser.error("equal shares have to be whole: the sum of --shares by their number")
    spec = replace(OptimizerSpec(), top_k=8, outlier_filter=False)
    if "k by share" in options.ways and spec.top_k * len(options.shares) % sum(options.shares):
        parser.error(f"the sum of --shares has to divide {spec.top_k} times their number")
    corpus = options.corpus or [Path(sysconfig.get_paths()["stdlib"])]
    text, heldout = read_corpus(corpus, [])
    found = known_losses(options, spec)
    for number, seed in enumerate(options.seeds):
        for way in options.ways:
            if number < len(found[way]):
                # A way and a seed determine the result.
                continue
            setting = Setting(
                workers=len(options.shares),
                sequences=sum(options.shares) // len(options.shares),
                steps=options.steps,
                hidden=options.hidden,
                layers=options.layers,
                seed=seed,
                device="cpu",
            )
            trial = Trial(setting, text, heldout)
            loss = train(way, trial, options.shares, spec, options.rate)
            found[way].append(loss)
            print(f"seed {seed} {way:10} {loss:.4f}", flush=True)
        if options.json:
            write(options, found, spec)
    for line in table(found):
        print(line)


def setting_of(options: argparse.Namespace, spec: OptimizerSpec) -> dict[str, Any]:
    """Return what losses depend on, besides a way and a seed."""
    named = ("shares", "steps", "rate", "hidden", "layers")
    return {name: getattr(options, name) for name in named} | {"optimizer": asdict(spec)}


def known_losses(options: argparse.Namespace, spec: OptimizerSpec) -> dict[str, list[float]]:
    """Return the losses by seed that `--json` already has, of any way. Exits if their setting
    differs."""
    found: dict[str, list[float]] = {way: [] for way in options.ways}
    if options.json and options.json.exists():
        known = json.loads(options.json.read_text())
        # Settings added to the optimizer since then had their defaults.
        known["optimizer"] = asdict(spec) | known["optimizer"]
        setting = setting_of(options, spec)
        seeds = options.seeds[: len(known["seeds"])]
        if known["seeds"] != seeds or {name: known[name] for name in setting} != setting:
            raise SystemExit(f"{options.json} is of another setting")
        found |= known["heldout_loss"]
    return found


def against(found: dict[str, list[float]], way: str) -> list[float]:
    """Return the relative difference of each seed's loss from that with equal shares."""
    pairs = zip(found[way], found.get("equal", ()), strict=False)
    return [loss / equal - 1 for loss, equal in pairs]


def table(found: dict[str, list[float]]) -> list[str]:
    """Return a line for each way."""
    lines = []
    for way, losses in found.items():
        above = against(found, way)
        more = f"  {100 * statistics.mean(above):+.2f} %" if above else ""
        lines.append(f"{way:10} {statistics.mean(losses):.4f} of {len(losses)} seeds{more}")
    return lines


def write(options: argparse.Namespace, found: dict[str, list[float]], spec: OptimizerSpec) -> None:
    """Write the figures so far."""
    known: dict[str, Any] = setting_of(options, spec) | {
        "seeds": options.seeds[: min(len(losses) for losses in found.values())],
        "heldout_loss": found,
        "above_equal": {
            way: statistics.mean(against(found, way)) for way in found if against(found, way)
        },
        "above_equal_by_seed": {way: against(found, way) for way in found},
    }
    options.json.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
