"""Choice of a swarm's tokenizer, with its special tokens: the checkpoint's if the swarm starts from one,
else the one that the manifest file names.

A model trained with one tokenizer cannot be used with another: its token ids stand for other text.
So a checkpoint's own tokenizer is used, and any other is refused with an error.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

from ...protocol.wire.structure import StructureError
from ..training.chat import DATE_FUNCTION
from ..training.tokenizer_settings import (
    ROLES,
    TokenizerSettings,
    read_settings,
    read_template,
    with_usual_spellings,
)
from ..util.regular_files import read_regular
from .manifest_file import BYTES_TOKENIZER, ManifestFile, bad_manifest
from .tokens import MAX_TOKENIZER_BYTES, Tokenizer

# A model may have this many times as many rows as there are tokens. Usually it has up to a few hundred
# more, because their number is rounded up.
_MAX_ROWS_PER_TOKEN = 2
# The regular expression with which the tokenizer of Qwen2 splits a text into words.
_QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_file(file: ManifestFile, path: Path) -> Path | None:
    """Return the `tokenizer.json` for the manifest file at `path`; None: the tokens are bytes.

    Raises `UserError` (`MANIFEST`) if the file names another tokenizer than its checkpoint's.
    """
    named_tokenizer = file.data.tokenizer
    checkpoint_tokenizer = _checkpoint(file, path)
    checkpoint_tokenizer = (
        checkpoint_tokenizer / "tokenizer.json" if checkpoint_tokenizer is not None else None
    )
    if checkpoint_tokenizer is None or not checkpoint_tokenizer.is_file():
        return None if named_tokenizer in (None, BYTES_TOKENIZER) else path.parent / named_tokenizer
    if named_tokenizer is not None and not _is_same(
        path.parent / named_tokenizer, checkpoint_tokenizer
    ):
        raise bad_manifest(
            path,
            f"data.tokenizer: {named_tokenizer!r} is not the tokenizer that the checkpoint was trained "
            "with; leave the key out to use the checkpoint's own",
        )
    return checkpoint_tokenizer


def settings_for(
    tokenizer: Tokenizer, source: Path | None, file: ManifestFile, path: Path
) -> TokenizerSettings:
    """Return the tokenizer's settings: which token has which role (start, end …), the chat template and
    its date.

    The tokenizer was read from the file `source`, or its tokens are bytes (None). The roles come from
    the files next to `source`, from `document_end`, or from the tokens' usual names. Raises `UserError`
    (`MANIFEST`) for invalid settings.
    """
    tokens = _tokens(tokenizer.definition)
    try:
        settings = TokenizerSettings() if source is None else read_settings(source.parent)
    except StructureError as error:
        raise bad_manifest(path, f"the tokenizer's {error}") from None
    if file.data.chat_template is not None:
        try:
            template = read_template(path.parent / file.data.chat_template)
        except StructureError as error:
            raise bad_manifest(path, f"data.chat_template: {error}") from None
        settings = replace(settings, chat_template=template)
    settings = replace(settings, chat_date=_chat_date(settings.chat_template, file, path))
    for role in ROLES:
        token = getattr(settings, role)
        if token is not None and token not in tokens:
            raise bad_manifest(
                path, f"the tokenizer has no token {token!r}, which its settings call {role}"
            )
    end = file.data.document_end
    if settings.eos_token is None and end and end in tokens:
        settings = replace(settings, eos_token=end)
    return with_usual_spellings(settings, frozenset(t for t, special in tokens.items() if special))


def _chat_date(template: str | None, file: ManifestFile, path: Path) -> str | None:
    """Return the date for the conversations of a template that writes one, else None."""
    given = file.data.chat_date
    if template is None or DATE_FUNCTION not in template:
        if given is not None:
            raise bad_manifest(
                path, "data.chat_date: the chat template writes no date: leave the key out"
            )
        return None
    try:
        day = date.today() if given is None else date.fromisoformat(given)
    except ValueError:
        raise bad_manifest(
            path, f'data.chat_date: {given!r} is not a date such as "2026-11-28"'
        ) from None
    return day.isoformat()


def tokenizer_warning(model_type: str, definition: bytes) -> str | None:
    """Return the warning for a family of models whose exports transformers would open with another
    tokenizer than the swarm's; None if there is no such problem."""
    if model_type != "qwen2":
        return None
    plain = json.loads(definition)
    steps = (plain.get("pre_tokenizer") or {}).get("pretokenizers") or [{}]
    is_qwen2_split = steps[0].get("pattern") == {"Regex": _QWEN2_PATTERN}
    if is_qwen2_split and plain.get("normalizer") == {"type": "NFC"}:
        return None
    return (
        "AutoTokenizer of transformers 5 splits words like Qwen2's own tokenizer for every model of "
        "the family 'qwen2', and this tokenizer splits them differently: load an export with "
        "PreTrainedTokenizerFast, as its model card shows"
    )


def check_fit(model_vocabulary: int, tokenizer: Tokenizer, file: ManifestFile, path: Path) -> None:
    """Raise `UserError` (`MANIFEST`) if the checkpoint cannot have been trained with this tokenizer."""
    is_too_large = model_vocabulary > _MAX_ROWS_PER_TOKEN * tokenizer.vocabulary
    if _checkpoint(file, path) is not None and is_too_large:
        raise bad_manifest(
            path,
            f"data.tokenizer: the tokenizer has {tokenizer.vocabulary:,} tokens and the checkpoint "
            f"{model_vocabulary:,}, so the model was trained with another tokenizer: give its path",
        )


def _checkpoint(file: ManifestFile, path: Path) -> Path | None:
    named = file.model.get("checkpoint")
    return path.parent / named if isinstance(named, str) else None


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other) or (
            read_regular(one, MAX_TOKENIZER_BYTES) == read_regular(other, MAX_TOKENIZER_BYTES)
        )
    except OSError:
        return False


def _tokens(definition: bytes) -> dict[str, bool]:
    """Return the spelling of every token, and whether it is a special one."""
    plain = json.loads(definition)
    vocabulary = plain["model"].get("vocab", {})
    # Unigram models list pieces with their scores.
    texts = vocabulary if isinstance(vocabulary, dict) else (piece for piece, _ in vocabulary)
    added = plain.get("added_tokens") or ()
    return dict.fromkeys(texts, False) | {
        each["content"]: each.get("special") is True for each in added
    }
