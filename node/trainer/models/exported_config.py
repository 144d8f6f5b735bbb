"""A model's configuration for all programs that read it: each value under its new name and its old one.

transformers 5 keeps the settings of rotary positions in `rope_parameters`. Release 4, and programs
that convert checkpoints, look for `rope_theta` and `rope_scaling`; if these are missing they take a
default, and compute another model. Values equal to a default are written, too, because defaults differ
between releases.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from ...training.architectures import takes_images
from .classifiers import is_classifier

# Phi-3's class in release 4 accepts these and no others.
_LONG_ROPE = ("short_factor", "long_factor")


def complete_config(config: PretrainedConfig) -> dict[str, Any]:
    """Return all keys that shape the model, with their defaults, in both spellings."""
    plain = config.to_dict()
    common = PretrainedConfig().to_dict()
    kept = {key: value for key, value in plain.items() if value is not None and key not in common}
    # Keys common to all models are written if they differ from the default; those of special tokens and
    # of tied embeddings are always written.
    differing = {key: plain[key] for key in common if key in plain and plain[key] != common[key]}
    always = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
    if takes_images(config.model_type):
        always = ()
    if is_classifier(config):
        # Otherwise classes with the names of a default would not be written.
        always = (*always, "id2label", "label2id")
    return both_spellings(differing | kept | {key: plain.get(key) for key in always})


def both_spellings(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as transformers 5 writes it, with the names of release 4 added."""
    complete = dict(config)
    if complete.get("dtype") is not None:
        complete["torch_dtype"] = complete["dtype"]
    # `num_experts` is the older name, which a class keeps as an alias.
    if complete.get("num_local_experts") is not None and "num_experts" not in complete:
        complete["num_experts"] = complete["num_local_experts"]
    if complete.get("model_type") == "gpt2":
        # llama.cpp's converter takes the length from here alone.
        complete["n_ctx"] = complete["n_positions"]
    rope = complete.get("rope_parameters")
    if isinstance(rope, dict) and rope:
        kinds = {kind: each for kind, each in rope.items() if isinstance(each, dict)}
        complete |= _older_rope(complete.get("model_type"), kinds.get("full_attention", rope))
        if "sliding_attention" in kinds and complete.get("model_type") == "gemma3_text":
            complete["rope_local_base_freq"] = kinds["sliding_attention"]["rope_theta"]
    return complete


def _older_rope(model_type: str | None, rope: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in rope.items() if value is not None}
    theta = rest.pop("rope_theta", None)
    part = rest.pop("partial_rotary_factor", None)
    kind = rest.get("rope_type", "default")
    older: dict[str, Any] = {"rope_theta": theta, "rope_scaling": None}
    if kind != "default":
        older["rope_scaling"] = rest
        if model_type == "phi3":
            scaling = {key: rest[key] for key in _LONG_ROPE if key in rest}
            older["rope_scaling"] = {"type": kind, **scaling}
            if "original_max_position_embeddings" in rest:
                key = "original_max_position_embeddings"
                older[key] = rest[key]
    if part is not None:
        older["partial_rotary_factor"] = part
    if model_type == "gpt_neox":
        older |= {"rotary_emb_base": theta}
        if part is not None:
            older["rotary_pct"] = part
    return older
