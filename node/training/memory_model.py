"""The memory that training a model takes, part by part, by arithmetic alone.

Both processes use this, so nothing here imports torch. What a layer keeps for the backward pass was
counted for each architecture on its tensors (`benchmarks/memory.py` compares the sum with measured
peaks); for a GPU, where layers compute in bfloat16, it was counted on the CPU under the same casts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...protocol.codec.layout import TensorLayout, UpdateLayout, update_layout
from ...protocol.committee.aggregator_state import aggregator_bytes
from ...protocol.wire.manifest import MAX_MEMBERS, Manifest, OptimizerSpec, ParameterSpec, Step
from ...protocol.wire.work_specs import AuditsSpec, CommitteesSpec, FeatureSpec
from .architectures import takes_images
from .bands import plan_bands, unshardable_tensors
from .image_memory import image_bytes
from .memory_options import (
    AUDIT_BYTES,
    CPU_KEPT_SUMS,
    CPU_STRIPE,
    GPU_KEPT_SUMS,
    GPU_STRIPE,
    NOISE,
    MemoryOptions,
    Precision,
    logit_rows,
    stored_bytes,
)
from .model_sizes import ModelSizes, model_sizes
from .task_names import WITHOUT_DROPOUT, completions

DEFAULT_MEMBERS = 32
"""Number of updates for which memory is counted by default."""

# Number of stripe-sized float32 arrays that the optimizer holds at once: `_EXTRACTING`, by the state's
# precision, for the gradient's transform, Muon's quintic iteration and the encoding of the state;
# `_APPLYING` for the step's inverse transform.
_EXTRACTING: Mapping[Precision, int] = {"float32": 7, "bfloat16": 8, "int8": 15}
_APPLYING = 5
# Per coefficient of an update. `_SENT_BYTES`: its position (16 bits) and sign on the device.
# `_PLACED_BYTES`: in addition its offset (32 bits) and sign (float32) there, while its tensor is
# processed. `_DECODED_BYTES`: its position and sign (16 and 8 bits) in main memory.
_SENT_BYTES, _PLACED_BYTES, _DECODED_BYTES = 3, 8, 3
# Bytes that the fingerprint holds per element of a piece, and elements of a piece on a CPU and a GPU.
_FINGERPRINT_BYTES, _CPU_PIECE, _GPU_PIECE = 8, 1 << 16, 1 << 24

_MAX_DECODED_BYTES = 1 << 29
"""Bytes of updates that a trainer decodes before they are needed."""


@dataclass(frozen=True, kw_only=True)
class LayerActivations:
    """Bytes that a layer keeps for the backward pass, per token and per unit of each size. The total per
    token is the sum of all sizes, each times its bytes."""

    hidden: float
    """Bytes per unit of the hidden size."""
    inner: float
    """Bytes per unit of the feed-forward part's inner size."""
    heads: float
    """Bytes per attention head."""
    keys: float = 0.0
    """Bytes per unit of the size of all keys, of the heads that have keys (and values) of their own."""
    queries: float = 0.0
    """Bytes per unit of the size of all heads' queries; 0 where that always is the hidden size."""


# The names of the states that a member keeps from round to round.
MOMENTUM, SECOND_MOMENT, SMOOTHED = "momentum", "second moment", "smoothed gradient"
LOCAL_MOMENTUM = "momentum of local steps"

# Each head keeps the logarithm of its softmax sums; all heads share the rotary sines and cosines.
_LLAMA = LayerActivations(hidden=24, inner=16, heads=5, keys=8, queries=8)
_COUNTED: dict[str, tuple[LayerActivations, LayerActivations]] = {
    name: (_LLAMA, LayerActivations(hidden=26, inner=8, heads=5, keys=4, queries=4))
    for name in ("llama", "mistral", "qwen2", "smollm3", "gemma", "granite")
} | {
    "gemma2": (
        LayerActivations(hidden=40, inner=16, heads=2, queries=16),
        LayerActivations(hidden=42, inner=8, heads=2, queries=8),
    ),
    "gemma3_text": (
        LayerActivations(hidden=40, inner=16, heads=10, keys=16, queries=16),
        LayerActivations(hidden=42, inner=8, heads=10, keys=12, queries=12),
    ),
    "qwen3": (
        LayerActivations(hidden=24, inner=16, heads=10.5, keys=16, queries=16),
        LayerActivations(hidden=26, inner=8, heads=10.5, keys=10, queries=10),
    ),
    "olmo": (
        LayerActivations(hidden=24, inner=16, heads=6.6, keys=8),
        LayerActivations(hidden=22, inner=8, heads=6.6, keys=4),
    ),
    "olmo2": (
        LayerActivations(hidden=24, inner=16, heads=6, keys=16, queries=16),
        LayerActivations(hidden=26, inner=8, heads=6, keys=12, queries=12),
    ),
    "phi": (
        LayerActivations(hidden=20, inner=20, heads=5.3, keys=8),
        LayerActivations(hidden=18, inner=10, heads=5.3, keys=4),
    ),
    "phi3": (
        LayerActivations(hidden=24, inner=16, heads=5, keys=12, queries=16),
        LayerActivations(hidden=20, inner=8, heads=5, keys=6, queries=8),
    ),
    "stablelm": (
        LayerActivations(hidden=28, inner=16, heads=6.6, keys=8),
        LayerActivations(hidden=24, inner=8, heads=6.6, keys=4),
    ),
    "gpt_neox": (
        LayerActivations(hidden=40, inner=8, heads=5.4),
        LayerActivations(hidden=22, inner=4, heads=5.4),
    ),
    "gpt2": (
        LayerActivations(hidden=48, inner=20, heads=1.4),
        LayerActivations(hidden=30, inner=10, heads=1.4),
    ),
    "bert": (
        LayerActivations(hidden=40, inner=8, heads=1.4),
        LayerActivations(hidden=34, inner=4, heads=1.4),
    ),
    "roberta": (
        LayerActivations(hidden=40, inner=8, heads=1.4),
        LayerActivations(hidden=34, inner=4, heads=1.4),
    ),
}
LAYER_ACTIVATIONS: Mapping[str, tuple[LayerActivations, LayerActivations]] = {
    **_COUNTED,
    # Taken from the most similar architecture. What a mixture of experts keeps besides is below.
    "mixtral": _COUNTED["mistral"],
    "olmo3": _COUNTED["olmo2"],
    "olmoe": _COUNTED["olmo2"],
    "qwen2_moe": _COUNTED["qwen2"],
    "qwen3_moe": _COUNTED["qwen3"],
}
"""By architecture: in float32, and under bfloat16's casts."""

# What a layer of experts keeps for each token besides, in bytes, in float32 and under bfloat16's casts:
# per expert that the token goes through and unit of the hidden size, and per expert of the layer.
_ROUTED_BYTES, _EXPERT_BYTES = (8.0, 4.0), 21.0
# What a layer keeps besides under a mask that holds attention within documents, in bytes: of the mask,
# per pair of tokens; and per unit by which the queries are larger than the keys, because keys and values
# are then repeated for all heads.
_MASK_BYTES, _REPEATED_BYTES = (4, 2), (8, 4)


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """Memory for one purpose."""

    name: str
    """For people."""
    device: int = 0
    """Bytes on the device; on a CPU, where the device's memory is main memory, everything."""
    host: int = 0
    """Bytes of main memory, if the device is a GPU."""


@dataclass(frozen=True, kw_only=True)
class MemoryNeeds:
    """A member's memory needs, and their peak."""

    permanent: tuple[MemoryItem, ...]
    """Parts that are allocated all the time."""
    phases: tuple[tuple[MemoryItem, ...], ...]
    """Temporary parts: one tuple for each phase of a round, of which the largest counts."""

    @property
    def parts(self) -> tuple[MemoryItem, ...]:
        """All permanent parts, and those of the phase that takes most."""
        return (*self.permanent, *max(self.phases, key=_device_bytes))

    @property
    def device(self) -> int:
        """Peak of bytes on the device."""
        return _device_bytes(self.permanent) + max(map(_device_bytes, self.phases))

    @property
    def host(self) -> int:
        """Peak of bytes of main memory, if the device is a GPU."""
        return _host_bytes(self.permanent) + max(map(_host_bytes, self.phases))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained, as far as it affects memory."""

    config: Mapping[str, Any]
    """The model's configuration, as in a manifest."""
    parameters: tuple[ParameterSpec, ...]
    """The trained parameters."""
    sequence_length: int
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    frozen: int = 0
    """Number of weights that are not trained."""
    ranks: int = 1
    """Number of devices that train it as one member."""
    shards: bool = False
    """Whether each of several devices has a shard of the parameters instead of a copy of them."""
    features: tuple[FeatureSpec, ...] = ()
    """The tables of the swarm's features (`Manifest.features`)."""
    completions: int = 0
    """Number of completions that are sampled of each sample, and then trained on, each as long as a
    sequence; 0: a sample is trained on as it is."""
    local_steps: int = 1
    """Number of a member's own steps in a round."""
    documents: bool = False
    """Whether attention stays within documents, by a mask."""
    dropout: bool = True
    """Whether the model drops what its configuration states."""

    @staticmethod
    def of(manifest: Manifest) -> Workload:
        """Return the workload of a manifest."""
        return Workload(
            config=manifest.model,
            parameters=manifest.parameters,
            sequence_length=manifest.data.sequence_length,
            optimizer=manifest.optimizer,
            frozen=manifest.frozen_elements,
            features=manifest.features,
            completions=completions(manifest.task, manifest.task_settings),
            local_steps=manifest.rounds.local_steps,
            documents=manifest.data.attention == "document",
            dropout=manifest.task not in WITHOUT_DROPOUT,
        )

    @property
    def elements(self) -> int:
        """Number of trained parameters."""
        return sum(spec.elements for spec in self.parameters)

    @property
    def audit_bytes(self) -> int:
        """Bytes of main memory that must be free for an audit to take place: 0 in a swarm without
        audits."""
        return self._with(AuditsSpec, AUDIT_BYTES * self.elements)

    @property
    def aggregator_room(self) -> int:
        """Bytes of main memory that must be free to aggregate the whole model, as members of the
        only committee do; with more committees each takes a part of that. 0 without committees."""
        return self._with(CommitteesSpec, aggregator_bytes(self.elements))

    def _with(self, table: type[FeatureSpec], needed: int) -> int:
        """Return the bytes that a feature needs, 0 in a swarm without it."""
        return needed if any(isinstance(each, table) for each in self.features) else 0

    @property
    def layout(self) -> UpdateLayout:
        """The layout of the update's coefficients."""
        return update_layout(self.parameters, self.optimizer.chunk, self.optimizer.top_k)


def max_decoded_updates(layout: UpdateLayout) -> int:
    """Return the number of updates that a trainer decodes before they are needed."""
    return min(MAX_MEMBERS, _MAX_DECODED_BYTES // max(1, _DECODED_BYTES * layout.coefficients))


def needs(
    work: Workload,
    device: str,
    options: MemoryOptions,
    micro_batch: int = 1,
    members: int = DEFAULT_MEMBERS,
) -> MemoryNeeds:
    """Return the memory that `work` takes on a kind of device (cpu, cuda, mps) with `micro_batch`
    sequences at once and the updates of `members` members.

    For several devices the result has the figures of the device that needs most; main memory, which
    they share, is added up over all of them.

    Raises `TrainerFailed` (`bad_model`) for a configuration that `check_configuration` refuses.
    """
    each = [
        _needs_of(work, portion, device, options, micro_batch, members)
        for portion in _portions(work)
    ]
    return each[0] if len(each) == 1 else _combine(each, device)


@dataclass(frozen=True, kw_only=True)
class _Portion:
    """What one of a member's devices has of the model."""

    layout: UpdateLayout
    """Blocks whose state it keeps, and whose parameters it changes in a step."""
    elements: int
    """Number of parameters that it holds, with their gradients."""


def _portions(work: Workload) -> list[_Portion]:
    layout, ranks = work.layout, work.ranks
    if ranks == 1:
        return [_Portion(layout=layout, elements=work.elements)]
    unshardable = (
        unshardable_tensors(layout, work.parameters, ranks) if work.shards else frozenset[int]()
    )
    plan = plan_bands(layout, work.parameters, ranks, unshardable)
    copied = sum(work.parameters[index].elements for index in unshardable)
    portions = []
    for rank in range(ranks):
        own = sum(band.elements for band in plan.of(rank) if band.tensor not in unshardable)
        elements = copied + own if work.shards else work.elements
        portions.append(_Portion(layout=plan.layout_of(rank), elements=elements))
    return portions


def _combine(each: Sequence[MemoryNeeds], device: str) -> MemoryNeeds:
    def combine_items(parts: Sequence[MemoryItem]) -> MemoryItem:
        sizes = [part.device for part in parts]
        return MemoryItem(
            name=parts[0].name,
            # CPU processes share one memory.
            device=sum(sizes) if device == "cpu" else max(sizes),
            host=sum(part.host for part in parts),
        )

    phases = zip(*(needs.phases for needs in each), strict=True)
    return MemoryNeeds(
        permanent=tuple(map(combine_items, zip(*(needs.permanent for needs in each), strict=True))),
        phases=tuple(tuple(map(combine_items, zip(*phase, strict=True))) for phase in phases),
    )


def _needs_of(
    work: Workload,
    portion: _Portion,
    device: str,
    options: MemoryOptions,
    micro_batch: int,
    members: int,
) -> MemoryNeeds:
    layout = portion.layout
    precision = options.state.precision
    as_parameters = [(tensor.rows, tensor.columns) for tensor in layout.tensors]
    kept = {MOMENTUM: [(tensor.blocks, tensor.elements) for tensor in layout.tensors]}
    if work.optimizer.divides:
        kept[SECOND_MOMENT] = as_parameters
    if work.optimizer.smoothing:
        kept[SMOOTHED] = as_parameters
    if work.local_steps > 1:
        kept[LOCAL_MOMENTUM] = as_parameters
    sizes = {
        name: sum(stored_bytes(*shape, precision) for shape in shapes)
        for name, shapes in kept.items()
    }
    if work.local_steps > 1:
        # A copy, from which the parameters are restored to the bit, so never in fewer bits.
        sizes["parameters before local steps"] = 4 * sum(r * c for r, c in as_parameters)
    in_main_memory = options.state.place == "host" and device != "cpu"
    states = [
        MemoryItem(name=name, host=size) if in_main_memory else MemoryItem(name=name, device=size)
        for name, size in sizes.items()
    ]
    # The own update, sent and not yet counted: for each coefficient a position of 16 bits and a float32.
    pending = _in_main_memory(device, 6 * layout.coefficients)
    parameters = 4 * (portion.elements + work.frozen)
    permanent = [MemoryItem(name="parameters", device=parameters), *states]
    permanent.append(MemoryItem(name="own update, until it is counted", **pending))
    decoded_early = (
        min(members, max_decoded_updates(work.layout)) * _DECODED_BYTES * work.layout.coefficients
    )
    permanent.append(
        MemoryItem(name="updates decoded on arrival", **_in_main_memory(device, decoded_early))
    )
    gradient = MemoryItem(name="gradient", device=4 * portion.elements)
    computing = _activation_bytes(work, device, options, micro_batch)
    decoding = MemoryItem(
        name=f"updates as received, {members} members",
        **_in_main_memory(device, members * work.layout.body_bytes),
    )
    return MemoryNeeds(
        permanent=tuple(permanent),
        phases=(
            (gradient, MemoryItem(name="activations", device=computing)),
            (
                gradient,
                MemoryItem(
                    name="the step's working memory",
                    device=_extracting_bytes(layout, device, precision),
                ),
            ),
            (
                MemoryItem(
                    name="the step's working memory",
                    device=_applying_bytes(layout, device, members, work.optimizer.step),
                ),
                decoding,
            ),
        ),
    )


def sequence_bytes(work: Workload, device: str, options: MemoryOptions) -> int:
    """Return what one more sequence in a micro-batch takes, in bytes."""
    more = _activation_bytes(work, device, options, 2) - _activation_bytes(work, device, options, 1)
    return max(1, more * (work.ranks if device == "cpu" else 1))


def _activation_bytes(work: Workload, device: str, options: MemoryOptions, micro_batch: int) -> int:
    """Return the bytes of the activations of `micro_batch` sequences at their peak, between forward
    and backward."""
    if takes_images(str(work.config.get("model_type"))):
        return micro_batch * image_bytes(work.config, work.sequence_length)
    sizes = model_sizes(work.config, device, dropout=work.dropout)
    narrow = device == "cuda"
    model_type = str(work.config.get("model_type"))
    kept = LAYER_ACTIVATIONS.get(model_type, LAYER_ACTIVATIONS["llama"])[narrow]
    tokens = micro_batch * max(1, work.completions) * work.sequence_length
    layer = tokens * (
        kept.hidden * sizes.hidden
        + kept.inner * sizes.inner
        + kept.heads * sizes.heads
        + kept.keys * sizes.keys
        + kept.queries * sizes.queries
        + sizes.scores * sizes.heads * work.sequence_length
        + work.documents * _MASK_BYTES[narrow] * work.sequence_length
        + work.documents * _REPEATED_BYTES[narrow] * (sizes.queries - sizes.keys)
        + _ROUTED_BYTES[narrow] * sizes.routed * sizes.hidden
        + _EXPERT_BYTES * sizes.experts
    )
    # The residual stream between the layers stays in float32.
    stream = 4 * tokens * sizes.hidden
    head = _head_bytes(sizes, tokens, stream, device)
    # A layer's own gradients during its backward pass, and the gradient of one of its weights.
    backward = 8 * tokens * (sizes.inner + sizes.hidden) + 4 * sizes.largest_weight
    if work.shards:
        head += _gathered_bytes(work, sizes, device)
        backward += _gathered_bytes(work, sizes, device)
    if options.checkpointing:
        casts = _cast_layer_bytes(work, sizes) if narrow and not work.shards else 0
        needed = sizes.layers * stream + max(head, casts + layer + backward)
    else:
        casts = 2 * (work.elements + work.frozen) if narrow else 0
        needed = sizes.layers * layer + casts + max(head, backward)
    return int(max(needed, _sampling_bytes(work, sizes, device)))


def _head_bytes(sizes: ModelSizes, tokens: int, stream: int, device: str) -> int:
    """Return what the last norm keeps, the head's gradients, and the logits present at once, in
    bytes."""
    rows = min(tokens, logit_rows(sizes.vocabulary, device))
    width = 2 if device == "cuda" else 4
    logits = rows * sizes.vocabulary * (4 + 4 + (width if width < 4 else 0))
    weight = (4 + (width if width < 4 else 0)) * sizes.vocabulary * sizes.hidden
    return 3 * stream + weight + logits


def _sampling_bytes(work: Workload, sizes: ModelSizes, device: str) -> int:
    """Return the bytes taken while the completions of one sample are sampled, before their activations
    exist: all keys and values, twice those of a layer to which a token is appended, the weights as cast,
    a layer that reads the prompts, and the scores of one token each."""
    if not work.completions:
        return 0
    width = 2 if device == "cuda" else 4
    tokens = work.completions * work.sequence_length
    cache = 2 * width * sizes.keys * tokens * (sizes.layers + 1)
    casts = 2 * (work.elements + work.frozen) if device == "cuda" else 0
    layer = 4 * tokens * (sizes.inner + 2 * sizes.hidden)
    return cache + casts + layer + 16 * work.completions * sizes.vocabulary


def _cast_layer_bytes(work: Workload, sizes: ModelSizes) -> int:
    """Return the bytes of one layer's weights cast to bfloat16."""
    table = sizes.vocabulary * sizes.hidden
    return 2 * max(0, work.elements + work.frozen - 2 * table) // max(1, sizes.layers)


def _gathered_bytes(work: Workload, sizes: ModelSizes, device: str) -> int:
    """Return the bytes of a sharded model that are gathered at a time: the weights outside the
    layers, the layer being computed, and the one being prefetched, with their gradients."""
    outside = min(work.elements, 2 * sizes.vocabulary * sizes.hidden)
    layers = min(2, sizes.layers) * (work.elements - outside) // max(1, sizes.layers)
    return 2 * (2 if device == "cuda" else 4) * (outside + layers)


def _extracting_bytes(layout: UpdateLayout, device: str, precision: Precision) -> int:
    limit = CPU_STRIPE if device == "cpu" else GPU_STRIPE
    largest = max((_stripe_elements(tensor, limit) for tensor in layout.tensors), default=0)
    noise = 4 * NOISE if device == "cpu" and precision != "float32" else 0
    return 4 * _EXTRACTING[precision] * largest + noise


def _stripe_elements(tensor: TensorLayout, limit: int) -> int:
    """Return the number of elements of a tensor's largest stripe."""
    row = tensor.block_rows * tensor.columns
    return min(tensor.rows * tensor.columns, max(1, limit // row) * row)


def _applying_bytes(layout: UpdateLayout, device: str, members: int, step: Step) -> int:
    limit = CPU_STRIPE if device == "cpu" else GPU_STRIPE
    piece = _CPU_PIECE if device == "cpu" else _GPU_PIECE
    working = max(
        (
            4 * _APPLYING * _stripe_elements(each, limit)
            + _PLACED_BYTES * members * each.coefficients
            for each in layout.tensors
        ),
        default=0,
    )
    kept = 0
    if step == "scaled":
        matrices = sum(each.blocks * each.elements for each in layout.tensors if each.sides == 2)
        kept = 4 * min(matrices, CPU_KEPT_SUMS if device == "cpu" else GPU_KEPT_SUMS)
    return max(
        working + kept + _SENT_BYTES * members * layout.coefficients, _FINGERPRINT_BYTES * piece
    )


def _in_main_memory(device: str, size: int) -> dict[str, int]:
    """Attribute bytes to main memory, which is the device's memory on a CPU."""
    return {"device": size} if device == "cpu" else {"host": size}


def _device_bytes(parts: Sequence[MemoryItem]) -> int:
    return sum(part.device for part in parts)


def _host_bytes(parts: Sequence[MemoryItem]) -> int:
    return sum(part.host for part in parts)
