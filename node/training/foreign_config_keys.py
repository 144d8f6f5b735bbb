"""Keys of published configurations that describe no part of the model, and the supported architectures
nearest to unsupported ones.

The node and the trainer process import this module, so it imports neither torch nor transformers.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

# Keys about how others ran, saved or classified with the model. They are left out of the model that is
# built here, so that none of them changes its training: an encoder never becomes a decoder, and the loss
# is the cross-entropy alone, without a router's. The code that `auto_map` names is never loaded.
INERT_KEYS = frozenset(
    {"architectures", "dtype", "torch_dtype", "transformers_version", "attn_implementation"}
    | {"id2label", "label2id", "problem_type", "is_encoder_decoder", "chunk_size_feed_forward"}
    | {"output_attentions", "output_hidden_states", "return_dict", "task_specific_params"}
    | {"summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"}
    | {
        "gradient_checkpointing",
        "summary_use_proj",
        "add_cross_attention",
        "is_decoder",
        "torchscript",
        "model_max_length",
    }
    | {"auto_map", "is_llama_config", "unsloth_fixed", "unsloth_version", "tokenizer_class"}
    | {"bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping"}
    | {"encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task"}
    | {"forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length"}
    | {"max_new_tokens", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "suppress_tokens"}
    | {"num_return_sequences", "output_scores", "prefix", "remove_invalid_values", "top_k", "top_p"}
    | {"repetition_penalty", "return_dict_in_generate", "temperature", "typical_p", "use_bfloat16"}
    | {"decoder_start_token_id", "sep_token_id", "tf_legacy_loss", "directionality"}
    | {"output_past", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"}
    | {"pooler_size_per_head", "pooler_type", "output_router_logits", "router_aux_loss_coef"}
    # Of vision transformers and ResNets: poolers and decoders that a classifier does not have.
    | {"encoder_stride", "pooler_act", "pooler_output_size"}
    | {"out_features", "out_indices", "stage_names"}
)

# Keys that enable features, each with the value that disables it. An architecture without the feature
# accepts that value.
_NEUTRAL: Mapping[str, Any] = {
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cross_attention_hidden_size": None,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
    "pruned_heads": {},
    "qk_layernorm": False,
    "rope_interleaved": False,
    "tie_encoder_decoder": False,
    "use_bidirectional_attention": False,
    "use_mrope": False,
    "use_sliding_window": False,
}
# Architectures whose attention always has a bias: for them False would not be neutral.
_BIASED = frozenset({"bert", "gpt2", "phi", "qwen2", "qwen2_moe", "roberta", "vit"})


def is_inert(key: str) -> bool:
    """Whether a key does not affect the trained model, whatever its value."""
    return key in INERT_KEYS or key.startswith("_")


def is_neutral(model_type: str, key: str, value: Any) -> bool:
    """Whether a key that the architecture does not know has a value that does not affect the model."""
    if value is None:
        return True
    if key == "attention_bias" and model_type in _BIASED:
        return False
    neutral = _NEUTRAL.get(key)
    return key in _NEUTRAL and type(value) is type(neutral) and value == neutral


def quantised_message(value: Any) -> str:
    """Return the message for a checkpoint whose configuration has a `quantization_config`."""
    method = value.get("quant_method") if isinstance(value, dict) else None
    kind = f" ({short_repr(method)})" if isinstance(method, str) else ""
    return (
        f"the checkpoint is quantised{kind}, and quantised weights cannot be trained: use the "
        "original weights, or save a dequantised copy (transformers: model.dequantize(), then "
        "save_pretrained)"
    )


# Unsupported models that are often requested: the nearest supported one, and what that one lacks.
_FAMILIES: Mapping[str, str] = {
    "gemma3": "the nearest is 'gemma3_text', its language model alone: images are not trained",
    "gemma3n": "the nearest is 'gemma3_text'; per-layer embeddings are missing",
    "llama4": "the nearest is 'llama'; its experts and images are missing",
    "mistral3": "the nearest is 'mistral', its language model alone: images are not trained",
    "qwen2_vl": "the nearest is 'qwen2', its language model alone: images are not trained",
    "qwen2_5_vl": "the nearest is 'qwen2', its language model alone: images are not trained",
    "qwen3_next": "the nearest is 'qwen3_moe'; linear attention is missing",
    "deepseek_v2": "the nearest is 'qwen2_moe'; latent attention is missing",
    "deepseek_v3": "the nearest is 'qwen3_moe'; latent attention is missing",
    "gpt_oss": "the nearest is 'mixtral'; attention sinks are missing",
    "gpt_neo": "the nearest is 'gpt_neox'; local attention is missing",
    "gptj": "the nearest is 'gpt_neox'; interleaved rotary positions are missing",
    "opt": "the nearest is 'gpt2'; learned positions with an offset are missing",
    "bloom": "the nearest is 'gpt2'; positions as a bias of attention (ALiBi) are missing",
    "falcon": "the nearest is 'gpt_neox'; multi-query attention is missing",
    "mamba": "no supported one is similar: state spaces are missing",
    "mamba2": "no supported one is similar: state spaces are missing",
    "distilbert": "the nearest is 'bert'; its layers have other names",
    "modernbert": "the nearest is 'bert'; rotary positions and unpadded batches are missing",
    "t5": "no supported one is similar: encoders with decoders are missing",
}


def nearest_hint(model_type: str, known: Iterable[str]) -> str:
    """Return the known architecture closest to an unknown one, as words for a message; "" if none is
    close."""
    family = _FAMILIES.get(model_type)
    if family is not None:
        return family
    near = difflib.get_close_matches(model_type[:60], list(known), n=1, cutoff=0.5)
    return f"the nearest is {near[0]!r}" if near else ""


def short_repr(value: Any) -> str:
    """Return a value as text for an error message, never longer than a line."""
    # Numbers of a million digits and lists of a million items are named by kind only.
    if isinstance(value, (str, float, bool)) or (type(value) is int and abs(value) < 10**20):
        text = repr(value[:60] if isinstance(value, str) else value)
    else:
        text = {dict: "a table", list: "a list", int: "a huge number"}.get(
            type(value), type(value).__name__
        )
    return text
