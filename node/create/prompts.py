"""Prompts with the answers that a rule compares completions with, from rows to samples.

A sample of `sequence_length` numbers has one prompt: its tokens, the first of them marked as the
beginning of a document; the bytes of the answer in UTF-8, each marked as to be learned, which a token of
the prompt never is; and padding, marked as another document (`trainer.tasks.prompt_samples`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..training.chat import BadConversation, ChatTemplate
from ..training.reward_rules import BadAnswer, RewardRule
from .columns import Columns, text_of
from .conversations import ConversationTokenizer, messages_of, messages_or_text
from .rows import BadRow
from .tokens import ByteTokenizer, FileTokenizer, TokenBytes, Tokenizer

PROMPT_COLUMN, ANSWER_COLUMN = "prompt", "answer"

MAX_PROMPT_BYTES = 1 << 20
"""The most bytes of a prompt: hardly any sequence would hold a longer one, and a tokenizer takes some
100 times as much memory as the text."""

_SEPARATOR = "\n"


class PromptColumns(Columns):
    """The column with prompts, texts or messages of conversations, and the one with their answers."""

    content = "prompts"
    units = "prompts"
    remedy = "name the columns with `prompt` and `answer`, or leave the file out with `exclude`"
    nested = True
    whole = True

    def __init__(
        self, prompt: str | None, answer: str | None, chat: ChatTemplate | None, rule: RewardRule
    ) -> None:
        """`chat`: the template that writes prompts; None: prompts are plain text."""
        self.parts = []
        self._prompt, self._answer = prompt or PROMPT_COLUMN, answer or ANSWER_COLUMN
        if self._prompt == self._answer:
            raise ValueError("`prompt` and `answer` name the same column")
        self._chat, self._rule = chat, rule
        self.names = (self._prompt, self._answer)

    @property
    def facts(self) -> tuple[Any, ...]:
        """Everything that the text of a row depends on, as in `Columns`."""
        chat = None if self._chat is None else self._chat.facts
        # The rule refuses answers.
        return "prompts", self.names, chat, self._rule.name

    def text(self, row: Mapping[str, Any]) -> str | BadRow:
        """Return the prompt's text after a line with its answer in JSON.

        Raises `BadTemplate` if the template cannot be used.
        """
        fault = self.column_fault(row)
        if fault is not None:
            return fault
        # Numbers are answers, too: tables of arithmetic have them.
        answer = text_of(row[self._answer])
        if answer is None:
            return self._wrong_type(self._answer, row[self._answer])
        try:
            answer.encode("utf-8")
            self._rule.check_answer(answer)
            text = self._text(row[self._prompt])
        except UnicodeEncodeError:
            return BadRow("holds half of a surrogate pair, which UTF-8 cannot encode")
        except (BadAnswer, BadConversation) as error:
            return BadRow(str(error))
        if isinstance(text, BadRow):
            return text
        if not text:
            return BadRow(f"holds an empty prompt in the column {self._prompt!r}")
        if len(text.encode("utf-8", "replace")) > MAX_PROMPT_BYTES:
            return BadRow(f"has a prompt of more than {MAX_PROMPT_BYTES >> 20} MB")
        return json.dumps(answer) + _SEPARATOR + text

    def subject_of(self, sample: bytes) -> bytes:
        """Return the prompt."""
        return sample.partition(_SEPARATOR.encode())[2]

    def accepts(self, arrow: Any, name: str, kind: Any) -> bool:
        """Whether a column may have this Arrow type: that of an answer may be numbers."""
        types = arrow.types
        number = types.is_integer(kind) or types.is_floating(kind)
        return (name == self._answer and number) or super().accepts(arrow, name, kind)

    def _text(self, cell: Any) -> str | BadRow:
        prompt = messages_or_text(cell)
        if self._chat is None:
            if isinstance(prompt, str):
                return prompt
            if isinstance(prompt, list):
                raise BadConversation(
                    f"holds messages in the column {self._prompt!r}, and the tokenizer has no chat "
                    "template that writes them"
                )
            return self._wrong_type(self._prompt, prompt)
        messages, _ = messages_of(prompt, self._prompt, "user", self._chat)
        return self._chat.text(messages, prompt=True)


class PromptTokenizer(ConversationTokenizer):
    """A tokenizer of what `PromptColumns` returns: it makes a sample of each prompt with its answer.

    The numbers of a prompt that does not fit are more than a sample has.
    """

    documents_are_samples = True

    def __init__(
        self, tokenizer: Tokenizer, start: int | None, completion: int, *, filler: int, length: int
    ) -> None:
        """`start`: the token put before each prompt, if there is one; `completion`: the most tokens of a
        completion, for which a sample of `length` has room after the prompt."""
        self._inner, self._start, self._filler, self._length = tokenizer, start, filler, length
        self.completion = completion
        self.definition = tokenizer.definition
        self.vocabulary = tokenizer.vocabulary

    @property
    def remade(self) -> tuple[Any, ...]:
        """The arguments from which another process makes the same tokenizer."""
        definition = None if isinstance(self._inner, ByteTokenizer) else self.definition
        return definition, None, self._start, self.completion, self._filler, self._length

    @classmethod
    def of(
        cls,
        definition: bytes | None,
        end: int | None = None,
        start: int | None = None,
        completion: int = 1,
        filler: int = 0,
        length: int = 2,
    ) -> PromptTokenizer:
        """Make a tokenizer from another one's `remade`; nothing ends a prompt."""
        del end
        inner = ByteTokenizer() if definition is None else FileTokenizer.of(definition)
        return cls(inner, start, completion, filler=filler, length=length)

    def starting_with(self, start: int | None) -> PromptTokenizer:
        """Return the same tokenizer with this token before each prompt; None: with none."""
        return PromptTokenizer(
            self._inner, start, self.completion, filler=self._filler, length=self._length
        )

    @property
    def token_bytes(self) -> TokenBytes:
        """Bytes that hold a token or a byte of an answer with two marks: 2 or 4."""
        return 2 if self.vocabulary <= 1 << 14 else 4

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Return the numbers of each prompt with its answer."""
        parts = [text.partition(_SEPARATOR.encode()) for text in texts]
        prompts = self._inner.encode([prompt for _, _, prompt in parts])
        return [
            self._sample(tokens, json.loads(answer).encode("utf-8"))
            for tokens, (answer, _, _) in zip(prompts, parts, strict=True)
        ]

    def fitted(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Return the numbers if they are a sample of `length`; else an empty array."""
        return numbers if len(numbers) == length else numbers[:0]

    def line_ends(self) -> np.ndarray:
        """Return which tokens end a line."""
        return self._inner.line_ends()

    def end_token(self) -> str | None:
        """Return the text of the token that ends a document, if the tokenizer states it."""
        return self._inner.end_token()

    def _sample(self, prompt: np.ndarray, answer: bytes) -> np.ndarray:
        start = [] if self._start is None or prompt[:1].tolist() == [self._start] else [self._start]
        count, size = len(start) + len(prompt), len(start) + len(prompt) + len(answer)
        fits = 0 < count <= self._length - self.completion and size <= self._length
        numbers = np.full(self._length if fits else max(size, self._length + 1), self._filler)
        numbers[:count] = [*start, *prompt.tolist()]
        numbers[count:size] = np.frombuffer(answer, np.uint8).astype(np.int64) | self.learned_bit
        numbers[:1] |= self.begin_bit
        if size < len(numbers):
            numbers[size] |= self.begin_bit
        return numbers.astype(np.uint32)
