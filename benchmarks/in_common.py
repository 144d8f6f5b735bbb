"""The overlap of members' updates, and how much of it one bit can convey.

    python benchmarks/in_common.py [--sequences 2 8 32] [--rounds 200] [--every 5] [--workers 8]
        [--hidden 64] [--layers 2] [--rate 8e-3] [--seed 1] [--json FILE]

Members train as new swarms do (frontier.py's `OURS_NOW`), with --sequences sequences each in a
round. For the coefficients of hidden matrices it measures, in rounds of the second half of a run:

- `common`: the share of a member's momentum, in squares, that all others have as well: the mean
  product of two members' coefficients over their mean square. The rest is the noise of a member's own
  few sequences.
- `again`: of what a member sends, the share that at least one other sends in the same round; `chance`:
  that share if every member chose at random.
- `sent`: the share of a momentum, in squares, that leaves it in a round.
- `a_bit`: what one bit of an update conveys of a momentum, in squares, where a coefficient's mean
  square is one; `most`: the most that it could convey of independent Gaussian numbers with the best of
  all codes at so low a rate, 2 ln 2 (Shannon's rate-distortion function of a Gaussian source).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sysconfig
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from distro_node.protocol.codec.update import update_layout
from frontier import OURS_NOW
from recipes import Member, hidden_matrices, train
from training import Setting, Trial, read_corpus

MOST = 2 * math.log(2)


def measured(members: Sequence[Member], hidden: Sequence[bool], bits: float) -> dict[str, float]:
    """Return the figures of one round. `bits`: those of an update for each block."""
    count = len(members)
    # Sums over all hidden matrices.
    products = squares = sent = chosen = again = 0.0
    blocks = 0
    expected = []
    for index, matrix in enumerate(hidden):
        if not matrix:
            continue
        taken = torch.stack([member.taken[index] for member in members])
        momentum = torch.stack([member.momentum[index] for member in members]) + taken
        total = float(momentum.square().sum())
        squares += total
        products += (float(momentum.sum(0).square().sum()) - total) / (count - 1)
        sent += float(taken.square().sum())
        there = taken != 0
        speakers = there.sum(0)
        chosen += int(there.sum())
        again += int(speakers[speakers > 1].sum())
        blocks += taken[0].shape[0]
        share = float(there.double().mean())
        expected.append((int(there.sum()), 1 - (1 - share) ** (count - 1)))
    mean_square = squares / (count * blocks * 64 * 64)
    return {
        "common": products / squares,
        "again": again / chosen,
        "chance": sum(number * part for number, part in expected) / chosen,
        "sent": sent / squares,
        "a_bit": sent / (mean_square * count * blocks * bits),
    }


def run(options: argparse.Namespace, sequences: int) -> dict[str, float]:
    """Make one run with `sequences` sequences per member: the means over its rounds, and the
    held-out loss."""
    text = read_corpus([Path(sysconfig.get_paths()["stdlib"])], [])
    setting = Setting(
        workers=options.workers,
        sequences=sequences,
        steps=options.rounds,
        hidden=options.hidden,
        layers=options.layers,
        seed=options.seed,
        device="cpu",
    )
    trial = Trial(setting, *text)
    top_k = OURS_NOW.top_k
    assert top_k is not None
    hidden = hidden_matrices(trial)
    layout = update_layout(trial.table, 64, top_k)
    bits = 8 * layout.body_bytes / sum(tensor.blocks for tensor in layout.tensors)
    found: dict[str, list[float]] = defaultdict(list)

    def watch(number: int, members: Sequence[Member]) -> None:
        if number > options.rounds // 2 and number % options.every == 0:
            for name, value in measured(members, hidden, bits).items():
                found[name].append(value)

    curve = train(OURS_NOW, options.rate, trial, watch)
    means = {name: statistics.fmean(values) for name, values in found.items()}
    return {"sequences": sequences, **means, "loss": curve[-1][1]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="What members have in common.")
    parser.add_argument("--sequences", type=int, nargs="+", default=[2, 8, 32])
    for name, value in (
        ("rounds", 200),
        ("every", 5),
        ("workers", 8),
        ("hidden", 64),
        ("layers", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=8e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    runs = []
    print("sequences  common  again  chance   sent  a bit    loss")
    for sequences in options.sequences:
        runs.append(one := run(options, sequences))
        print(
            f"{sequences:9} {one['common']:7.3f} {one['again']:6.3f} {one['chance']:7.3f} "
            f"{one['sent']:6.4f} {one['a_bit']:6.3f} {one['loss']:7.3f}",
            flush=True,
        )
    names = ("rounds", "every", "workers", "hidden", "layers", "rate", "seed")
    settings = {name: getattr(options, name) for name in names}
    if options.json:
        written = {"settings": settings, "top_k": OURS_NOW.top_k, "most": MOST, "runs": runs}
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
