"""A diffusion model trained with our updates at 500 times fewer bytes and less, beside dense AdamW.

    python benchmarks/diffusion.py [--work DIR] [--json FILE] [--plot FILE.png] [--hidden 32]
        [--layers 1] [--steps 1500] [--workers 4] [--sequences 16] [--seeds 1 2 3] [--variants …]
        [--known]

A small U-Net with classes learns scikit-learn's digits, 1,797 images of 8 × 8 pixels that come with
it (pip install -e '.[diffusion,benchmark]'); every tenth is held out. Dense AdamW is the peer. Our
updates have as many coefficients of each block as fit into an update that is the given number of
times smaller than the gradient of the whole model in float32; `ours` are those of `orthogonal` and
sign steps, `now` those of a new swarm's defaults. All see the same images in the same order, with
the same noise, drawn by the program's own task. `loss` is the squared error of the noise in a value
of a pixel, over all held-out images with four draws each.

Rates are found in the same way for every variant, with a seed of its own (0): from a usual one by
factors of two, up and down, until the loss rises on both sides. The best one is used for the
reported seeds. training.py describes how members are simulated.

--plot writes real digits and the ones each variant draws (of the first seed, from the same noise)
side by side, and the loss curves. --work stores each run when finished: the same command
resumes an interrupted one, and with more seeds adds their runs. --known trains nothing: it reports
the stored runs, for the seeds that every variant has, or for seed 0 alone if there are none; then
the rates were chosen with the same seed (`chosen_with_reported` in the JSON).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from defaults import OPTIMIZERS
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.node.create.model_config import complete_denoiser
from distro_node.node.trainer.models.model import model_config, new_model, parameter_table
from distro_node.node.trainer.tasks.image_sampling import draw_together
from distro_node.node.trainer.tasks.image_tasks import Diffusion
from distro_node.node.trainer.tasks.task_batches import StoredSample
from distro_node.node.training.task_names import DIFFUSION, ImageSettings
from distro_node.protocol.wire.manifest import (
    DataSpec,
    Manifest,
    ParameterSpec,
    ShardSpec,
)
from distro_node.protocol.wire.structure import to_plain
from runs import (
    SWEEP_SEED,
    Bench,
    Run,
    Swept,
    add_arguments,
    check_seeds,
    fitting_top_k,
    mean_curve,
    outcome,
    percents,
    standard_error,
    summed_up,
)
from training import Setting, Trial

REDUCTIONS = (500, 2000)
USUAL = 2e-3
DRAWS = 4
# Columns are digits; each row has one of each.
DRAWN_ROWS = 4
DRAWING_STEPS = 50
DIGITS = ImageSettings(size=8, channels=1, classes=tuple("0123456789"))
# scikit-learn's have 17 shades.
_BRIGHTEST = 16


# Variants: how members train (defaults.py), and how many times smaller than dense gradients their
# updates are.
WAYS = {
    "dense": None,
    **{f"ours-{each}": ("signs", each) for each in REDUCTIONS},
    **{f"now-{each}": ("default", each) for each in REDUCTIONS},
}


@dataclass(kw_only=True)
class Trained(Run):
    """One run."""

    parameters: int
    drawn: str
    """The model's images at the end: 64 bytes each in hexadecimal digits."""


def digits() -> np.ndarray:
    """Return the samples as the program stores them: uint8 (1797, 65), the class before each image."""
    # Used only by this benchmark: a type checker need not have it.
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

    found: Any = load_digits()
    pixels = np.round(found.data * (255 / _BRIGHTEST)).astype(np.uint8)
    return np.concatenate([found.target.astype(np.uint8)[:, None], pixels], axis=1)


class ImageTrial(Trial):
    """A U-Net in training. The numbers of images are divided among the members."""

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
        self._begin()

    def _begin(self) -> None:
        self.order = np.random.default_rng(self.setting.seed)
        self._waiting = np.zeros(0, np.int64)
        self._round = 0

    def stands_after(self, number: int) -> None:
        """Restore the images left in an epoch by drawing again from the start."""
        self._begin()
        for _ in range(number):
            self.next_batch()

    def next_batch(self, workers: int | None = None) -> np.ndarray:
        """Return the numbers of the next images, each of them once per epoch; this starts a round."""
        count = (self.setting.workers if workers is None else workers) * self.setting.sequences
        while len(self._waiting) < count:
            epoch = self.order.permutation(len(self.images))
            self._waiting = np.concatenate([self._waiting, epoch])
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        self._round += 1
        return batch

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the squared error of the noise in a value of a pixel."""
        self.model.eval()
        total, values = 0.0, 0
        for draw in range(DRAWS):
            first = draw * len(self.heldout)
            stored = [
                StoredSample(data, first + number, 0, True)
                for number, data in enumerate(self.heldout)
            ]
            loss = self.task.loss(self.model, self.task.batch(stored))
            total, values = total + float(loss.total), values + loss.count
        self.model.train()
        return total / values

    def _loss(self, batch: np.ndarray) -> torch.Tensor:
        stored = [
            StoredSample(self.images[number], number, self._round) for number in batch.tolist()
        ]
        loss = self.task.loss(self.model, self.task.batch(stored))
        return loss.total / loss.count

    def drawn(self) -> list[bytes]:
        """Return digits drawn by the model, one row below the other."""
        numbers = range(DRAWN_ROWS * len(DIGITS.classes))
        return draw_together(
            self.model, DIGITS, numbers, seed=0, steps=DRAWING_STEPS, device=self.device
        )


def _manifest(config: dict[str, Any], table: tuple[ParameterSpec, ...], seed: int) -> Manifest:
    """Return the manifest that the task needs; nothing of it is fetched."""
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


class Drawing(Bench[Trained]):
    """The images, and the stored runs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.images = digits()
        named = ("hidden", "layers", "steps", "workers", "sequences")
        settings = {
            **{key: getattr(options, key) for key in named},
            "images_sha256": hashlib.sha256(self.images.tobytes()).hexdigest()[:16],
        }
        super().__init__(Trained, options, settings)

    def default_rate(self, way: str) -> float:
        """Return the rate at which the search for a variant's best rate starts."""
        return USUAL

    def train(self, way: str, rate: float, seed: int) -> Trained:
        """Make one run; exit where no update is as small as required."""
        trial = ImageTrial(Setting.of(self.options, seed), self.images)
        whole, chosen, ours = 4 * trial.elements, WAYS[way], None
        if chosen is not None:
            kind, target = chosen
            top_k = fitting_top_k(trial.table, whole, target)
            if top_k is None:
                sys.exit(
                    f"this model has no update that is {target} times smaller: give a larger --hidden"
                )
            ours = replace(OPTIMIZERS[kind], top_k=top_k)
        done = outcome(
            way, rate, trial, whole=whole, dense=float(whole), ours=ours, going=self.going
        )
        drawn = b"".join(trial.drawn()).hex()
        return Trained(seed=seed, parameters=trial.elements, drawn=drawn, **done)


def summary(bench: Drawing, swept: Swept[Trained]) -> dict[str, Any]:
    """Return the JSON document: for each variant its mean loss over the seeds, and its ratio to
    dense."""
    ways: dict[str, Any] = {
        name: {
            **summed_up(tried, reported),
            "before": statistics.fmean(run.curve[0][1] for run in reported),
        }
        for name, (tried, reported) in swept.items()
    }
    if "dense" in ways:
        for way in ways.values():
            apart = percents(way["losses"], ways["dense"]["losses"])
            way["percent"], way["percent_error"] = statistics.fmean(apart), standard_error(apart)
    return {
        "settings": bench.settings,
        "seeds": list(bench.options.seeds),
        "chosen_with_reported": SWEEP_SEED in bench.options.seeds,
        "parameters": next(iter(swept.values()))[1][0].parameters,
        "ways": ways,
    }


def print_summary(document: dict[str, Any]) -> None:
    """Print a row for each variant."""
    print(f"\n{document['parameters']:,} parameters")
    print(f"{'way':10} {'rate':>8} {'k':>3} {'bytes':>11} {'fewer':>8} {'loss':>17}")
    for name, way in document["ways"].items():
        edge = " (the edge of what was tried)" if way["at_edge"] else ""
        percent = f"{way['percent']:+.2f} % of dense" if "percent" in way else ""
        print(
            f"{name:10} {way['rate']:8g} {way['top_k'] or '':>3} {way['bytes_a_round']:11,.0f} "
            f"{way['reduction']:7,.0f}x {way['loss']:.4f} ± {way['error']:.4f}  {percent}{edge}"
        )


def plot(path: Path, images: np.ndarray, swept: Swept[Trained]) -> None:
    """Plot digits side by side, real ones and each variant's, and the loss curves."""
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
        axes[-1].plot(*mean_curve(runs), label=name)
    axes[-1].set(xlabel="rounds", ylabel="held-out squared error", yscale="log")
    axes[-1].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def _real(images: np.ndarray) -> np.ndarray:
    """Return some images of each digit, in the order in which they are drawn."""
    by_class = [images[images[:, 0] == digit][:DRAWN_ROWS, 1:] for digit in range(10)]
    return np.stack(by_class, axis=1).reshape(-1, DIGITS.size, DIGITS.size)


def _sheet(images: np.ndarray) -> np.ndarray:
    """Arrange images (count, size, size) in rows of ten."""
    rows = images.reshape(-1, 10, DIGITS.size, DIGITS.size)
    return (
        np.pad(rows, ((0, 0), (0, 0), (1, 1), (1, 1)))
        .transpose(0, 2, 1, 3)
        .reshape(len(rows) * (DIGITS.size + 2), -1)
    )


def main() -> None:
    """Train the missing runs, and report."""
    parser = argparse.ArgumentParser(description="Diffusion with few bytes beside dense AdamW.")
    Setting.add_arguments(parser, steps=1500, sequences=16)
    parser.set_defaults(workers=4, hidden=32, layers=1)
    add_arguments(parser, [*WAYS])
    options = parser.parse_args()
    check_seeds(options)
    torch.set_num_threads(1)
    bench = Drawing(options)
    swept = bench.sweep([way for way in WAYS if way in (options.variants or WAYS)])
    document = summary(bench, swept)
    print_summary(document)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.plot:
        plot(options.plot, bench.images, swept)


if __name__ == "__main__":
    main()
