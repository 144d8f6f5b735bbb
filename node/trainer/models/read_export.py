"""Reading of an exported model, and its comparison with what the swarm's own export would contain.

The directory may be a stranger's. Its weights are read as safetensors into the manifest's own model,
and no code in the directory is run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ....crypto.hashing import content_id
from ....protocol.wire.blobs import BlobList
from ....protocol.wire.manifest import AdapterSpec, Manifest
from ...storage.blob_store import BlobStore
from ...training.errors import TrainerFailed
from ...training.task_names import ImageSettings
from ...training.tokenizer_settings import CHAT_TEMPLATE_NAME
from ...util.first_line import first_line
from ...util.regular_files import open_regular
from ..optimizer.fingerprint import fingerprint
from ..tasks.classification_tasks import ImageClassification
from ..tasks.image_tasks import Diffusion
from ..training_session import TrainingSession
from .adapters import merged_model
from .checkpoint_tensors import weights_files
from .classifiers import PREPROCESSOR_NAME, is_classifier, preprocessing, set_class_names
from .denoisers import (
    INDEX_NAME,
    SCHEDULER_CONFIG_NAME,
    UNET,
    VERSION_KEY,
    Denoiser,
    noise_schedule,
    pipeline_index,
    read_denoiser,
    without_origin,
    written_config,
)
from .denoisers import WEIGHTS_NAME as IMAGE_WEIGHTS_NAME
from .export import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_PREFIX,
    ADAPTER_WEIGHTS_NAME,
    MERGED_ADAPTER,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    SettingsFiles,
    adapter_configuration,
    settings_files,
)
from .exported_config import both_spellings
from .initial_parameters import read_checkpoint
from .model import model_config, new_model, ordered_parameters
from .snapshot import snapshot_chunks

# Keys of `config.json` that `_differing` leaves out. The token ids, the architecture and the number type
# are compared in other ways (`_compare_checkpoint`); the other keys change no result.
_NOT_COMPARED = frozenset(
    {"bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "architectures", "dtype"}
    | {"torch_dtype", "transformers_version"}
)
# Key of an adapter's configuration with the place of its base, which an export leaves open.
_BASE_KEY = "base_model_name_or_path"
# Keys of an adapter's configuration that are not compared: they record how the adapter was saved.
_NOT_COMPARED_ADAPTER = frozenset(
    {"auto_mapping", _BASE_KEY, "inference_mode", "peft_version", "revision"}
)
# Keys of `generation_config.json` that are not compared.
_NOT_COMPARED_GENERATION = frozenset({"transformers_version", "_from_model_config"})
GENERATION_NAME = "generation_config.json"
_MAX_UNCHECKED = 20
_MAX_JSON_BYTES = 64 << 20
# Tolerance for merged weights, relative to the largest weight of a matrix: a few times float32's
# rounding of a product and a sum.
_ROUNDING = 1e-6


def compare_export(session: TrainingSession, store: BlobStore, directory: Path) -> dict[str, Any]:
    """Read an export in `directory`, compare it with what the session would export, and return the
    fields of `answers.ExportedParameters`.

    Raises `TrainerFailed`: `bad_model` if a file is missing or unreadable, or the weights do not fit the
    manifest's model; `bad_data` if the swarm's own tokenizer is unusable.
    """
    manifest, adapter = session.manifest, session.manifest.adapter
    found = _Comparison(directory)
    if isinstance(session.task, Diffusion):
        parameters = _denoiser(manifest, session.task.settings, found)
    elif adapter is None:
        model = read_checkpoint(directory, model_config(manifest.model))
        parameters = [*map(_detached, ordered_parameters(model, manifest.parameters))]
        _compare_checkpoint(session, store, found)
    elif (directory / MERGED_ADAPTER).is_dir():
        parameters = _read_adapter(manifest, directory / MERGED_ADAPTER)
        _compare_adapter(adapter, manifest, found, f"{MERGED_ADAPTER}/")
        _compare_checkpoint(session, store, found)
        _check_merged(session, adapter, parameters, directory)
    else:
        parameters = _read_adapter(manifest, directory)
        _compare_adapter(adapter, manifest, found)
        _compare_tokenizer(session, store, found)
    chunks = tuple(content_id(chunk) for chunk in snapshot_chunks(parameters))
    blobs = BlobList(kind="snapshot", size=4 * manifest.elements, chunks=chunks)
    return {
        "fingerprint": fingerprint(parameters),
        "blob_list": blobs.encode(),
        "differing": found.differing,
        "unchecked": found.unchecked(),
    }


class _Comparison:
    """A comparison of a directory with the swarm's own export: which files have been compared, and what
    differs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.differing: list[str] = []
        self._compared: set[str] = set()
        self._not_comparable: list[str] = []

    def mark_compared(self, *names: str) -> None:
        """Count files as compared."""
        self._compared.update(names)

    def mark_unchecked(self, *names: str) -> None:
        """Note files, or parts of one, that have to be compared, but cannot be."""
        self.mark_compared(*names)
        self._not_comparable += names

    def note_keys(self, name: str, keys: Iterable[str]) -> None:
        """Count a file as compared, and note the `keys` in which it differs."""
        self.mark_compared(name)
        self.differing += (f"{key[:64]} in {name}" for key in sorted(keys))

    def compare_json(
        self, name: str, expected: Mapping[str, Any], ignored: Collection[str] = ()
    ) -> None:
        """Compare a JSON file: every key except the `ignored` ones must have the same value as in
        `expected`. A key whose value is null counts as missing."""
        written = json_object(_read(self.directory / name), name)
        keys = {*written, *expected} - {*ignored}
        self.note_keys(name, (key for key in keys if written.get(key) != expected.get(key)))

    def compare_bytes(self, name: str, expected: bytes) -> None:
        """Compare a file byte for byte with `expected`."""
        self.mark_compared(name)
        if _read(self.directory / name) != expected:
            self.differing.append(name)

    def unchecked(self) -> list[str]:
        """Return at most 20 files that were not compared, although a program that opens the directory
        might read them."""
        found = list(self._not_comparable)

        def note(path: str | Path) -> None:
            found.append(Path(path).relative_to(self.directory).as_posix()[:200])

        # A folder that cannot be listed may still be opened file by file.
        walk = os.walk(self.directory, onerror=lambda error: note(error.filename))
        for place, folders, names in walk:
            # No program takes a part of a model from a hidden file.
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in folders:
                # Not followed here, but by the libraries that open a model.
                if (Path(place) / name).is_symlink():
                    note(Path(place) / name)
            for name in sorted(names):
                path = Path(place) / name
                is_compared = path.relative_to(self.directory).as_posix() in self._compared
                if not name.startswith(".") and not is_compared:
                    note(path)
            if len(found) >= _MAX_UNCHECKED:
                break
        return found[:_MAX_UNCHECKED]


def _denoiser(
    manifest: Manifest, settings: ImageSettings, found: _Comparison
) -> list[torch.Tensor]:
    """Return the parameters of an exported image model, and compare its configuration, its noise
    schedule and its pipeline index."""
    model = new_model(model_config(manifest.model), torch.device("cpu"))
    assert isinstance(model, Denoiser)
    read_denoiser(found.directory, model)
    found.mark_compared(f"{UNET}/{IMAGE_WEIGHTS_NAME}")
    name = f"{UNET}/config.json"
    written = without_origin(json_object(_read(found.directory / name), name))
    expected = written_config(model)
    found.note_keys(
        name, (key for key in {*written, *expected} if written.get(key) != expected.get(key))
    )
    schedule = json.loads(noise_schedule(settings).to_json_string())
    found.compare_json(SCHEDULER_CONFIG_NAME, schedule, {VERSION_KEY})
    index = pipeline_index(settings)
    if index is not None:
        found.compare_json(INDEX_NAME, index, {VERSION_KEY})
    return [*map(_detached, ordered_parameters(model, manifest.parameters))]


def _compare_checkpoint(session: TrainingSession, store: BlobStore, found: _Comparison) -> None:
    """Compare all of a checkpoint except its weights."""
    name = "config.json"
    written = json_object(_read(found.directory / name), name)
    found.note_keys(name, _differing(session.manifest, written))
    # With another number type a program computes another model from the same weights.
    types = {str(written[key]) for key in ("dtype", "torch_dtype") if written.get(key)}
    found.note_keys(name, ["dtype"] if types - {"float32"} else [])
    # Some programs choose the model's class by `architectures`.
    classes = written.get("architectures")
    found.note_keys(
        name, [] if classes in (None, [type(session.model).__name__]) else ["architectures"]
    )
    found.mark_compared(*weights_files(found.directory))
    if isinstance(session.task, ImageClassification):
        expected = json.loads(json.dumps(preprocessing(session.task.settings)))
        found.compare_json(PREPROCESSOR_NAME, expected)
        return
    settings = _compare_tokenizer(session, store, found)
    generation = getattr(session.model, "generation_config", None) is not None
    if settings is None:
        found.mark_unchecked(name, *([GENERATION_NAME] if generation else []))
        return
    found.note_keys(name, (key for key, token in settings.ids.items() if written.get(key) != token))
    if generation:
        expected = {key: token for key, token in settings.ids.items() if token is not None}
        found.compare_json(GENERATION_NAME, expected, _NOT_COMPARED_GENERATION)


def _compare_tokenizer(
    session: TrainingSession, store: BlobStore, found: _Comparison
) -> SettingsFiles | None:
    """Compare the tokenizer's files; return the expected files and ids, or None if this machine does not
    have the swarm's tokenizer."""
    data = session.manifest.data
    if not all(store.has(blob) for blob in (data.tokenizer, data.tokenizer_settings) if blob):
        found.mark_unchecked(TOKENIZER_NAME, TOKENIZER_CONFIG_NAME, CHAT_TEMPLATE_NAME)
        return None
    settings = settings_files(session, store)
    for name, content in settings.files.items():
        if name.endswith(".json") and name != TOKENIZER_NAME:
            found.compare_json(name, json.loads(content))
        else:
            found.compare_bytes(name, content)
    return settings


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
    """Raise `TrainerFailed` (`bad_model`) unless the checkpoint's weights are the base's with this
    adapter merged into them.

    The product of A and B differs between machines in the last bits, so differences of that size are
    allowed (`_ROUNDING`): only the adapter itself is the same to the bit at all members.
    """
    table = adapter.base_parameters
    model = read_checkpoint(directory, model_config(session.manifest.model))
    expected = merged_model(session.manifest, session.model, parameters)
    pairs = zip(ordered_parameters(model, table), ordered_parameters(expected, table), strict=True)
    for spec, (found, wanted) in zip(table, pairs, strict=True):
        tolerance = _ROUNDING * max(float(wanted.detach().abs().max()), 1e-30)
        # Written so that NaN counts as a difference, too.
        if not bool(((found - wanted).abs() <= tolerance).all()):
            raise TrainerFailed(
                "bad_model", f"{spec.name} is not the base's with the adapter added"
            )


def _compare_adapter(
    adapter: AdapterSpec, manifest: Manifest, found: _Comparison, folder: str = ""
) -> None:
    name = folder + ADAPTER_CONFIG_NAME
    expected = adapter_configuration(adapter, manifest.model["model_type"])
    written = json_object(_read(found.directory / name), name)
    targets = written.get("target_modules")
    if isinstance(targets, list) and all(isinstance(each, str) for each in targets):
        # A program that opened and saved the file again may have changed the order.
        written["target_modules"] = sorted(targets)
    keys = {*written, *expected} - _NOT_COMPARED_ADAPTER
    found.note_keys(name, (key for key in keys if written.get(key) != expected.get(key)))
    found.mark_compared(folder + ADAPTER_WEIGHTS_NAME)
    if written.get(_BASE_KEY) is not None:
        # Libraries put the adapter into this model, whatever it is.
        found.mark_unchecked(f"{_BASE_KEY} in {name}")


def _differing(manifest: Manifest, found: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of a written configuration that differ from the manifest's or are missing
    there."""
    # The manifest's configuration as the library writes it, with some keys renamed.
    config = model_config(manifest.model)
    set_class_names(config, manifest)
    expected = both_spellings(json.loads(config.to_json_string(use_diff=False)))
    for key in {*found, *(key for key in manifest.model if key in expected)} - _NOT_COMPARED:
        if key not in expected or found.get(key) != expected[key]:
            yield key
    # Programs name the classes by these, and a default takes the place of a key that is missing.
    for key in ("id2label", "label2id") if is_classifier(config) else ():
        if key not in found:
            yield key


def json_object(written: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object in a model's file of this name. Raises `TrainerFailed` (`bad_model`) if it
    is not one."""
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TrainerFailed("bad_model", f"{name} is not a configuration")
    return found


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(_MAX_JSON_BYTES)
    except OSError as error:
        raise TrainerFailed("bad_model", f"{path.name} cannot be read ({error.strerror})") from None
