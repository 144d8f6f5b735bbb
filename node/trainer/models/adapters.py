"""Low-rank adapters in a model with frozen weights: insertion, initialisation and merging.

`peft` builds the layers, so that it can open the adapters that are trained here. What members must
agree on is decided here and not by `peft`: the parameters' names, order, initial values and scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ....crypto.hashing import ContentId
from ....protocol.wire.blobs import BlobList, decode_blob_list
from ....protocol.wire.errors import ProtocolError
from ....protocol.wire.manifest import AdapterSpec, Manifest, ParameterSpec
from ...storage.blob_store import BlobStore
from ...training.architectures import classifies, is_bidirectional, takes_images
from ...training.errors import TrainerFailed
from .classifiers import set_class_names
from .model import build_model, model_config, new_model, ordered_parameters
from .snapshot import read_snapshot

if TYPE_CHECKING:
    from peft import LoraConfig

# The name that peft gives an adapter by default. It is part of the parameters' names in memory, but
# not in peft's files.
_ADAPTER = "default"
_MAX_LISTED = 3
"""Number of layers that an error message lists."""


def build_trained(
    manifest: Manifest, store: BlobStore, device: torch.device
) -> tuple[PreTrainedModel, list[torch.nn.Parameter]]:
    """Return the manifest's model and its trained parameters, in the order of the manifest's table.

    The parameters' values are not the swarm's yet, and neither are frozen weights until `read_base`.
    Raises `TrainerFailed`: `bad_model` if the manifest's model cannot be built, and `bad_snapshot` if
    the base is not in the store, so that the node can fetch it.
    """
    adapter = manifest.adapter
    if adapter is None:
        model = build_model(manifest.model, manifest.parameters, device)
        set_class_names(model.config, manifest)
        return model, ordered_parameters(model, manifest.parameters)
    if takes_images(str(manifest.model.get("model_type"))) or classifies(manifest.model):
        raise _bad("only language models can have adapters here")
    model = build_model(manifest.model, adapter.base_parameters, device)
    # Checked before memory is allocated for adapters, because the table bounds their size.
    check_table(model, adapter, manifest.parameters)
    _base_chunks(adapter, store)
    add_adapters(model, adapter)
    named = adapter_parameters(model)
    return model, [named[spec.name] for spec in manifest.parameters]


def linear_layers(model: PreTrainedModel) -> dict[str, torch.nn.Module]:
    """Return the linear layers by full name, except the head, because its weights may be tied to the
    embedding's."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not head
    }


def target_names(model: PreTrainedModel) -> tuple[str, ...]:
    """Return the last name components of the linear layers, without duplicates and sorted."""
    return tuple(sorted({name.rpartition(".")[2] for name in linear_layers(model)}))


def adapter_table(
    model: PreTrainedModel, rank: int, targets: Sequence[str]
) -> tuple[ParameterSpec, ...]:
    """Return the parameter table of these layers' adapters, in the order of the model's layers, A
    before B.

    Raises `TrainerFailed` (`bad_model`) for a layer that does not exist, and for a rank greater than the
    number of a layer's inputs or outputs, because the adapter would then be larger than the layer.
    """
    known = target_names(model)
    for target in targets:
        if target not in known:
            raise _bad(f"it has no linear layer called {target!r}; it has {', '.join(known)}")
    table = []
    for name, layer in linear_layers(model).items():
        if name.rpartition(".")[2] not in targets:
            continue
        inputs, outputs = _input_output_sizes(layer)
        if rank > min(inputs, outputs):
            raise _bad(
                f"a rank of {rank} is more than the {inputs} inputs or {outputs} outputs of {name}"
            )
        table.append(ParameterSpec(name=f"{name}.lora_A.weight", shape=(rank, inputs)))
        table.append(ParameterSpec(name=f"{name}.lora_B.weight", shape=(outputs, rank)))
    return tuple(table)


def check_table(
    model: PreTrainedModel, adapter: AdapterSpec, table: Sequence[ParameterSpec]
) -> None:
    """Raise `TrainerFailed` (`bad_model`) unless the table names each parameter of the adapters
    exactly once."""
    expected = {spec.name: spec for spec in adapter_table(model, adapter.rank, adapter.targets)}
    for spec in table:
        if expected.pop(spec.name, None) != spec:
            raise _bad(
                f"the manifest's parameter {spec.name} {spec.shape} is not one of its adapters"
            )
    if expected:
        raise _bad(f"the manifest's table lacks {next(iter(expected))}")


def add_adapters(model: PreTrainedModel, adapter: AdapterSpec) -> None:
    """Insert adapters into a model and freeze its other parameters."""
    # The import takes a third of a trainer's start-up time, and only some swarms need it.
    from peft import inject_adapter_in_model

    inject_adapter_in_model(peft_config(adapter, model.config.model_type), model)


def adapter_parameters(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """Return the trained parameters of a model with adapters, by their names in a manifest's table."""
    return {
        name.replace(f".{_ADAPTER}.", "."): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def draw_adapters(
    parameters: Sequence[torch.Tensor], table: Sequence[ParameterSpec], seed: int
) -> None:
    """Draw A from the uniform distribution on [-1/√inputs, 1/√inputs], in the table's order; set B to
    zero.

    peft and the paper's own code draw it in the same way (Kaiming's rule with a = √5). It is drawn
    on the CPU, as all initial parameters are.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter, spec in zip(parameters, table, strict=True):
        if spec.name.endswith(".lora_A.weight"):
            bound = 1 / math.sqrt(spec.shape[1])
            drawn = torch.empty(spec.shape).uniform_(-bound, bound, generator=generator)
            parameter.data.copy_(drawn)
        else:
            parameter.data.zero_()


def peft_config(adapter: AdapterSpec, model_type: str) -> LoraConfig:
    """Return the peft configuration of these adapters."""
    from peft import LoraConfig

    return LoraConfig(
        task_type=None if is_bidirectional(model_type) else "CAUSAL_LM",
        r=adapter.rank,
        # peft declares it as an integer, and accepts any number.
        lora_alpha=adapter.alpha,  # pyright: ignore[reportArgumentType]
        target_modules=list(adapter.targets),
        lora_dropout=0.0,
        bias="none",
        # GPT-2's linear layers hold their weights transposed.
        fan_in_fan_out=model_type == "gpt2",
    )


@torch.no_grad()
def merged_model(
    manifest: Manifest, model: PreTrainedModel, parameters: Sequence[torch.Tensor]
) -> PreTrainedModel:
    """Return a separate model on the CPU with every target's W replaced by W + (alpha / rank) · B · A.

    `model` and `parameters` are what `build_trained` returned; they are not changed.
    """
    adapter = manifest.adapter
    assert adapter is not None
    plain = new_model(model_config(manifest.model), torch.device("cpu"))
    frozen = _frozen(model)
    targets = ordered_parameters(plain, adapter.base_parameters)
    for spec, target in zip(adapter.base_parameters, targets, strict=True):
        target.copy_(frozen[spec.name])
    weights = {spec.name: each for spec, each in zip(manifest.parameters, parameters, strict=True)}
    for name, layer in linear_layers(plain).items():
        a, b = (weights.get(f"{name}.lora_{part}.weight") for part in "AB")
        if a is None or b is None:
            continue
        change = (b.detach().cpu() @ a.detach().cpu()) * (adapter.alpha / adapter.rank)
        assert isinstance(layer.weight, torch.Tensor)
        layer.weight.add_(change.T if isinstance(layer, Conv1D) else change)
    return plain


def frozen_parameters(model: PreTrainedModel, adapter: AdapterSpec) -> list[torch.Tensor]:
    """Return the base's weights in the order of its table."""
    named = _frozen(model)
    return [named[spec.name] for spec in adapter.base_parameters]


def read_base(parameters: Sequence[torch.Tensor], adapter: AdapterSpec, store: BlobStore) -> None:
    """Read the base's weights into the frozen parameters of a model (`frozen_parameters`).

    Raises `TrainerFailed`: `bad_snapshot` if they are not all in the store, `bad_model` if they are
    unusable.
    """
    chunks = _base_chunks(adapter, store)
    try:
        read_snapshot(parameters, store, chunks)
    except TrainerFailed as error:
        # The store may discover only on reading that a chunk is damaged; then it no longer has the
        # chunk.
        whole = all(store.has(chunk) for chunk in chunks)
        kind = "bad_model" if whole else "bad_snapshot"
        raise TrainerFailed(kind, f"the base model cannot be used: {error}") from None


def _frozen(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the base's weights by their names in its own table."""
    return {
        name.replace(".base_layer.", "."): parameter
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad
    }


def _base_chunks(adapter: AdapterSpec, store: BlobStore) -> tuple[ContentId, ...]:
    """Return the base's chunks, all of which are in the store. Raises as `read_base` does."""
    chunks = _base_list(adapter, store).chunks
    # Missing chunks can be fetched; unusable ones are the fault of the swarm's founder.
    missing = sum(not store.has(chunk) for chunk in chunks)
    if missing:
        raise TrainerFailed(
            "bad_snapshot", f"{missing} of {len(chunks)} chunks of the base model are missing"
        )
    return chunks


def _base_list(adapter: AdapterSpec, store: BlobStore) -> BlobList:
    data = store.get(adapter.base)
    if data is None:
        raise TrainerFailed("bad_snapshot", "the base model is missing")
    try:
        return decode_blob_list(data, "snapshot", 4 * adapter.base_elements)
    except ProtocolError as error:
        raise TrainerFailed("bad_model", f"the base model cannot be used: {error}") from None


def _input_output_sizes(layer: torch.nn.Module) -> tuple[int, int]:
    """Return the numbers of a linear layer's inputs and outputs."""
    if isinstance(layer, Conv1D):
        inputs, outputs = layer.weight.shape
        return inputs, outputs
    assert isinstance(layer, torch.nn.Linear)
    return layer.in_features, layer.out_features


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_model", f"adapters cannot be added to this model: {problem}"[:500])
