"""A small configuration of every trainable architecture, including its special features."""

from __future__ import annotations

from typing import Any

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2}
_THETA = {"rope_theta": 500_000.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_WINDOW = {"sliding_window": 8}

SMALL_MODELS: dict[str, dict[str, Any]] = {
    "llama": _GROUPED | _THETA | {"rope_scaling": _LLAMA3, "attention_bias": True},
    "mistral": _GROUPED | _THETA | _WINDOW | {"head_dim": 16},
    "qwen2": _GROUPED | _THETA | {"rope_scaling": _YARN},
    "qwen3": _GROUPED | _THETA | {"head_dim": 16},
    "smollm3": _GROUPED | _THETA | {"no_rope_layers": [1, 0], "pad_token_id": 0},
    "gemma": _GROUPED | _THETA | {"head_dim": 16},
    "gemma2": _GROUPED | _THETA | _WINDOW | {"head_dim": 16, "query_pre_attn_scalar": 16},
    "olmo": _GROUPED | _THETA | {"clip_qkv": 8.0},
    "olmo2": _GROUPED | _THETA,
    "granite": _GROUPED | _THETA | {"attention_multiplier": 0.2, "logits_scaling": 4.0},
    "phi": _GROUPED | _THETA | {"partial_rotary_factor": 0.5},
    "phi3": _GROUPED
    | _THETA
    | {
        "pad_token_id": 0,
        "original_max_position_embeddings": 16,
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [2.0, 3.0, 4.0, 5.0],
        },
    },
    "stablelm": _GROUPED | _THETA | {"partial_rotary_factor": 0.5, "use_qkv_bias": True},
    "gpt_neox": _SIZES | {"rotary_pct": 0.5, "rotary_emb_base": 50_000.0},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 256},
    "gemma3_text": _GROUPED
    | _THETA
    | _WINDOW
    | {
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_local_base_freq": 1000.0,
    },
    "olmo3": _GROUPED
    | _THETA
    | _WINDOW
    | {"pad_token_id": 0, "layer_types": ["sliding_attention", "full_attention"]},
    "mixtral": _GROUPED | _THETA | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": _GROUPED
    | _THETA
    | {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_moe": _GROUPED
    | _THETA
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 16},
    "olmoe": _GROUPED
    | _THETA
    | {"pad_token_id": 0, "num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 16},
    "bert": _SIZES,
    "roberta": _SIZES | {"max_position_embeddings": 66, "pad_token_id": 1},
}
for _name, _config in SMALL_MODELS.items():
    _config["model_type"] = _name
