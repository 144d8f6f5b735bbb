"""What one device computes with a model and the samples of its swarm: losses, gradients, other measures.

The number of samples that are computed at once, the micro-batch, follows the memory: it is halved while
memory runs out, and grows back to what was planned.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from ...protocol.wire.manifest import DataSpec
from ..training.errors import TrainerFailed
from ..training.local_policy import Clipping
from .device import (
    available_bytes,
    copies_while_computing,
    is_out_of_memory,
    synchronize,
)
from .memory.model_shard import ModelShard
from .models.cross_entropy import expecting_gradient
from .models.model import enable_checkpointing, layers_of
from .optimizer.dp_gradient import private_gradient
from .optimizer.mixed_precision import MixedPrecision
from .tasks.data import Corpus
from .tasks.tasks import (
    Batch,
    HasAccuracy,
    HasBeginnings,
    HasMargins,
    Loss,
    StoredSample,
    Task,
)

_log = logging.getLogger(__name__)

# After memory ran out: the number of consecutive computations that must fit before a larger
# micro-batch is tried again. It doubles, up to the bound, each time the larger one does not fit.
_BEFORE_GROWING = 16
_LONGEST_BEFORE_GROWING = 1024

T = TypeVar("T")

Measure = Callable[[PreTrainedModel, Mapping[str, torch.Tensor]], Loss]
"""A sum over the answers to a batch, and their number."""


@dataclass(kw_only=True, eq=False)
class Computation:
    """A model on one device, with the data to compute on.

    Every method may raise `TrainerFailed`.
    """

    model: PreTrainedModel
    parameters: Sequence[torch.nn.Parameter]
    """The parameters that are trained, in the manifest's order."""
    task: Task
    part: ModelShard
    device: torch.device
    precision: MixedPrecision
    data: DataSpec
    corpus: Corpus
    clipping: Clipping | None
    """How gradients of single samples are clipped and blurred (differential privacy)."""
    micro_batch: int
    """Samples that are computed at once."""
    checkpointing: bool
    """Whether activations are computed twice to save memory."""
    computing_bytes: int
    """Bytes of the device that computing a gradient takes, by the memory plan."""
    restarts: bool
    """Whether this process may restart a computation by itself: not while others take part in it."""
    compiled: bool = False
    """Whether the layers are compiled."""
    _planned_micro_batch: int = field(init=False)
    _fitted_in_a_row: int = field(init=False, default=0)
    _before_growing: int = field(init=False)
    _just_grew: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._planned_micro_batch = self.micro_batch
        self._before_growing = _BEFORE_GROWING
        if self.checkpointing:
            enable_checkpointing(self.model)

    def evaluate(self, sequences: int) -> float:
        """Return the mean loss, in the task's unit, over the first `sequences` held-out samples (over
        all, if there are fewer)."""
        return self._measure_heldout(sequences, None)[0]

    def accuracy(self, sequences: int) -> tuple[float, int] | None:
        """Return the share of right answers over the first `sequences` held-out samples, and how many
        answers that were; None if answers of the task are not right or wrong."""
        task = self.task
        if not isinstance(task, HasAccuracy):
            return None
        share, asked = self._measure_heldout(sequences, task.correct)
        # Sums are divided and multiplied in float32 on the way, which may leave a little more than 1.
        return round(share * asked) / asked, asked

    def _measure_heldout(self, sequences: int, measure: Measure | None) -> tuple[float, int]:
        """Return the mean of a measure, by default the loss, over held-out samples, and its count."""
        count = min(sequences, self.corpus.heldout_samples)
        if count < 1:
            raise TrainerFailed("bad_data", "there is no held-out sample to evaluate on")

        def compute() -> tuple[float, int]:
            self.model.eval()
            with torch.no_grad():
                parts = [
                    (float(loss), n)
                    for loss, n in self._losses(0, range(count), heldout=True, measure=measure)
                ]
            return sum(loss for loss, _ in parts), sum(n for _, n in parts)

        total, counted = self.part.sum_losses(lambda: self._within_memory(compute))
        if not counted:
            raise TrainerFailed("bad_data", "the held-out samples contain no tokens to learn")
        return self._mean(total, counted, count), counted

    def margins(self, samples: Sequence[int], *, heldout: bool = False) -> list[float]:
        """Return by how many nats the model prefers the chosen side of each of these pairs: see
        `HasMargins`.

        Raises `TrainerFailed`: `bad_model` for a task without pairs, and for a session with other
        ranks, each of which computes only some of the samples."""
        task = self.task
        if not isinstance(task, HasMargins) or list(self.part.own_samples(samples)) != list(
            samples
        ):
            raise TrainerFailed("bad_model", "only one device at a time computes margins of pairs")
        read = self.corpus.heldout if heldout else self.corpus.training

        def compute() -> list[float]:
            self.model.eval()
            found: list[float] = []
            for start in range(0, len(samples), self.micro_batch):
                numbers = samples[start : start + self.micro_batch]
                stored = [
                    StoredSample(data, number, 0, heldout)
                    for data, number in zip(read(numbers), numbers, strict=True)
                ]
                batch = {
                    name: self._to_device(tensor) for name, tensor in task.batch(stored).items()
                }
                with self.precision.autocast():
                    found += task.margins(self.model, batch).tolist()
            return found

        return self._within_memory(compute)

    def gradient(
        self, round_number: int, samples: Sequence[int], *, beginning: bool = False
    ) -> tuple[float, int]:
        """Leave the mean gradient over all targets in `.grad` (with several ranks: this rank's
        contribution to it); return the mean loss and the number of targets. With differential privacy
        both are returned as 0, because they would reveal something of the samples. `beginning`: use
        only the first half of a single sample; both are 0 if it cannot be cut in half."""
        if self.clipping is not None:
            losses = (self._single_loss(round_number, sample) for sample in samples)
            self.model.train()
            private_gradient(self.parameters, losses, self.clipping)
            return 0.0, 0

        precision, count = self.precision, max(1, len(samples))

        def compute() -> tuple[float, int]:
            self.model.train()
            self.clear_gradients()
            total, counted = torch.zeros((), device=self.device), 0
            factor = precision.factor(count)
            losses = self._losses(round_number, samples, beginning=beginning, factor=factor)
            for loss, targets in losses:
                (loss if factor is None else loss * factor).backward()
                total += loss.detach()
                counted += targets
            return float(total), counted

        while True:
            total, counted = self.part.sum_losses(lambda: self._within_memory(compute))
            # The ranks agree on it only here: one that has failed in `compute` would not take part.
            gradients = [parameter.grad for parameter in self.parameters]
            if precision.unscale(gradients, self.part.everywhere, count):
                break
        nominal = self._nominal(len(samples))
        precision.saw_targets(nominal, counted)
        if counted not in (0, nominal):
            # The number of targets is known only at the end.
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(nominal / counted)
        return self._mean(total, counted, len(samples)), counted

    def _losses(
        self,
        round_number: int,
        samples: Sequence[int],
        *,
        heldout: bool = False,
        beginning: bool = False,
        measure: Measure | None = None,
        factor: float | None = None,
    ) -> Iterator[tuple[torch.Tensor, int]]:
        """Yield the loss of each micro-batch, or another measure of it, divided by the number of tokens
        in all samples, and its number of targets. `factor`: what the caller multiplies the loss by
        before its backward pass, if anything.

        Only one micro-batch is in memory at a time: a manifest may define shares of 65,536 sequences
        of a million tokens each from one chunk that it names repeatedly.
        """
        nominal, size = self._nominal(len(samples)), self.micro_batch
        read = self.corpus.heldout if heldout else self.corpus.training
        here = self.part.own_samples(samples)
        incoming = 1.0 if factor is None else factor / max(1, nominal)

        def prepare(numbers: Sequence[int]) -> Batch | None:
            stored = [
                StoredSample(data, number, round_number, heldout)
                for data, number in zip(read(numbers), numbers, strict=True)
            ]
            batch = self.task.batch(stored)
            if not beginning:
                return batch
            return self.task.beginning(batch) if isinstance(self.task, HasBeginnings) else None

        for start in range(0, self.part.passes(samples), size):
            numbers = here[start : start + size]
            # A rank without samples left takes part in the others' passes; its result is discarded.
            batch = self.part.prepare_together(functools.partial(prepare, numbers or samples[:1]))
            if batch is None:
                return
            with expecting_gradient(incoming):
                loss = self._loss(batch, measure)
            yield (loss.total / nominal, loss.count) if numbers else (loss.total * 0.0, 0)

    def _single_loss(self, round_number: int, number: int) -> torch.Tensor | None:
        """Return the mean loss of one sample; None if it has no targets."""
        (data,) = self.corpus.training([number])
        loss = self._loss(self.task.batch([StoredSample(data, number, round_number, False)]))
        return loss.total / loss.count if loss.count else None

    def _loss(self, batch: Mapping[str, torch.Tensor], measure: Measure | None = None) -> Loss:
        on_device = {name: self._to_device(tensor) for name, tensor in batch.items()}
        with self.precision.autocast():
            return (measure or self.task.loss)(self.model, on_device)

    def compute_zeros(self, sequences: int) -> None:
        """Run that many samples of zeros forward and backward, as training would."""
        zeros = bytes((self.data.sequence_length + 1) * self.data.token_bytes)
        self.model.train()
        loss = self._loss(self.task.batch([StoredSample(zeros, 0, 0, False)] * sequences))
        loss.total.backward()
        self.clear_gradients()
        synchronize(self.device)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy to the device; a GPU copies asynchronously."""
        if not copies_while_computing(self.device):
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _nominal(self, samples: int) -> int:
        """Return the number of tokens in that many samples."""
        return samples * self.data.sequence_length

    def _mean(self, scaled: float, counted: int, samples: int) -> float:
        """Return the mean over the targets, from a sum that was divided by all tokens."""
        nominal = self._nominal(samples)
        return scaled if counted == nominal else scaled * nominal / max(1, counted)

    def _within_memory(self, compute: Callable[[], T]) -> T:
        """Run `compute`; while memory runs out, restart it with half the micro-batch."""
        if not self.restarts:
            return compute()
        while True:
            try:
                result = compute()
                self._grow_back()
                return result
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                problem = str(error).splitlines()[0] if str(error) else "out of memory"
            # Outside the handler: the exception's frames would keep the activations alive.
            self.clear_gradients()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if self._just_grew:
                self._before_growing = min(2 * self._before_growing, _LONGEST_BEFORE_GROWING)
            self._fitted_in_a_row, self._just_grew = 0, False
            if self.micro_batch > 1:
                self.micro_batch //= 2
                _log.warning("out of memory: the micro-batch is now %d", self.micro_batch)
            elif not self.checkpointing and enable_checkpointing(self.model):
                self.checkpointing = True
                _log.warning("out of memory: activations are now computed twice")
            else:
                raise TrainerFailed("out_of_memory", f"one sequence does not fit: {problem}")

    def _grow_back(self) -> None:
        """Return step by step to the planned micro-batch, because the program that took the memory, a
        browser or a game, may have ended."""
        self._just_grew = False
        if self.micro_batch >= self._planned_micro_batch:
            return
        self._fitted_in_a_row += 1
        if self._fitted_in_a_row >= self._before_growing:
            self.micro_batch = min(2 * self.micro_batch, self._planned_micro_batch)
            self._fitted_in_a_row, self._just_grew = 0, True
            _log.info("trying a micro-batch of %d again", self.micro_batch)

    def clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def shadow(self) -> Computation:
        """Return a computation with a copy of the parameters, to compute gradients meanwhile.

        If the device has no room for a float32 copy in addition to what computing a gradient takes, the
        copy and its gradient are in bfloat16. Together they take as much as this one's own float32
        gradient, which the memory plan counts and which does not exist meanwhile. Only vectors, few
        numbers, stay in float32. Frozen weights are shared.
        """
        self.clear_gradients()
        elements = sum(parameter.numel() for parameter in self.parameters)
        room = available_bytes(self.device)
        dtype = torch.float32
        if room < 4 * elements + self.computing_bytes:
            dtype = torch.bfloat16
            _log.info("memory is short: work of several rounds is computed on a bfloat16 copy")
        copied = copy.copy(self)
        known: dict[int, object] = {
            id(each): each for each in self.model.parameters() if not each.requires_grad
        }
        for each in self.parameters:
            # What vectors belong to, normalisations and class tokens, has no cast of its own, and works
            # with float32 beside either 16-bit type, but not with both types.
            is_vector = each.numel() == max(each.shape, default=1)
            its_type = torch.float32 if is_vector else dtype
            known[id(each)] = torch.nn.Parameter(each.detach().to(its_type, copy=True))
        copied.model, copied.parameters = copy.deepcopy((self.model, self.parameters), known)
        if dtype is torch.bfloat16 and self.precision.dtype is None:
            copied.precision = MixedPrecision(self.device, torch.bfloat16)
        if self.compiled:
            for layer in layers_of(copied.model):
                # This reuses the code that was compiled for the original.
                layer.compile()
        return copied
