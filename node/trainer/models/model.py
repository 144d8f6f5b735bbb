"""The model, built from the manifest's configuration and checked against its parameter table.

The configuration is a stranger's: it may choose among `architectures`, with the keys and within the
bounds given there. It cannot name code to download, kernels, or a quantisation.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from ....protocol.wire.manifest import Manifest, ParameterSpec
from ....protocol.wire.structure import StructureError
from ...training.architectures import (
    check_configuration,
    classifies,
    is_bidirectional,
    longest_sequence,
    makes_images,
    takes_images,
)
from ...training.errors import TrainerFailed
from ...training.resource_limits import limited
from ...training.task_names import input_tokens
from ...util.first_line import first_line
from .classifiers import PROBLEM_TYPE, fix_normalisation, is_classifier
from .denoisers import Denoiser, DenoiserConfig, load_library

# Buffers, such as causal masks and rotary frequencies, may be as large as the parameters; in small
# models they may be this large.
_BUFFER_BYTES = 64 << 20
# Limits for building a model without memory for its parameters. The largest published models take some
# seconds, and less memory than this for everything else.
_BUILD_SECONDS = 120.0
_BUILD_BYTES = 2 << 30


def model_config(config: dict[str, Any]) -> PretrainedConfig:
    """Return the configuration for a manifest's `model`: the library's own, or a `DenoiserConfig`.

    Raises `TrainerFailed` with the kind `bad_model`.
    """
    try:
        known = check_configuration(config)
    except StructureError as error:
        raise _bad(str(error)) from None
    model_type = known.pop("model_type")
    if makes_images(model_type):
        return DenoiserConfig(known)
    if classifies(known):
        known["problem_type"] = PROBLEM_TYPE
    elif takes_images(model_type):
        raise _bad(f"a {model_type!r} needs num_labels, the number of its classes")
    try:
        # The library modifies the dictionaries that it is given.
        return AutoConfig.for_model(model_type, **copy.deepcopy(known))
    # Architectures validate their keys in different ways.
    except Exception as error:
        raise _bad(
            f"the configuration of a {model_type!r} is refused: {first_line(error)}"
        ) from None


def new_model(config: PretrainedConfig, device: torch.device) -> PreTrainedModel:
    """Return a model with random parameters, contiguous and in float32.

    Raises `TrainerFailed` with the kind `bad_model`, or what running out of memory raises.
    """
    images = isinstance(config, DenoiserConfig)
    if images:
        load_library()
    try:
        with device:
            model: Any = Denoiser(config) if images else auto_class(config).from_config(config)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise _bad(f"a {config.model_type!r} cannot be built: {error}") from None
    model = model.to(torch.float32)
    fix_normalisation(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()
    return model


def auto_class(config: PretrainedConfig) -> Any:
    """Return the library's class that loads a model of this kind with its head."""
    if takes_images(config.model_type):
        return AutoModelForImageClassification
    if is_classifier(config):
        return AutoModelForSequenceClassification
    return AutoModelForMaskedLM if is_bidirectional(config.model_type) else AutoModelForCausalLM


def build_skeleton(config: dict[str, Any]) -> PreTrainedModel:
    """Return a model without memory for its parameters. Raises as `new_model` does."""
    what = "the manifest's model cannot be used: building it"
    if makes_images(str(config.get("model_type"))):
        # Loading takes longer than building a model.
        load_library()
    with limited("bad_model", what, seconds=_BUILD_SECONDS, memory=_BUILD_BYTES):
        return new_model(model_config(config), torch.device("meta"))


def build_model(
    config: dict[str, Any], table: Sequence[ParameterSpec], device: torch.device
) -> PreTrainedModel:
    """Build a model whose parameters are exactly those of the table.

    The model is first built without memory, so that a configuration that does not match its table
    allocates none. Raises as `new_model` does.
    """
    layers = [config.get(key) for key in ("num_hidden_layers", "n_layer", "n_layers")]
    if any(type(count) is int and count > len(table) for count in layers):
        raise _bad("it has more layers than parameter tensors")
    skeleton = build_skeleton(config)
    parameters = ordered_parameters(skeleton, table)
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in skeleton.buffers())
    if buffers > max(_BUFFER_BYTES, 4 * sum(each.numel() for each in parameters)):
        raise _bad(f"it needs {buffers >> 20} MiB in addition to its parameters")
    return new_model(skeleton.config, device)


def ordered_parameters(
    model: PreTrainedModel, table: Sequence[ParameterSpec]
) -> list[torch.nn.Parameter]:
    """Return the model's parameters in the table's order; tied weights appear once.

    Raises `TrainerFailed` with the kind `bad_model` unless names and shapes match the table.
    """
    found = dict(model.named_parameters())
    for spec in table:
        shape = _table_shape(model, found[spec.name]) if spec.name in found else None
        if shape != spec.shape:
            there = (
                "is not in the model" if shape is None else f"has the shape {shape} in the model"
            )
            raise _bad(f"the manifest's parameter {spec.name} {spec.shape} {there}")
    names = {spec.name for spec in table}
    if len(names) != len(table) or names != set(found):
        raise _bad("the manifest's table does not name every parameter once")
    return [found[spec.name] for spec in table]


def parameter_table(model: PreTrainedModel) -> tuple[ParameterSpec, ...]:
    """Return the table of a new model, in the order in which torch lists its parameters."""
    return tuple(
        ParameterSpec(name=name, shape=_table_shape(model, parameter))
        for name, parameter in model.named_parameters()
    )


def _table_shape(model: PreTrainedModel, parameter: torch.nn.Parameter) -> tuple[int, ...]:
    """Return a parameter's shape as a table states it.

    A convolution kernel (outputs, inputs, height, width) is stated as a matrix with a row for each
    output. That gives the transform large blocks; with the original shape blocks would be as narrow as a
    kernel. A vision transformer's positions, (1, positions, width), are stated as a matrix, too. In
    memory both shapes are the same.
    """
    shape = tuple(parameter.shape)
    if not takes_images(model.config.model_type) or len(shape) <= 2:
        return shape
    if len(shape) == 3:
        return (math.prod(shape[:2]), shape[2])
    return (shape[0], math.prod(shape[1:]))


def layers_of(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the layers that a model stacks; for nested stacks, those of the inner ones."""
    return [
        layer
        for stack in model.modules()
        if isinstance(stack, torch.nn.ModuleList)
        for layer in stack
        if not any(isinstance(part, torch.nn.ModuleList) for part in layer.modules())
    ]


def enable_checkpointing(model: PreTrainedModel) -> bool:
    """Enable activation checkpointing, so that each layer keeps only its input for the backward pass
    and recomputes the rest; return False if the model does not support it."""
    if not model.supports_gradient_checkpointing:
        return False
    # The library's newer name of the method; the older one warns.
    newer = getattr(model, "activation_checkpointing_enable", None)
    enable: Any = newer or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    return True


def disable_dropout(model: PreTrainedModel) -> None:
    """Let a model drop nothing while it trains; its configuration, which exports state, is left alone.

    For losses that compare probabilities with others of the same model. Those of `dpo` compare with the
    start's, which were computed once without dropout; `trl` disables it there by default, too. Those of
    `grpo` stand for the policy that sampled the completions, which had no dropout. `trl` leaves it to
    the user there and so, by default, to the checkpoint: its engines sample without, and then the loss
    is that of other policies than the sampled one.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        # Attention takes its share from a number.
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def check_inputs(model: PreTrainedModel, manifest: Manifest) -> None:
    """Raise `TrainerFailed` (`bad_model`) if a language model cannot take the manifest's sequences. For
    image models the task checks this."""
    if takes_images(model.config.model_type):
        return
    embeddings = model.get_input_embeddings()
    if not isinstance(embeddings, torch.nn.Embedding):
        raise _bad("its input layer is not a table of token embeddings")
    known, vocabulary = embeddings.num_embeddings, manifest.data.vocabulary
    if vocabulary > known:
        raise _bad(f"the data has {vocabulary} tokens, but the model only {known}")
    longest = longest_sequence(model.config.to_dict())
    wanted = input_tokens(manifest.task, manifest.data.sequence_length)
    if longest is not None and wanted > longest:
        raise _bad(
            f"the data has sequences of {wanted} tokens, but the model takes at most {longest}"
        )


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_model", f"the manifest's model cannot be used: {problem}"[:500])
