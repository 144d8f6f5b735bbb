"""Model families as llama.cpp computes them: metadata, and the layout of tensors in a GGUF file.

Facts are those of llama.cpp's sources (`src/models/`, `src/llama-model.cpp`). Where llama.cpp would
compute another model from a configuration, the conversion is refused: it reads a file without
complaint that lacks what it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from gguf import GGUFWriter, RopeScalingType, get_tensor_name_map
from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSOR, TENSOR_NAMES
from transformers import PreTrainedModel

from ...training.errors import TrainerFailed
from ...training.gguf_formats import unsupported_family

# A factor is one if it differs from 1 by less than float32's rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class _Family:
    """The traits of a model type in llama.cpp."""

    architecture: str
    activations: frozenset[str] = frozenset({"silu", "swish"})
    pairs_neighbours: bool = False
    """Whether rotary positions turn neighbouring numbers of a head (2i, 2i + 1) and not, as transformers
    does, numbers half a head apart. Rows of the query and key matrices are then reordered."""
    norms_add_one: bool = False
    """Whether transformers multiplies by 1 + weight where llama.cpp multiplies by the weight."""
    always_tied: bool = False
    """Whether llama.cpp takes the embedding for the output matrix without asking."""
    full_attention_every: int | None = None
    """Which layers have full attention, beside those with a sliding window: every n-th. None: llama.cpp
    has no sliding window for this family."""
    largest_layers: int | None = None
    """The number of layers from which llama.cpp recognises the largest model, whose attention is scaled
    by the width per head and not by the head's."""
    has_biases: bool = False
    """Whether llama.cpp reads the biases of linear layers."""
    rope_kinds: frozenset[str] = frozenset({"default", "linear", "yarn"})


_GELU = frozenset({"gelu_pytorch_tanh"})
_LLAMA = _Family(
    "llama",
    pairs_neighbours=True,
    has_biases=True,
    rope_kinds=frozenset({"default", "linear", "yarn", "llama3"}),
)
_FAMILIES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _Family("qwen2", has_biases=True),
    "qwen3": _Family("qwen3"),
    "phi3": _Family("phi3", rope_kinds=frozenset({"default", "longrope"})),
    "gemma": _Family("gemma", _GELU, norms_add_one=True, always_tied=True),
    "gemma2": _Family(
        *("gemma2", _GELU),
        norms_add_one=True,
        always_tied=True,
        full_attention_every=2,
        largest_layers=46,
    ),
    "gemma3_text": _Family(
        *("gemma3", _GELU),
        norms_add_one=True,
        always_tied=True,
        full_attention_every=6,
        largest_layers=62,
    ),
}


class ConvertedModel:
    """A model as llama.cpp has it. Raises `TrainerFailed` (`not_convertible`) if llama.cpp would compute
    something else."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._config: Any = model.config
        self._model = model
        problem = unsupported_family(self._config.model_type)
        if problem is not None:
            raise not_convertible(problem)
        self._family = _FAMILIES[self._config.model_type]
        self._heads = self._config.num_attention_heads
        self._kv_heads = self._config.num_key_value_heads
        # Some families may have heads of another size than the width over their number.
        size = getattr(self._config, "head_dim", None)
        self._head_size: int = size or self._config.hidden_size // self._heads
        self._rope, self._local_rope = _rotary_settings(self._config)
        self._check()

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the family."""
        return self._family.architecture

    @property
    def vocabulary(self) -> int:
        """The number of rows of the embedding."""
        return self._config.vocab_size

    def _check(self) -> None:
        config, family = self._config, self._family
        activation = getattr(config, "hidden_activation", None) or config.hidden_act
        if activation not in family.activations:
            raise self._other("activation", activation)
        if family.always_tied and not config.tie_word_embeddings:
            raise self._other("tie_word_embeddings", False)
        kind = self._rope["rope_type"]
        if kind not in family.rope_kinds:
            raise self._other("rope_type", kind)
        if kind == "yarn":
            usual = {"beta_fast": 32, "beta_slow": 1, "truncate": True}
            for key, value in usual.items():
                if self._rope.get(key) not in (value, None):
                    raise self._other(key, self._rope[key])
        if self._local_rope.get("rope_type", "default") != "default":
            raise self._other("rope_type", self._local_rope["rope_type"])
        if family.full_attention_every is not None:
            self._check_window(family.full_attention_every)
        if self._config.model_type == "gemma2":
            for key in ("attn_logit_softcapping", "final_logit_softcapping"):
                # llama.cpp has defaults of its own for both.
                if not getattr(config, key):
                    raise self._other(key, getattr(config, key))
        if getattr(config, "use_bidirectional_attention", None):
            raise self._other("use_bidirectional_attention", True)
        if config.model_type == "gemma3_text" and getattr(config, "attn_logit_softcapping", None):
            raise self._other("attn_logit_softcapping", config.attn_logit_softcapping)

    def _check_window(self, every: int) -> None:
        layers = self._config.num_hidden_layers
        expected = [
            "sliding_attention" if (layer + 1) % every else "full_attention"
            for layer in range(layers)
        ]
        if self._config.layer_types != expected:
            raise not_convertible(
                f"llama.cpp would compute another model: the layer_types of its "
                f"{self._config.model_type} are full attention in layers {every}, {2 * every}, … alone"
            )
        scalar = self._config.query_pre_attn_scalar
        largest = layers == self._family.largest_layers
        width = self._config.hidden_size // self._heads if largest else self._head_size
        if scalar != width:
            raise self._other("query_pre_attn_scalar", scalar)

    def write_metadata(self, writer: GGUFWriter) -> None:
        """Add the model's sizes and settings."""
        config = self._config
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(self._context())
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(self._heads)
        writer.add_head_count_kv(self._kv_heads)
        writer.add_key_length(self._head_size)
        writer.add_value_length(self._head_size)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_vocab_size(config.vocab_size)
        self._write_rope(writer)
        if self._family.full_attention_every is not None:
            writer.add_sliding_window(config.sliding_window)
            for key, add in (
                ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
                ("final_logit_softcapping", writer.add_final_logit_softcapping),
            ):
                if getattr(config, key, None):
                    add(float(getattr(config, key)))

    def _context(self) -> int:
        """Return the largest number of tokens for which llama.cpp computes the same model. Within a
        sliding window that it does not know, attention is full in both. Of longrope's factors it takes
        those for long texts as soon as its context could hold one, transformers if the text is one."""
        longest = self._config.max_position_embeddings
        if self._rope["rope_type"] == "longrope":
            longest = min(longest, self._original_length())
        if self._family.full_attention_every is not None:
            return longest
        kinds = getattr(self._config, "layer_types", None)
        window = getattr(self._config, "sliding_window", None)
        slides = kinds is None or "sliding_attention" in kinds
        return min(longest, window) if slides and window else longest

    def _write_rope(self, writer: GGUFWriter) -> None:
        rope, kind = self._rope, self._rope["rope_type"]
        turned = int(self._head_size * rope.get("partial_rotary_factor", 1.0))
        writer.add_rope_dimension_count(turned)
        writer.add_rope_freq_base(float(rope["rope_theta"]))
        if self._local_rope:
            writer.add_rope_freq_base_swa(float(self._local_rope["rope_theta"]))
        if kind == "linear":
            writer.add_rope_scaling_type(RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(float(rope["factor"]))
        elif kind == "yarn":
            factor = rope.get("factor") or (
                self._config.max_position_embeddings / self._original_length()
            )
            writer.add_rope_scaling_type(RopeScalingType.YARN)
            writer.add_rope_scaling_factor(float(factor))
            writer.add_rope_scaling_orig_ctx_len(self._original_length())
            # llama.cpp computes this factor of yarn's itself, and multiplies it by the one in the file.
            own = 0.1 * math.log(factor) + 1.0
            if abs(self._attention_factor() / own - 1) > _ROUNDING:
                writer.add_rope_scaling_attn_factors(self._attention_factor() / own)
        elif kind == "longrope":
            writer.add_rope_scaling_type(RopeScalingType.LONGROPE)
            writer.add_rope_scaling_orig_ctx_len(self._original_length())
            writer.add_rope_scaling_attn_factors(self._attention_factor())

    def _original_length(self) -> int:
        """Return the length of texts before the positions were scaled."""
        key = "original_max_position_embeddings"
        given = self._rope.get(key) or getattr(self._config, key, None)
        return given or self._config.max_position_embeddings

    def _attention_factor(self) -> float:
        """Return the factor of cosines and sines in the model itself."""
        return float(self._rotary().attention_scaling)

    def _rotary(self) -> Any:
        return self._model.get_submodule("model.rotary_emb")

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor with llama.cpp's name of it. Some are made when they are asked for, so hold
        one at a time."""
        for kind, vector in self._rope_tensors():
            yield f"{TENSOR_NAMES[kind]}.weight", vector.float()
        architectures = {name: key for key, name in MODEL_ARCH_NAMES.items()}
        names = get_tensor_name_map(
            architectures[self.architecture], self._config.num_hidden_layers
        )
        # Tied matrices are listed once.
        for name, parameter in self._model.named_parameters():
            converted = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if converted is None or (name.endswith(".bias") and not self._family.has_biases):
                raise not_convertible(f"llama.cpp has no place for the tensor {name}")
            yield converted, self._converted(name, parameter.detach())

    def _converted(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if self._family.norms_add_one and name.endswith("norm.weight"):
            return tensor + 1
        if not self._family.pairs_neighbours:
            return tensor
        if ".q_proj." in name:
            return _neighbouring(tensor, self._heads)
        return _neighbouring(tensor, self._kv_heads) if ".k_proj." in name else tensor

    def _rope_tensors(self) -> Iterator[tuple[MODEL_TENSOR, torch.Tensor]]:
        """Yield what the frequencies of rotary positions are divided by, if that is not one number."""
        if self._rope["rope_type"] == "llama3":
            half = torch.arange(0, self._head_size, 2, dtype=torch.float64) / self._head_size
            plain = self._rope["rope_theta"] ** -half
            yield MODEL_TENSOR.ROPE_FREQS, plain / self._rotary().inv_freq.detach().cpu().double()
        elif self._rope["rope_type"] == "longrope":
            yield MODEL_TENSOR.ROPE_FACTORS_LONG, torch.tensor(self._rope["long_factor"])
            yield MODEL_TENSOR.ROPE_FACTORS_SHORT, torch.tensor(self._rope["short_factor"])

    def _other(self, key: str, value: Any) -> TrainerFailed:
        return not_convertible(
            f"llama.cpp would compute another model: its {self._config.model_type} has no {key} "
            f"{str(value)[:80]!r}"
        )


def not_convertible(problem: str) -> TrainerFailed:
    """Return the error for a model or a tokenizer that GGUF or llama.cpp lacks."""
    return TrainerFailed("not_convertible", problem)


def _rotary_settings(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of rotary positions, and those of layers with a sliding window if they have
    their own."""
    found: dict[str, Any] = dict(config.rope_parameters)
    local: dict[str, Any] = {}
    if "full_attention" in found:
        found, local = found["full_attention"], found["sliding_attention"]
    return {key: value for key, value in found.items() if value is not None}, local


def _neighbouring(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of each head from (0, 1, 2, …) to (0, n/2, 1, n/2 + 1, …)."""
    halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)
