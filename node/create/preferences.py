"""Preference pairs from rows, as `trl` reads them, and their encoding as samples.

A pair is two conversations that begin alike: the prompt, and after it the chosen or the rejected answer.
Of both only the assistant's messages after the prompt are marked as to be learned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..training.chat import ASSISTANT, BadConversation, ChatTemplate, Message
from ..training.preference_pairs import PairLayout
from .columns import Columns
from .conversations import (
    MAX_CONVERSATION_BYTES,
    TOOLS,
    ConversationTokenizer,
    messages_of,
    messages_or_text,
    tools_of,
)
from .rows import BadRow
from .tokens import FileTokenizer

PROMPT, CHOSEN, REJECTED = "prompt", "chosen", "rejected"
"""The usual names of the columns."""

_SEPARATOR = "\n"

Answer = tuple[list[Message], list[bool]]
"""Messages, and for each whether it may be learned."""


class PreferenceColumns(Columns):
    """The columns with the prompt, the chosen and the rejected answer, each plain text or messages.

    Without a column `prompt`, and where it is plain text beside messages, the messages with which both
    conversations begin are the prompt.
    """

    content = "text or messages"
    remedy = (
        "name the columns with `prompt`, `chosen` and `rejected`, or leave the file out with "
        "`exclude`"
    )
    nested = True
    whole = True

    def __init__(
        self, prompt: str | None, chosen: str | None, rejected: str | None, chat: ChatTemplate
    ) -> None:
        self.parts = []
        self._chat = chat
        self._prompt = prompt or PROMPT
        self._answers = (chosen or CHOSEN, rejected or REJECTED)
        self.names = self._answers if prompt is None else (prompt, *self._answers)
        self.optional = (PROMPT, TOOLS) if prompt is None else (TOOLS,)
        if len({self._prompt, *self._answers}) < 3:
            raise ValueError("`prompt`, `chosen` and `rejected` must be three columns")

    @property
    def facts(self) -> tuple[Any, ...]:
        """Everything that the text of a row depends on, as in `Columns`."""
        return "pairs", self.names, self._chat.facts

    def text(self, row: Mapping[str, Any]) -> str | BadRow:
        """Return both conversations as text, after a line with the offsets of the parts to be learned of
        each, and its length in characters.

        Raises `BadTemplate` if the template cannot be used.
        """
        fault = self.column_fault(row)
        if fault is not None:
            return fault
        halves = []
        try:
            prompt, answers = self._parts(row)
            tools = tools_of(row.get(TOOLS))
            for column, (messages, learned) in zip(self._answers, answers, strict=True):
                flags = [*(False for _ in prompt), *learned]
                try:
                    halves.append(self._chat.conversation([*prompt, *messages], tools, flags))
                except BadConversation as error:
                    return BadRow(f"{error} (in the column {column!r})")
        except BadConversation as error:
            return BadRow(str(error))
        head = json.dumps([(half.spans, len(half.text)) for half in halves])
        text = head + _SEPARATOR + "".join(half.text for half in halves)
        if len(text) > MAX_CONVERSATION_BYTES:
            return BadRow(
                f"has a pair of more than {MAX_CONVERSATION_BYTES // 1000} thousand characters"
            )
        return text

    def subject_of(self, sample: bytes) -> bytes:
        """Return what comes before the first answer: the prompt."""
        (spans, text), _ = _split(sample)
        return text[: spans[0][0]].encode()

    def _parts(self, row: Mapping[str, Any]) -> tuple[list[Message], list[Answer]]:
        """Return the prompt's messages, and those of the chosen and the rejected answer."""
        # An empty text is no answer, and no prompt beside messages that hold one.
        cells = [messages_or_text(row[column]) or None for column in self._answers]
        prompt = messages_or_text(row.get(self._prompt)) or None
        plain = [isinstance(cell, str) for cell in cells]
        if plain[0] != plain[1]:
            raise BadConversation("holds text in one of its answers and messages in the other")
        answers = [
            messages_of(cell, column, ASSISTANT, self._chat)
            for cell, column in zip(cells, self._answers, strict=True)
        ]
        asked: list[Message] = []
        if prompt is None or (isinstance(prompt, str) and not plain[0]):
            if plain[0]:
                raise BadConversation(f"holds text, and no prompt in the column {self._prompt!r}")
            asked, answers = _common_beginning(*answers)
        else:
            asked, _ = messages_of(prompt, self._prompt, "user", self._chat)
        if answers[0][0] == answers[1][0]:
            raise BadConversation("holds the same answer twice, so that none is preferred")
        return asked, answers


def _common_beginning(chosen: Answer, rejected: Answer) -> tuple[list[Message], list[Answer]]:
    """Return the messages with which both conversations begin, and what follows in each."""
    pairs = enumerate(zip(chosen[0], rejected[0], strict=False))
    shorter = min(len(chosen[0]), len(rejected[0]))
    count = next((number for number, (one, other) in pairs if one != other), shorter)
    if count == shorter:
        raise BadConversation(
            "holds no two answers: one of its conversations is the beginning of the other"
        )
    if count == 0:
        raise BadConversation("holds two conversations that do not begin with the same prompt")
    return chosen[0][:count], [(each[0][count:], each[1][count:]) for each in (chosen, rejected)]


class PairTokenizer(ConversationTokenizer):
    """A tokenizer that makes a sample of each pair (`PairLayout`), with 0 as the reference margin.

    The numbers of a pair that does not fit are more than a sample has.
    """

    documents_are_samples = True

    def __init__(
        self, tokenizer: FileTokenizer, end: int | None, filler: int, sequence_length: int
    ) -> None:
        super().__init__(tokenizer, end)
        self._filler = filler
        self.layout = PairLayout(sequence_length, self.token_bytes)

    @property
    def remade(self) -> tuple[Any, ...]:
        """The arguments from which another process makes the same tokenizer."""
        return (*super().remade, self._filler, self.layout.sequence_length)

    @classmethod
    def of(
        cls, definition: bytes, end: int | None = None, filler: int = 0, sequence_length: int = 0
    ) -> PairTokenizer:
        """Make a tokenizer from another one's `remade`."""
        return cls(FileTokenizer.of(definition), end, filler, sequence_length)

    def fitted(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Return a pair's numbers if they are a sample of `length`; else an empty array."""
        return numbers if len(numbers) == length else numbers[:0]

    def _numbers(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        halves = [half for text in texts for half in _split(text)]
        encoded = self._tokenizer.encode_batch(
            [text for _, text in halves], add_special_tokens=False
        )
        marked = [
            self._marked(each, spans, text)
            for each, (spans, text) in zip(encoded, halves, strict=True)
        ]
        return [
            self.layout.row(chosen, rejected, self._filler, self.begin_bit)
            for chosen, rejected in zip(marked[::2], marked[1::2], strict=True)
        ]


def _split(data: bytes) -> list[tuple[list[tuple[int, int]], str]]:
    """Return the spans to be learned and the text of both conversations in what `PreferenceColumns.text`
    made."""
    head, _, text = data.decode("utf-8").partition(_SEPARATOR)
    halves, start = [], 0
    for spans, length in json.loads(head):
        halves.append(([(first, stop) for first, stop in spans], text[start : start + length]))
        start += length
    return halves
