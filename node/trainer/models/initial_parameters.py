"""The initial parameters of a swarm: drawn at random, or from an existing checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ....protocol.wire.blobs import BlobList
from ....protocol.wire.manifest import AdapterSpec, ParameterSpec
from ...storage.blob_store import BlobStore
from ...training.errors import TrainerFailed
from ...training.memory_model import Workload
from ...training.memory_plan import choose
from ...util.first_line import first_line
from ..device import device_kind, free_memory
from .adapters import adapter_parameters, adapter_table, add_adapters, draw_adapters, target_names
from .checkpoint_tensors import check_tensors, tensor_types
from .classifiers import (
    drawn_anew,
    fix_normalisation,
    is_classifier,
    of_other_head,
    start_branches_at_zero,
)
from .model import auto_class, model_config, new_model, ordered_parameters, parameter_table
from .snapshot import write_snapshot

# The smallest normal float32. Some devices flush smaller numbers to zero and others do not, so initial
# parameters contain none (`exact_step` explains why none arises later).
_SMALLEST_NORMAL = 2.0**-126


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Settings of the adapters to insert into a checkpoint."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()
    """The last name components of linear layers; empty: all layers but the head."""

    @classmethod
    def read(cls, plain: dict[str, Any] | None) -> Lora | None:
        """Read what the node process sends; None: no adapters."""
        if plain is None:
            return None
        return cls(rank=plain["rank"], alpha=plain["alpha"], targets=tuple(plain["targets"]))


@dataclass(frozen=True)
class ParameterPlan:
    """Which of a model's weights are trained, planned before memory is allocated for any."""

    table: tuple[ParameterSpec, ...]
    """The trained parameters."""
    frozen: int = 0
    """Number of weights that are not trained."""
    targets: tuple[str, ...] = ()
    """The layers that get adapters."""


def plan_parameters(skeleton: PreTrainedModel, lora: Lora | None) -> ParameterPlan:
    """Return the parameters of a model, or of its adapters. Raises `TrainerFailed` (`bad_model`) for
    adapters that do not go with it."""
    if lora is None:
        return ParameterPlan(parameter_table(skeleton))
    targets = tuple(sorted(set(lora.targets))) or target_names(skeleton)
    table = adapter_table(skeleton, lora.rank, targets)
    return ParameterPlan(table, sum(p.numel() for p in skeleton.parameters()), targets)


@dataclass(frozen=True)
class InitialParameters:
    """The manifest's parameter table, and the list of the parameters' chunks, which are in the store."""

    table: tuple[ParameterSpec, ...]
    blobs: BlobList
    adapter: AdapterSpec | None = None
    """The manifest's entry for adapters; the base and its list are in the store."""


@torch.no_grad()
def initialise(
    config: dict[str, Any],
    seed: int,
    checkpoint: Path | None,
    store: BlobStore,
    device: torch.device,
    lora: Lora | None = None,
) -> InitialParameters:
    """Draw parameters from `seed`, or read them from a Hugging Face checkpoint (safetensors only).

    With `lora` the checkpoint is the base, and its adapters are drawn. Parameters are always drawn on
    the CPU, so that a seed gives the same ones whatever the founder's device; `device` only serves to
    check whether it could train the model.

    Raises `TrainerFailed`: `bad_model` if the configuration, checkpoint or adapters are unusable,
    `model_too_large` if `device` could not train the model. A full disk is reported as `disk_full`.
    """
    built = model_config(config)
    skeleton = new_model(built, torch.device("meta"))
    planned = plan_parameters(skeleton, lora)
    _check_fits(config, planned.table, device, frozen=planned.frozen)
    if lora is not None:
        if checkpoint is None:
            raise TrainerFailed("bad_model", "adapters need a checkpoint")
        base = read_checkpoint(checkpoint, built)
        return _with_adapters(base, replace(lora, targets=planned.targets), seed, store)
    if checkpoint is None:
        torch.manual_seed(seed)
        model = new_model(built, torch.device("cpu"))
        start_branches_at_zero(model)
    else:
        torch.manual_seed(seed)
        model = read_checkpoint(checkpoint, built, new_head=is_classifier(built))
    table = parameter_table(model)
    parameters = ordered_parameters(model, table)
    _check_finite(table, parameters)
    for parameter in parameters:
        parameter.masked_fill_(parameter.abs() < _SMALLEST_NORMAL, 0.0)
    return InitialParameters(table, write_snapshot(parameters, store))


def _check_fits(
    config: dict[str, Any],
    table: tuple[ParameterSpec, ...],
    device: torch.device,
    frozen: int = 0,
) -> None:
    """Raise `TrainerFailed` (`model_too_large`) if no memory plan fits the model here."""
    work = Workload(config=config, parameters=table, sequence_length=1, frozen=frozen)
    choose(work, device_kind(device), free_memory(device))


def _with_adapters(
    base: PreTrainedModel, lora: Lora, seed: int, store: BlobStore
) -> InitialParameters:
    base_table = parameter_table(base)
    frozen = ordered_parameters(base, base_table)
    _check_finite(base_table, frozen)
    adapter = AdapterSpec(
        rank=lora.rank,
        alpha=lora.alpha,
        targets=lora.targets,
        base=store.put(write_snapshot(frozen, store).encode()),
        base_parameters=base_table,
    )
    table = adapter_table(base, lora.rank, lora.targets)
    add_adapters(base, adapter)
    named = adapter_parameters(base)
    parameters = [named[spec.name] for spec in table]
    draw_adapters(parameters, table, seed)
    for parameter in parameters:
        parameter.masked_fill_(parameter.abs() < _SMALLEST_NORMAL, 0.0)
    return InitialParameters(table, write_snapshot(parameters, store), adapter)


def _check_finite(table: tuple[ParameterSpec, ...], parameters: list[torch.nn.Parameter]) -> None:
    for spec, parameter in zip(table, parameters, strict=True):
        if not torch.isfinite(parameter).all():
            raise TrainerFailed("bad_model", f"{spec.name} holds a number that is not finite")


def read_checkpoint(directory: Path, config: Any, *, new_head: bool = False) -> PreTrainedModel:
    """Return a model of this configuration with all of a checkpoint's weights (safetensors), in
    float32. With `new_head` a classifier's head that the checkpoint lacks, or has for another number of
    classes, is drawn at random, and the head of its pretraining is dropped.

    Raises `TrainerFailed` (`bad_model`)."""
    types = tensor_types(directory)
    # The library says of such a type only what it lacks for it.
    check_tensors(types, ())
    try:
        loaded: Any = auto_class(config).from_pretrained(
            directory,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            # Otherwise the type of the first tensor counts, or the one that config.json states, and the
            # others are rounded to it.
            dtype=torch.float32,
            # Otherwise the library's message refers to a report that it printed "above".
            ignore_mismatched_sizes=True,
        )
    except MemoryError:
        raise
    # A missing file, a wrong shape and a torn file each raise a different exception.
    except Exception as error:
        reason = first_line(error, 300, empty=repr(error))
        raise TrainerFailed("bad_model", f"the checkpoint cannot be read: {reason}") from None
    model, report = loaded
    surplus, missing = set(report["unexpected_keys"]), set(report["missing_keys"])
    if new_head:
        surplus = {name for name in surplus if not of_other_head(name)}
        missing -= {*drawn_anew(missing)}
    check_tensors(types, surplus)
    if missing:
        listed = ", ".join(sorted(missing)[:3])
        raise TrainerFailed("bad_model", f"the checkpoint lacks parameters: {listed} …")
    for name, has, wanted in sorted(report["mismatched_keys"], key=lambda each: each[0]):
        if new_head and drawn_anew([name]):
            continue
        raise TrainerFailed(
            "bad_model",
            f"the checkpoint's {name} has the shape {tuple(has)}, but its configuration requires "
            f"{tuple(wanted)}",
        )
    _check_tied(model, config)
    model = model.to(torch.float32)
    fix_normalisation(model)
    return model


def _check_tied(model: PreTrainedModel, config: Any) -> None:
    """Raise `TrainerFailed` (`bad_model`) if weights that the configuration ties differ in the
    checkpoint.

    The library unties a head that differs from the embeddings. Members build the model from the
    configuration alone, so theirs stays tied.
    """
    built = {name for name, _ in new_model(config, torch.device("meta")).named_parameters()}
    loose = sorted(name for name, _ in model.named_parameters() if name not in built)
    if loose:
        raise TrainerFailed(
            "bad_model",
            f"the checkpoint's {loose[0]} differs from the embeddings, and tie_word_embeddings = "
            f"true ties them: set it to false in config.json to train both, or remove {loose[0]} "
            "from the file",
        )
