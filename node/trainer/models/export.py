"""Export of the model as a Hugging Face checkpoint for `AutoModel`, `AutoTokenizer` and `generate`.

Weights and the model's configuration are the swarm's. The ids of the tokens that begin, end and pad a
text follow the swarm's tokenizer, because a configuration's defaults are the ids of another tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Encoding, Tokenizer
from transformers import GenerationConfig, PreTrainedModel

from ....protocol.wire.manifest import AdapterSpec, Manifest
from ....protocol.wire.structure import StructureError
from ...errors import UserError
from ...storage.blob_store import BlobStore
from ...training.architectures import is_bidirectional, longest_sequence
from ...training.chat import BadConversation, BadTemplate, ChatTemplate
from ...training.errors import TrainerFailed
from ...training.gguf_formats import GgufType, gguf_name, unsupported_family
from ...training.post_processor import AddedTokens, added_tokens, with_added_tokens
from ...training.resource_limits import limited
from ...training.tokenizer_settings import (
    CHAT_TEMPLATE_NAME,
    ROLES,
    TokenizerSettings,
    decode_settings,
    with_usual_spellings,
)
from ...util.first_line import first_line
from ..tasks.image_tasks import Diffusion
from ..training_session import TrainingSession
from .adapters import merged_model, peft_config
from .denoisers import Denoiser, write_denoiser
from .exported_config import complete_config

# The keys of a manifest's configuration that name special tokens, and the tokens' roles.
_IDS = {"eos_token_id": "eos_token", "bos_token_id": "bos_token", "pad_token_id": "pad_token"}


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
    base with the adapters merged into it, and the adapters go into its subfolder `MERGED_ADAPTER`. Image
    models are written in the format of `diffusers`.

    Raises `TrainerFailed` with the kind `bad_data` if the tokenizer's blobs are missing or unusable, and
    whatever the libraries raise when the disk is full.
    """
    if isinstance(session.task, Diffusion):
        assert isinstance(session.model, Denoiser)
        write_denoiser(session.model, session.task.settings, directory)
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
        settings_files(session, store).ids, settings, adds_start=bool(_adds_start(manifest))
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
    several = session.manifest.model.get("eos_token_id")
    if isinstance(several, list) and ids["eos_token_id"] in several:
        # Chat models have several: one ends the assistant's messages, another whole texts.
        ids["eos_token_id"] = several
    turn = turn_end(session.manifest, tokenizer, settings)
    if turn is not None and ids["eos_token_id"] not in (turn, None):
        known = (
            ids["eos_token_id"] if isinstance(ids["eos_token_id"], list) else [ids["eos_token_id"]]
        )
        ids["eos_token_id"] = [*known, *({turn} - {*known})]
    longest = longest_sequence(session.model.config.to_dict())
    table = tokenizer_table(
        settings, longest or session.manifest.data.sequence_length, _adds_start(session.manifest)
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


def open_tokenizer(
    manifest: Manifest, store: BlobStore
) -> tuple[bytes, Tokenizer, TokenizerSettings]:
    """Return the `tokenizer.json` of an export, the tokenizer it describes, and the roles of its special
    tokens. The tokenizer is the swarm's; before a text it puts the swarm's start token, or nothing.

    Raises `TrainerFailed` (`bad_data`) if the tokenizer's blobs are missing or unusable.
    """
    definition = store.get(manifest.data.tokenizer)
    if definition is None:
        raise TrainerFailed("bad_data", "the tokenizer's blob is missing")
    try:
        with limited("bad_data", "reading the tokenizer"):
            definition = _as_trained(definition, manifest)
            tokenizer = Tokenizer.from_buffer(definition)
    except TrainerFailed:
        raise
    # The library raises plain Exception for every kind of invalid definition.
    except Exception as error:
        raise TrainerFailed("bad_data", f"the tokenizer cannot be read: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings = TokenizerSettings()
    if manifest.data.tokenizer_settings is not None:
        blob = store.get(manifest.data.tokenizer_settings)
        if blob is None:
            raise TrainerFailed("bad_data", "the tokenizer's settings are missing")
        try:
            settings = decode_settings(blob)
        except StructureError as error:
            raise TrainerFailed("bad_data", f"the tokenizer's settings: {error}") from None
    # The founder may have given special tokens in the model's configuration instead.
    said = {
        role: tokenizer.id_to_token(number)
        for key, role in _IDS.items()
        if type(number := manifest.model.get(key)) is int and number >= 0
    }
    if manifest.data.end_token is not None:
        # The token that ends every document also ends a text.
        said = {"eos_token": tokenizer.id_to_token(manifest.data.end_token)} | said
    said = {
        role: token_text for role, token_text in said.items() if getattr(settings, role) is None
    }
    if _adds_start(manifest) and manifest.data.start_token is not None:
        said |= {"bos_token": tokenizer.id_to_token(manifest.data.start_token)}
    special = tokenizer.get_added_tokens_decoder().values()
    settings = with_usual_spellings(
        replace(settings, **said), frozenset(token.content for token in special if token.special)
    )
    # Programs that train or evaluate on batches need a padding token. Any token serves, because padding
    # is never attended to.
    fallback = settings.pad_token or settings.eos_token or tokenizer.id_to_token(0)
    settings = replace(settings, pad_token=fallback)
    for role in ROLES:
        token_text = getattr(settings, role)
        if token_text is not None and tokenizer.token_to_id(token_text) is None:
            raise TrainerFailed("bad_data", f"the tokenizer has no token {token_text!r} ({role})")
    return definition, tokenizer, settings


def _adds_start(manifest: Manifest) -> bool | None:
    """Return whether the `bos_token` comes before a text; None for models that fill gaps, because they
    have other tokens around a text."""
    if is_bidirectional(manifest.model["model_type"]):
        return None
    return manifest.data.start_token is not None


def _as_trained(definition: bytes, manifest: Manifest) -> bytes:
    """Return a `tokenizer.json` that puts before a text the start token that begins documents in
    training, if any. After a text it puts nothing, because a prompt is continued; only for models that
    fill gaps it keeps the tokens that the swarm's tokenizer puts there."""
    start = manifest.data.start_token
    reader = Tokenizer.from_buffer(definition)
    own = added_tokens(definition)
    after = own.after if is_bidirectional(manifest.model["model_type"]) else ()
    wanted = AddedTokens(() if start is None else (start,), after)
    token_text = {}
    for token in (*wanted.before, *wanted.after):
        text = reader.id_to_token(token)
        if text is None:
            raise TrainerFailed("bad_data", f"the tokenizer has no token {token}")
        token_text[token] = text
    return with_added_tokens(definition, wanted, token_text)


def tokenise(tokenizer: Tokenizer, text: str, *, add_special: bool = False) -> Encoding:
    """Split a text into tokens; with `add_special` add the special tokens that the tokenizer puts around
    it.

    Raises `TrainerFailed` (`bad_data`) if it takes too long or fails, as a regular expression in the
    tokenizer may.
    """
    try:
        with limited("bad_data", "tokenising the text"):
            return tokenizer.encode(text, add_special_tokens=add_special)
    # A panic of the library's Rust code arrives in Python as this type, which has no importable name.
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        problem = first_line(error, empty="the library failed")
        raise TrainerFailed(
            "bad_data", f"the tokenizer cannot tokenise the text: {problem}"
        ) from None


def special_ids(tokenizer: Tokenizer, settings: TokenizerSettings) -> dict[str, int | None]:
    """Return the token ids for a configuration's keys (`_IDS`); None if there is no such token."""
    named = {role: getattr(settings, role) for role in ROLES}
    return {
        key: None if (token_text := named[role]) is None else tokenizer.token_to_id(token_text)
        for key, role in _IDS.items()
    }


def turn_end(manifest: Manifest, tokenizer: Tokenizer, settings: TokenizerSettings) -> int | None:
    """Return the id of the special token that ends an assistant's message, in a swarm that learns from
    conversations; None if there is none. It may differ from the tokenizer's end token, which ends
    whole texts."""
    if not manifest.data.trains_on_conversations or settings.chat_template is None:
        return None
    asked = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
    try:
        with limited("bad_data", "rendering the chat template"):
            said = ChatTemplate(settings).conversation(asked)
    except (BadTemplate, BadConversation, UserError):
        return None
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    encoded = tokenise(tokenizer, said.text)
    start, stop = said.spans[-1]
    ending = [
        token
        for token, (_, end) in zip(encoded.ids, encoded.offsets, strict=True)
        if start < end <= stop and token in special
    ]
    return ending[-1] if ending else None


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
