"""Members that train together, each on its own text: for the benchmarks of private data.

All of them are in one process. The optimizer, the clipping and the noise, the privacy accountant and
the shared step are the program's own. A member's data are the non-overlapping sequences of its text;
a round's share is drawn afresh each time; with noise each sequence is drawn independently, as the
accountant requires.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distro_node.node.trainer.optimizer import dp_accountant
from distro_node.node.trainer.optimizer.dp_gradient import private_gradient
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.node.training.local_policy import Clipping
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import DecodedUpdate, update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec
from training import SEQUENCE, Setting, Trial, default_schedule, windows

TEXT_BYTES = 400_000
HELDOUT_SHARE = 0.1
DELTA = 1e-5


@dataclass(frozen=True)
class Text:
    """One member's text."""

    name: str
    train: np.ndarray
    heldout: np.ndarray

    @property
    def sequences(self) -> np.ndarray:
        """The training sequences: (number, SEQUENCE + 1)."""
        return windows(self.train, np.arange((len(self.train) - 1) // SEQUENCE) * SEQUENCE)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train."""

    name: str
    members: tuple[int, ...] = (0, 1, 2, 3)
    """The members, by the numbers of their texts."""
    mixed: bool = False
    """Whether all members share all sequences."""
    sequences: int = 4
    """Sequences of each member in a round."""
    rounds: int = 200
    rate: float = 4e-3
    stateless: bool = False
    clip: float | None = None
    epsilon: float | None = None
    """At `DELTA`, for each member, over all rounds; None: no noise."""


def texts() -> list[Text]:
    """Return four kinds of text that exist on any machine with this program's environment."""
    library, packages = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    found = {
        "Python": sorted(library.glob("*.py")),
        "C++": sorted((packages / "torch" / "include" / "ATen").rglob("*.h")),
        "prose": sorted(packages.glob("*.dist-info/METADATA")),
        "numbers": sorted((packages / "numpy" / "_core" / "tests" / "data").glob("*.csv")),
    }
    return [_text(name, paths) for name, paths in found.items()]


def _text(name: str, paths: Sequence[Path]) -> Text:
    bodies = [path.read_bytes()[:40_000] for path in paths]
    # In an order unrelated to their names.
    bodies.sort(key=lambda body: hashlib.sha256(body).digest())
    joined = np.frombuffer(b"".join(bodies)[:TEXT_BYTES], np.uint8)
    cut = int(len(joined) * (1 - HELDOUT_SHARE))
    return Text(name, joined[:cut], joined[cut:])


class Federation:
    """A model, and members that train it in one way."""

    def __init__(
        self, way: Way, own: Sequence[Text], *, hidden: int, layers: int, seed: int
    ) -> None:
        self.way = way
        self.own = [own[index] for index in way.members]
        setting = Setting(
            workers=len(way.members),
            sequences=way.sequences,
            steps=way.rounds,
            hidden=hidden,
            layers=layers,
            seed=seed,
            device="cpu",
        )
        self.trial = Trial(setting, own[0].train, own[0].heldout, 8)
        self.spec = OptimizerSpec(outlier_filter=False)
        self.layout = update_layout(self.trial.table, self.spec.chunk, self.spec.top_k)
        self.parameters = [parameter.data for parameter in self.trial.parameters]
        self.optimizers = [
            LocalOptimizer(self.layout, self.trial.parameters, self.spec) for _ in self.own
        ]
        self.chance = np.random.default_rng(seed)
        data = [text.sequences for text in self.own]
        self.data = [np.concatenate(data)] * len(data) if way.mixed else data
        self.clippings = [self._clipping(len(each)) for each in self.data]
        self._schedule = default_schedule(way.rate, way.rounds)

    def _clipping(self, count: int) -> Clipping | None:
        way = self.way
        if way.clip is None:
            return None
        noise = 0.0
        if way.epsilon is not None:
            rate = way.sequences / count
            noise = dp_accountant.noise_for([], way.epsilon, DELTA, rate, way.rounds)
        return Clipping(norm=way.clip, noise=noise, sequences=way.sequences)

    def draw(self, member: int) -> np.ndarray:
        """Draw the sequences that a member trains in a round."""
        count = len(self.data[member])
        if self.way.clip is not None:
            return np.flatnonzero(self.chance.random(count) < self.way.sequences / count)
        return self.chance.choice(count, self.way.sequences, replace=False)

    def gradients(
        self, batch: np.ndarray, clipping: Clipping | None = None
    ) -> list[torch.Tensor | None]:
        """Return the gradient of some sequences, as a member computes it."""
        if clipping is None:
            return [gradient.clone() for gradient in self.trial.gradients(batch)]
        losses = (self.loss(each[None]) for each in batch)
        private_gradient(self.trial.parameters, losses, clipping)
        return [parameter.grad for parameter in self.trial.parameters]

    def update(self, member: int, number: int, drawn: np.ndarray) -> DecodedUpdate:
        """Return a member's update of a round."""
        optimizer = self.optimizers[member]
        optimizer.accumulate(self.gradients(self.data[member][drawn], self.clippings[member]))
        taken = optimizer.take(number)
        optimizer.forget(number)
        if self.way.stateless:
            optimizer.start_over()
        return DecodedUpdate(taken.positions, taken.signs)

    def step(self, updates: Sequence[DecodedUpdate], number: int) -> None:
        """Apply a round's updates, as all members do."""
        rate = learning_rate(self._schedule, number)
        spec = self.spec
        apply_step(self.parameters, self.layout, updates, rate, spec.weight_decay, step=spec.step)

    def run(self) -> None:
        """Run all rounds."""
        for number in range(1, self.way.rounds + 1):
            members = range(len(self.own))
            self.step([self.update(each, number, self.draw(each)) for each in members], number)

    def loss(self, batch: np.ndarray) -> torch.Tensor:
        """Return the mean loss of some sequences, nats per byte."""
        tokens = torch.from_numpy(batch.astype(np.int64))
        logits = self.trial.model(input_ids=tokens[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    @torch.no_grad()
    def heldout(self, own: Sequence[Text], sequences: int = 128) -> dict[str, float]:
        """Return the held-out loss on each text, nats per byte."""
        found = {}
        for text in own:
            stride = (len(text.heldout) - SEQUENCE - 1) // sequences
            batch = windows(text.heldout, np.arange(sequences) * stride)
            parts = [float(self.loss(part)) for part in np.array_split(batch, 4)]
            found[text.name] = sum(parts) / len(parts)
        return found


class Results:
    """A file with the measurements; the same command resumes with the missing ones."""

    def __init__(self, path: Path | None, head: dict[str, Any]) -> None:
        self._path = path
        self.content: dict[str, Any] = {**head, "runs": {}}
        if path is not None and path.exists():
            known = json.loads(path.read_text("utf-8"))
            if {key: known.get(key) for key in head} == head:
                self.content = known

    def missing(self, ways: Sequence[Way]) -> Iterator[Way]:
        """Yield the ways that were not measured yet, or with other settings."""
        for way in ways:
            known = self.content["runs"].get(way.name)
            if known is None or known["way"] != json.loads(json.dumps(asdict(way))):
                yield way

    def add(self, way: Way, **measured: Any) -> None:
        """Store a measurement."""
        self.content["runs"][way.name] = {"way": asdict(way), **measured}
        if self._path is not None:
            self._path.write_text(json.dumps(self.content, indent=1) + "\n", "utf-8")
