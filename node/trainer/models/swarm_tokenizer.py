"""The swarm's tokenizer in the trainer, for exports, prompts and generation."""

from __future__ import annotations

from dataclasses import replace

from tokenizers import Encoding, Tokenizer

from ....protocol.wire.manifest import Manifest
from ....protocol.wire.structure import StructureError
from ...errors import UserError
from ...storage.blob_store import BlobStore
from ...training.architectures import is_bidirectional
from ...training.chat import BadConversation, BadTemplate, ChatTemplate, special_token_end
from ...training.errors import TrainerFailed
from ...training.post_processor import AddedTokens, added_tokens, with_added_tokens
from ...training.resource_limits import limited
from ...training.tokenizer_settings import (
    ROLES,
    TokenizerSettings,
    decode_settings,
    with_usual_spellings,
)
from ...util.first_line import first_line

# The keys of a manifest's configuration that name special tokens, and the tokens' roles.
_IDS = {"eos_token_id": "eos_token", "bos_token_id": "bos_token", "pad_token_id": "pad_token"}


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
    if adds_start(manifest) and manifest.data.start_token is not None:
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


def text_ends(
    manifest: Manifest, tokenizer: Tokenizer, settings: TokenizerSettings
) -> frozenset[int]:
    """Return the tokens that end a text that the model writes."""
    return frozenset(end_ids(manifest, tokenizer, settings))


def end_ids(manifest: Manifest, tokenizer: Tokenizer, settings: TokenizerSettings) -> list[int]:
    """Return the tokens that end a text, those of the tokenizer or the model's configuration first."""
    own = special_ids(tokenizer, settings)["eos_token_id"]
    # Chat models list several: one ends messages of the assistant, another whole texts. A list without
    # the end token of the tokenizer is of another tokenizer.
    listed = manifest.model.get("eos_token_id")
    ends = [*listed] if isinstance(listed, list) and own in listed else [own]
    if manifest.data.trains_on_conversations:
        ends.append(_turn_end(tokenizer, settings))
    else:
        ends.append(manifest.data.end_token)
    return [*dict.fromkeys(token for token in ends if type(token) is int)]


def _turn_end(tokenizer: Tokenizer, settings: TokenizerSettings) -> int | None:
    """Return the id of the special token that ends an assistant's message; None if there is none. It may
    differ from the tokenizer's end token, which ends whole texts."""
    if settings.chat_template is None:
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
        for token, offsets in zip(encoded.ids, encoded.offsets, strict=True)
        if token in special and start < special_token_end(said.text, *offsets) <= stop
    ]
    return ending[-1] if ending else None


def adds_start(manifest: Manifest) -> bool | None:
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
