"""Export of the model as a Hugging Face checkpoint for `AutoModel`, `AutoTokenizer` and `generate`.

Weights and the model's configuration are the swarm's. The ids of the tokens that begin, end and pad a
text follow the swarm's tokenizer, because a configuration's defaults are the ids of another tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedModel

from ....protocol.wire.manifest import AdapterSpec
from ...storage.blob_store import BlobStore
from ...training.architectures import longest_sequence
from ...training.errors import TrainerFailed
from ...training.gguf_formats import GgufType, gguf_name, unsupported_family
from ...training.tokenizer_settings import (
    CHAT_TEMPLATE_NAME,
    ROLES,
    TokenizerSettings,
)
from ..tasks.classification_tasks import ImageClassification
from ..tasks.image_tasks import Diffusion
from ..training_session import TrainingSession
from .adapters import merged_model, peft_config
from .classifiers import is_classifier, write_preprocessing
from .denoisers import Denoiser, write_denoiser
from .exported_config import complete_config
from .swarm_tokenizer import adds_start, end_ids, open_tokenizer, special_ids

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
ADAPTER_CONFIG_NAME = "adapter_config.json"
ADAPTER_WEIGHTS_NAME = "adapter_model.safetensors"
ADAPTER_PREFIX = "base_model.model."
"""The prefix that peft puts before the names of an adapter's parameters in a file."""
MERGED_ADAPTER = "adapter"
"""The folder, in a directory of merged weights, of the adapter that was merged into them."""


def export(
    session: TrainingSession, store: BlobStore, directory: Path, *, merged: bool = False
) -> None:
    """Write weights (safetensors), the model's and the generation configuration, and the tokenizer's
    files into `directory`.

    Adapters are written in the format of `peft`. With `merged`, `directory` gets a checkpoint of the
    base with the adapters merged into it, and the adapters go into its subfolder `MERGED_ADAPTER`.
    Models that draw images are written in the format of `diffusers`; those that classify images have
    the settings of an image processor instead of a tokenizer.

    Raises `TrainerFailed` with the kind `bad_data` if the tokenizer's blobs are missing or unusable, and
    whatever the libraries raise when the disk is full.
    """
    if isinstance(session.task, Diffusion):
        assert isinstance(session.model, Denoiser)
        write_denoiser(session.model, session.task.settings, directory)
        return
    if isinstance(session.task, ImageClassification):
        directory.mkdir(parents=True, exist_ok=True)
        _write_checkpoint(session.model, {}, directory)
        write_preprocessing(session.task.settings, directory)
        return
    settings = settings_files(session, store)
    directory.mkdir(parents=True, exist_ok=True)
    adapter = session.manifest.adapter
    if adapter is None:
        _write_checkpoint(session.model, settings.ids, directory)
    elif merged:
        whole = merged_model(session.manifest, session.model, session.parameters)
        _write_checkpoint(whole, settings.ids, directory)
        (directory / MERGED_ADAPTER).mkdir()
        _write_adapter(session, adapter, directory / MERGED_ADAPTER)
    else:
        _write_adapter(session, adapter, directory)
    for name, content in settings.files.items():
        (directory / name).write_bytes(content)


def export_gguf(
    session: TrainingSession, store: BlobStore, directory: Path, kind: GgufType, description: str
) -> None:
    """Write the model into `directory` as one GGUF file for llama.cpp, adapters merged into their base.

    Raises `TrainerFailed`: `not_convertible` for a model or tokenizer that llama.cpp lacks, or if the
    package gguf is missing; `bad_data` as `export` does.
    """
    try:
        # An extra: most exports do without.
        from .gguf_export import TextTokens, write_gguf
    except ImportError as error:
        raise TrainerFailed(
            "not_convertible",
            f"the package gguf is missing ({error}): pip install 'distro-node[gguf]'",
        ) from None
    manifest = session.manifest
    problem = unsupported_family(manifest.model["model_type"])
    if problem is not None or not isinstance(session.model, PreTrainedModel):
        raise TrainerFailed("not_convertible", problem or "it is no language model")
    definition, _, settings = open_tokenizer(manifest, store)
    roles = TextTokens(
        settings_files(session, store).ids, settings, adds_start=bool(adds_start(manifest))
    )
    model = session.model
    if manifest.adapter is not None:
        model = merged_model(manifest, model, session.parameters)
    directory.mkdir(parents=True, exist_ok=True)
    write_gguf(
        *(model, definition, roles, directory / gguf_name(kind), kind),
        name=manifest.name,
        description=description,
    )


@dataclass(frozen=True)
class SettingsFiles:
    """The part of an export that follows from the swarm's tokenizer."""

    files: dict[str, bytes]
    """The tokenizer's files by name."""
    ids: dict[str, Any]
    """The token ids for the keys `bos_token_id`, `eos_token_id` and `pad_token_id` in `config.json` and
    `generation_config.json`; None for a token that does not exist."""


def settings_files(session: TrainingSession, store: BlobStore) -> SettingsFiles:
    """Return the tokenizer's files and the ids of special tokens: the same on every machine.

    Raises `TrainerFailed` (`bad_data`) if the tokenizer's blobs are missing or unusable.
    """
    definition, tokenizer, settings = open_tokenizer(session.manifest, store)
    ids: dict[str, Any] = special_ids(tokenizer, settings)
    ends = end_ids(session.manifest, tokenizer, settings)
    if ends:
        ids["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    longest = longest_sequence(session.model.config.to_dict())
    if is_classifier(session.model.config):
        # A sample is a class and a text, and longer texts are cut: programs then cut where training did.
        longest = session.manifest.data.sequence_length - 1
    table = tokenizer_table(
        settings, longest or session.manifest.data.sequence_length, adds_start(session.manifest)
    )
    written = json.dumps(table, indent=2, ensure_ascii=False) + "\n"
    files = {TOKENIZER_NAME: definition, TOKENIZER_CONFIG_NAME: written.encode()}
    if settings.chat_template is not None:
        files[CHAT_TEMPLATE_NAME] = settings.chat_template.encode()
    return SettingsFiles(files, ids)


def adapter_configuration(adapter: AdapterSpec, model_type: str) -> dict[str, Any]:
    """Return the contents of `adapter_config.json`."""
    said = peft_config(adapter, model_type).to_dict()
    # peft keeps the targets in a set, whose order changes from one process to the next.
    said["target_modules"] = list(adapter.targets)
    said["inference_mode"] = True
    return json.loads(json.dumps(said))


def _write_adapter(session: TrainingSession, adapter: AdapterSpec, directory: Path) -> None:
    tensors = {
        ADAPTER_PREFIX + spec.name: parameter.detach().cpu().contiguous()
        for spec, parameter in zip(session.manifest.parameters, session.parameters, strict=True)
    }
    save_file(tensors, directory / ADAPTER_WEIGHTS_NAME, metadata={"format": "pt"})
    said = adapter_configuration(adapter, session.manifest.model["model_type"])
    (directory / ADAPTER_CONFIG_NAME).write_text(
        json.dumps(said, indent=2) + "\n", encoding="utf-8"
    )


def _write_checkpoint(model: PreTrainedModel, ids: dict[str, Any], directory: Path) -> None:
    before = {key: getattr(model.config, key, None) for key in ids}
    # Masked language models, which fill gaps, have no generation configuration.
    generation = getattr(model, "generation_config", None)
    try:
        for key, number in ids.items():
            setattr(model.config, key, number)
        if generation is not None:
            model.generation_config = GenerationConfig(**ids)
        model.save_pretrained(directory, safe_serialization=True)
        path = directory / "config.json"
        said = json.loads(path.read_text(encoding="utf-8")) | complete_config(model.config)
        path.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    finally:
        for key, number in before.items():
            setattr(model.config, key, number)
        if generation is not None:
            model.generation_config = generation


def tokenizer_table(
    settings: TokenizerSettings, longest: int, adds_start: bool | None
) -> dict[str, Any]:
    """Return the contents of `tokenizer_config.json`. `longest`: the model's context length in tokens.
    `adds_start`: whether the `bos_token` comes before a text, for programs that take this from here and
    not from `tokenizer.json`; None: not stated."""
    named = {role: getattr(settings, role) for role in ROLES}
    return {
        # Without this key AutoTokenizer would guess a class from the model's type.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
        **({} if adds_start is None else {"add_bos_token": adds_start, "add_eos_token": False}),
        **{role: token_text for role, token_text in named.items() if token_text is not None},
    }
