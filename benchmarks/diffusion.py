"""A diffusion model trained with our updates at 500 times fewer bytes and less, beside dense AdamW.

    python benchmarks/diffusion.py [--work DIR] [--json FILE] [--plot FILE.png] [--hidden 32]
        [--layers 1] [--steps 1500] [--workers 4] [--sequences 16] [--seeds 1 2 3] [--variants …]
        [--known]

A small U-Net with classes learns scikit-learn's digits, 1,797 images of 8 × 8 pixels that come with it
(pip install -e '.[diffusion,benchmark]'); every tenth is held out. Dense AdamW is the peer. Our updates
have as many coefficients of each block as fit, so that an update is so many times smaller than the
gradient of the whole model in float32. All see the same images in the same order, with the same noise:
the program's own task draws it. `loss` is the squared error of the noise in a value of a pixel, over all
held-out images with four draws each.

Rates are found alike for every variant, with a seed of its own (0): from a usual one by factors of two,
up and down, until the loss rises on both sides. The best one is taken for the seeds that are reported.
How members are simulated stands in training.py.

--plot writes real digits and those that each variant draws (of the first seed, out of the same noise)
side by side, and the losses on the way. --work keeps each run as soon as it is finished: the same
command goes on where it was broken off, and with more seeds adds their runs. --known trains nothing: it
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
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.node.create.model_config import complete_denoiser
from distro_node.node.trainer.drawing import draw_together
from distro_node.node.trainer.image_tasks import Diffusion
from distro_node.node.trainer.model import model_config, new_model, parameter_table
from distro_node.node.trainer.task_batches import Sample
from distro_node.node.trainer.task_names import DIFFUSION, ImageSettings
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.wire.manifest import (
    DataSpec,
    Manifest,
    OptimizerSpec,
    ParameterSpec,
    ShardSpec,
)
from distro_node.protocol.wire.structure import to_plain
from training import AdamW, Setting, Trial, Trouble, Variant, train

REDUCTIONS = (500, 2000)
SWEEP_SEED = 0
MOST_RATES = 7
USUAL = 2e-3
DRAWS = 4
# Columns are digits; rows, one of each.
DRAWN_ROWS = 4
DRAWING_STEPS = 50
DIGITS = ImageSettings(size=8, channels=1, classes=tuple("0123456789"))
# scikit-learn's have 17 shades.
_BRIGHTEST = 16


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train: dense, or with updates that are so many times smaller."""

    name: str
    target: int | None = None


WAYS = [Way(name="dense"), *(Way(name=f"ours-{each}", target=each) for each in REDUCTIONS)]


@dataclass
class Trained:
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
    parameters: int
    drawn: str
    """What the model draws at the end: images of 64 bytes in hexadecimal digits."""
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def digits() -> np.ndarray:
    """The samples as the program stores them: uint8 (1797, 65), the class before each image."""
    # Of this benchmark alone: a checker of types need not have it.
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

    found: Any = load_digits()
    pixels = np.round(found.data * (255 / _BRIGHTEST)).astype(np.uint8)
    return np.concatenate([found.target.astype(np.uint8)[:, None], pixels], axis=1)


class ImageTrial(Trial):
    """A U-Net under training. What is shared out is the numbers of images."""

    def __init__(self, setting: Setting, images: np.ndarray) -> None:
        self.setting = setting
        self.device = torch.device(setting.device)
        widths = [setting.hidden, 2 * setting.hidden]
        config = complete_denoiser(
            {
                "model_type": "unet2d",
                "block_out_channels": widths,
                "layers_per_block": setting.layers,
            },
            DIGITS,
        )
        # As a founder's is drawn.
        torch.manual_seed(setting.seed)
        self.model = new_model(model_config(config), self.device)
        self.table = parameter_table(self.model)
        self.parameters = [*self.model.parameters()]
        self.task = Diffusion(_manifest(config, self.table, setting.seed), self.model.config)
        held = np.arange(len(images)) % 10 == 9
        self.images = [image.tobytes() + b"\0" for image in images[~held]]
        self.heldout = [image.tobytes() + b"\0" for image in images[held]]
        self._order = np.random.default_rng(setting.seed)
        self._waiting = np.zeros(0, np.int64)
        self._round = 0

    def next_batch(self, workers: int | None = None) -> np.ndarray:
        """The numbers of the next images, each of them once in an epoch; a round begins."""
        count = (self.setting.workers if workers is None else workers) * self.setting.sequences
        while len(self._waiting) < count:
            epoch = self._order.permutation(len(self.images))
            self._waiting = np.concatenate([self._waiting, epoch])
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        self._round += 1
        return batch

    @torch.no_grad()
    def evaluate(self) -> float:
        """Squared error of the noise in a value of a pixel."""
        self.model.eval()
        total, values = 0.0, 0
        for draw in range(DRAWS):
            first = draw * len(self.heldout)
            stored = [
                Sample(data, first + number, 0, True) for number, data in enumerate(self.heldout)
            ]
            loss = self.task.loss(self.model, self.task.batch(stored))
            total, values = total + float(loss.total), values + loss.count
        self.model.train()
        return total / values

    def _loss(self, batch: np.ndarray) -> torch.Tensor:
        stored = [Sample(self.images[number], number, self._round) for number in batch.tolist()]
        loss = self.task.loss(self.model, self.task.batch(stored))
        return loss.total / loss.count

    def drawn(self) -> list[bytes]:
        """Digits that the model draws, one row below the other."""
        numbers = range(DRAWN_ROWS * len(DIGITS.classes))
        return draw_together(
            self.model, DIGITS, numbers, seed=0, steps=DRAWING_STEPS, device=self.device
        )


def _manifest(config: dict[str, Any], table: tuple[ParameterSpec, ...], seed: int) -> Manifest:
    """What the task wants to know; nothing of it is fetched."""
    nowhere = ContentId(bytes(32))
    shard = ShardSpec(blob=nowhere, tokens=2 * DIGITS.sample_bytes)
    return Manifest(
        name="digits",
        task=DIFFUSION,
        task_settings=to_plain(DIGITS, named=True),
        seed=seed,
        model=config,
        parameters=table,
        initial=nowhere,
        data=DataSpec(
            sequence_length=DIGITS.sample_bytes,
            token_bytes=1,
            vocabulary=256,
            shards=(shard,),
            heldout=shard,
            tokenizer=nowhere,
        ),
        founder=PeerId(bytes(32)),
    )


class Bench:
    """The images, and the runs that are there."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.images = digits()
        named = ("hidden", "layers", "steps", "workers", "sequences")
        self.settings = {
            **{key: getattr(options, key) for key in named},
            "images_sha256": hashlib.sha256(self.images.tobytes()).hexdigest()[:16],
        }
        self.runs: list[Trained] = []
        self._file = None
        if options.work:
            options.work.mkdir(parents=True, exist_ok=True)
            self._file = options.work / "runs.jsonl"
            self.runs = _finished(self._file)

    def run(self, way: Way, rate: float, seed: int) -> Trained:
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
        trial = ImageTrial(Setting.of(self.options, seed), self.images)
        whole = 4 * trial.elements
        if way.target is None:
            top_k, sent, optimizer = None, float(whole), AdamW()
        else:
            top_k = fitting_top_k(trial.table, whole, way.target)
            optimizer = OptimizerSpec(top_k=top_k)
            sent = float(update_layout(trial.table, optimizer.chunk, top_k).body_bytes)
        variant = Variant(name=way.name, rate=rate, optimizer=optimizer)
        done = train(variant, Trouble(), trial, lambda number, loss: None)
        trained = Trained(
            way=way.name,
            rate=rate,
            seed=seed,
            # What came apart is worse than all else, and JSON has no word for it.
            loss=done.heldout_loss if math.isfinite(done.heldout_loss) else 1e9,
            curve=done.curve,
            bytes_a_round=sent,
            reduction=whole / sent,
            top_k=top_k,
            parameters=trial.elements,
            drawn=b"".join(trial.drawn()).hex(),
            settings=self.settings,
            seconds=round(time.process_time() - began, 1),
        )
        print(
            f"{way.name:10} rate {rate:g}, seed {seed}: {trained.loss:.4f} at "
            f"{trained.reduction:,.0f}x ({trained.seconds:.0f} s)",
            flush=True,
        )
        self.runs.append(trained)
        if self._file is not None:
            with self._file.open("a") as stream:
                stream.write(json.dumps(asdict(trained)) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        return trained

    def tried(self, way: Way) -> list[Trained]:
        """The runs with the sweep's seed, by ascending rate; the best is not at the edge."""
        runs = [self.run(way, factor * USUAL, SWEEP_SEED) for factor in (0.5, 1.0, 2.0)]
        while len(runs) < MOST_RATES and (best := best_of(runs)) in (runs[0], runs[-1]):
            factor = 0.5 if best is runs[0] else 2.0
            runs.append(self.run(way, factor * best.rate, SWEEP_SEED))
            runs.sort(key=lambda run: run.rate)
        return runs

    def known(self, ways: list[Way]) -> dict[str, tuple[list[Trained], list[Trained]]]:
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


def best_of(runs: list[Trained]) -> Trained:
    """The one with the lowest loss."""
    return min(runs, key=lambda run: run.loss)


def fitting_top_k(table: tuple[ParameterSpec, ...], whole: int, target: int) -> int:
    """The most coefficients a block with which an update is at least so many times smaller than `whole`
    bytes; exits where none is."""
    sizes = {k: update_layout(table, 64, k).body_bytes for k in range(1, 129)}
    fitting = [k for k, size in sizes.items() if size * target <= whole]
    if not fitting:
        sys.exit(f"this model has no update that is {target} times smaller: give a larger --hidden")
    return max(fitting)


def summary(bench: Bench, swept: dict[str, tuple[list[Trained], list[Trained]]]) -> dict[str, Any]:
    """What is written as JSON: of each variant its mean loss over the seeds, and what it is of dense."""
    ways: dict[str, Any] = {}
    for name, (tried, reported) in swept.items():
        losses, rates = [run.loss for run in reported], [run.rate for run in tried]
        first = reported[0]
        ways[name] = {
            "loss": statistics.fmean(losses),
            "error": _error(losses),
            "losses": losses,
            "before": statistics.fmean(run.curve[0][1] for run in reported),
            "rate": first.rate,
            "tried": {f"{run.rate:g}": run.loss for run in tried},
            "at_edge": first.rate in (min(rates), max(rates)),
            "reduction": first.reduction,
            "bytes_a_round": first.bytes_a_round,
            "top_k": first.top_k,
        }
    if "dense" in ways:
        for way in ways.values():
            pairs = zip(way["losses"], ways["dense"]["losses"], strict=True)
            apart = [100 * (loss / beside - 1) for loss, beside in pairs]
            way["percent"], way["percent_error"] = statistics.fmean(apart), _error(apart)
    return {
        "settings": bench.settings,
        "seeds": list(bench.options.seeds),
        "chosen_with_reported": SWEEP_SEED in bench.options.seeds,
        "parameters": next(iter(swept.values()))[1][0].parameters,
        "ways": ways,
    }


def print_summary(document: dict[str, Any]) -> None:
    """A row for each variant."""
    print(f"\n{document['parameters']:,} parameters")
    print(f"{'way':10} {'rate':>8} {'k':>3} {'bytes':>11} {'fewer':>8} {'loss':>17}")
    for name, way in document["ways"].items():
        edge = " (the edge of what was tried)" if way["at_edge"] else ""
        percent = f"{way['percent']:+.2f} % of dense" if "percent" in way else ""
        print(
            f"{name:10} {way['rate']:8g} {way['top_k'] or '':>3} {way['bytes_a_round']:11,.0f} "
            f"{way['reduction']:7,.0f}x {way['loss']:.4f} ± {way['error']:.4f}  {percent}{edge}"
        )


def plot(
    path: Path, images: np.ndarray, swept: dict[str, tuple[list[Trained], list[Trained]]]
) -> None:
    """Digits side by side: real ones, and what each variant draws; and the losses on the way."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sheets = {"scikit-learn's": _sheet(_real(images))}
    for name, (_, runs) in swept.items():
        drawn = np.frombuffer(bytes.fromhex(runs[0].drawn), np.uint8)
        title = name if name == "dense" else f"{name}: {runs[0].reduction:,.0f}x fewer bytes"
        sheets[title] = _sheet(drawn.reshape(-1, DIGITS.size, DIGITS.size))
    figure, axes = pyplot.subplots(1, len(sheets) + 1, figsize=(4.5 * (len(sheets) + 1), 3))
    for place, (title, sheet) in zip(axes, sheets.items(), strict=False):
        place.imshow(sheet, cmap="gray", vmin=0, vmax=255)
        place.set_title(title)
        place.axis("off")
    for name, (_, runs) in swept.items():
        rounds = [number for number, _ in runs[0].curve][1:]
        means = [statistics.fmean(run.curve[i + 1][1] for run in runs) for i in range(len(rounds))]
        axes[-1].plot(rounds, means, label=name)
    axes[-1].set(xlabel="rounds", ylabel="held-out squared error", yscale="log")
    axes[-1].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def _real(images: np.ndarray) -> np.ndarray:
    """Some of each digit, in the order in which they are drawn."""
    by_class = [images[images[:, 0] == digit][:DRAWN_ROWS, 1:] for digit in range(10)]
    return np.stack(by_class, axis=1).reshape(-1, DIGITS.size, DIGITS.size)


def _sheet(images: np.ndarray) -> np.ndarray:
    """Images (count, size, size), ten beside each other."""
    rows = images.reshape(-1, 10, DIGITS.size, DIGITS.size)
    return (
        np.pad(rows, ((0, 0), (0, 0), (1, 1), (1, 1)))
        .transpose(0, 2, 1, 3)
        .reshape(len(rows) * (DIGITS.size + 2), -1)
    )


def _error(values: list[float]) -> float:
    """The standard error of the mean; 0 of one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _finished(file: Path) -> list[Trained]:
    """The runs of a file; what was cut off in the middle of a line is taken away."""
    if not file.exists():
        return []
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(file, len(whole))
    return [Trained(**json.loads(line)) for line in whole.splitlines()]


def main() -> None:
    """Train what is not there yet, and report."""
    parser = argparse.ArgumentParser(description="Diffusion with few bytes beside dense AdamW.")
    Setting.add_arguments(parser, steps=1500, sequences=16)
    parser.set_defaults(workers=4, hidden=32, layers=1)
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
        plot(options.plot, bench.images, swept)


if __name__ == "__main__":
    main()
