"""The start token of documents: the founder's choice, or what the tokenizer does by itself.

The same choice holds for data, generation and export (`DataSpec.start_token`). How a conversation starts
follows from the chat template.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...protocol.wire.structure import StructureError
from ..training.architectures import is_bidirectional
from ..training.chat import SIMPLEST_CONVERSATION, BadConversation, BadTemplate, ChatTemplate
from ..training.tokenizer_settings import TokenizerSettings, read_adds_start
from .manifest_file import ManifestFile, bad_manifest
from .tokens import FileTokenizer, Tokenizer

_NEED_ONE = frozenset({"gemma", "gemma2", "gemma3_text"})
"""Families that were pretrained with a start token before every text and fail without it."""
_CONFIG_KEY = "bos_token_id"
_CHOSEN = "set by document_start"


@dataclass(frozen=True)
class DocumentStart:
    """The token before every document, if any, and the reason."""

    token: int | None
    """The token's id; None: documents get none."""
    text: str | None
    """The text of the token."""
    reason: str
    """Why documents get this token or none, in words for the founder."""
    known: int | None = None
    """The tokenizer's start token, whether or not documents get it."""

    def line(self, end: str | None) -> str:
        """Return the line for the founder; `end` spells the token after a document."""
        first = "no token of its own" if self.text is None else self.text
        last = "" if end is None else f" and ends with {end}"
        return f"a document starts with {first} ({self.reason}){last}"

    def warning(self, model_type: str, *, conversations: bool) -> str | None:
        """Return the warning for a family of models that needs a start token and has none, else None."""
        if self.token is not None or model_type not in _NEED_ONE:
            return None
        remedy = "put {{ bos_token }} first in the chat template"
        if not conversations:
            remedy = 'set document_start = "bos" in [data]'
        return (
            f"models of the family {model_type!r} need a start token before every text and "
            f"perform badly without it: {remedy}"
        )


def document_start(
    file: ManifestFile,
    path: Path,
    tokenizer: Tokenizer,
    source: Path | None,
    special: TokenizerSettings,
    model: dict[str, Any],
    chat: ChatTemplate | None,
) -> DocumentStart:
    """Return the start token for the founder's file at `path`. The tokenizer was read from `source`;
    None: the tokens are bytes.

    Raises `UserError` (`MANIFEST`) for a choice that the tokenizer or the chat template does not allow.
    """
    wanted = file.data.document_start
    if source is None or not isinstance(tokenizer, FileTokenizer):
        if wanted == "bos":
            raise bad_manifest(
                path,
                "data.document_start: bytes have no token that starts a text; leave the key out, or "
                "name a tokenizer.json",
            )
        return DocumentStart(None, None, "bytes have none")
    own = tokenizer.starts_with()
    token = _start_token(file, tokenizer, own, special, model)
    if chat is not None:
        return _of_conversations(wanted, path, tokenizer, token, chat)
    if wanted == "none":
        return DocumentStart(None, None, _CHOSEN, token)
    if wanted == "bos":
        if token is None:
            raise bad_manifest(
                path,
                "data.document_start: the tokenizer names no token that starts a text; name one as "
                "bos_token in the tokenizer_config.json next to it",
            )
        return DocumentStart(token, tokenizer.text_of(token), _CHOSEN)
    try:
        adds = None if is_bidirectional(model["model_type"]) else read_adds_start(source.parent)
    except StructureError as error:
        raise bad_manifest(path, f"the tokenizer's {error}") from None
    if adds is None and len(own) > 1:
        return DocumentStart(
            None, None, f"the tokenizer puts {len(own)} tokens there, and only one is possible"
        )
    if token is None or not (adds if adds is not None else own):
        return DocumentStart(None, None, "the tokenizer adds none", token)
    return DocumentStart(token, tokenizer.text_of(token), "the tokenizer adds it")


def _start_token(
    file: ManifestFile,
    tokenizer: FileTokenizer,
    own: tuple[int, ...],
    special: TokenizerSettings,
    model: dict[str, Any],
) -> int | None:
    """Return the token that can start a document: the one that the tokenizer adds, or that its settings
    or the model's configuration name. `own` are the tokens that the tokenizer adds before a text."""
    if len(own) == 1:
        return own[0]
    roles = (special.bos_token, special.cls_token)
    for text in reversed(roles) if is_bidirectional(model["model_type"]) else roles[:1]:
        if text is not None:
            return tokenizer.id_of(text)
    number = model.get(_CONFIG_KEY)
    known = type(number) is int and tokenizer.text_of(number) is not None
    return number if known else None


def _of_conversations(
    wanted: str | None, path: Path, tokenizer: FileTokenizer, token: int | None, chat: ChatTemplate
) -> DocumentStart:
    """Return the token with which the template starts a conversation; none if that is not `token`."""
    writes = token is not None and _first_token(tokenizer, chat) == token
    text = None if token is None else tokenizer.text_of(token)
    if wanted == "bos" and not writes:
        named = "a start token" if text is None else repr(text)
        raise bad_manifest(
            path,
            "data.document_start: the chat template decides how conversations start, and it does "
            f"not begin with {named}: put {{{{ bos_token }}}} first in the template",
        )
    if wanted == "none" and writes:
        raise bad_manifest(
            path,
            "data.document_start: the chat template decides how conversations start, and it begins "
            f"with {text!r}: remove it from the template",
        )
    if writes:
        return DocumentStart(token, text, "the chat template writes it")
    return DocumentStart(None, None, "the chat template writes none")


def _first_token(tokenizer: FileTokenizer, chat: ChatTemplate) -> int | None:
    """Return the first token of a conversation; None if the template refuses the simplest one."""
    for messages, prompt in ((SIMPLEST_CONVERSATION, False), (SIMPLEST_CONVERSATION[:1], True)):
        try:
            text = chat.text(messages, prompt=prompt)
        except (BadConversation, BadTemplate):
            continue
        return tokenizer.first_token(text)
    return None
