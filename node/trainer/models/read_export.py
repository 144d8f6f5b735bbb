"""Reading of an exported model: its parameters, by the table of a manifest.

The directory may be a stranger's. Its weights are read as safetensors into the manifest's own model,
and no code in it is run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ....crypto.hashing import content_id
from ....protocol.wire.blobs import BlobList
from ....protocol.wire.manifest import AdapterSpec, Manifest
from ...training.architectures import makes_images
from ...training.errors import TrainerFailed
from ...training.task_names import NO_TOKENIZER
from ...util.first_line import first_line
from ..optimizer.fingerprint import fingerprint
from ..session import TrainingSession
from .adapters import merged_model
from .denoisers import UNET, Denoiser, named_keys, read_denoiser, written_config
from .export import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_PREFIX,
    ADAPTER_WEIGHTS_NAME,
    MERGED_ADAPTER,
    adapter_configuration,
)
from .exported_config import both_spellings
from .initial_parameters import read_checkpoint
from .model import model_config, new_model, ordered_parameters
from .snapshot import snapshot_chunks

# Keys that follow the tokenizer, and those that the library writes about itself.
_FREE = frozenset(
    {"bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "architectures", "dtype"}
    | {"torch_dtype", "transformers_version"}
)
# Keys that record how it was saved, and the path of its base on its maker's disk.
_FREE_ADAPTER = frozenset(
    {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision"}
)
_MAX_JSON_BYTES = 64 << 20
# Relative to the largest weight of a matrix: a few times float32's rounding of a product and a sum.
_ROUNDING = 1e-6


def examine(session: TrainingSession, directory: Path) -> dict[str, Any]:
    """Return the fields of `client.Examined`. Raises `TrainerFailed` (`bad_model`)."""
    manifest = session.manifest
    if makes_images(str(manifest.model.get("model_type"))):
        parameters, differing = _denoiser(manifest, directory)
    elif manifest.adapter is None:
        model = read_checkpoint(directory, model_config(manifest.model))
        parameters = [*map(_detached, ordered_parameters(model, manifest.parameters))]
        differing = _differing(manifest.model, _read(directory / "config.json"))
    elif (directory / MERGED_ADAPTER).is_dir():
        parameters = _read_adapter(manifest, directory / MERGED_ADAPTER)
        differing = _differing_adapter(manifest.adapter, manifest, directory / MERGED_ADAPTER)
        differing += _differing(manifest.model, _read(directory / "config.json"))
        _check_merged(session, manifest.adapter, parameters, directory)
    else:
        parameters = _read_adapter(manifest, directory)
        differing = _differing_adapter(manifest.adapter, manifest, directory)
    chunks = tuple(content_id(chunk) for chunk in snapshot_chunks(parameters))
    blobs = BlobList(kind="snapshot", size=4 * manifest.elements, chunks=chunks)
    tokenizer = directory / "tokenizer.json"
    return {
        "fingerprint": fingerprint(parameters),
        "blob_list": blobs.encode(),
        "differing": differing,
        "tokenizer": content_id(tokenizer.read_bytes() if tokenizer.is_file() else NO_TOKENIZER),
    }


def _denoiser(manifest: Manifest, directory: Path) -> tuple[list[torch.Tensor], tuple[str, ...]]:
    """Return the parameters of a model of images, and the keys in which its configuration differs."""
    model = new_model(model_config(manifest.model), torch.device("cpu"))
    assert isinstance(model, Denoiser)
    read_denoiser(directory, model)
    found = named_keys(_parsed(_read(directory / UNET / "config.json"), "config.json"))
    meant = written_config(model)
    differing = [key for key in sorted({*found, *meant}) if found.get(key) != meant.get(key)]
    parameters = [*map(_detached, ordered_parameters(model, manifest.parameters))]
    return parameters, tuple(key[:64] for key in differing)


def _detached(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.detach()


def _read_adapter(manifest: Manifest, directory: Path) -> list[torch.Tensor]:
    """Return the adapters of a directory in the order of the manifest's table."""
    path = directory / ADAPTER_WEIGHTS_NAME
    try:
        found = load_file(path)
    except OSError as error:
        reason = error.strerror or error
        raise TrainerFailed("bad_model", f"{path.name} cannot be read ({reason})") from None
    # The library has a separate exception for each way in which a file is invalid.
    except Exception as error:
        reason = first_line(error, empty=repr(error))
        raise TrainerFailed("bad_model", f"{path.name} cannot be read ({reason})") from None
    parameters = []
    for spec in manifest.parameters:
        tensor = found.pop(ADAPTER_PREFIX + spec.name, None)
        if tensor is None or tuple(tensor.shape) != spec.shape or tensor.dtype != torch.float32:
            raise TrainerFailed("bad_model", f"{path.name} lacks {spec.name} {spec.shape}")
        parameters.append(tensor)
    if found:
        raise TrainerFailed(
            "bad_model", f"{path.name} has an unknown tensor: {next(iter(found))[:200]}"
        )
    return parameters


def _check_merged(
    session: TrainingSession,
    adapter: AdapterSpec,
    parameters: list[torch.Tensor],
    directory: Path,
) -> None:
    """Raise unless the checkpoint's weights are the base's with this adapter merged.

    The product of A and B differs between machines in the last bits, so that much may differ:
    members agree to the bit on the adapter alone.
    """
    table = adapter.base_parameters
    model = read_checkpoint(directory, model_config(session.manifest.model))
    expected = merged_model(session.manifest, session.model, parameters)
    pairs = zip(ordered_parameters(model, table), ordered_parameters(expected, table), strict=True)
    for spec, (found, meant) in zip(table, pairs, strict=True):
        tolerance = _ROUNDING * max(float(meant.detach().abs().max()), 1e-30)
        # Written so that NaN counts as a difference, too.
        if not bool(((found - meant).abs() <= tolerance).all()):
            raise TrainerFailed(
                "bad_model", f"{spec.name} is not the base's with the adapter added"
            )


def _differing_adapter(
    adapter: AdapterSpec, manifest: Manifest, directory: Path
) -> tuple[str, ...]:
    expected = adapter_configuration(adapter, manifest.model["model_type"])
    found = _parsed(_read(directory / ADAPTER_CONFIG_NAME), ADAPTER_CONFIG_NAME)
    targets = found.get("target_modules")
    if isinstance(targets, list) and all(isinstance(each, str) for each in targets):
        # A program that opened and saved it again may have changed the order.
        found["target_modules"] = sorted(targets)
    keys = sorted({*found, *expected} - _FREE_ADAPTER)
    return tuple(key[:64] for key in keys if found.get(key) != expected.get(key))


def _differing(meant: dict[str, Any], written: bytes) -> tuple[str, ...]:
    """Return the keys of a written configuration that differ from the manifest's or are missing
    there."""
    found = _parsed(written, "config.json")
    # In the library's own spelling, which changes some keys.
    expected = both_spellings(json.loads(model_config(meant).to_json_string(use_diff=False)))
    keys = sorted({*found, *(key for key in meant if key in expected)} - _FREE)
    return tuple(key[:64] for key in keys if key not in expected or found.get(key) != expected[key])


def _parsed(written: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TrainerFailed("bad_model", f"{name} is not a configuration")
    return found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_JSON_BYTES)
    except OSError as error:
        raise TrainerFailed("bad_model", f"{path.name} cannot be read ({error.strerror})") from None
