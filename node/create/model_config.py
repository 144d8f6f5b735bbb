"""Checks of a model's configuration that do not need the model.

transformers, which the founder's process does not load, ignores unknown keys, so that a misspelled
`hidden_size` would silently give another model than intended. Every key must therefore be one that
`architectures` names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...protocol.wire.structure import StructureError
from ..training.architectures import (
    DENOISERS,
    check_configuration,
    makes_images,
    reserved_positions,
    takes_images,
)
from ..training.task_names import (
    CAUSAL_LM,
    DIFFUSION,
    IMAGE_CLASSIFICATION,
    ImageSettings,
    input_tokens,
)
from ..util.regular_files import read_regular

# The largest published configurations have a few hundred kilobytes (label maps).
_MAX_CONFIG_BYTES = 1 << 20
# Families for which the library takes the number of their published tokenizers' padding token unless a
# configuration states one. The row of a padding token is zero, and gets no gradient as an input.
_PADDED_BY_DEFAULT = frozenset(
    {
        *("bert", "gemma", "gemma2", "gemma3_text", "olmo", "olmo2", "olmo3", "olmoe"),
        *("phi3", "smollm3"),
    }
)


def complete_model(
    config: dict[str, Any],
    *,
    vocabulary: int,
    sequence_length: int,
    task: str = CAUSAL_LM,
    fresh: bool = False,
) -> dict[str, Any]:
    """Check a Hugging Face configuration and add what follows from the data.

    `vocab_size` defaults to `vocabulary`, and `max_position_embeddings` (with GPT-2 `n_positions`) to
    what the model reads at once of a sample (`input_tokens`) and the positions that it reserves; neither
    may be smaller. In a `fresh` model, which starts at random, only a token that the configuration names
    is padding. Raises `StructureError`.
    """
    require_text_model(config)
    wanted = input_tokens(task, sequence_length)
    config = check_configuration(config)
    if fresh:
        config = _without_default_padding(config)
    positions = "n_positions" if config["model_type"] == "gpt2" else "max_position_embeddings"
    reserved = reserved_positions(config)
    complete = {"vocab_size": vocabulary, positions: wanted + reserved} | config
    if complete["vocab_size"] < vocabulary:
        raise StructureError(
            "model.vocab_size",
            f"{complete['vocab_size']} is too small: the tokenizer has {vocabulary} tokens",
        )
    if complete[positions] < wanted + reserved:
        more = f" and {reserved} that it reserves" if reserved else ""
        part = "" if wanted == sequence_length else "half of "
        raise StructureError(
            f"model.{positions}",
            f"{complete[positions]} is less than {part}data.sequence_length ({sequence_length}){more}",
        )
    _check_heads(complete)
    return complete


def _without_default_padding(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with no padding token, unless it names one: the library's default is any
    token of the founder's tokenizer."""
    padding = config.get("pad_token_id")
    # Published configurations write -1 for none, which the library takes for the last token.
    if padding is not None and padding != -1:
        return config
    if config["model_type"] == "roberta":
        raise StructureError(
            "model.pad_token_id",
            "a 'roberta' needs one, because its positions begin after that number: give the number of "
            "the tokenizer's padding token, or of another one that no text contains",
        )
    states_one = "pad_token_id" in config or config["model_type"] in _PADDED_BY_DEFAULT
    return config | {"pad_token_id": None} if states_one else config


def require_text_model(config: Mapping[str, Any]) -> None:
    """Raise `StructureError` for a model that takes images."""
    model_type = config.get("model_type")
    if isinstance(model_type, str) and takes_images(model_type):
        task = DIFFUSION if makes_images(model_type) else IMAGE_CLASSIFICATION
        raise StructureError(
            "model.model_type", f'{model_type!r} takes images: set task = "{task}"'
        )


def complete_denoiser(config: dict[str, Any], settings: ImageSettings) -> dict[str, Any]:
    """Check the configuration of a model of images and add the keys that follow from the images.

    Without `down_block_types` and `up_block_types` only the narrowest level has attention. Raises
    `StructureError`.
    """
    model_type, widths = config.get("model_type"), config.get("block_out_channels")
    if isinstance(model_type, str) and not makes_images(model_type):
        raise StructureError(
            "model.model_type",
            f"{model_type[:60]!r} takes no images; these do: {', '.join(DENOISERS)}",
        )
    levels = len(widths) if isinstance(widths, list) else 0
    plain_levels = max(0, levels - 1)
    derived = {
        "sample_size": settings.size,
        "in_channels": settings.channels,
        "out_channels": settings.channels,
        **({"num_class_embeds": len(settings.classes)} if settings.classes else {}),
    }
    defaults = {
        "down_block_types": ["DownBlock2D"] * plain_levels + ["AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D"] + ["UpBlock2D"] * plain_levels,
        "layers_per_block": 2,
        "norm_num_groups": 8,
        "attention_head_dim": 8,
    }
    complete = check_configuration(defaults | derived | config)
    for key in (*derived, "num_class_embeds"):
        if complete.get(key) != derived.get(key):
            raise StructureError(
                f"model.{key}",
                "follows from [task_settings]: leave it out, or set the same value there",
            )
    return complete


def read_checkpoint_config(checkpoint: Path) -> dict[str, Any]:
    """Read `config.json` of a checkpoint's directory. Raises `StructureError`."""
    path = checkpoint / "config.json"
    try:
        return read_checkpoint_json(path, _MAX_CONFIG_BYTES, "a model's configuration")
    except FileNotFoundError as error:
        raise _unreadable(path, error) from None


def read_checkpoint_json(path: Path, most: int, what: str) -> dict[str, Any]:
    """Read a JSON object from a file of a checkpoint, of `most` bytes; `what` names it in errors. Raises
    `FileNotFoundError` if there is no file, and `StructureError` if it cannot be used."""
    try:
        data = read_regular(path, most)
        content = json.loads(data) if len(data) <= most else None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable(path, error) from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise StructureError("model.checkpoint", f"{path} is not {what}")
    return content


def _unreadable(path: Path, error: OSError) -> StructureError:
    return StructureError("model.checkpoint", f"{path} cannot be read ({error.strerror})")


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
