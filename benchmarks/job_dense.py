"""A process that trains what a swarm has trained, with dense gradients and AdamW or Muon.

It starts from the swarm's own initial parameters and reads exactly the samples that the swarm's
records count, round by round; the loss is the program's own task's. Its state is stored
periodically, so that it resumes where it was stopped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dense import AdamW, Muon, dense_optimizers
from distro_node.node.content.downloads import blob_list_at
from distro_node.node.results.saved_state import StoredSwarm
from distro_node.node.trainer.models.adapters import build_trained
from distro_node.node.trainer.models.snapshot import read_snapshot
from distro_node.node.trainer.tasks.data import Corpus
from distro_node.node.trainer.tasks.task_batches import StoredSample
from distro_node.node.trainer.tasks.tasks import open_task
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.wire.manifest import ScheduleSpec

WAYS = {"adamw": AdamW(), "muon": Muon()}

# Samples of a round in memory at once, as in a node for this size of model.
_MICRO_BATCH = 8
_SAVE_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class DenseRun:
    """What is trained, and where it is stored."""

    way: str
    schedule: ScheduleSpec
    """The swarm's, with a different peak."""
    rounds: int
    every: int
    """Rounds between measurements."""
    measured: int
    """Number of held-out samples during the run; all of them at the end."""
    file: Path
    """The results as JSON; the state is beside it."""


def counted_samples(ledger: Ledger, round_: int) -> list[int]:
    """Return the samples whose gradients are in a round's step, according to its record."""
    found: list[int] = []
    for entry in ledger[round_].record.updates:
        found += ledger.share(round_, entry.peer) or ()
    return found


class _Dense:
    def __init__(self, known: StoredSwarm, run: DenseRun) -> None:
        manifest, store = known.manifest, known.store
        cpu = torch.device("cpu")
        self._run = run
        self.model, self.parameters = build_trained(manifest, store, cpu)
        blobs = blob_list_at(store, "snapshot", manifest.initial, 4 * manifest.elements)
        if blobs is None:
            raise FileNotFoundError("the swarm's initial parameters are not in its store")
        read_snapshot(self.parameters, store, blobs.chunks)
        self._task = open_task(manifest, self.model.config)
        self._corpus = Corpus(manifest.data, store)
        self._length = manifest.data.sequence_length
        self._optimizers = dense_optimizers(WAYS[run.way], manifest.parameters, self.parameters)
        self._ledger = known.ledger
        self.facts: dict[str, Any] = {
            "way": run.way,
            "rate": run.schedule.peak,
            "round": 0,
            "tokens": 0,
            "seconds": 0.0,
            "curve": [],
        }

    @property
    def heldout_samples(self) -> int:
        return self._corpus.heldout_samples

    def round(self, number: int) -> None:
        """Take one step over everything that the swarm's round counts."""
        samples = counted_samples(self._ledger, number)
        self.facts["round"] = number
        if not samples:
            return
        self.model.train()
        for parameter in self.parameters:
            parameter.grad = None
        for total, _ in self._losses(samples, number, heldout=False):
            (total / (len(samples) * self._length)).backward()
        rate = learning_rate(self._run.schedule, number)
        for optimizer, factor in self._optimizers:
            optimizer.param_groups[0]["lr"] = factor * rate
            optimizer.step()
        self.facts["tokens"] += len(samples) * self._length

    @torch.no_grad()
    def evaluate(self, samples: int) -> float:
        """Return held-out nats per token, as a node measures it."""
        self.model.eval()
        count = min(samples, self.heldout_samples)
        parts = [(float(total), n) for total, n in self._losses(range(count), 0, heldout=True)]
        return sum(total for total, _ in parts) / sum(n for _, n in parts)

    def _losses(
        self, samples: Sequence[int], round_: int, *, heldout: bool
    ) -> Iterator[tuple[torch.Tensor, int]]:
        read = self._corpus.heldout if heldout else self._corpus.training
        for start in range(0, len(samples), _MICRO_BATCH):
            numbers = samples[start : start + _MICRO_BATCH]
            stored = [
                StoredSample(data, number, round_, heldout)
                for data, number in zip(read(numbers), numbers, strict=True)
            ]
            loss = self._task.loss(self.model, self._task.batch(stored))
            yield loss.total, loss.count

    def save(self, path: Path) -> None:
        """Store all state, atomically."""
        state = {
            "facts": json.dumps(self.facts),
            "parameters": [parameter.detach() for parameter in self.parameters],
            "optimizers": [optimizer.state_dict() for optimizer, _ in self._optimizers],
        }
        aside = path.with_suffix(".partial")
        torch.save(state, aside)
        os.replace(aside, path)

    def load(self, path: Path) -> None:
        """Resume from stored state."""
        state = torch.load(path, weights_only=True)
        self.facts = json.loads(state["facts"])
        with torch.no_grad():
            for parameter, kept in zip(self.parameters, state["parameters"], strict=True):
                parameter.copy_(kept)
        for (optimizer, _), kept in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)


def train_dense(known: StoredSwarm, run: DenseRun) -> dict[str, Any]:
    """Train to the end on one thread, unless that was done, and return the results: `way`, `rate`,
    `tokens`, `seconds` of training, `curve` of (round, nats per token), and `loss` over all held-out
    samples."""
    if run.file.exists():
        return json.loads(run.file.read_text())
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dense = _Dense(known, run)
    kept = run.file.with_suffix(".pt")
    if kept.exists():
        dense.load(kept)
    saved = time.monotonic()
    facts = dense.facts
    if not facts["curve"]:
        facts["curve"].append([0, dense.evaluate(run.measured)])
    while facts["round"] < run.rounds:
        began = time.monotonic()
        dense.round(facts["round"] + 1)
        facts["seconds"] += time.monotonic() - began
        if facts["round"] % run.every == 0 or facts["round"] == run.rounds:
            loss = dense.evaluate(run.measured)
            facts["curve"].append([facts["round"], loss])
            done = f"round {facts['round']} of {run.rounds}"
            print(f"{run.way} {facts['rate']:g}: {done}, held-out {loss:.4f}", flush=True)
        if time.monotonic() - saved > _SAVE_SECONDS:
            dense.save(kept)
            saved = time.monotonic()
    loss = dense.evaluate(dense.heldout_samples)
    # A diverged run is worse than any other, and JSON cannot represent NaN.
    outcome = facts | {"loss": loss if math.isfinite(loss) else 1e9}
    run.file.write_text(json.dumps(outcome) + "\n")
    kept.unlink(missing_ok=True)
    return outcome
