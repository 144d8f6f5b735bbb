"""One model in training: what the trainer process does between its requests.

Everything random or device-dependent stays in here (gradients, momentum). Only an update body leaves,
and only `apply`, which is exact, changes the parameters.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from ...crypto.hashing import ContentId
from ...protocol.codec.audit import audit_seed, contradicted
from ...protocol.codec.update import decode_update, encode_update, update_layout
from ...protocol.wire.blobs import BlobList
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest
from ..storage.blob_store import BlobStore
from .adapters import build_trained
from .data import Corpus
from .device import (
    check_fits,
    default_micro_batch,
    is_out_of_memory,
    sequence_bytes,
)
from .errors import TrainerFailed
from .exact import apply_step
from .fingerprint import fingerprint
from .frames import Trained
from .model import check_inputs
from .optimizer import LocalOptimizer
from .snapshot import read_snapshot, write_snapshot
from .tasks import Sample, open_task

_log = logging.getLogger(__name__)

# What an announcement can carry; a diverged model's loss is reported as this.
_LARGEST_LOSS = 1e30

T = TypeVar("T")


class TrainingSession:
    """The model of a manifest on one device. Parameters come from `load`, and must.

    Every method raises `TrainerFailed`.
    """

    def __init__(
        self,
        manifest: Manifest,
        store: BlobStore,
        device: torch.device,
        micro_batch: int | None = None,
    ) -> None:
        data = manifest.data
        per_sequence = sequence_bytes(manifest.model, data.sequence_length, data.vocabulary)
        frozen = manifest.frozen_elements
        check_fits(manifest.elements, per_sequence, device, frozen)
        self.manifest = manifest
        self.device = device
        self.model, self.parameters = build_trained(manifest, store, device)
        check_inputs(self.model, data.vocabulary, data.sequence_length)
        self.task = open_task(manifest, self.model.config)
        spec = manifest.optimizer
        self.layout = update_layout(manifest.parameters, spec.chunk, spec.top_k)
        self.optimizer = LocalOptimizer(self.layout, self.parameters, spec)
        self.micro_batch = micro_batch or default_micro_batch(
            manifest.elements, per_sequence, device, frozen
        )
        self.left_out = 0
        """How many updates the audit left out of the last step."""
        self._corpus = Corpus(data, store)
        self._store = store
        self._loaded = False

    def load(self, chunks: Sequence[ContentId]) -> int:
        """Replace the parameters by a snapshot's and return their fingerprint.

        What is pending is dropped, the momentum kept.
        """
        read_snapshot(self.parameters, self._store, chunks)
        self._loaded = True
        self.optimizer.forget_all()
        return fingerprint(self.parameters)

    def train(self, round_number: int, samples: Sequence[int]) -> Trained:
        """Compute the gradient over these samples and take this round's update from the momentum.

        Without samples, or with none in which there is anything to learn, the momentum alone speaks, and
        the loss is 0 over 0 tokens. A gradient that is not finite is left out, or it would stay in the
        momentum for ever.
        """
        self._need_parameters()
        started = time.perf_counter()
        loss, counted = 0.0, 0
        finite = False
        # From a share that was broken off, when the disk had lost some of its data.
        self._clear_gradients()
        if samples:
            loss, counted = self._gradient(round_number, samples)
        if counted:
            finite = math.isfinite(loss) and all(
                bool(torch.isfinite(p.grad).all()) for p in self.parameters if p.grad is not None
            )
            if not finite:
                _log.warning("the gradient of round %d is not finite and left out", round_number)
        computed = time.perf_counter()
        if finite:
            self.optimizer.accumulate([parameter.grad for parameter in self.parameters])
        else:
            self.optimizer.decay()
        self._clear_gradients()
        taken = self.optimizer.take(round_number)
        body = encode_update(self.layout, taken.positions, taken.signs)
        return Trained(
            body=body,
            # A comparison with NaN is false, so NaN becomes the largest, too.
            loss=loss if loss < _LARGEST_LOSS else _LARGEST_LOSS,
            tokens=counted,
            coefficients=self.layout.coefficients,
            compute_seconds=computed - started,
            encode_seconds=time.perf_counter() - computed,
        )

    def apply(
        self, round_number: int, updates: Sequence[bytes], learning_rate: float, own_counted: bool
    ) -> int:
        """Take the shared step with these bodies and return the new fingerprint.

        An own update of this round is settled: forgotten if it was counted, else (also where the audit
        has left it out) given back. Then the momentum yields to what was counted.
        """
        self._need_parameters()
        try:
            decoded = [decode_update(self.layout, body) for body in updates]
        except ProtocolError as error:
            # The node checked them before it voted for them.
            raise TrainerFailed("internal", f"an agreed update does not decode: {error}") from None
        spec = self.manifest.optimizer
        left_out = contradicted(self.layout, decoded, audit_seed(updates)) if spec.audit else set()
        heard = [update for index, update in enumerate(decoded) if index not in left_out]
        apply_step(self.parameters, self.layout, heard, learning_rate, spec.weight_decay)
        own_heard = not any(self.optimizer.sent(round_number, decoded[i]) for i in left_out)
        if own_counted and own_heard:
            self.optimizer.forget(round_number)
        else:
            self.optimizer.refund(round_number)
        self.optimizer.yield_to(heard)
        self.left_out = len(left_out)
        return fingerprint(self.parameters)

    def snapshot(self) -> BlobList:
        """Store the parameters' chunks; return their list."""
        self._need_parameters()
        return write_snapshot(self.parameters, self._store)

    def evaluate(self, sequences: int) -> float:
        """The mean loss, in the task's unit, over the first held-out samples (all, if fewer)."""
        self._need_parameters()
        count = min(sequences, self._corpus.heldout_samples)
        if count < 1:
            raise TrainerFailed("bad_data", "there is no held-out sample to evaluate on")

        def whole() -> tuple[float, int]:
            self.model.eval()
            with torch.no_grad():
                parts = [
                    (float(loss), n) for loss, n in self._losses(0, range(count), heldout=True)
                ]
            return self._mean(sum(loss for loss, _ in parts), sum(n for _, n in parts), count)

        loss, counted = self._within_memory(whole)
        if not counted:
            raise TrainerFailed("bad_data", "there is nothing to learn in the held-out samples")
        return loss

    def _gradient(self, round_number: int, samples: Sequence[int]) -> tuple[float, int]:
        """Leave the mean gradient over all that counts in `.grad`; return the mean loss, and over how
        much."""

        def whole() -> tuple[float, int]:
            self.model.train()
            self._clear_gradients()
            total, counted = torch.zeros((), device=self.device), 0
            for loss, count in self._losses(round_number, samples):
                loss.backward()
                total += loss.detach()
                counted += count
            nominal = self._nominal(len(samples))
            if counted not in (0, nominal):
                # How much counts is known at the end alone.
                for parameter in self.parameters:
                    if parameter.grad is not None:
                        parameter.grad.mul_(nominal / counted)
            return self._mean(float(total), counted, len(samples))

        return self._within_memory(whole)

    def _losses(
        self, round_number: int, samples: Sequence[int], *, heldout: bool = False
    ) -> Iterator[tuple[torch.Tensor, int]]:
        """The loss of each micro-batch, divided by how many tokens there are in all samples, and over
        how many it is.

        No more than a micro-batch is in memory: a manifest may make shares of 65,536 sequences of a
        million tokens each out of one chunk that it names again and again.
        """
        nominal, size = self._nominal(len(samples)), self.micro_batch
        read = self._corpus.heldout if heldout else self._corpus.training
        for start in range(0, len(samples), size):
            numbers = samples[start : start + size]
            stored = [
                Sample(data, number, round_number, heldout)
                for data, number in zip(read(numbers), numbers, strict=True)
            ]
            batch = self.task.batch(stored)
            batch = {name: tensor.to(self.device) for name, tensor in batch.items()}
            with self._autocast():
                loss = self.task.loss(self.model, batch)
            yield loss.total / nominal, loss.count

    def _nominal(self, samples: int) -> int:
        """Tokens in so many samples."""
        return samples * self.manifest.data.sequence_length

    def _mean(self, scaled: float, counted: int, samples: int) -> tuple[float, int]:
        """The mean over what counts, of a sum that was divided by all tokens."""
        nominal = self._nominal(samples)
        return (scaled if counted == nominal else scaled * nominal / max(1, counted)), counted

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        # bfloat16 halves time and memory on CUDA and touches only the local gradient.
        if self.device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def _within_memory(self, compute: Callable[[], T]) -> T:
        """Run `compute`; while memory runs out, begin it again with half the micro-batch."""
        while True:
            try:
                return compute()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                problem = str(error).splitlines()[0] if str(error) else "out of memory"
            # Outside the handler: the exception's frames would keep the activations alive.
            self._clear_gradients()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if self.micro_batch == 1:
                raise TrainerFailed("out_of_memory", f"one sequence does not fit: {problem}")
            self.micro_batch //= 2
            _log.warning("out of memory: the micro-batch is now %d", self.micro_batch)

    def _clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _need_parameters(self) -> None:
        if not self._loaded:
            raise TrainerFailed("internal", "no parameters have been loaded yet")
