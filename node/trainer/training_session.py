"""One model in training: the trainer process's work on each request.

Everything random or device-dependent (gradients, momentum) stays in this process; what leaves it is
derived: update bodies, losses, audit results. Only `load`, and `apply`, which is exact, change the
parameters of a session in use.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ...crypto.hashing import ContentId
from ...protocol.codec.outlier_filter import audit_seed, contradicted
from ...protocol.codec.schedule import learning_rate
from ...protocol.codec.update import decode_update
from ...protocol.wire.blobs import BlobList
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest
from ..settings.components import Compile
from ..storage.blob_store import BlobStore
from ..storage.unlisted_chunks import UnlistedChunks
from ..training.answers import Judgement
from ..training.errors import TrainerFailed
from ..training.frames import StopSteps, TrainedUpdate
from ..training.local_policy import DEFAULT_POLICY, LocalPolicy
from ..training.memory_model import Workload, max_decoded_updates
from ..training.memory_options import AUDIT_BYTES, MemoryOptions
from ..training.memory_plan import FreeMemory, choose, plan_line
from ..training.task_names import OF_MANY_LENGTHS, WITHOUT_DROPOUT
from .audit_cache import AuditCache, SavedGradient, gradient_change
from .audit_score import AssignedSample, at_positions, coefficient_changes, signs_agreement
from .computation import Computation
from .device import (
    device_kind,
    free_bytes,
    free_memory,
    limit_memory,
    narrow_type,
    spills_to_main_memory,
)
from .memory.model_shard import ModelShard, WholeModelShard
from .models.adapters import build_trained, frozen_parameters, read_base
from .models.compilation import compile_if_faster
from .models.model import check_inputs, disable_dropout, layers_of
from .models.probe import prove
from .optimizer.exact_step import apply_step
from .optimizer.local_steps import LocalSteps
from .optimizer.mixed_precision import MixedPrecision, all_finite
from .optimizer.optimizer import LocalOptimizer
from .optimizer.update_bodies import update_bodies
from .optimizer.update_decoder import UpdateDecoder
from .tasks.data import Corpus
from .tasks.tasks import (
    NeedsBlobs,
    open_task,
)

_log = logging.getLogger(__name__)

# The greatest loss that an announcement can carry; a diverged model's loss is reported as this.
_LARGEST_LOSS = 1e30


class TrainingSession:
    """The model of a manifest on one device. `load` must be called before anything that needs
    parameters.

    Every method may raise `TrainerFailed`.
    """

    computes_exactly = True
    """Whether the model can compute in float32."""
    computes_alone = True
    """Whether this process computes without waiting for others."""

    def __init__(
        self,
        manifest: Manifest,
        store: BlobStore,
        device: torch.device,
        micro_batch: int | None = None,
        memory: int | None = None,
        options: MemoryOptions | None = None,
        policy: LocalPolicy = DEFAULT_POLICY,
    ) -> None:
        """`memory`: bytes that may be taken on the device; None: what is free. `options`: how memory
        is used; None: the cheapest way that fits. `policy`: the member's local policy, such as clipping
        and its own data."""
        data = manifest.data
        self._policy = policy
        self.manifest = manifest
        self.device = device
        self._store = store
        # Clipping needs the gradients of single samples, which are computed without a loss scale. So it
        # cannot use float16, which needs one.
        narrow = narrow_type(device)
        unscaled = policy.clipping is not None
        precision = MixedPrecision(device, None if unscaled and narrow == torch.float16 else narrow)
        room = self._room(memory)
        choice = choose(self._workload(), device_kind(device), room, micro_batch, options)
        if memory is not None or spills_to_main_memory(device):
            limit_memory(device, room.device)
        self.memory = plan_line(choice, room)
        """How memory is used and what that costs, in words for people."""
        self.options = choice.options
        """How memory is used, as it was planned."""
        self.model, self.parameters = self._build(store)
        if manifest.task in WITHOUT_DROPOUT:
            disable_dropout(self.model)
        check_inputs(self.model, manifest)
        self.task = open_task(manifest, self.model.config)
        if isinstance(self.task, NeedsBlobs):
            self.task.use_blobs(store)
        spec = manifest.optimizer
        self._bodies = update_bodies(manifest)
        own, self.layout = self._bodies.local_optimizer(spec), self._bodies.layout
        self.updates = UpdateDecoder(store, self._bodies.decode, max_decoded_updates(self.layout))
        """The updates that were decoded on arrival."""
        self.part = self._part()
        self.optimizer = LocalOptimizer(
            self.part.layout, self.part.parameters, own, self.options.state
        )
        self._local_steps = self._own_steps()
        self.stop_steps = StopSteps()
        """The round whose local steps end after the present one, because the node leaves."""
        self.left_out = 0
        """Number of updates that the outlier filter left out of the last step."""
        shards = None if policy.blobs is None else (BlobStore(Path(policy.blobs)), policy.shards)
        self._computation = Computation(
            model=self.model,
            parameters=self.parameters,
            task=self.task,
            part=self.part,
            device=device,
            precision=precision,
            data=data,
            corpus=Corpus(data, store, shards),
            clipping=policy.clipping,
            micro_batch=choice.micro_batch,
            checkpointing=self.options.checkpointing,
            computing_bytes=sum(part.device for part in choice.needs.phases[0]),
            restarts=self.computes_alone,
        )
        self._audit_cache = AuditCache()
        self._loaded = False
        self._base_loaded = manifest.adapter is None

    @property
    def computation(self) -> Computation:
        """What computes losses and gradients with the parameters."""
        self._need_parameters()
        return self._computation

    @property
    def micro_batch(self) -> int:
        """How many samples are computed at once."""
        return self._computation.micro_batch

    def _own_steps(self) -> LocalSteps | None:
        """Return what takes the local steps of a round; None if a round has one step."""
        if self.manifest.rounds.local_steps == 1:
            return None
        if self._policy.clipping is not None:
            # The node refuses this before it starts a trainer.
            raise TrainerFailed("internal", "local steps have no differential privacy")
        return LocalSteps(self.part.layout, self.part.parameters, self.options.state)

    def prove(self) -> None:
        """Prove that this process computes the manifest's model (`probe`). This overwrites the
        parameters, so it must come before `load`, and frozen weights, which `read_base` restores."""
        self._loaded = self._base_loaded = False
        precision = self._computation.precision
        narrow = None if precision.dtype is None else precision.autocast
        exactly = self.computes_exactly
        prove(
            self.manifest, self.model, self.task, self.part, exactly=exactly, narrow_context=narrow
        )

    def read_base(self) -> None:
        """Read the frozen weights, if the model has any."""
        if (adapter := self.manifest.adapter) is not None:
            read_base(frozen_parameters(self.model, adapter), adapter, self._store)
        self._base_loaded = True

    def compile_layers(self, setting: Compile) -> str | None:
        """Compile the model's layers as the owner wishes; return the result in words for people, or
        None if compilation was not tried."""
        if setting is Compile.OFF or (setting is Compile.AUTO and self.device.type != "cuda"):
            return None
        if self.manifest.task in OF_MANY_LENGTHS:
            # A trial measures one length, and batches of all others would be computed uncompiled.
            return "nothing is compiled: the task's texts are of many lengths"
        computation = self._computation
        found = compile_if_faster(
            layers_of(self.model), computation.compute_zeros, computation.micro_batch
        )
        computation.compiled = found.faster
        computation.clear_gradients()
        return found.summary

    def load(self, chunks: Sequence[ContentId]) -> int:
        """Replace the parameters by a snapshot's and return their fingerprint. Pending updates are
        dropped, the momentum is kept."""
        if not self._base_loaded:
            self.read_base()
        self.part.read(self._store, chunks)
        self._loaded = True
        self.optimizer.forget_all()
        self.updates.forget()
        self._audit_cache.clear()
        return self.part.fingerprint()

    def train(
        self, round_number: int, samples: Sequence[int], *, audits: bool = False
    ) -> TrainedUpdate:
        """Compute the gradient over these samples and take this round's update from the momentum.

        With local steps, what they moved takes the gradient's place (`optimizer.local_steps`). Without
        samples, or if none has a target, the update comes from the momentum alone, and the
        loss is 0 over 0 tokens. A gradient that is not finite is left out, because it would stay in
        the momentum for ever. With `audits`, the gradient is kept, so that `audit` can be called until
        the parameters change.
        """
        self._need_parameters()
        started = time.perf_counter()
        loss, counted = 0.0, 0
        # Gradients may be left from a share that was abandoned because some of its data was missing on
        # disk.
        self._computation.clear_gradients()
        # With differential privacy a round without data must look like any other, so noise is sent.
        noisy = self._policy.clipping is not None
        gradients: Sequence[torch.Tensor | None]
        steps, rate = self._local_steps, self._local_rate(round_number)
        # Without a rate nothing would move; the round's shared step moves nothing either.
        if steps is not None and len(samples) > 1 and rate > 0:
            loss, counted, gradients = self._take_local_steps(steps, round_number, samples, rate)
        else:
            if samples or noisy:
                loss, counted = self._computation.gradient(round_number, samples)
            gradients = self.as_moved(self.part.gradients() if counted or noisy else [])
        self._audit_cache.drop_own()
        if audits and counted and math.isfinite(loss) and self._has_room_to_audit():
            self._audit_cache.keep_own(round_number, SavedGradient(gradients, self.device))
        seconds = time.perf_counter() - started
        made = self.finish(round_number, loss, counted, gradients, seconds)
        self._computation.clear_gradients()
        return made

    def audit(self, round_number: int, audited: AssignedSample) -> bool:
        """Compute a sample that was assigned to another member in the round just trained, and keep
        the changes it makes for `judge`. Return False if there is no own gradient to compare it with:
        `train` computed none, was called without `audits` or with too little main memory, or the
        parameters have changed since."""
        own = self._audit_cache.take_own(round_number)
        if own is None:
            return False
        self._computation.gradient(round_number, [audited.sample])
        # The gradient of the beginning will overwrite this one.
        gradients: list[Iterable[torch.Tensor | None]]
        gradients = [SavedGradient(self.part.gradients(), self.device)]
        if self._computation.gradient(round_number, [audited.sample], beginning=True)[1]:
            gradients.append(self.part.gradients())
        layout, spec = self.part.layout, self.manifest.optimizer
        changes = coefficient_changes(gradients, own, audited.share, layout, spec, self.optimizer)
        self._audit_cache.keep(round_number, gradient_change(changes))
        self._computation.clear_gradients()
        return True

    def judge(self, round_number: int, body: bytes) -> Judgement | None:
        """Return how well an update of this round agrees with the sample that `audit` computed in this
        round, and drop what was kept of the sample. Return None if no sample is kept, or if another
        rank returns the result. Raises `TrainerFailed` for bytes that are not an update."""
        kept = self._audit_cache.take_changes(round_number)
        if kept is None:
            return None
        try:
            update = decode_update(self.layout, body)
        except ProtocolError as error:
            raise TrainerFailed(
                "internal", f"the audited update does not decode: {error}"
            ) from None
        own, tables = self.part.own_part(update), (kept.full_sample, kept.first_half)
        found = []
        for table in tables:
            values = None if table is None else self.part.gather_values(at_positions(own, table))
            found.append(None if values is None else signs_agreement(update, values))
        full_sample, first_half = found
        return None if full_sample is None else Judgement(full_sample, first_half)

    def _has_room_to_audit(self) -> bool:
        """Whether main memory has room for what audits keep of the whole model, at every rank: ranks
        may share one main memory."""
        wanted = AUDIT_BYTES * self.manifest.elements
        return self.part.everywhere(free_bytes(torch.device("cpu")) >= wanted)

    def as_moved(self, gradients: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """Return what takes the gradient's place in a swarm with local steps if a member takes only one,
        and the gradients themselves in others. The gradients are overwritten."""
        if self._local_steps is None or not gradients:
            return gradients
        return self._local_steps.single(gradients, self.manifest.rounds.local_steps)

    def _take_local_steps(
        self, steps: LocalSteps, round_number: int, samples: Sequence[int], rate: float
    ) -> tuple[float, int, Sequence[torch.Tensor | None]]:
        """Take this member's own steps on its share; return the mean loss, the number of targets, and
        what the steps moved, in units of all the steps that the manifest defines.

        The parameters are afterwards what they were, to the bit. A step whose gradient is not finite is
        left out; if all are, the loss is not finite either.
        """
        planned = self.manifest.rounds.local_steps
        count = min(planned, len(samples))
        total, counted, taken, invalid = 0.0, 0, 0, 0
        gradients: Sequence[torch.Tensor | None] = []
        # Set again once the parameters are restored: after any other failure they must not be used.
        self._loaded = False
        steps.begin()
        try:
            for step in range(count):
                batch = samples[len(samples) * step // count : len(samples) * (step + 1) // count]
                loss, targets = self._computation.gradient(round_number, batch)
                if not targets:
                    continue
                gradients = self.part.gradients()
                if not self.part.everywhere(math.isfinite(loss) and all_finite(gradients)):
                    _log.warning(
                        "the gradient of local step %d of %d in round %d is not finite and is left out",
                        *(step + 1, count, round_number),
                    )
                    invalid += targets
                    continue
                total, counted, taken = total + loss * targets, counted + targets, taken + 1
                steps.step(gradients, rate)
                self.part.broadcast()
                if not self.part.everywhere(round_number != self.stop_steps.round):
                    _log.info(
                        "round %d ends after %d of %d local steps", round_number, taken, count
                    )
                    break
            moved = steps.displacement(gradients, planned * rate) if taken else []
        except TrainerFailed:
            # It is raised at all ranks.
            self._restore(steps)
            raise
        self._restore(steps)
        if not taken:
            return (math.nan if invalid else 0.0), invalid, []
        return total / counted, counted, moved

    def _restore(self, steps: LocalSteps) -> None:
        steps.restore()
        self.part.broadcast()
        self._loaded = True

    def _local_rate(self, round_number: int) -> float:
        """Return the learning rate of each local step of a round."""
        rounds = self.manifest.rounds
        whole = learning_rate(self.manifest.schedule, max(1, round_number))
        return whole * rounds.local_rate / rounds.local_steps

    def finish(
        self,
        round_number: int,
        loss: float,
        counted: int,
        gradients: Sequence[torch.Tensor | None],
        seconds: float,
    ) -> TrainedUpdate:
        """Add these gradients, one for each of the part's parameters, to the momentum and take this
        round's update from it. The gradients are overwritten.

        `loss` is the mean over `counted` targets, and computing the gradients took `seconds`.
        """
        finite = False
        if counted or self._policy.clipping is not None:
            finite = self.part.everywhere(math.isfinite(loss) and all_finite(gradients))
            if not finite:
                _log.warning("the gradient of round %d is not finite and is left out", round_number)
        computed = time.perf_counter()
        if finite:
            self.optimizer.accumulate(gradients)
        else:
            self.optimizer.decay()
        body = self._bodies.make(self.part, self.optimizer, round_number)
        if self._policy.stateless:
            self.optimizer.start_over()
        return TrainedUpdate(
            body=body,
            # A comparison with NaN is false, so NaN becomes the largest, too.
            loss=loss if loss < _LARGEST_LOSS else _LARGEST_LOSS,
            tokens=counted,
            coefficients=self._bodies.coefficients(round_number),
            compute_seconds=seconds,
            encode_seconds=time.perf_counter() - computed,
        )

    def apply(
        self,
        round_number: int,
        updates: Sequence[bytes],
        learning_rate: float,
        own_counted: bool,
        update_weights: Sequence[int] | None = None,
    ) -> int:
        """Take the exact step with these bodies and return the new fingerprint.

        `update_weights` is 0 for an update that does not count; by default each weight is 1. The outlier
        filter gives each counted update the same weight.

        If the member's own update of this round is pending, it is forgotten if it was counted
        (`own_counted`), and otherwise refunded, also if the outlier filter left it out. Then the
        momentum is damped at the counted coefficients.
        """
        self._need_parameters()
        weights = [1] * len(updates)
        if update_weights is not None:
            weights = [weight for weight in update_weights if weight]
            updates = [body for body, weight in zip(updates, update_weights, strict=True) if weight]
        try:
            bodies = self.updates.take(round_number, updates)
        except ProtocolError as error:
            # The node checked them before it voted for them.
            raise TrainerFailed("internal", f"an agreed update does not decode: {error}") from None
        decoded, weights = self._bodies.step(bodies, weights)
        self._audit_cache.drop_own()
        spec = self.manifest.optimizer
        left_out = (
            contradicted(self.layout, decoded, audit_seed(updates))
            if spec.outlier_filter
            else set()
        )
        own = [self.part.own_part(update) for update in decoded]
        counted_updates = [update for index, update in enumerate(own) if index not in left_out]
        counted_weights = [weight for index, weight in enumerate(weights) if index not in left_out]
        part = self.part
        # Set again when the step is complete: after a partial step (memory may run out in it) the
        # parameters must not be used.
        self._loaded = False
        apply_step(
            part.parameters,
            part.layout,
            counted_updates,
            learning_rate,
            spec.weight_decay,
            counted_weights,
            step=spec.step,
            means=part.means,
        )
        # Every item is evaluated: `everywhere` is a collective, which each rank must call equally often.
        sent = [part.everywhere(self.optimizer.sent(round_number, own[i])) for i in left_out]
        own_kept = not any(sent)
        if own_counted and own_kept:
            self.optimizer.forget(round_number)
        else:
            self.optimizer.refund(round_number)
        self.optimizer.damp(counted_updates)
        self.left_out = len(left_out)
        part.broadcast()
        found = part.fingerprint()
        self._loaded = True
        return found

    def snapshot(self) -> BlobList:
        """Store the parameters' chunks, noted until the list is stored; return the list."""
        self._need_parameters()
        return self.part.write(UnlistedChunks(self._store.root, self.manifest.swarm))

    def _workload(self) -> Workload:
        return Workload.of(self.manifest)

    def _room(self, memory: int | None) -> FreeMemory:
        return free_memory(self.device, memory)

    def _build(self, store: BlobStore) -> tuple[PreTrainedModel, list[torch.nn.Parameter]]:
        return build_trained(self.manifest, store, self.device)

    def _part(self) -> ModelShard:
        return WholeModelShard(self.layout, self.parameters, self.manifest.parameters)

    def _need_parameters(self) -> None:
        if not self._loaded:
            raise TrainerFailed("internal", "no parameters have been loaded yet")
