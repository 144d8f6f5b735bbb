"""The cost in learning of rounding the basis: the protocol's integer basis beside the float one.

    python benchmarks/basis.py [--seeds 3] [--steps 300] [--workers 8] [--hidden 128] [--layers 4]
                               [--json FILE]

The same tiny run (see training.py), with the same settings and data order, is trained with both
bases over several seeds. Everything else of the step is the same: signs are counted, the inverse
transform is taken, and only its sign is used. The float basis makes replicas diverge; here there is
only one replica.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sysconfig
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from distro_node.node.trainer.optimizer.blocks import whole_basis
from distro_node.node.trainer.optimizer.exact_step import Basis, apply_step
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.protocol.codec.basis import scaled_basis
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import DecodedUpdate, update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec
from training import Setting, Trial, default_schedule, percent_apart, read_corpus


def unrounded_basis(side: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the basis before it is rounded to integers."""
    return torch.from_numpy(scaled_basis(side)).to(dtype).to(device)


BASES: dict[str, Basis] = {"integer": whole_basis, "float": unrounded_basis}


def train(trial: Trial, basis: Basis, rate: float) -> float:
    """Return the held-out loss in nats per byte after all steps."""
    setting = trial.setting
    spec = OptimizerSpec()
    schedule = default_schedule(rate, setting.steps)
    layout = update_layout(trial.table, spec.chunk, spec.top_k)
    workers = [LocalOptimizer(layout, trial.parameters, spec) for _ in range(setting.workers)]
    parameters = [parameter.data for parameter in trial.parameters]
    for number in range(1, setting.steps + 1):
        updates = []
        shares = np.array_split(trial.next_batch(), setting.workers)
        for worker, share in zip(workers, shares, strict=True):
            worker.accumulate(trial.gradients(share))
            taken = worker.take(number)
            worker.forget(number)
            updates.append(DecodedUpdate(taken.positions, taken.signs))
        step = learning_rate(schedule, number)
        apply_step(parameters, layout, updates, step, spec.weight_decay, basis=basis)
        for worker in workers:
            worker.yield_to(updates)
    return trial.evaluate()


def main() -> None:
    parser = argparse.ArgumentParser(description="Learning with the integer and the float basis.")
    parser.add_argument("--seeds", type=int, default=3)
    Setting.add_arguments(parser, steps=300, sequences=1)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--corpus", type=Path, nargs="*", help="files or directories of text")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    text, heldout = read_corpus(options.corpus or [Path(sysconfig.get_paths()["stdlib"])], [])
    losses: dict[str, list[float]] = {name: [] for name in BASES}
    settings = []
    for seed in range(options.seeds):
        setting = Setting.of(options, seed)
        settings.append(asdict(setting))
        for name, basis in BASES.items():
            began = time.monotonic()
            losses[name].append(train(Trial(setting, text, heldout), basis, options.rate))
            seconds = time.monotonic() - began
            print(f"  seed {seed}, {name}: {losses[name][-1]:.4f} ({seconds:.0f} s)", flush=True)
    mean, error = percent_apart(losses["integer"], losses["float"])
    difference = {"mean_percent": mean, "standard_error_percent": error}
    print(f"\n{'basis':10} {'held-out nats a byte, by seed':40} {'mean':>8} {'scatter':>9}")
    for name, values in losses.items():
        scatter = statistics.stdev(values) if len(values) > 1 else math.nan
        each = " ".join(f"{value:.4f}" for value in values)
        print(f"{name:10} {each:40} {statistics.fmean(values):8.4f} {scatter:9.4f}")
    print(
        f"integer against float, same seed: {difference['mean_percent']:+.2f} % of the loss, "
        f"standard error {difference['standard_error_percent']:.2f} %"
    )
    if options.json:
        result = {"losses": losses, "difference": difference, "rate": options.rate}
        options.json.write_text(json.dumps(result | {"settings": settings}, indent=1) + "\n")


if __name__ == "__main__":
    main()
