"""Tokenizers for the founder: from bytes to token ids, and the `tokenizer.json` for the swarm.

There are two kinds: a byte-level tokenizer, whose ids are the byte values, and any tokenizer that a
`tokenizer.json` of the Hugging Face library `tokenizers` describes. This module loads that library, but
neither torch nor transformers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from ..errors import ExitCode, UserError
from ..training.post_processor import UnknownPostProcessor, added_tokens
from ..util.regular_files import open_regular, read_regular

# A tokenizer is one blob, and a blob has at most 16 MiB. The largest `tokenizer.json` files, with some
# 256,000 tokens and their merges, exceed that and are refused.
MAX_TOKENIZER_BYTES = 16 << 20

TokenBytes = Literal[1, 2, 4]

# Bytes of text that the library processes at once: its data on each token, and on each byte while it
# splits words, take some 150 times as much memory as the text.
ENCODED_BYTES = 1 << 17

# End-of-document tokens of well-known tokenizers, used for a tokenizer that does not state its own.
_END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<｜end▁of▁sentence｜>",
    "[SEP]",
)
# The most bytes of `tokenizer_config.json` that are read; chat templates make some of them long.
_MAX_CONFIG_BYTES = 4 << 20


class Tokenizer(Protocol):
    """What the corpus needs of a tokenizer."""

    vocabulary: int
    """One more than the largest token id."""
    definition: bytes
    """The `tokenizer.json`."""

    @property
    def token_bytes(self) -> TokenBytes:
        """Bytes in which a token is stored: 1, 2 or 4."""
        ...

    needs_utf8: bool
    """Whether a text must be UTF-8."""

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Return the token ids of each text. Raises `UnicodeDecodeError` if the tokenizer needs UTF-8
        and a text is not UTF-8."""
        ...

    def line_ends(self) -> np.ndarray:
        """Return for each token whether it ends a line: bool (vocabulary,)."""
        ...

    def end_token(self) -> str | None:
        """Return the text of the token that ends a document, if the tokenizer states it."""
        ...


class ByteTokenizer:
    """Every byte is a token whose id is the byte's value: any file can be trained on."""

    vocabulary = 256
    token_bytes: TokenBytes = 1
    needs_utf8 = False

    def __init__(self) -> None:
        self.definition = _byte_level_definition()

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Return the bytes themselves."""
        return [np.frombuffer(text, np.uint8) for text in texts]

    def line_ends(self) -> np.ndarray:
        """Return the line ends: only the byte 10."""
        return np.arange(256) == ord("\n")

    def end_token(self) -> None:
        """Return None: every byte may be part of a text."""


class FileTokenizer:
    """The tokenizer that a `tokenizer.json` describes; it needs UTF-8.

    Raises `UserError` (`MANIFEST`) for a file that cannot be used.
    """

    needs_utf8 = True
    _folder: Path | None
    """Where the file lies, with `tokenizer_config.json` perhaps; None if it was read from no file."""

    def __init__(self, path: Path) -> None:
        try:
            definition = read_regular(path, MAX_TOKENIZER_BYTES)
        except OSError as error:
            raise _unusable(path, error.strerror or "cannot be read") from None
        if len(definition) > MAX_TOKENIZER_BYTES:
            raise _unusable(path, f"has more than {MAX_TOKENIZER_BYTES >> 20} MB")
        self._path = path
        self._folder = path.parent
        self._read(definition)

    @property
    def path(self) -> Path:
        """The file it was read from."""
        return self._path

    def id_of(self, text: str) -> int | None:
        """Return the id of a token; None if none has this spelling."""
        return self._tokenizer.token_to_id(text)

    def text_of(self, token: int) -> str | None:
        """Return the text of a token; None if there is no such token."""
        return self._tokenizer.id_to_token(token) if 0 <= token < self.vocabulary else None

    def starts_with(self) -> tuple[int, ...]:
        """Return the tokens that the tokenizer adds before a text unless asked not to. Raises
        `UserError` (`MANIFEST`) if they cannot be determined."""
        try:
            return added_tokens(self.definition).before
        except UnknownPostProcessor as odd:
            raise _unusable(self._path, str(odd)) from None

    def first_token(self, text: str) -> int | None:
        """Return the first token of a text without added ones; None if it has none."""
        return next(iter(self._tokenizer.encode(text, add_special_tokens=False).ids), None)

    def special(self) -> set[int]:
        """Return the ids of special tokens."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token for token, each in added.items() if each.special}

    @property
    def remade(self) -> tuple[Any, ...]:
        """The arguments with which `of` makes the same tokenizer in another process."""
        return (self.definition,)

    @classmethod
    def of(cls, definition: bytes) -> FileTokenizer:
        """Make a tokenizer from another one's `definition`."""
        tokenizer = cls.__new__(cls)
        # Only for messages: there is no file, and so nothing beside it.
        tokenizer._path = Path("tokenizer.json")
        tokenizer._folder = None
        tokenizer._read(definition)
        return tokenizer

    def _read(self, definition: bytes) -> None:
        self.definition = definition
        try:
            self._tokenizer = _library().Tokenizer.from_buffer(definition)
        except UserError:
            raise
        # The library raises plain Exception for every kind of invalid definition.
        except Exception as error:
            raise _unusable(self._path, str(error)) from None
        # The file may ask for truncation and padding, left from the tokenizer's own training.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._token_ids()
        if len(ids) < 2:
            raise _unusable(self._path, "has fewer than two tokens")
        self.vocabulary = max(ids) + 1

    def _token_ids(self) -> list[int]:
        # The table of all tokens is not kept: in each worker it would take megabytes.
        return list(self._tokenizer.get_vocab(with_added_tokens=True).values())

    @property
    def token_bytes(self) -> TokenBytes:
        """Bytes that hold any token id: 1, 2 or 4."""
        return 1 if self.vocabulary <= 1 << 8 else 2 if self.vocabulary <= 1 << 16 else 4

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Tokenise without adding special tokens; those spelled out in the text are recognised."""
        spans = group_spans([len(text) for text in texts], ENCODED_BYTES)
        return [tokens for span in spans for tokens in self._encode(texts[span])]

    def _encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        encoded = self._tokenizer.encode_batch_fast(
            [text.decode("utf-8") for text in texts], add_special_tokens=False
        )
        counts = [len(each) for each in encoded]
        # One array for all texts, because making one per text is slow for short documents.
        joined = np.fromiter(
            itertools.chain.from_iterable(each.ids for each in encoded), np.uint32, sum(counts)
        )
        return np.split(joined, np.cumsum(counts)[:-1])

    def line_ends(self) -> np.ndarray:
        """Return which tokens' text ends with a line break."""
        ends = np.zeros(self.vocabulary, bool)
        for token in self._token_ids():
            ends[token] = self._tokenizer.decode([token], skip_special_tokens=False).endswith("\n")
        return ends

    def end_token(self) -> str | None:
        """Return the text of the token that ends a document: the one that `tokenizer_config.json` next
        to the file states, or one with a well-known name. None if the tokenizer has neither."""
        named = None if self._folder is None else _stated_end(self._folder)
        names = (named, *_END_TOKENS) if isinstance(named, str) else _END_TOKENS
        return next((name for name in names if self.id_of(name) is not None), None)


def group_spans(lengths: Sequence[int], size: int) -> Iterator[slice]:
    """Yield the spans of neighbouring texts of these lengths that have at most `size` bytes together; a
    longer text has a span of its own."""
    start, held = 0, 0
    for number, length in enumerate(lengths):
        if held and held + length > size:
            yield slice(start, number)
            start, held = number, 0
        held += length
    if start < len(lengths):
        yield slice(start, len(lengths))


def _stated_end(folder: Path) -> object:
    """Return the end token that `tokenizer_config.json` in this folder states; None if it states none or
    cannot be read."""
    try:
        with open_regular(folder / "tokenizer_config.json") as file:
            config = json.loads(file.read(_MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    named = config.get("eos_token") if isinstance(config, dict) else None
    return named.get("content") if isinstance(named, dict) else named


def _byte_level_definition() -> bytes:
    """Return a `tokenizer.json` whose token of id b stands for the byte b."""
    library = _library()
    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = library.Tokenizer(library.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer.to_str().encode("utf-8")


def _byte_characters() -> list[str]:
    """Return the character that byte-level tokenizers, since GPT-2, write for each byte.

    Bytes that are visible characters of Latin-1 stand for themselves (the soft hyphen, 0xAD, is not
    visible); the others follow, in order, from U+0100 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            ExitCode.TRAINER,
            "the package tokenizers, which making a swarm needs, is not installed",
            "install it with: pip install 'distro-node[train]'",
        ) from None
    return tokenizers


def _unusable(path: Path, problem: str) -> UserError:
    return UserError(
        ExitCode.MANIFEST,
        f"the tokenizer {path} cannot be used: {problem}",
        'give the path of a tokenizer.json in [data], or use tokenizer = "bytes"',
    )
