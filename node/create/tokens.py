"""Tokenizers as the founder uses them: bytes to token ids, and the `tokenizer.json` for the swarm.

Two kinds: a byte-level one, whose ids are the byte values, and whatever a `tokenizer.json` of the
Hugging Face library describes. The library is loaded here, torch and transformers are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from ..errors import ExitCode, UserError

# A tokenizer travels as one blob; those of 256,000 tokens have about 17 MB as JSON with merges
# spelled out, and 16 MiB is what a blob may have.
MAX_TOKENIZER_BYTES = 16 << 20

TokenBytes = Literal[1, 2, 4]


class Tokenizer(Protocol):
    """What the corpus needs of a tokenizer."""

    vocabulary: int
    """One more than the largest token id."""
    definition: bytes
    """The `tokenizer.json`."""

    @property
    def token_bytes(self) -> TokenBytes:
        """How many bytes hold any token id: 1, 2 or 4."""
        ...

    def encode(self, text: bytes) -> np.ndarray:
        """The token ids of a text. Raises `UnicodeDecodeError` if it needs UTF-8 and this isn't."""
        ...


class ByteTokenizer:
    """Every byte is a token whose id is the byte's value: any file can be trained on."""

    vocabulary = 256
    token_bytes: TokenBytes = 1

    def __init__(self) -> None:
        self.definition = _byte_level_definition()

    def encode(self, text: bytes) -> np.ndarray:
        """The bytes themselves."""
        return np.frombuffer(text, np.uint8)


class FileTokenizer:
    """The tokenizer that a `tokenizer.json` describes; it wants UTF-8.

    Raises `UserError` (`MANIFEST`) for a file that cannot be used.
    """

    def __init__(self, path: Path) -> None:
        library = _library()
        try:
            self.definition = path.read_bytes()
        except OSError as error:
            raise _unusable(path, error.strerror or "cannot be read") from None
        if len(self.definition) > MAX_TOKENIZER_BYTES:
            raise _unusable(path, f"has more than {MAX_TOKENIZER_BYTES >> 20} MB")
        try:
            self._tokenizer = library.Tokenizer.from_buffer(self.definition)
        # The library raises plain Exception for whatever it dislikes.
        except Exception as error:
            raise _unusable(path, str(error)) from None
        # A file may carry these from its own training.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        if len(ids) < 2:
            raise _unusable(path, "has fewer than two tokens")
        self.vocabulary = max(ids) + 1

    @property
    def token_bytes(self) -> TokenBytes:
        """1, 2 or 4, by the size of the vocabulary."""
        return 1 if self.vocabulary <= 1 << 8 else 2 if self.vocabulary <= 1 << 16 else 4

    def encode(self, text: bytes) -> np.ndarray:
        """Tokenise without adding special tokens; those spelled out in the text are recognised."""
        encoding = self._tokenizer.encode(text.decode("utf-8"), add_special_tokens=False)
        return np.array(encoding.ids, np.uint32)


def _byte_level_definition() -> bytes:
    """A `tokenizer.json` whose token of id b stands for the byte b."""
    library = _library()
    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = library.Tokenizer(library.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer.to_str().encode("utf-8")


def _byte_characters() -> list[str]:
    """The character that byte-level tokenizers write for each byte, since GPT-2.

    Bytes that are visible characters of Latin-1 stand for themselves (the soft hyphen, 0xAD, is
    not visible); the others follow, in order, from U+0100 on.
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
            "what is needed to make a swarm is not installed here (the package tokenizers)",
            "install it with: pip install 'distro-node[train]'",
        ) from None
    return tokenizers


def _unusable(path: Path, problem: str) -> UserError:
    return UserError(
        ExitCode.MANIFEST,
        f"the tokenizer {path} cannot be used: {problem}",
        'give the path of a tokenizer.json in [data], or use tokenizer = "bytes"',
    )
