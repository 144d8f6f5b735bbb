"""The sizes of a language model on which its activations' memory depends, from its configuration.

A configuration may leave sizes out: published ones of Gemma 3 do. The library then has a default for
each architecture. Nothing here imports torch or transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Bytes of each score (of one head and two tokens), if attention keeps its scores: with dropout, and
# with soft-capping.
_DROPOUT_SCORE_BYTES, _CAPPED_SCORE_BYTES = 12, 8
# Architectures whose attention drops a tenth of the scores by default; all others drop none.
_DROPPING = frozenset({"bert", "gpt2", "roberta"})


@dataclass(frozen=True)
class _Defaults:
    """The library's sizes for an architecture whose configuration states none."""

    hidden: int
    layers: int
    inner: int
    heads: int
    vocabulary: int
    keys: int | None = None
    """Number of heads with keys of their own; None: all."""
    head: int | None = None
    """Size of a head; None: the hidden size divided by the number of heads."""
    experts: int = 0
    routed: int = 0
    """Number of experts that a token goes through."""
    expert: int = 0
    """Inner size of an expert; 0: that of a layer."""
    shared: int = 0
    """Inner size of the expert that all tokens go through; 0: none."""


DEFAULTS: Mapping[str, _Defaults] = {
    "llama": _Defaults(4096, 32, 11008, 32, 32000),
    "mistral": _Defaults(4096, 32, 14336, 32, 32000, keys=8),
    "qwen2": _Defaults(4096, 32, 22016, 32, 151936, keys=32),
    "qwen3": _Defaults(4096, 32, 22016, 32, 151936, keys=32, head=128),
    "smollm3": _Defaults(2048, 36, 11008, 16, 128256, keys=4),
    "gemma": _Defaults(3072, 28, 24576, 16, 256000, keys=16, head=256),
    "gemma2": _Defaults(2304, 26, 9216, 8, 256000, keys=4, head=256),
    "gemma3_text": _Defaults(2304, 26, 9216, 8, 262208, keys=4, head=256),
    "olmo": _Defaults(4096, 32, 11008, 32, 50304),
    "olmo2": _Defaults(4096, 32, 11008, 32, 50304),
    "olmo3": _Defaults(4096, 32, 11008, 32, 50304),
    "granite": _Defaults(4096, 32, 11008, 32, 32000),
    "phi": _Defaults(2048, 24, 8192, 32, 51200),
    "phi3": _Defaults(3072, 32, 8192, 32, 32064),
    "stablelm": _Defaults(2560, 32, 6912, 32, 50304, keys=32),
    "gpt_neox": _Defaults(6144, 44, 24576, 64, 50432),
    "gpt2": _Defaults(768, 12, 0, 12, 50257),
    "bert": _Defaults(768, 12, 3072, 12, 30522),
    "roberta": _Defaults(768, 12, 3072, 12, 50265),
    "mixtral": _Defaults(4096, 32, 14336, 32, 32000, keys=8, experts=8, routed=2),
    "olmoe": _Defaults(2048, 16, 2048, 16, 50304, experts=64, routed=8),
    "qwen2_moe": _Defaults(
        *(2048, 24, 5632, 16, 151936), keys=16, experts=60, routed=4, expert=1408, shared=5632
    ),
    "qwen3_moe": _Defaults(
        *(2048, 24, 6144, 32, 151936), keys=4, experts=128, routed=8, expert=768
    ),
}
"""By architecture; 0 as GPT-2's inner size stands for four times the hidden size."""


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a language model."""

    layers: int
    hidden: int
    inner: int
    """Inner size of all feed-forward parts that a token goes through in a layer."""
    heads: int
    queries: int
    """Size of the queries of all heads."""
    keys: int
    """Size of the keys of all heads that have keys of their own."""
    vocabulary: int
    """What the head tells apart: classes or tokens."""
    scores: int
    """Bytes of each attention score that a layer keeps; 0 if it keeps none."""
    largest_weight: int
    """Number of elements of a layer's largest weight."""
    experts: int = 0
    """Number of experts in a layer; 0: it has none."""
    routed: int = 0
    """Number of experts that a token goes through, without a shared one."""


def model_sizes(config: Mapping[str, Any], device: str, *, dropout: bool = True) -> ModelSizes:
    """Return the sizes of a model that computes on a kind of device; without `dropout` it drops nothing,
    whatever its configuration states."""
    model_type = str(config.get("model_type"))
    usual = DEFAULTS.get(model_type, DEFAULTS["llama"])

    def read(default: int | None, *names: str) -> int:
        found = (config[name] for name in names if type(config.get(name)) is int)
        return next(found, default or 0)

    hidden = read(usual.hidden, "hidden_size", "n_embd")
    heads = read(usual.heads, "num_attention_heads", "n_head")
    each = read(usual.head, "head_dim") or max(1, hidden // heads)
    own = read(usual.keys, "num_key_value_heads") or heads
    dense = read(usual.inner, "intermediate_size", "n_inner") or 4 * hidden
    inner, largest, experts, routed = dense, hidden * dense, 0, 0
    if usual.experts:
        experts = read(usual.experts, "num_experts", "num_local_experts")
        routed = min(experts, read(usual.routed, "num_experts_per_tok"))
        expert = read(usual.expert, "moe_intermediate_size") or dense
        inner = routed * expert + read(usual.shared, "shared_expert_intermediate_size")
        # One tensor has the two matrices before the activation, of all experts.
        largest = 2 * experts * expert * hidden
        if config.get("mlp_only_layers") or read(1, "decoder_sparse_step") > 1:
            # Some layers have no experts. The larger kind counts for all.
            inner = max(inner, dense)
    return ModelSizes(
        layers=read(usual.layers, "num_hidden_layers", "n_layer"),
        hidden=hidden,
        inner=inner,
        heads=heads,
        queries=heads * each,
        keys=own * each,
        vocabulary=read(usual.vocabulary, "num_labels", "vocab_size"),
        scores=_score_bytes(model_type, config, device, dropout=dropout),
        largest_weight=largest,
        experts=experts,
        routed=routed,
    )


def _score_bytes(model_type: str, config: Mapping[str, Any], device: str, *, dropout: bool) -> int:
    if model_type in _DROPPING:
        dropped = config.get("attn_pdrop", config.get("attention_probs_dropout_prob"))
        return _DROPOUT_SCORE_BYTES if dropout and dropped != 0 else 0
    # A GPU's kernels drop scores without keeping them.
    drops = dropout and not device.startswith("cuda") and bool(config.get("attention_dropout"))
    kept = _CAPPED_SCORE_BYTES if model_type == "gemma2" else 0
    return max(kept, _DROPOUT_SCORE_BYTES if drops else 0)
