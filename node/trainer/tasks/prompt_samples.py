"""The stored form of a prompt with its answer, as `create.prompts` writes it, and its decoding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....protocol.wire.manifest import DataSpec
from ...training.errors import TrainerFailed


@dataclass(frozen=True)
class StoredPrompt:
    """A prompt as stored."""

    tokens: tuple[int, ...]
    """The prompt's tokens: at least one, and at most the room before a completion."""
    answer: bytes | None
    """What a rule compares completions with, in UTF-8; None for a sample that no founder has written,
    such as zeros: no completion of it is rewarded."""


def read_prompt(spec: DataSpec, data: bytes, completion: int) -> StoredPrompt:
    """Return the prompt and answer of a sample with room for `completion` more tokens.

    Raises `TrainerFailed` (`bad_data`) for a token outside the vocabulary, and for an answer that is
    not UTF-8.
    """
    length = spec.sequence_length
    bits = 8 * spec.token_bytes
    numbers = np.frombuffer(data, f"<u{spec.token_bytes}").astype(np.int64)[:length]
    begins, answers = numbers >> bits - 1 & 1 == 1, numbers >> bits - 2 & 1 == 1
    values = numbers & (1 << bits - 2) - 1
    # The padding begins another document.
    others = np.flatnonzero(begins[1:]) + 1
    end = int(others[0]) if len(others) else length
    marked = np.flatnonzero(answers[:end])
    prompt_end = int(marked[0]) if len(marked) else end
    tokens = values[: min(max(prompt_end, 1), length - completion)]
    if int(tokens.max()) >= spec.vocabulary:
        raise _bad(f"token {int(tokens.max())} is outside the vocabulary of {spec.vocabulary}")
    said = values[prompt_end:end]
    if len(said) and int(said.max()) > 0xFF:
        raise _bad("an answer has a number that is not a byte")
    answer = said.astype(np.uint8).tobytes()
    try:
        answer.decode("utf-8")
    except UnicodeDecodeError:
        raise _bad("an answer is not UTF-8") from None
    return StoredPrompt(tuple(tokens.tolist()), answer if bool(begins[0]) else None)


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_data", f"the training data cannot be read: {problem}")
