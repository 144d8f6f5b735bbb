"""The models that a swarm may train: architectures, their configuration keys, and a bound for each
value.

A configuration comes from a stranger's manifest and goes to a library that trusts it: a large number
of labels or layers makes it allocate for minutes before anything is compared with the parameter
table. So a configuration is checked against this table first. Every key is listed here and every
number bounded; other keys are refused. Both processes use it, so nothing here imports torch or
transformers.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any

from ...protocol.wire.structure import StructureError
from .foreign_config_keys import is_inert, is_neutral, nearest_hint, quantised_message, short_repr

# The largest published models have 126 layers, 16,384 wide, a vocabulary of 262,144 and contexts of
# 10 million tokens. The number of layers is also compared with the number of parameter tensors.
_MAX_LAYERS = 1024
_MAX_WIDTH = 1 << 18
_MAX_HEADS = 4096
_MAX_VOCABULARY = 1 << 22
_MAX_POSITIONS = 1 << 24
# With learned positions some implementations allocate a causal mask of positions² bytes per layer.
_MAX_LEARNED_POSITIONS = 1 << 13
_ACTIVATIONS = frozenset(
    {"gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "mish", "quick_gelu", "relu", "relu2"}
    | {"sigmoid", "silu", "swish", "tanh"}
)
_LAYER_KINDS = frozenset({"full_attention", "sliding_attention"})
_ROPE_KINDS = frozenset({"default", "linear", "dynamic", "yarn", "longrope", "llama3"})

Check = Callable[[Any], str | None]
"""Return what is wrong with a value, worded to follow the key, or None. The value `None` means the
library's own default and is not checked, except for `_SIZES`."""


def _integer(low: int, high: int) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not int:
            return f"expected a whole number, got {short_repr(value)}"
        if not low <= value <= high:
            return f"expected a whole number from {low} to {high}, got {short_repr(value)}"
        return None

    return check


def _number(value: Any) -> str | None:
    # Python counts booleans as numbers, and its JSON reader accepts infinities.
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > 1e12:
        return f"expected a number, got {short_repr(value)}"
    return None


def _boolean(value: Any) -> str | None:
    return None if type(value) is bool else f"expected true or false, got {short_repr(value)}"


def _false(value: Any) -> str | None:
    return None if value is False else f"expected false, got {short_repr(value)}"


def _zero(value: Any) -> str | None:
    return (
        None
        if type(value) in (int, float) and value == 0
        else f"expected 0, got {short_repr(value)}"
    )


def _one_of(choices: frozenset[str]) -> Check:
    def check(value: Any) -> str | None:
        known = isinstance(value, str) and value in choices
        return (
            None
            if known
            else f"expected one of {', '.join(sorted(choices))}, got {short_repr(value)}"
        )

    return check


def _list_of(check_item: Check, max_items: int) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, list) or len(value) > max_items:
            return f"expected a list of at most {max_items}, got {short_repr(value)}"
        return next((problem for item in value if (problem := check_item(item))), None)

    return check


_token_id = _integer(-1, _MAX_VOCABULARY)


def _token_ids(value: Any) -> str | None:
    return _list_of(_token_id, 64)(value) if isinstance(value, list) else _token_id(value)


_ROPE: dict[str, Check] = {
    "rope_type": _one_of(_ROPE_KINDS),
    "type": _one_of(_ROPE_KINDS),
    "truncate": _boolean,
    "original_max_position_embeddings": _integer(1, _MAX_POSITIONS),
    "short_factor": _list_of(_number, 4096),
    "long_factor": _list_of(_number, 4096),
} | dict.fromkeys(
    (
        *("rope_theta", "factor", "attention_factor", "partial_rotary_factor", "beta_fast"),
        *("beta_slow", "low_freq_factor", "high_freq_factor", "mscale", "mscale_all_dim"),
    ),
    _number,
)


def _rope(value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"expected a table, got {short_repr(value)}"
    for key, item in value.items():
        if key not in _ROPE:
            return f"{short_repr(key)} is not supported here"
        problem = None if item is None else _ROPE[key](item)
        if problem:
            return f"{key}: {problem}"
    return None


def _rope_by_layer_kind(value: Any) -> str | None:
    """Check one table per kind of layer. The library ignores a single table for all kinds and uses
    its defaults."""
    if not isinstance(value, dict):
        return _rope(value)
    for kind, table in value.items():
        problem = (
            f"{short_repr(kind)} is not a kind of layer"
            if kind not in _LAYER_KINDS
            else _rope(table)
        )
        if problem:
            return f"{kind}: {problem}" if kind in _LAYER_KINDS else problem
    return None


_width, _heads = _integer(1, _MAX_WIDTH), _integer(1, _MAX_HEADS)
_positions = _integer(1, _MAX_POSITIONS)
_layers = _integer(1, _MAX_LAYERS)
_activation = _one_of(_ACTIVATIONS)

_labels = _integer(2, 4096)

_COMMON: dict[str, Check] = {
    "vocab_size": _integer(1, _MAX_VOCABULARY),
    "initializer_range": _number,
    "attention_dropout": _number,
    "tie_word_embeddings": _boolean,
    "bos_token_id": _token_ids,
    "eos_token_id": _token_ids,
    "pad_token_id": _token_ids,
    "use_cache": _boolean,
}
_DECODER: dict[str, Check] = _COMMON | {
    "hidden_size": _width,
    "intermediate_size": _width,
    "num_hidden_layers": _layers,
    "num_attention_heads": _heads,
    "max_position_embeddings": _positions,
    "hidden_act": _activation,
    "rope_theta": _number,
    "rope_scaling": _rope,
    "rope_parameters": _rope,
}
_GROUPED = _DECODER | {"num_key_value_heads": _heads}
_RMS = _GROUPED | {"rms_norm_eps": _number, "head_dim": _width}
_SLIDING = {
    "sliding_window": _positions,
    "use_sliding_window": _boolean,
    "max_window_layers": _integer(0, _MAX_LAYERS),
    "layer_types": _list_of(_one_of(_LAYER_KINDS), _MAX_LAYERS),
}
_BIAS: dict[str, Check] = {"attention_bias": _boolean}
# The largest published models have 512 experts.
_experts = _integer(1, 4096)
_MIXTURE: dict[str, Check] = {
    "num_experts": _experts,
    "num_local_experts": _experts,
    "num_experts_per_tok": _experts,
    "norm_topk_prob": _boolean,
}
_SPARSE: dict[str, Check] = _MIXTURE | {
    "moe_intermediate_size": _width,
    "decoder_sparse_step": _layers,
    "mlp_only_layers": _list_of(_integer(0, _MAX_LAYERS), _MAX_LAYERS),
}
_LAYER_NORM: dict[str, Check] = {
    "layer_norm_eps": _number,
    "partial_rotary_factor": _number,
    "hidden_dropout": _number,
    "use_parallel_residual": _boolean,
}

_ENCODER: dict[str, Check] = _COMMON | {
    "hidden_size": _width,
    "intermediate_size": _width,
    "num_hidden_layers": _layers,
    "num_attention_heads": _heads,
    "max_position_embeddings": _integer(1, _MAX_LEARNED_POSITIONS),
    "hidden_act": _activation,
    "hidden_dropout_prob": _number,
    "attention_probs_dropout_prob": _number,
    "classifier_dropout": _number,
    "layer_norm_eps": _number,
    "type_vocab_size": _integer(1, 1024),
    "position_embedding_type": _one_of(frozenset({"absolute"})),
    # With this key the model has a classifier for a head.
    "num_labels": _labels,
}

ARCHITECTURES: Mapping[str, Mapping[str, Check]] = {
    "llama": _RMS | _BIAS | {"mlp_bias": _boolean, "pretraining_tp": _integer(1, 1)},
    "mistral": _RMS | {"sliding_window": _positions},
    "qwen2": _RMS | _SLIDING,
    "qwen3": _RMS | _SLIDING | _BIAS,
    "smollm3": _RMS
    | _SLIDING
    | _BIAS
    | {
        "mlp_bias": _boolean,
        "pretraining_tp": _integer(1, 1),
        "no_rope_layers": _list_of(_integer(0, 1), _MAX_LAYERS),
        "no_rope_layer_interval": _layers,
    },
    "gemma": _RMS
    | _BIAS
    | {"hidden_activation": _activation, "use_bidirectional_attention": _false},
    "gemma2": _RMS
    | _BIAS
    | {
        "hidden_activation": _activation,
        "use_bidirectional_attention": _false,
        "sliding_window": _positions,
        "layer_types": _SLIDING["layer_types"],
        "query_pre_attn_scalar": _number,
        "attn_logit_softcapping": _number,
        "final_logit_softcapping": _number,
        "cache_implementation": _one_of(frozenset({"hybrid"})),
    },
    "olmo": _GROUPED | _BIAS | {"clip_qkv": _number},
    "olmo2": _RMS | _BIAS,
    "granite": _RMS
    | _BIAS
    | {"mlp_bias": _boolean}
    | dict.fromkeys(
        (
            *("attention_multiplier", "embedding_multiplier"),
            *("residual_multiplier", "logits_scaling"),
        ),
        _number,
    ),
    "phi": _GROUPED
    | _LAYER_NORM
    | {"qk_layernorm": _boolean, "embd_pdrop": _number, "resid_pdrop": _number},
    "phi3": _RMS
    | {
        "sliding_window": _positions,
        "original_max_position_embeddings": _positions,
        "partial_rotary_factor": _number,
        "embd_pdrop": _number,
        "resid_pdrop": _number,
    },
    "stablelm": _GROUPED | _LAYER_NORM | {"qk_layernorm": _boolean, "use_qkv_bias": _boolean},
    "gpt_neox": _DECODER
    | _LAYER_NORM
    | _BIAS
    | {"rotary_pct": _number, "rotary_emb_base": _number, "classifier_dropout": _number},
    "gpt2": _COMMON
    | {
        "n_embd": _width,
        "n_inner": _width,
        "n_layer": _layers,
        "n_head": _heads,
        "n_positions": _integer(1, _MAX_LEARNED_POSITIONS),
        "n_ctx": _integer(1, _MAX_LEARNED_POSITIONS),
        "activation_function": _activation,
        "layer_norm_epsilon": _number,
        "attn_pdrop": _number,
        "embd_pdrop": _number,
        "resid_pdrop": _number,
        "scale_attn_weights": _boolean,
        "scale_attn_by_inverse_layer_idx": _boolean,
        "reorder_and_upcast_attn": _boolean,
    },
    "gemma3_text": _RMS
    | _BIAS
    | {
        "hidden_activation": _activation,
        "use_bidirectional_attention": _false,
        "sliding_window": _positions,
        "sliding_window_pattern": _layers,
        "layer_types": _SLIDING["layer_types"],
        "query_pre_attn_scalar": _number,
        "attn_logit_softcapping": _number,
        "final_logit_softcapping": _number,
        "cache_implementation": _one_of(frozenset({"hybrid"})),
        "rope_local_base_freq": _number,
        "rope_parameters": _rope_by_layer_kind,
    },
    "mixtral": _RMS | _MIXTURE | {"sliding_window": _positions, "router_jitter_noise": _zero},
    "qwen2_moe": _RMS
    | _SLIDING
    | _SPARSE
    | {
        "shared_expert_intermediate_size": _width,
        "qkv_bias": _boolean,
        # 0 means off.
        "sliding_window": _integer(0, _MAX_POSITIONS),
    },
    "qwen3_moe": _RMS | _SLIDING | _BIAS | _SPARSE,
    "olmoe": _RMS | _BIAS | _MIXTURE | {"clip_qkv": _number},
    "olmo3": _RMS
    | _BIAS
    | {
        "sliding_window": _positions,
        "layer_types": _SLIDING["layer_types"],
        "rope_parameters": _rope_by_layer_kind,
    },
    "bert": _ENCODER,
    "roberta": _ENCODER,
}
"""By model type of Hugging Face transformers: every key that a configuration may contain, and the check
of its value."""

_DOWN_BLOCKS = ("DownBlock2D", "AttnDownBlock2D")
_UP_BLOCKS = ("UpBlock2D", "AttnUpBlock2D")
# Published U-Nets have six levels of up to 896 channels, with two residual blocks each. A model of
# eight levels is still built in a moment.
_MAX_LEVELS = 8
_level_widths = _list_of(_integer(1, 4096), _MAX_LEVELS)
_resampled = _one_of(frozenset({"conv", "resnet"}))

DENOISERS: Mapping[str, Mapping[str, Check]] = {
    "unet2d": {
        "sample_size": _integer(4, 512),
        "in_channels": _integer(1, 3),
        "out_channels": _integer(1, 3),
        "num_class_embeds": _integer(1, 4096),
        "block_out_channels": _level_widths,
        "down_block_types": _list_of(_one_of(frozenset(_DOWN_BLOCKS)), _MAX_LEVELS),
        "up_block_types": _list_of(_one_of(frozenset(_UP_BLOCKS)), _MAX_LEVELS),
        "layers_per_block": _integer(1, 8),
        "attention_head_dim": _integer(1, 4096),
        "norm_num_groups": _integer(1, 1024),
        "norm_eps": _number,
        "act_fn": _one_of(frozenset({"silu", "swish", "mish", "gelu", "relu"})),
        "add_attention": _boolean,
        "resnet_time_scale_shift": _one_of(frozenset({"default", "scale_shift"})),
        "downsample_type": _resampled,
        "upsample_type": _resampled,
        "downsample_padding": _integer(0, 1),
        "mid_block_scale_factor": _number,
        "time_embedding_type": _one_of(frozenset({"positional"})),
        "flip_sin_to_cos": _boolean,
        "freq_shift": _integer(0, 1),
        # All randomness in training follows from seed, round and sample; a model may not add its own.
        "dropout": _zero,
        "center_input_sample": _false,
    },
}
"""The same for the models of `diffusers` that predict the noise in images."""

# The largest published vision transformers have images of 1,024 pixels; ResNets have four stages of up
# to 36 layers.
_MAX_STAGES = 8
IMAGE_CLASSIFIERS: Mapping[str, Mapping[str, Check]] = {
    "vit": {
        "num_labels": _labels,
        "image_size": _integer(4, 512),
        "num_channels": _integer(1, 3),
        "patch_size": _integer(1, 512),
        "hidden_size": _width,
        "intermediate_size": _width,
        "num_hidden_layers": _layers,
        "num_attention_heads": _heads,
        "hidden_act": _activation,
        "hidden_dropout_prob": _number,
        "attention_probs_dropout_prob": _number,
        "initializer_range": _number,
        "layer_norm_eps": _number,
        "qkv_bias": _boolean,
    },
    "resnet": {
        "num_labels": _labels,
        "num_channels": _integer(1, 3),
        "embedding_size": _integer(1, 1 << 14),
        "hidden_sizes": _list_of(_integer(1, 1 << 14), _MAX_STAGES),
        "depths": _list_of(_integer(1, 256), _MAX_STAGES),
        "layer_type": _one_of(frozenset({"basic", "bottleneck"})),
        "hidden_act": _activation,
        "downsample_in_first_stage": _boolean,
        "downsample_in_bottleneck": _boolean,
    },
}
"""The same for the models of transformers that classify images."""

# Keys whose values every model of their architectures needs, so that null is no value.
_SIZES = frozenset(
    {
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "max_position_embeddings"),
        *("n_embd", "n_layer", "n_head", "n_positions"),
    }
)

# Models that attend to both sides of a position: they learn to fill gaps but not to continue a text.
_BIDIRECTIONAL = frozenset({"bert", "roberta"})


def is_bidirectional(model_type: str) -> bool:
    """Whether a model attends to the whole sequence rather than to preceding tokens alone."""
    return model_type in _BIDIRECTIONAL


def makes_images(model_type: str) -> bool:
    """Whether a model takes noisy images instead of tokens."""
    return model_type in DENOISERS


def takes_images(model_type: str) -> bool:
    """Whether a model takes images, noisy or not, instead of tokens."""
    return model_type in DENOISERS or model_type in IMAGE_CLASSIFIERS


def classifies(config: Mapping[str, Any]) -> bool:
    """Whether a configuration describes a model that names the class of a whole sample."""
    return config.get("num_labels") is not None


def longest_sequence(config: Mapping[str, Any]) -> int | None:
    """Return the greatest number of tokens that a configuration has positions for; None if it states
    none."""
    key = "n_positions" if config.get("model_type") == "gpt2" else "max_position_embeddings"
    positions = config.get(key)
    if type(positions) is not int:
        return None
    return positions - reserved_positions(config)


def reserved_positions(config: Mapping[str, Any]) -> int:
    """Return the number of positions that no token uses: RoBERTa's first position is the number after
    that of its padding token."""
    if config.get("model_type") != "roberta":
        return 0
    padding = config.get("pad_token_id")
    return 2 if type(padding) is not int else max(0, padding) + 1


def check_configuration(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that shape the model, each known and within its bounds.

    Raises `StructureError`; its place is the key in `model`, and its text states what is wrong.
    """
    model_type = config.get("model_type")
    if model_type is None:
        raise StructureError("model", "the key 'model_type' is missing (for example \"llama\")")
    known = {**ARCHITECTURES, **DENOISERS, **IMAGE_CLASSIFIERS}
    if not isinstance(model_type, str) or model_type not in known:
        near = nearest_hint(model_type, known) if isinstance(model_type, str) else ""
        raise StructureError(
            "model.model_type",
            f"{short_repr(model_type)} cannot be trained here{near and f' ({near})'}; these can: "
            f"{', '.join(known)}",
        )
    checks = known[model_type]
    kept: dict[str, Any] = {"model_type": model_type}
    for key, value in config.items():
        if key == "model_type" or is_inert(key):
            continue
        if key == "quantization_config" and value is not None:
            raise StructureError("model.quantization_config", quantised_message(value))
        if key not in checks and is_neutral(model_type, key, value):
            continue
        if key not in checks:
            near = difflib.get_close_matches(key[:100], checks, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise StructureError("model", f"{model_type} has no key {short_repr(key)}{hint}")
        # Elsewhere null stands for the default, which follows from other keys.
        problem = checks[key](value) if value is not None or key in _SIZES else None
        if problem:
            raise StructureError(f"model.{key}", problem)
        kept[key] = value
    if model_type in DENOISERS:
        _check_levels(kept)
    elif model_type in IMAGE_CLASSIFIERS:
        _check_image_classifier(kept)
    return kept


def _check_image_classifier(config: Mapping[str, Any]) -> None:
    """Raise `StructureError` unless the sizes of a model that classifies images fit each other."""
    if config["model_type"] == "vit":
        given = {key: value for key, value in config.items() if value is not None}
        hidden, heads = given.get("hidden_size", 768), given.get("num_attention_heads", 12)
        if hidden % heads:
            raise StructureError(
                "model.hidden_size", f"{hidden} is not a multiple of num_attention_heads ({heads})"
            )
        size, patch = given.get("image_size", 224), given.get("patch_size", 16)
        if size % patch:
            raise StructureError(
                "model.patch_size", f"{patch} does not divide the {size} pixels of an image"
            )
        return
    widths, depths = config.get("hidden_sizes"), config.get("depths")
    if widths is not None and depths is not None and len(widths) != len(depths):
        raise StructureError(
            "model.depths", f"has {len(depths)} items, but hidden_sizes has {len(widths)}"
        )
    if [] in (widths, depths):
        raise StructureError("model.depths", "a resnet needs one stage or more")


def _check_levels(config: Mapping[str, Any]) -> None:
    """Raise `StructureError` unless the levels of a U-Net, all of which must be given, fit each
    other."""
    needed = (
        "sample_size",
        "in_channels",
        "out_channels",
        "block_out_channels",
        "layers_per_block",
    )
    needed += ("down_block_types", "up_block_types", "norm_num_groups", "attention_head_dim")
    for key in needed:
        if config.get(key) is None:
            raise StructureError("model", f"the key {key!r} is missing")
    widths = config["block_out_channels"]
    levels, groups, head = len(widths), config["norm_num_groups"], config["attention_head_dim"]
    for key in ("down_block_types", "up_block_types"):
        if len(config[key]) != levels or not levels:
            raise StructureError(
                f"model.{key}", f"has {len(config[key])} items, but block_out_channels has {levels}"
            )
    for width in widths:
        for key, part in (("norm_num_groups", groups), ("attention_head_dim", head)):
            if width % part:
                raise StructureError(
                    f"model.{key}", f"{part} does not divide the {width} of block_out_channels"
                )
    if widths[0] % 2:
        raise StructureError("model.block_out_channels", "begins with an odd number")
    halved = 1 << levels - 1
    if config["sample_size"] % halved:
        raise StructureError(
            "model.block_out_channels",
            f"has {levels} levels, which halve images {levels - 1} times, and "
            f"{config['sample_size']} pixels are not a multiple of {halved}",
        )
