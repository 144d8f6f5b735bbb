"""The cost in learning of reading the corpus in streams: the protocol's order beside a full shuffle.

    python benchmarks/order.py [--seeds 3] [--steps 400] [--workers 8] [--sequences 2] [--mixed 1024]
                               [--piece 8] [--json FILE]

The same tiny run (see training.py) with three orders of the same samples. `shuffled`: any sample may
be next, so a member needs all of the corpus. `streams`: the program's order for a corpus of this size,
in which each stream reads one part in random order. `chunks`: its order for a large one, where a
stream mixes --mixed neighbouring samples, then the next ones, and moves elsewhere after eight such
chunks. A chunk of 4 MiB has 1,024 samples of 2,048 tokens of two bytes, and the pieces in which
`create` mixes text have some eight of these. Few samples per chunk show the effect on streams that
see little at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sysconfig
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from distro_node.protocol.sampling.sampler import SPAN_CHUNKS, StreamOrder
from training import (
    SEQUENCE,
    Setting,
    Trial,
    Trouble,
    Variant,
    percent_apart,
    read_corpus,
    train,
    windows,
)


def orders(setting: Setting, samples: int, mixed: int) -> dict[str, StreamOrder]:
    """Return the three orders, for a corpus of this many samples."""
    streams = setting.workers * setting.sequences
    part = samples // streams
    return {
        "shuffled": StreamOrder(setting.seed, samples, streams, span=1, mixed=1),
        "lanes": StreamOrder(setting.seed, samples, streams, span=part, mixed=part),
        "chunks": StreamOrder(
            setting.seed, samples, streams, span=SPAN_CHUNKS * mixed, mixed=mixed
        ),
    }


def shuffled(text: np.ndarray, piece: int) -> np.ndarray:
    """Return the text as `create` writes it: cut into pieces of `piece` samples, in random order.

    With 0 it is unchanged.
    """
    if piece == 0:
        return text
    count = len(text) // (piece * SEQUENCE)
    pieces = text[: count * piece * SEQUENCE].reshape(count, -1)
    return np.random.default_rng(0).permutation(pieces).ravel()


class OrderedTrial(Trial):
    """A trial that reads samples as a swarm's members do, each from its own streams."""

    def __init__(
        self, setting: Setting, text: np.ndarray, heldout: np.ndarray, order: StreamOrder
    ) -> None:
        super().__init__(setting, text, heldout)
        self._lanes_order = order
        self._row = 0

    def next_batch(self, workers: int | None = None) -> np.ndarray:
        """Return one sample of every stream: (lanes, SEQUENCE + 1)."""
        streams = np.arange(self._lanes_order.streams)
        samples = self._lanes_order.samples_at(streams, np.full(len(streams), self._row))
        self._row += 1
        return windows(self.text, np.array(samples) * SEQUENCE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Learning with the order of lanes and a shuffle.")
    parser.add_argument("--seeds", type=int, default=3)
    Setting.add_arguments(parser, steps=400, sequences=2)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--mixed", type=int, default=1024, help="samples of a chunk")
    parser.add_argument("--piece", type=int, default=8, help="samples that stay together")
    parser.add_argument("--corpus", type=Path, nargs="*", help="files or directories of text")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    text, heldout = read_corpus(options.corpus or [Path(sysconfig.get_paths()["stdlib"])], [])
    text = shuffled(text, options.piece)
    samples = (len(text) - 1) // SEQUENCE
    losses: dict[str, list[float]] = {}
    settings = []
    for seed in range(options.seeds):
        setting = Setting.of(options, seed)
        settings.append(asdict(setting))
        for name, order in orders(setting, samples, options.mixed).items():
            began = time.monotonic()
            run = train(
                Variant(name=name, rate=options.rate),
                Trouble(),
                OrderedTrial(setting, text, heldout, order),
                lambda number, loss: None,
            )
            losses.setdefault(name, []).append(run.heldout_loss)
            seconds = time.monotonic() - began
            print(f"  seed {seed}, {name}: {run.heldout_loss:.4f} ({seconds:.0f} s)", flush=True)
    pieces = f"in mixed pieces of {options.piece}" if options.piece else "not mixed beforehand"
    print(f"\n{samples:,} samples of {SEQUENCE} bytes, {pieces}, {options.mixed} of them a chunk")
    print(f"{'order':10} {'held-out nats a byte, by seed':40} {'mean':>8} {'against shuffled':>18}")
    for name, values in losses.items():
        each = " ".join(f"{value:.4f}" for value in values)
        mean, error = percent_apart(values, losses["shuffled"])
        print(f"{name:10} {each:40} {statistics.fmean(values):8.4f} {mean:+8.2f} ± {error:.2f} %")
    if options.json:
        differences = {
            name: percent_apart(values, losses["shuffled"]) for name, values in losses.items()
        }
        result = {"losses": losses, "percent_and_error": differences, "samples": samples}
        result |= {
            "mixed": options.mixed,
            "piece": options.piece,
            "rate": options.rate,
            "settings": settings,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
