"""The tokens that a `tokenizer.json` adds before and after every text: reading and replacing them.

In a published file a post-processor adds them. A swarm adds its start token or nothing
(`DataSpec.start_token`) before a text, and nothing after a text that is to be continued. The file is
edited as JSON, so that everything else in it stays unchanged; neither torch nor the tokenizers library
is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..util.first_line import first_line

_KEY = "post_processor"
_PARTS = "processors"
_SEQUENCE, _TEMPLATE, _OFFSETS = "Sequence", "TemplateProcessing", "ByteLevel"
_BERT, _ROBERTA = "BertProcessing", "RobertaProcessing"
# Published files have no sequences of sequences.
_MAX_DEPTH = 4
# Errors raised by reading a file of unexpected form: a malicious one, or one of a newer library version.
_FORMAT_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class UnknownPostProcessor(Exception):
    """A post-processor of unknown form."""


@dataclass(frozen=True)
class AddedTokens:
    """The tokens that a tokenizer adds before and after a text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def added_tokens(definition: bytes) -> AddedTokens:
    """Return what a `tokenizer.json` adds to one text. Raises `UnknownPostProcessor`."""
    try:
        return _added(json.loads(definition).get(_KEY))
    except _FORMAT_ERRORS as error:
        raise UnknownPostProcessor(first_line(error)) from None


def with_added_tokens(
    definition: bytes, wanted: AddedTokens, token_texts: Mapping[int, str]
) -> bytes:
    """Return this `tokenizer.json`, changed so that it adds the `wanted` tokens to a text, and to both
    texts of a pair; unchanged if it already does. `token_texts` has the text of each token. Raises
    `UnknownPostProcessor`."""
    if added_tokens(definition) == wanted:
        return definition
    try:
        plain: dict[str, Any] = json.loads(definition)
        parts = [*_offsets(plain.get(_KEY)), *_template(wanted, token_texts)]
        plain[_KEY] = {"type": _SEQUENCE, _PARTS: parts}
        if len(parts) < 2:
            plain[_KEY] = parts[0] if parts else None
        return json.dumps(plain, ensure_ascii=False).encode()
    except _FORMAT_ERRORS as error:
        raise UnknownPostProcessor(first_line(error)) from None


def _added(processor: Any, depth: int = 0) -> AddedTokens:
    if processor is None:
        return AddedTokens()
    kind = processor["type"]
    if kind == _OFFSETS:
        return AddedTokens()
    if kind in (_BERT, _ROBERTA):
        return AddedTokens((int(processor["cls"][1]),), (int(processor["sep"][1]),))
    if kind == _TEMPLATE:
        sides: list[list[int]] = [[]]
        for piece in processor["single"]:
            if "Sequence" in piece:
                sides.append([])
            else:
                sides[-1] += processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
        before, after = sides
        return AddedTokens(tuple(before), tuple(after))
    if kind == _SEQUENCE and depth < _MAX_DEPTH:
        added = AddedTokens()
        for part in processor[_PARTS]:
            # The output of each part is the input of the next.
            outer = _added(part, depth + 1)
            added = AddedTokens(outer.before + added.before, added.after + outer.after)
        return added
    raise UnknownPostProcessor(f"a post-processor of the type {str(kind)[:40]!r} is not known")


def _offsets(processor: Any) -> list[dict[str, Any]]:
    """Return the parts of a post-processor that only adjust offsets."""
    if processor is None:
        return []
    kind = processor["type"]
    if kind == _SEQUENCE:
        return [part for each in processor[_PARTS] for part in _offsets(each)]
    if kind == _OFFSETS:
        return [processor]
    if kind == _ROBERTA:
        trims = {"trim_offsets": processor["trim_offsets"], "use_regex": True}
        return [{"type": _OFFSETS, "add_prefix_space": processor["add_prefix_space"], **trims}]
    return []


def _template(wanted: AddedTokens, token_texts: Mapping[int, str]) -> list[dict[str, Any]]:
    tokens = {*wanted.before, *wanted.after}
    if not tokens:
        return []

    def around(name: str, number: int) -> list[dict[str, Any]]:
        before, after = (
            [{"SpecialToken": {"id": token_texts[token], "type_id": number}} for token in side]
            for side in (wanted.before, wanted.after)
        )
        return [*before, {"Sequence": {"id": name, "type_id": number}}, *after]

    return [
        {
            "type": _TEMPLATE,
            "single": around("A", 0),
            "pair": [*around("A", 0), *around("B", 1)],
            "special_tokens": {
                token_texts[token]: {
                    "id": token_texts[token],
                    "ids": [token],
                    "tokens": [token_texts[token]],
                }
                for token in sorted(tokens)
            },
        }
    ]
