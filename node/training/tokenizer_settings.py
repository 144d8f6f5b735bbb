"""What a `tokenizer.json` lacks: the tokens that begin, end and pad a text, and the chat template.

A founder's checkpoint has these in `tokenizer_config.json`; the swarm carries them as a blob of JSON, so
that an export has them, too. Both come from strangers: they are read within bounds, never run, and
every token is checked against the tokenizer before use. In this module a template is only text.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from ...protocol.wire.structure import Length, StructureError, from_plain
from ..util.regular_files import read_regular

CHAT_TEMPLATE_NAME = "chat_template.jinja"
"""The file in a tokenizer's folder that contains its chat template."""
MAX_SETTINGS_BYTES = 1 << 20
# Published files have some 0.2 MB, most of it for a thousand reserved tokens; this is far above.
_MAX_FILE_BYTES = 16 << 20
ROLES = (
    *("eos_token", "bos_token", "pad_token", "unk_token"),
    *("mask_token", "cls_token", "sep_token"),
)
"""The roles that a token may have."""
# Settings added later: they are not encoded if unset, so that older settings keep their encoding.
_OMITTED_IF_UNSET = ("mask_token", "cls_token", "sep_token", "chat_date")

# By role, the usual spellings of its token in published tokenizers; the first one found is taken.
_USUAL_SPELLINGS: dict[str, tuple[str, ...]] = {
    "eos_token": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]"),
    "bos_token": ("<s>", "<|begin_of_text|>", "<bos>", "<|bos|>", "[BOS]"),
    "pad_token": ("<pad>", "<|pad|>", "[PAD]", "<|padding|>"),
    "unk_token": ("<unk>", "[UNK]"),
    "mask_token": ("[MASK]", "<mask>", "<|mask|>"),
    "cls_token": ("[CLS]",),
    "sep_token": ("[SEP]",),
}

# Classes of tokenizers in transformers that begin every text with the bos_token unless told otherwise.
_CLASSES_ADDING_START = frozenset(
    {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast"}
    | {"GemmaTokenizer", "GemmaTokenizerFast"}
)

_Token = Annotated[str, Length(1, 256)]


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """The spelling of the tokens with a role, and the chat template with its date; None if there is
    none."""

    eos_token: _Token | None = None
    bos_token: _Token | None = None
    pad_token: _Token | None = None
    unk_token: _Token | None = None
    chat_template: Annotated[str, Length(1, 1 << 19)] | None = None
    """A Jinja template, as Hugging Face's tokenizers have it."""
    mask_token: _Token | None = None
    """The token that replaces a masked token."""
    cls_token: _Token | None = None
    sep_token: _Token | None = None
    chat_date: Annotated[str, Length(10, 10)] | None = None
    """The date that the chat template takes for today, such as 2026-11-28: the same for every member, so
    that a conversation is the same text wherever and whenever it is rendered."""

    def encode(self) -> bytes:
        """Encode the settings as a blob, deterministically."""
        plain = asdict(self)
        plain = {
            key: plain[key]
            for key in plain
            if key not in _OMITTED_IF_UNSET or plain[key] is not None
        }
        return json.dumps(plain, sort_keys=True, ensure_ascii=False).encode()


def decode_settings(data: bytes) -> TokenizerSettings:
    """Decode the blob. Raises `StructureError` if it is not valid settings."""
    try:
        plain = json.loads(data) if len(data) <= MAX_SETTINGS_BYTES else None
    except (ValueError, RecursionError):
        plain = None
    if plain is None:
        raise StructureError(
            "", f"the tokenizer's settings are not JSON of at most {MAX_SETTINGS_BYTES >> 20} MB"
        )
    return from_plain(TokenizerSettings, plain, named=True)


def read_settings(directory: Path) -> TokenizerSettings:
    """Read the settings in a checkpoint's directory, from `tokenizer_config.json` and
    `chat_template.jinja`.

    Missing ones are None. Raises `StructureError` for values that are present and invalid.
    """
    config = _read_json(directory / "tokenizer_config.json")
    named = {role: _spelling(config.get(role)) for role in ROLES}
    template = config.get("chat_template")
    if isinstance(template, list):
        # Several, by name: take the default one.
        listed = {each.get("name"): each.get("template") for each in template if type(each) is dict}
        template = listed.get("default")
    path = directory / CHAT_TEMPLATE_NAME
    if path.is_file():
        template = read_template(path)
    return from_plain(TokenizerSettings, named | {"chat_template": template}, named=True)


def read_adds_start(directory: Path) -> bool | None:
    """Return whether a checkpoint's files state that a text begins with the `bos_token`; None if they
    leave that to `tokenizer.json`.

    Raises `StructureError` if the files are unreadable or state neither true nor false.
    """
    config = _read_json(directory / "tokenizer_config.json")
    stated = config.get("add_bos_token")
    if stated is not None and not isinstance(stated, bool):
        raise StructureError("add_bos_token", "must be true or false")
    if stated is None and config.get("tokenizer_class") in _CLASSES_ADDING_START:
        return True
    return stated


def read_template(path: Path) -> str:
    """Read a file with a chat template. Raises `StructureError` if it is unreadable, empty, too long or
    not UTF-8."""
    try:
        data = read_regular(path, MAX_SETTINGS_BYTES)
        text = data.decode("utf-8") if len(data) <= MAX_SETTINGS_BYTES else None
    except OSError as error:
        raise StructureError(path.name, f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        text = None
    if not text:
        raise StructureError(
            path.name,
            f"is not a chat template: it must be text of at most {MAX_SETTINGS_BYTES >> 20} MB",
        )
    return text


def with_usual_spellings(settings: TokenizerSettings, special: frozenset[str]) -> TokenizerSettings:
    """Fill in each unset role with the first of its usual spellings that is among `special`, the special
    tokens of the tokenizer."""
    found = {
        role: next((spelling for spelling in spellings if spelling in special), None)
        for role, spellings in _USUAL_SPELLINGS.items()
        if getattr(settings, role) is None
    }
    return replace(settings, **found)


def _spelling(token: Any) -> Any:
    """Return the spelling of a token, which is a string or a table that contains it."""
    return token.get("content") if isinstance(token, dict) else token


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            return {}
        data = read_regular(path, _MAX_FILE_BYTES)
        plain = json.loads(data) if len(data) <= _MAX_FILE_BYTES else None
    except OSError as error:
        raise StructureError(path.name, f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise StructureError(path.name, "is not a table of JSON")
    return plain
