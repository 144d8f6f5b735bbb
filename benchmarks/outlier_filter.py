"""The outlier filter's promises and their limits: clever liars among ten members, and seeds tried out.

    python benchmarks/outlier_filter.py [--rounds N] [--tries N] [--json FILE]

One to four liars of ten, who see all honest updates before they make their own, against updates of
two kinds: those of a small language model in training (0.14M parameters, on Python's standard
library), and toy data in which members find the same 64 coefficients of a block of 4,096 with signs
that are right with 70 or 80 %. For comparison there is the rule that judges all members at once
(`one pass`). The kinds of liars:

    opposite    each sends the opposite of its own honest update
    crowd       they share the most used coefficients of each block and oppose the sum of all signs there
    chosen      each opposes the same four honest members where they are alone, and agrees with the rest

The second table tries seeds as the last announcer could: for a liar that lies in a given share of
all blocks, the smallest share of lies that it can get into the sample.
"""

from __future__ import annotations

import argparse
import json
import math
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.protocol.codec import outlier_filter
from distro_node.protocol.codec.layout import UpdateLayout, update_layout
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import DecodedUpdate
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec
from training import Setting, Trial, default_schedule, read_corpus

MEMBERS = 10
SPARED = 4
"""A member is not left out if at most this many of nine others contradict it: liars choose the same
number."""
Liars = Callable[[UpdateLayout, list[DecodedUpdate], int, np.random.Generator], list[DecodedUpdate]]


@dataclass
class Row:
    """The result for one kind of liars; shares of the updates that were left out."""

    data: str
    kind: str
    liars: int
    honest_left_out: float
    honest_left_out_one_pass: float
    lies_left_out: float
    lies_left_out_one_pass: float
    updates: int
    """Number of honest updates, over all rounds."""


@dataclass
class Ground:
    """What trying seeds gains a liar; shares of blocks."""

    members: int
    sampled: int
    lies: float
    """Share of lies in all blocks."""
    tries: int
    least_seen: float
    """The smallest share of lies in a sample."""
    least_of_a_trillion: float
    """The share that 2^40 tries go below with a probability of at most 2^-20."""


def opposite(
    layout: UpdateLayout, honest: list[DecodedUpdate], liars: int, chance: np.random.Generator
) -> list[DecodedUpdate]:
    """Let each liar send the opposite of its own honest update."""
    own = honest[MEMBERS - liars :]
    return [DecodedUpdate(u.positions, [-signs for signs in u.signs]) for u in own]


def crowd(
    layout: UpdateLayout, honest: list[DecodedUpdate], liars: int, chance: np.random.Generator
) -> list[DecodedUpdate]:
    """Let the liars share the most used coefficients and oppose the sum."""
    heard = honest[: MEMBERS - liars]
    made = [DecodedUpdate([], []) for _ in range(liars)]
    for index, tensor in enumerate(layout.tensors):
        sums, uses = signs_said(tensor.blocks, tensor.elements, index, heard)
        worth = 100.0 * np.abs(sums) + 10.0 * uses + chance.random(sums.shape)
        best = np.argsort(-worth, axis=1)
        for j, update in enumerate(made):
            # A small block has fewer coefficients than all of them together want.
            places = (np.arange(tensor.top_k) + j * tensor.top_k) % tensor.elements
            positions = np.sort(best[:, places], axis=1)
            against = np.where(np.take_along_axis(sums, positions, axis=1) > 0, -1, 1)
            update.positions.append(positions.astype(np.int32))
            update.signs.append(against.astype(np.int8))
    return made


def chosen(
    layout: UpdateLayout, honest: list[DecodedUpdate], liars: int, chance: np.random.Generator
) -> list[DecodedUpdate]:
    """Let the liars oppose the first four where these are alone, and agree with all others."""
    heard = honest[: MEMBERS - liars]
    made = [DecodedUpdate([], []) for _ in range(liars)]
    for index, tensor in enumerate(layout.tensors):
        sums, _ = signs_said(tensor.blocks, tensor.elements, index, heard[:SPARED])
        others, others_use = signs_said(tensor.blocks, tensor.elements, index, heard[SPARED:])
        for update in made:
            alone = np.where(others_use == 0, 100.0 * np.abs(sums), 0.0)
            worth = alone + np.abs(others) + chance.random(sums.shape)
            positions = np.sort(np.argsort(-worth, axis=1)[:, : tensor.top_k], axis=1)
            word = np.where(others_use == 0, -sums, others)
            signs = np.where(np.take_along_axis(word, positions, axis=1) < 0, -1, 1)
            update.positions.append(positions.astype(np.int32))
            update.signs.append(signs.astype(np.int8))
    return made


KINDS: dict[str, Liars] = {"opposite": opposite, "crowd": crowd, "chosen": chosen}


def signs_said(
    blocks: int, elements: int, index: int, updates: Sequence[DecodedUpdate]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the signs at each coefficient, and how many send it: (blocks, elements) each."""
    sums = np.zeros((blocks, elements), dtype=np.int32)
    uses = np.zeros((blocks, elements), dtype=np.int32)
    rows = np.arange(blocks)[:, None]
    for update in updates:
        sums[rows, update.positions[index]] += update.signs[index]
        uses[rows, update.positions[index]] += 1
    return sums, uses


def toy_rounds(
    right: float, rounds: int, chance: np.random.Generator
) -> Iterator[tuple[UpdateLayout, list[DecodedUpdate]]]:
    """Yield updates of members that find most of 64 common coefficients, and some of their own."""
    layout = update_layout([ParameterSpec(name="w", shape=(1024, 1024))], 64, 8)
    (tensor,) = layout.tensors
    shape = (tensor.blocks, tensor.elements)
    for _ in range(rounds):
        common = np.argsort(chance.random(shape), axis=1)[:, :64]
        truth = chance.choice(np.array([-1, 1], np.int8), common.shape)
        updates = []
        for _ in range(MEMBERS):
            keys = chance.random(shape)
            np.put_along_axis(keys, common, 0.15 * np.take_along_axis(keys, common, 1), 1)
            positions = np.sort(np.argpartition(keys, tensor.top_k, axis=1)[:, : tensor.top_k], 1)
            signs = chance.choice(np.array([-1, 1], np.int8), shape)
            found = np.where(chance.random(truth.shape) < right, truth, -truth).astype(np.int8)
            np.put_along_axis(signs, common, found, 1)
            mine = np.take_along_axis(signs, positions, 1)
            updates.append(DecodedUpdate([positions.astype(np.int32)], [mine]))
        yield layout, updates


def trained_rounds(rounds: int) -> Iterator[tuple[UpdateLayout, list[DecodedUpdate]]]:
    """Yield the updates of ten honest members that train a small model."""
    setting = Setting(
        workers=MEMBERS, sequences=1, steps=rounds, hidden=64, layers=2, seed=0, device="cpu"
    )
    trial = Trial(setting, *read_corpus([Path(sysconfig.get_paths()["stdlib"])], []))
    spec = OptimizerSpec()
    layout = update_layout(trial.table, spec.chunk, spec.top_k)
    workers = [LocalOptimizer(layout, trial.parameters, spec) for _ in range(MEMBERS)]
    parameters = [parameter.data for parameter in trial.parameters]
    schedule = default_schedule(4e-3, rounds)
    for number in range(1, rounds + 1):
        updates = []
        for worker, share in zip(workers, np.array_split(trial.next_batch(), MEMBERS), strict=True):
            worker.accumulate(trial.gradients(share))
            taken = worker.take(number)
            worker.forget(number)
            updates.append(DecodedUpdate(taken.positions, taken.signs))
        for worker in workers:
            worker.yield_to(updates)
        rate = learning_rate(schedule, number)
        apply_step(parameters, layout, updates, rate, spec.weight_decay, step=spec.step)
        yield layout, updates


def measure(data: str, rounds: Iterator[tuple[UpdateLayout, list[DecodedUpdate]]]) -> list[Row]:
    """Measure every kind of liars, in every number, on the same updates."""
    chance = np.random.default_rng(1)
    counts: dict[tuple[str, int], np.ndarray] = {}
    seen = 0
    for number, (layout, honest) in enumerate(rounds):
        seen += 1
        for kind, liars in [("none", 0), *((kind, n) for n in (1, 2, 3, 4) for kind in KINDS)]:
            lies = KINDS[kind](layout, honest, liars, chance) if liars else []
            updates = [*honest[: MEMBERS - liars], *lies]
            against = outlier_filter.contradictions(layout, updates, number)
            peeled = np.isin(np.arange(MEMBERS), list(outlier_filter.outvoted(against)))
            at_once = 2 * against.sum(axis=1) > MEMBERS - 1
            split = MEMBERS - liars
            tally = [part.sum() for out in (peeled, at_once) for part in (out[:split], out[split:])]
            counts[kind, liars] = counts.get((kind, liars), np.zeros(4)) + tally
    rows = []
    for (kind, liars), tally in counts.items():
        updates, lies = seen * (MEMBERS - liars), max(1, seen * liars)
        rows.append(
            Row(
                data, kind, liars, tally[0] / updates, tally[2] / updates,
                tally[1] / lies, tally[3] / lies, updates,
            )
        )  # fmt: skip
    return rows


def grind(members: int, lies: float, tries: int) -> Ground:
    """Find the smallest share of lies in a sample over `tries` seeds, for the blocks of 1.2 billion
    parameters."""
    layout = update_layout([ParameterSpec(name="w", shape=(1 << 15, 36_864))], 64, 8)
    chance = np.random.default_rng(2)
    lie = chance.random(sum(tensor.blocks for tensor in layout.tensors)) < lies
    samples = (outlier_filter.sample(layout, members, seed) for seed in range(tries))
    shares = [float(lie[blocks].mean()) for ((_, blocks),) in samples]
    ((_, blocks),) = outlier_filter.sample(layout, members, 0)
    room = math.sqrt(60 * math.log(2) / (2 * len(blocks)))
    return Ground(members, len(blocks), float(lie.mean()), tries, min(shares), lies - room)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the audit promises.")
    parser.add_argument(
        "--rounds", type=int, default=120, help="of training; a quarter of toy data"
    )
    parser.add_argument("--tries", type=int, default=20_000, help="seeds to try")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure("trained", trained_rounds(options.rounds))
    for right in (0.7, 0.8):
        chance = np.random.default_rng(0)
        rows += measure(f"toy {right:.0%}", toy_rounds(right, options.rounds // 4, chance))
    print(f"{'':26} {'honest left out':>24} {'lies left out':>24}")
    print(f"{'data':9} {'kind':9} {'liars':>6} " + 2 * f"{'audit':>12} {'one pass':>12}")
    for row in rows:
        print(
            f"{row.data:9} {row.kind:9} {row.liars:6} {row.honest_left_out:12.2%} "
            f"{row.honest_left_out_one_pass:12.2%} {row.lies_left_out:12.1%} "
            f"{row.lies_left_out_one_pass:12.1%}"
        )
    ground = [
        grind(members, lies, options.tries) for members in (10, 32, 128) for lies in (0.5, 0.95)
    ]
    print(
        f"\n{'members':>7} {'blocks in the sample':>21} {'lies':>6} {'tries':>7} {'least seen':>11} "
        f"{'2^40 tries':>11}"
    )
    for found in ground:
        print(
            f"{found.members:7} {found.sampled:21} {found.lies:6.1%} {found.tries:7} "
            f"{found.least_seen:11.1%} {found.least_of_a_trillion:11.1%}"
        )
    if options.json:
        document = {"liars": [asdict(row) for row in rows], "ground": [asdict(g) for g in ground]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
