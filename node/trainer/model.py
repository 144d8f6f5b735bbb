"""The model, built from the manifest's configuration and held against its parameter table.

The configuration is a stranger's: it may choose among the architectures that the installed
transformers knows, and nothing else. It cannot name code to download, kernels, or a quantisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from ...protocol.wire.manifest import ParameterSpec
from .errors import TrainerFailed

_REFUSED = frozenset({"auto_map", "custom_pipelines", "quantization_config", "trust_remote_code"})
# These say how somebody else ran the model. All of ours run in float32 with torch's own attention.
_IGNORED = frozenset({"architectures", "dtype", "torch_dtype", "transformers_version"})


def model_config(config: dict[str, Any]) -> PretrainedConfig:
    """The transformers configuration for a manifest's `model`.

    Raises `TrainerFailed` with the kind `bad_model`.
    """
    cleaned = _cleaned(config)
    model_type = cleaned.pop("model_type", None)
    if not isinstance(model_type, str):
        raise _bad("the configuration has no model_type")
    try:
        return AutoConfig.for_model(model_type, **cleaned)
    # Architectures check their keys in ways of their own.
    except Exception as error:
        raise _bad(f"the configuration of a {model_type!r} is refused: {error}") from None


def new_model(config: PretrainedConfig, device: torch.device) -> PreTrainedModel:
    """A model with random parameters, in float32, with the loss's graph but no cache.

    Raises `TrainerFailed` with the kind `bad_model`, or what running out of memory raises.
    """
    try:
        with device:
            model = AutoModelForCausalLM.from_config(config)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise _bad(f"a {config.model_type!r} cannot be built: {error}") from None
    model = model.to(torch.float32)
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()
    return model


def build_model(
    config: dict[str, Any], table: Sequence[ParameterSpec], device: torch.device
) -> PreTrainedModel:
    """Build a model whose parameters are exactly those of the table.

    It is first built without memory, so that a configuration that does not match its table costs
    nothing. Raises as `new_model` does.
    """
    layers = [config.get(key) for key in ("num_hidden_layers", "n_layer", "num_layers")]
    if any(type(count) is int and count > len(table) for count in layers):
        raise _bad("it has more layers than parameter tensors")
    built = model_config(config)
    ordered_parameters(new_model(built, torch.device("meta")), table)
    return new_model(built, device)


def ordered_parameters(
    model: PreTrainedModel, table: Sequence[ParameterSpec]
) -> list[torch.nn.Parameter]:
    """The model's parameters in the table's order; tied weights appear once.

    Raises `TrainerFailed` with the kind `bad_model` unless names and shapes are the table's.
    """
    found = dict(model.named_parameters())
    for spec in table:
        shape = tuple(found[spec.name].shape) if spec.name in found else None
        if shape != spec.shape:
            there = "is not in the model" if shape is None else f"has the shape {shape} there"
            raise _bad(f"the manifest's parameter {spec.name} {spec.shape} {there}")
    names = {spec.name for spec in table}
    if len(names) != len(table) or names != set(found):
        raise _bad("the manifest's table does not name every parameter once")
    return [found[spec.name] for spec in table]


def parameter_table(model: PreTrainedModel) -> tuple[ParameterSpec, ...]:
    """The table of a new model, in the order in which torch lists its parameters."""
    return tuple(
        ParameterSpec(name=name, shape=tuple(parameter.shape))
        for name, parameter in model.named_parameters()
    )


def check_inputs(model: PreTrainedModel, vocabulary: int, sequence_length: int) -> None:
    """Raise `TrainerFailed` (`bad_model`) if the model cannot take the manifest's sequences."""
    embeddings = model.get_input_embeddings()
    if not isinstance(embeddings, torch.nn.Embedding):
        raise _bad("its input is no table of token embeddings")
    known = embeddings.num_embeddings
    if vocabulary > known:
        raise _bad(f"the data has {vocabulary} tokens, the model knows {known}")
    longest = getattr(model.config, "max_position_embeddings", None)
    if isinstance(longest, int) and sequence_length > longest:
        raise _bad(f"sequences of {sequence_length} tokens, the model takes {longest}")


def _cleaned(config: dict[str, Any]) -> dict[str, Any]:
    cleaned = {}
    for key, value in config.items():
        if key in _REFUSED and value:
            raise _bad(f"the configuration key {key!r} is not allowed")
        if key in _REFUSED | _IGNORED or key.startswith("_") or key.endswith("implementation"):
            continue
        cleaned[key] = _cleaned(value) if isinstance(value, dict) else value
    return cleaned


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_model", f"the manifest's model cannot be used: {problem}"[:500])
