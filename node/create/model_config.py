"""What can be said about a model's configuration without building the model.

The founder's process does not load transformers, which ignores keys it doesn't know; a misspelled
`hidden_size` would silently train another model than the one that was meant.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from ...protocol.wire.structure import StructureError

# The largest published configurations have a few hundred kilobytes (label maps).
_MAX_CONFIG_BYTES = 1 << 20

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
_SWITCHES = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_cache")
_NUMBERS = ("rms_norm_eps", "rope_theta", "initializer_range", "attention_dropout")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_OTHERS = ("model_type", "hidden_act", "rope_scaling", "rope_parameters")

# Model types whose keys are all known here, so that any other is a mistake.
_KNOWN_KEYS: dict[str, tuple[str, ...]] = {
    "llama": (*_SIZES, *_SWITCHES, *_NUMBERS, *_TOKENS, *_OTHERS)
}

# Facts about the place where a checkpoint was saved. All parameters are float32 here.
_LEFT_OUT = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")


def complete_model(
    config: dict[str, Any], *, vocabulary: int, sequence_length: int, strict: bool
) -> dict[str, Any]:
    """Check a Hugging Face configuration and add what follows from the data.

    `vocab_size` defaults to `vocabulary` and `max_position_embeddings` to `sequence_length`; neither
    may be smaller. With `strict` unknown keys of a well-known model type are refused. Raises
    `StructureError`.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise StructureError("model", "the key 'model_type' is missing (for example \"llama\")")
    if strict:
        _refuse_unknown_keys(config, model_type)
    _check_types(config)
    complete = {"vocab_size": vocabulary, "max_position_embeddings": sequence_length} | config
    if complete["vocab_size"] < vocabulary:
        raise StructureError(
            "model.vocab_size",
            f"{complete['vocab_size']} is too small: the tokenizer has {vocabulary} tokens",
        )
    if complete["max_position_embeddings"] < sequence_length:
        raise StructureError(
            "model.max_position_embeddings",
            f"{complete['max_position_embeddings']} is less than data.sequence_length "
            f"({sequence_length})",
        )
    _check_heads(complete)
    return complete


def read_checkpoint_config(checkpoint: Path) -> dict[str, Any]:
    """Read `config.json` of a checkpoint's directory. Raises `StructureError`."""
    path = checkpoint / "config.json"
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CONFIG_BYTES + 1)
        config = json.loads(data) if len(data) <= _MAX_CONFIG_BYTES else None
    except OSError as error:
        raise StructureError(
            "model.checkpoint", f"{path} cannot be read ({error.strerror})"
        ) from None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise StructureError("model.checkpoint", f"{path} is not a model's configuration")
    return {key: value for key, value in config.items() if key not in _LEFT_OUT}


def _refuse_unknown_keys(config: dict[str, Any], model_type: str) -> None:
    known = _KNOWN_KEYS.get(model_type)
    if known is None:
        return
    for key in config:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise StructureError(
                "model", f"{model_type} has no key {key!r}; did you mean {near!r}?"
            )


def _check_types(config: dict[str, Any]) -> None:
    for key, value in config.items():
        # null means the library's own default.
        if value is None:
            continue
        if key in _SIZES and not (type(value) is int and 0 < value < 2**31):
            raise StructureError(f"model.{key}", f"expected a whole number above 0, got {value!r}")
        if key in _SWITCHES and type(value) is not bool:
            raise StructureError(f"model.{key}", f"expected true or false, got {value!r}")
        if key in _NUMBERS and type(value) not in (int, float):
            raise StructureError(f"model.{key}", f"expected a number, got {value!r}")


def _check_heads(config: dict[str, Any]) -> None:
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    shared = config.get("num_key_value_heads")
    if hidden and heads and not config.get("head_dim") and hidden % heads:
        raise StructureError(
            "model.hidden_size", f"{hidden} is not a multiple of num_attention_heads ({heads})"
        )
    if heads and shared and heads % shared:
        raise StructureError(
            "model.num_attention_heads",
            f"{heads} is not a multiple of num_key_value_heads ({shared})",
        )
