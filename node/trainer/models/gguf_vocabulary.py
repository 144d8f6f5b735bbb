"""A swarm's tokenizer as llama.cpp has it: pieces, their kinds and scores, and how text is split.

llama.cpp tokenises by code of its own, of which a file names the variant: GPT-2's merges in a text split
by one of a few regular expressions, SentencePiece's scores of pairs, or a unigram model. A tokenizer
that no variant reproduces is refused, because the model would read other tokens than it was trained on.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gguf import GGUFWriter, TokenType
from tokenizers import AddedToken, Tokenizer

from .gguf_families import not_convertible

_SPACE = "▁"
"""The character that stands for a space in SentencePiece's pieces."""
_SUPPORTED = (
    "supported are byte-level BPE (as of GPT-2, Llama 3, Qwen 2, SmolLM, Mistral Nemo, GPT-4o), "
    "SentencePiece's BPE with byte fallback (as of Llama 2, Mistral, Gemma) and unigram models "
    "without it"
)
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# The token of the byte 0xFF, which is in no UTF-8 text, by llama.cpp's name of the algorithm.
_NO_TEXT = {"gpt2": "ÿ", "llama": _BYTES[0xFF]}
# llama.cpp refuses a file without merges. This one applies to nothing, because texts begin as single
# characters.
_NO_MERGES = ("<none> <none>",)
# Unused rows of the embedding come last in everything that is ordered by score.
_UNUSED_SCORE = -1e9

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASHED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_GPT2, _DIGITS = "gpt-2", "digits"
# llama.cpp's names of the ways to split a text. A key has the steps that split it, and whether a word
# that is in the vocabulary is taken whole. The expressions are those in published tokenizers.
_SPLITS: dict[tuple[tuple[str, ...], bool], str] = {
    ((_GPT2,), False): "gpt-2",
    ((_DIGITS, _GPT2), False): "smollm",
    ((f"{_SUFFIXES}|{_WORDS}|\\p{{N}}|{_REST}",), False): "qwen2",
    ((f"{_SUFFIXES}|{_WORDS}|\\p{{N}}{{1,3}}|{_REST}",), True): "llama-bpe",
    ((f"{_SUFFIXES}|{_WORDS}|\\p{{N}}{{1,3}}|{_REST}",), False): "smaug-bpe",
    (
        (f"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\\p{{N}}|{_SLASHED_REST}",),
        True,
    ): "tekken",
    (
        (
            f"{_START}{_UPPER}*{_LOWER}+{_SUFFIXES}?|{_START}{_UPPER}+{_LOWER}*{_SUFFIXES}?"
            f"|\\p{{N}}{{1,3}}|{_SLASHED_REST}",
        ),
        False,
    ): "gpt-4o",
}


@dataclass
class Vocabulary:
    """What a GGUF file states about a tokenizer."""

    model: str
    """llama.cpp's name of the algorithm."""
    tokens: list[str]
    kinds: list[TokenType]
    split: str = "default"
    """llama.cpp's name of the expressions that split a text."""
    merges: Sequence[str] = ()
    scores: list[float] = field(default_factory=list)
    space_first: bool | None = None
    """Whether a text gets a space before it; None for byte-level BPE."""
    merges_spaces: bool = False
    """Whether several spaces in a row become one, in a unigram model."""
    character_map: bytes = b""
    """SentencePiece's table of replaced characters."""

    def write(self, writer: GGUFWriter) -> None:
        """Add the vocabulary to a file's metadata."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.split)
        writer.add_token_list(self.tokens)
        writer.add_token_types([int(kind) for kind in self.kinds])
        if self.merges:
            writer.add_token_merges(self.merges)
        if self.scores:
            writer.add_token_scores(self.scores)
        if TokenType.UNKNOWN in self.kinds:
            writer.add_unk_token_id(self.kinds.index(TokenType.UNKNOWN))
        if self.space_first is not None:
            writer.add_add_space_prefix(self.space_first)
        if self.model == "t5":
            writer.add_remove_extra_whitespaces(self.merges_spaces)
        if self.character_map:
            writer.add_precompiled_charsmap(self.character_map)

    def never_written(self) -> int | None:
        """Return a token that texts do not contain, to be the end token of a tokenizer that has none:
        if a file names none, llama.cpp takes a fixed token id. None if there is no such token."""
        if TokenType.UNUSED in self.kinds:
            return self.kinds.index(TokenType.UNUSED)
        byte = _NO_TEXT.get(self.model)
        if byte in self.tokens:
            return self.tokens.index(byte)
        # Unigram models have no bytes. Their unknown token stands for characters outside the vocabulary,
        # which texts hardly contain.
        return self.kinds.index(TokenType.UNKNOWN) if TokenType.UNKNOWN in self.kinds else None


def vocabulary(definition: bytes, size: int) -> Vocabulary:
    """Return the vocabulary of a `tokenizer.json`, an entry for each of the embedding's `size` rows.

    Raises `TrainerFailed` (`not_convertible`) for a tokenizer that llama.cpp cannot reproduce.
    """
    tokenizer = Tokenizer.from_buffer(definition)
    # Written again, because older files leave out types and write merges in another way.
    described = json.loads(tokenizer.to_str())
    known = tokenizer.get_vocab(with_added_tokens=True)
    if max(known.values(), default=0) >= size:
        raise _unsupported(f"its tokens do not fit the model's {size:,}")
    tokens = [f"[PAD{number}]" for number in range(size)]
    kinds = [TokenType.UNUSED] * size
    for token, number in known.items():
        tokens[number], kinds[number] = token, TokenType.NORMAL
    for number, added in tokenizer.get_added_tokens_decoder().items():
        _check_added(added)
        kinds[number] = TokenType.CONTROL if added.special else TokenType.USER_DEFINED
    if len({*tokens}) != size or "" in known:
        raise _unsupported("two of its tokens are written alike, or one is empty")
    found = Vocabulary("", tokens, kinds)
    kind = described["model"].get("type")
    if kind == "BPE":
        _check_plain(described["model"])
        if described["model"].get("byte_fallback"):
            _sentencepiece(described, found)
        else:
            _byte_level(described, found)
    elif kind == "Unigram":
        _unigram(described, found)
    else:
        raise _unsupported(f"its model is of the kind {str(kind)[:40]!r}")
    return found


def _check_added(token: AddedToken) -> None:
    """Raise for an added token that takes the white space beside it, or counts only as a whole word.
    A file cannot state that: llama.cpp guesses it from the names of some models."""
    for key in ("lstrip", "rstrip", "single_word"):
        if getattr(token, key):
            raise _unsupported(f"its token {token.content[:80]!r} has {key}")


def _byte_level(described: Mapping[str, Any], found: Vocabulary) -> None:
    normalizers = [each.get("type") for each in _steps(described["normalizer"], "normalizers")]
    # Qwen's tokenizers normalise to NFC. llama.cpp does not: most text is in NFC as it is typed.
    if [kind for kind in normalizers if kind != "NFC"]:
        raise _unsupported(f"it normalises texts by {', '.join(map(str, normalizers))[:80]}")
    steps = _splits(_steps(described["pre_tokenizer"], "pretokenizers"))
    merges = _merges(described["model"])
    found.model = "gpt2"
    found.merges = [f"{left} {right}" for left, right in merges] or _NO_MERGES
    if not merges:
        # Every text is cut into single bytes, however it was split before.
        found.split = _SPLITS[(_GPT2,), False]
        return
    split = _SPLITS.get((steps, bool(described["model"].get("ignore_merges"))))
    if split is None:
        raise _unsupported("it splits texts by other expressions than those llama.cpp has")
    found.split = split


def _splits(steps: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the steps that split a text for byte-level BPE."""
    found: list[str] = []
    has_byte_level = False
    for step in steps:
        kind = step.get("type")
        if kind == "ByteLevel" and not step.get("add_prefix_space"):
            has_byte_level = True
            found += [_GPT2] if step.get("use_regex", True) else []
        elif kind == "Digits" and step.get("individual_digits"):
            found.append(_DIGITS)
        elif (
            kind == "Split"
            and isinstance(step.get("pattern"), dict)
            and step.get("behavior") == "Isolated"
            and not step.get("invert")
        ):
            found.append(str(step["pattern"].get("Regex")))
        else:
            raise _unsupported(f"it splits texts by {str(kind)[:40]!r}")
    if not has_byte_level:
        raise _unsupported("its BPE has neither bytes for letters nor byte fallback")
    return tuple(found)


def _sentencepiece(described: Mapping[str, Any], found: Vocabulary) -> None:
    found.model = "llama"
    found.space_first, whole_words = _spaces(described)
    numbers = {token: number for number, token in enumerate(found.tokens)}
    if any(byte not in numbers for byte in _BYTES):
        raise _unsupported("it lacks tokens for some bytes")
    for byte in _BYTES:
        found.kinds[numbers[byte]] = TokenType.BYTE
    unknown = described["model"].get("unk_token")
    if unknown in numbers:
        found.kinds[numbers[unknown]] = TokenType.UNKNOWN
    merges = _merges(described["model"])
    ranks: dict[str, list[int]] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, []).append(rank)
    _check_scores(described["model"]["vocab"], merges, ranks, found, whole_words)
    found.scores = [
        _UNUSED_SCORE if kind == TokenType.UNUSED else -float(ranks.get(token, [len(merges)])[0])
        for token, kind in zip(found.tokens, found.kinds, strict=True)
    ]


def _check_scores(
    pieces: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    ranks: Mapping[str, Sequence[int]],
    found: Vocabulary,
    whole_words: bool,
) -> None:
    """Raise unless scores of pieces give the same result as merges. For that, every two pieces that
    together make a piece must be a merge, and the merges that make one piece must be consecutive."""
    pairs = {*merges}
    for piece, number in pieces.items():
        if found.kinds[number] != TokenType.NORMAL:
            continue
        if whole_words and _SPACE in piece[1:]:
            raise _unsupported("it splits words before it merges, and has pieces across words")
        # llama.cpp's merges start from characters, so a piece may be cut anywhere.
        cuts = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        listed = ranks.get(piece, ())
        if any(a in pieces and b in pieces and (a, b) not in pairs for a, b in cuts) or (
            listed and listed[-1] - listed[0] + 1 != len(listed)
        ):
            raise _unsupported("its merges do not follow from an order of its pieces")


def _spaces(described: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether a text gets a space before it, and whether it is split into words before merges.
    Raises for a treatment of spaces that is not SentencePiece's."""
    normalizers = _steps(described["normalizer"], "normalizers")
    splitters = _steps(described["pre_tokenizer"], "pretokenizers")
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepended = {"type": "Prepend", "prepend": _SPACE}
    # Gemma's pre-tokenizer splits at spaces, but the normalizer has replaced them all.
    idle = [{"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}]
    if normalizers in ([replaced], [prepended, replaced]):
        # A flag that is false is the same as a missing one.
        if [{k: v for k, v in each.items() if v is not False} for each in splitters] in ([], idle):
            return len(normalizers) == 2, False
    elif not normalizers and [each.get("type") for each in splitters] == ["Metaspace"]:
        (metaspace,) = splitters
        if metaspace.get("replacement") == _SPACE:
            scheme = metaspace.get("prepend_scheme", "always")
            # llama.cpp puts a space after each special token, too.
            if scheme == "first":
                raise _unsupported("its Metaspace has prepend_scheme 'first'")
            return scheme != "never", metaspace.get("split", True)
    raise _unsupported("it treats spaces in another way than SentencePiece")


def _unigram(described: Mapping[str, Any], found: Vocabulary) -> None:
    model = described["model"]
    if model.get("byte_fallback"):
        raise _unsupported("it is a unigram model with byte fallback")
    splitters = _steps(described["pre_tokenizer"], "pretokenizers")
    if [each.get("type") for each in splitters] != ["Metaspace"]:
        raise _unsupported("it treats spaces in another way than SentencePiece")
    found.model = "t5"
    # The normalizer is read below; it leaves the spaces to the pre-tokenizer.
    found.space_first, whole_words = _spaces(dict(described) | {"normalizer": None})
    for step in _steps(described["normalizer"], "normalizers"):
        kind, pattern = step.get("type"), step.get("pattern")
        if kind == "Precompiled":
            found.character_map = base64.b64decode(step["precompiled_charsmap"])
        elif (
            kind == "Replace" and pattern == {"Regex": " {2,}"} and step["content"] in (" ", _SPACE)
        ):
            found.merges_spaces = True
        else:
            raise _unsupported(f"it normalises texts by {str(kind)[:40]!r}")
    found.scores = [_UNUSED_SCORE] * len(found.tokens)
    for number, (piece, score) in enumerate(model["vocab"]):
        if whole_words and _SPACE in piece[1:] and found.kinds[number] == TokenType.NORMAL:
            raise _unsupported("it splits words before it looks for pieces across words")
        found.scores[number] = float(score)
    if model.get("unk_id") is None:
        raise _unsupported("it has no token for unknown characters")
    found.kinds[model["unk_id"]] = TokenType.UNKNOWN


def _check_plain(model: Mapping[str, Any]) -> None:
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            raise _unsupported(f"its merges have a {key}")


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the merges in their order."""
    return [(left, right) for left, right in model["merges"]]


def _steps(described: Mapping[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer, which may be none, one or a sequence; `key`
    names the list of a sequence's steps."""
    if described is None:
        return []
    if described.get("type") == "Sequence":
        return [step for each in described[key] for step in _steps(each, key)]
    return [dict(described)]


def _unsupported(problem: str) -> Exception:
    return not_convertible(f"llama.cpp cannot reproduce its tokenizer: {problem}; {_SUPPORTED}")
