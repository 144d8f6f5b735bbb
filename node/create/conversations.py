"""Conversations from rows, and their encoding as tokens that mark the assistant's parts.

The chat template turns a row into text while the row is read, so that an error in the row is reported
with file and line. The text then goes to the workers with the offsets of the assistant's parts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..training.chat import (
    ASSISTANT,
    BadConversation,
    ChatTemplate,
    Message,
    Tool,
    special_token_end,
)
from .columns import Columns
from .rows import BadRow, parse_json, repeated_key
from .tokens import FileTokenizer, TokenBytes, group_spans

DEFAULT_COLUMN = "messages"
TOOLS = "tools"
"""The column with the tools that an assistant may call."""

# Other names of roles, which data sets in ShareGPT's format have, and ours. The model's names are
# replaced even if the template contains them: only the assistant's messages are learned, and Gemma's
# template, for one, contains "model" as what it writes for the assistant.
_OTHER_ROLES = {
    "human": "user",
    **dict.fromkeys(
        (ASSISTANT, "gpt", "bot", "chatgpt", "bing", "bard", "model", "function_call"), ASSISTANT
    ),
}
# Roles of messages that are read and not learned; others may be the model's under another name.
_READ_ROLES = frozenset(
    {"system", "developer", "user", "tool", "ipython", "observation", "function"}
)
_SEPARATOR = "\n"
# Keys by which data sets mark a message as not to be learned.
_WEIGHT_KEY, _LEARN_KEYS = "weight", ("train", "training")
MAX_CONVERSATION_BYTES = 1 << 19
"""A longer conversation is cut after the last answer within this many bytes before it is tokenised:
hardly any sequence would reach a later answer. A tokenizer takes some 150 times as much memory as the
text, 68 MiB for half a megabyte, in each of the processes that tokenise."""


class ConversationColumns(Columns):
    """The column with the messages of a conversation, or the columns with a prompt and its
    completion."""

    content = "messages"
    units = "conversations"
    remedy = (
        "name the column with `messages`, or two with `prompt` and `completion`, or leave the file out "
        "with `exclude`"
    )
    nested = True
    whole = True
    optional = (TOOLS,)

    def __init__(
        self, messages: str | None, prompt: str | None, completion: str | None, chat: ChatTemplate
    ) -> None:
        """Raise `ValueError` for columns that do not go together."""
        if (prompt is None) != (completion is None) or (prompt and messages):
            raise ValueError("give `messages`, or both `prompt` and `completion`")
        self.parts = []
        self._chat = chat
        self._pair = (prompt, completion) if prompt and completion else None
        self.names = self._pair or (messages or DEFAULT_COLUMN,)

    @property
    def facts(self) -> tuple[Any, ...]:
        """Everything that the text of a row depends on, as in `Columns`."""
        return self.names, self._chat.facts

    def text(self, row: Mapping[str, Any]) -> str | BadRow:
        """Return the conversation as text, after a line with the offsets of the assistant's parts.

        Raises `BadTemplate` if the template cannot be used.
        """
        fault = self.column_fault(row)
        if fault is not None:
            return fault
        try:
            messages, learned = self._messages(row)
            _refuse_blank(messages, learned)
            tools = tools_of(row.get(TOOLS))
            conversation = self._chat.conversation(messages, tools, learned)
        except BadConversation as error:
            return BadRow(str(error))
        return json.dumps(conversation.spans) + _SEPARATOR + conversation.text

    def _messages(self, row: Mapping[str, Any]) -> tuple[list[Message], list[bool]]:
        """Return the messages, and for each whether it is to be learned if it is the assistant's."""
        if self._pair is None:
            return messages_of(row[self.names[0]], self.names[0], None, self._chat)
        prompt, completion = self._pair
        asked, _ = messages_of(row[prompt], prompt, "user", self._chat)
        answered, learned = messages_of(row[completion], completion, ASSISTANT, self._chat)
        # The assistant's earlier messages are part of the prompt and not learned.
        return [*asked, *answered], [*(False for _ in asked), *learned]


def messages_of(
    value: Any, column: str, role: str | None, chat: ChatTemplate
) -> tuple[list[Message], list[bool]]:
    """Return the messages in a cell, and whether each may be learned; text other than messages in JSON
    is one message of `role`.

    Raises `BadConversation`, also for a role that is neither a usual one nor named by the template.
    """
    if role is not None:
        value = messages_or_text(value)
        if isinstance(value, str):
            return [{"role": role, "content": value}], [True]
    if isinstance(value, str):
        # In tables of text, such as CSV, a cell has the messages as JSON.
        try:
            value = parse_json(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list) or not value:
        raise BadConversation(f"holds no messages in the column {column!r}")
    _refuse_repeated(value)
    read = [_message(each, f"message {number}") for number, each in enumerate(value, 1)]
    for number, (message, _) in enumerate(read, 1):
        if not _is_known(message["role"], chat):
            raise BadConversation(
                f"has the role {message['role'][:40]!r} in message {number}, which the chat template "
                f"does not name; only messages of {ASSISTANT!r} are learned"
            )
    return [message for message, _ in read], [learned for _, learned in read]


def messages_or_text(value: Any) -> Any:
    """Return a cell's list of messages, if it is JSON text of one, as tables of text such as CSV have;
    another value unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    parsed = json_or_text(value)
    are_messages = isinstance(parsed, list) and all(
        isinstance(each, dict) and ("role" in each or "from" in each) for each in parsed
    )
    # An empty list is as likely an answer in itself.
    return parsed if parsed and are_messages else value


def tools_of(value: Any) -> Sequence[Tool] | None:
    """Return the tools in a cell: a list of tables. The cell and each table may be JSON text. Raises
    `BadConversation`."""
    value = json_or_text(value) if isinstance(value, str) and value.strip() else value
    if value is None or value in ("", []):
        return None
    listed = value if isinstance(value, list) else [None]
    tools = [json_or_text(each) if isinstance(each, str) else each for each in listed]
    read = [each for each in tools if isinstance(each, dict)]
    if len(read) < len(tools):
        raise BadConversation(f"holds no list of tools in the column {TOOLS!r}")
    _refuse_repeated(read)
    return read


def _refuse_repeated(value: Any) -> None:
    key = repeated_key(value)
    if key is not None:
        raise BadConversation(f"has the key {key!r} twice in one table")


def json_or_text(text: str) -> Any:
    """Return the value of a JSON text; another text unchanged."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text


def _is_known(role: str, chat: ChatTemplate) -> bool:
    """Whether a role is the assistant's, one of those only read, or quoted in the template's source."""
    source = str(chat.facts[0])
    return role in (ASSISTANT, *_READ_ROLES) or f"'{role}'" in source or f'"{role}"' in source


def _refuse_blank(messages: Sequence[Message], learned: Sequence[bool]) -> None:
    """Raise `BadConversation` for a message of the assistant that is to be learned and holds nothing: it
    would teach the model to end at once."""
    for number, (message, wanted) in enumerate(zip(messages, learned, strict=True), 1):
        blank = not message["content"].strip() and not message.get("tool_calls")
        if wanted and blank and message["role"] == ASSISTANT:
            raise BadConversation(f"has a blank message of the assistant (message {number})")


def _is_learned(given: dict[str, Any], name: str) -> bool:
    """Return whether a message may be learned, and remove the keys that state it."""
    weight = given.pop(_WEIGHT_KEY, 1)
    if isinstance(weight, bool) or weight not in (0, 1):
        raise BadConversation(f"has the weight {weight!r} in {name}; only 0 and 1 are allowed")
    learned = weight == 1
    for key in _LEARN_KEYS:
        flag = given.pop(key, True)
        if not isinstance(flag, bool):
            raise BadConversation(
                f"has {key} = {flag!r} in {name}; only true and false are allowed"
            )
        learned = learned and flag
    return learned


def _message(value: Any, name: str) -> tuple[Message, bool]:
    if not isinstance(value, dict):
        raise BadConversation(f"holds no messages: {name} has no role and content")
    # In columns of a fixed type every message has all keys, some without a value.
    given = {key: item for key, item in value.items() if item is not None}
    learned = _is_learned(given, name)
    role = given.pop("role", None) or given.pop("from", None)
    content = given.pop("content", None)
    content = given.pop("value", None) if content is None else content
    if content is None and given.get("tool_calls"):
        # A message that calls tools may have no other content.
        content = ""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        texts = [part for part in parts if isinstance(part, str)]
        content = "".join(texts) if len(texts) == len(content) else None
    if not isinstance(role, str) or not isinstance(content, str):
        raise BadConversation(f"holds no text to learn from: {name} has no role or no text")
    return {**given, "role": _OTHER_ROLES.get(role.lower(), role), "content": content}, learned


class ConversationTokenizer(FileTokenizer):
    """A tokenizer that marks each token in its two highest bits (`DataSpec.marked`): whether a
    conversation begins with it, and whether it is to be learned.

    If only white space follows the last special token in one of the assistant's parts, the part is to be
    learned up to this token, because after it comes what the template writes between two messages. Other
    special tokens are within the answer, which is learned whole. If a conversation ends with such a part
    of the assistant, the `end` token is added and learned too.
    """

    def __init__(self, tokenizer: FileTokenizer, end: int | None) -> None:
        self._end = end
        self._path, self._folder = tokenizer.path, tokenizer._folder
        self._read(tokenizer.definition)
        self._special = np.array(sorted(self.special()), np.int64)

    documents_are_samples = False
    """Whether each document's numbers are one sample; otherwise several are packed into one."""

    @property
    def remade(self) -> tuple[Any, ...]:
        """The arguments from which another process makes the same tokenizer."""
        return self.definition, self._end

    @classmethod
    def of(cls, definition: bytes, end: int | None = None) -> ConversationTokenizer:
        """Make a tokenizer from another one's `remade`."""
        return cls(FileTokenizer.of(definition), end)

    def fitted(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Return what a sample of `length` can have of a document: see the function `fitted`."""
        return fitted(numbers, length, self.learned_bit)

    @property
    def token_bytes(self) -> TokenBytes:
        """Bytes that hold any token id and the two marks: 1, 2 or 4."""
        marked = self.vocabulary << 2
        return 1 if marked <= 1 << 8 else 2 if marked <= 1 << 16 else 4

    @property
    def begin_bit(self) -> int:
        """The bit that marks a token with which a conversation begins."""
        return 1 << 8 * self.token_bytes - 1

    @property
    def learned_bit(self) -> int:
        """The bit that marks a token that is to be learned."""
        return 1 << 8 * self.token_bytes - 2

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Return the marked tokens of each conversation; `texts` are what `ConversationColumns.text`
        returns, in UTF-8."""
        spans = group_spans([len(text) for text in texts], MAX_CONVERSATION_BYTES // 4)
        return [numbers for span in spans for numbers in self._numbers(texts[span])]

    def _numbers(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        parts = [_cut_to_limit(text) for text in texts]
        encoded = self._tokenizer.encode_batch(
            [text for _, text in parts], add_special_tokens=False
        )
        return [
            self._marked(each, spans, text)
            for each, (spans, text) in zip(encoded, parts, strict=True)
        ]

    def _marked(self, encoded: Any, spans: Sequence[tuple[int, int]], text: str) -> np.ndarray:
        ids = np.array(encoded.ids, np.int64)
        offsets = np.array(encoded.offsets, np.int64).reshape(-1, 2)
        ends, special = offsets[:, 1], np.isin(ids, self._special)
        for place in np.flatnonzero(special):
            ends[place] = special_token_end(text, *offsets[place].tolist())
        learned = np.zeros(len(ids), bool)
        closed = False
        for start, stop in spans:
            # A token belongs to the part that contains its last character: it may begin with the
            # space that ends the template's text.
            inside = np.flatnonzero((ends > start) & (ends <= stop))
            last = np.flatnonzero(special[inside])
            closed = len(last) > 0 and not text[ends[inside[last[-1]]] : stop].strip()
            learned[inside[: last[-1] + 1] if closed else inside] = True
        speaks_last = bool(spans) and not text[spans[-1][1] :].strip()
        if speaks_last and not closed and self._end is not None:
            ids, learned = np.append(ids, self._end), np.append(learned, True)
        # The first token has no predecessor from which it could be predicted.
        learned[:1] = False
        numbers = np.where(learned, ids | self.learned_bit, ids).astype(np.uint32)
        numbers[:1] |= self.begin_bit
        return numbers


def _cut_to_limit(data: bytes) -> tuple[list[tuple[int, int]], str]:
    """Return the assistant's spans (offsets in characters) and the conversation's text. A longer
    conversation than `MAX_CONVERSATION_BYTES` is cut after the last answer that ends about within it."""
    spans_json, _, text = data.decode("utf-8").partition(_SEPARATOR)
    spans = [(start, stop) for start, stop in json.loads(spans_json)]
    if len(data) <= MAX_CONVERSATION_BYTES:
        return spans, text
    size = MAX_CONVERSATION_BYTES * len(text) // len(data)
    spans = [span for span in spans if span[1] <= size]
    return spans, text[: spans[-1][1]] if spans else ""


def fitted(numbers: np.ndarray, length: int, learned_bit: int) -> np.ndarray:
    """Return the marked tokens of a conversation, of at most `length`. A longer conversation is cut
    after the last of the assistant's answers that ends within `length`; without such an answer the
    result is empty. `learned_bit` is the bit that marks a token as to be learned."""
    if len(numbers) <= length:
        return numbers
    mark = (numbers & learned_bit) != 0
    ends = np.flatnonzero(mark[:-1] & ~mark[1:]) + 1
    ends = ends[ends <= length]
    return numbers[: ends[-1]] if len(ends) else numbers[:0]
