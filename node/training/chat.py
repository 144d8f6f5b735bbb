"""Conversations as the text that a model reads, and the spans of that text that the assistant wrote.

A chat template is a small Jinja program that comes with a checkpoint, and so from a stranger.
Jinja's sandbox confines it to the conversation that it is given, but it can still waste time. So the
node process runs no template: templates run in `create`, in the reader process of a member's own data
(`private_data`) and, within limits of time and memory, in the trainer process (exports and prompts).
Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..errors import ExitCode, UserError
from ..util.first_line import first_line
from .tokenizer_settings import TokenizerSettings

ASSISTANT = "assistant"

Message = Mapping[str, Any]
"""A dictionary with at least `role` and `content`."""
Tool = Mapping[str, Any]
"""A function that a model may call, as a JSON schema."""

# Maximum length of the text that a template makes of a conversation: longer than any context.
_MAX_CHARACTERS = 16 << 20
SIMPLEST_CONVERSATION: tuple[Message, ...] = (
    {"role": "user", "content": "Hello"},
    {"role": ASSISTANT, "content": "Hello!"},
)
"""A conversation that every template can write: one that fails on it fails on every other."""
REFUSED_BY_TEMPLATE = "is refused by the chat template"
"""Beginning of a `BadConversation`'s message if the template itself raised the error."""
DATE_FUNCTION = "strftime_now"
"""The function with which templates write the current date."""
# Unicode reserves these for programs' internal use, never for text.
_NONCHARACTERS = "".join(map(chr, range(0xFDD0, 0xFDF0)))
_MAX_ERROR_CHARACTERS = 200


class BadTemplate(Exception):
    """The template cannot be used at all. The message gives the reason: it ends a sentence that begins
    with "the chat template"."""

    line: int = 0
    """Number of the line or row whose conversation shows the fault; 0 until it is known."""


class BadConversation(Exception):
    """This conversation cannot be used. The message gives the reason: it ends a sentence that begins
    with "the row"."""


@dataclass(frozen=True)
class Conversation:
    """A conversation as text."""

    text: str
    spans: tuple[tuple[int, int], ...]
    """The assistant's parts that are to be learned, in order: the offset of each in the text, and the
    offset after its end."""


class ChatTemplate:
    """A compiled template. Raises `BadTemplate` if there is none or it cannot be compiled, and
    `UserError` (`TRAINER`) if Jinja is not installed."""

    def __init__(self, settings: TokenizerSettings) -> None:
        if settings.chat_template is None:
            raise BadTemplate("is missing")
        jinja = _import_jinja()
        environment = _environment(jinja)
        # The characters put before and after each of the assistant's parts during a rendering; empty for
        # a rendering without them.
        self._marks: list[str] = []
        environment.globals["_marked"] = self._mark_block
        if settings.chat_date is not None:
            environment.globals[DATE_FUNCTION] = _parse_date(settings.chat_date).strftime
        # Whether the template can render a conversation at all; None until that is known.
        self._can_render: bool | None = None
        try:
            self._template = environment.from_string(settings.chat_template)
        except (jinja.TemplateError, RecursionError) as error:
            raise BadTemplate(
                f"cannot be read: {first_line(error, _MAX_ERROR_CHARACTERS)}"
            ) from None
        self._tokens = {
            name: token_text
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (token_text := getattr(settings, name)) is not None
        }
        self.facts = (
            settings.chat_template,
            tuple(sorted(self._tokens.items())),
            settings.chat_date,
        )
        """Everything that a conversation's text depends on apart from the conversation."""
        self.marks_spans = environment.marks_spans
        """Whether the template itself marks the assistant's parts ({% generation %})."""

    def text(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        """Return the text of the conversation; with `prompt`, up to where the assistant's next
        message begins. Raises `BadConversation`."""
        self._marks = []
        return self._render(messages, prompt)

    def conversation(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        learned: Sequence[bool] | None = None,
    ) -> Conversation:
        """Return the conversation with the spans of the assistant's parts; with `learned`, a flag
        per message, only of those to be learned. `tools` are passed to the template, if given.

        Most templates do not mark these parts. Then a part begins where the rendering of the
        conversation before it, with a prompt, ends, and it ends where the rendering that includes it
        ends. That requires a template that writes the beginning of a conversation independently of
        what follows. Raises `BadTemplate` for any other, and `BadConversation` if the conversation
        cannot be used or has no text to be learned.
        """
        learned_flags = [
            learned is None or learned[number]
            for number, message in enumerate(messages)
            if message["role"] == ASSISTANT
        ]
        if learned_flags and not any(learned_flags):
            raise BadConversation("has no assistant's text that is to be learned")
        locate = self._by_marks if self.marks_spans else self._by_prefixes
        conversation = locate(messages, tools, learned_flags)
        if not conversation.spans:
            raise BadConversation("has no text by the assistant")
        return conversation

    def _by_marks(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        learned_flags: Sequence[bool],
    ) -> Conversation:
        serialised = json.dumps([messages, tools], ensure_ascii=False, default=str)
        self._marks = [character for character in _NONCHARACTERS if character not in serialised][:2]
        if len(self._marks) < 2:
            raise BadConversation("holds characters that Unicode reserves for internal use")
        rendered = self._render(messages, False, tools)
        opening, closing = self._marks
        text, spans = "", []
        for number, part in enumerate(rendered.split(opening)):
            # Each part but the first follows an opening mark, so it has exactly one closing mark; the
            # first has none.
            inside, *outside = part.split(closing)
            if len(outside) != (number > 0):
                raise BadTemplate("has nested {% generation %} blocks")
            if number == 0:
                text = inside
                continue
            spans.append((len(text), len(text) + len(inside)))
            text += inside + outside[0]
        if not all(learned_flags):
            if len(spans) != len(learned_flags):
                raise BadConversation(
                    "has messages that must not be learned, and their place in the text is "
                    "unknown: the chat template needs one {% generation %} block for each of the "
                    "assistant's messages"
                )
            spans = [span for span, learned in zip(spans, learned_flags, strict=True) if learned]
        return Conversation(text, tuple(span for span in spans if span[0] < span[1]))

    def _by_prefixes(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        learned_flags: Sequence[bool],
    ) -> Conversation:
        self._marks = []
        whole = self._render(messages, False, tools)
        spans = []
        answers = [n for n, message in enumerate(messages) if message["role"] == ASSISTANT]
        for number, learned in zip(answers, learned_flags, strict=True):
            if not learned:
                continue
            before = self._render(messages[:number], True, tools)
            after = whole
            if number + 1 < len(messages):
                after = self._render(messages[: number + 1], False, tools)
            if not (whole.startswith(after) and after.startswith(before)):
                raise BadTemplate(
                    "changes the earlier text of a conversation when messages are added, so the "
                    f"assistant's part cannot be located (message {number + 1} of "
                    f"{len(messages)})"
                )
            if len(before) < len(after):
                spans.append((len(before), len(after)))
        return Conversation(whole, tuple(spans))

    def _render(
        self, messages: Sequence[Message], prompt: bool, tools: Sequence[Tool] | None = None
    ) -> str:
        try:
            text = self._write(messages, prompt, tools)
        except RecursionError:
            raise BadTemplate("recurses without end") from None
        except MemoryError:
            raise BadTemplate("makes more text than fits into memory") from None
        # A template is a stranger's program: it raises whatever Python does for a wrong key or type.
        except Exception as error:
            if self._can_render is None:
                self._can_render = self._renders_simplest()
            if not self._can_render:
                raise BadTemplate(
                    "fails on every conversation, even the shortest: "
                    f"{first_line(error, _MAX_ERROR_CHARACTERS)}"
                ) from None
            raise BadConversation(
                f"{REFUSED_BY_TEMPLATE}: {first_line(error, _MAX_ERROR_CHARACTERS)}"
            ) from None
        self._can_render = True
        if len(text) > _MAX_CHARACTERS:
            raise BadConversation(
                f"is longer than {_MAX_CHARACTERS >> 20} million characters when rendered"
            )
        return text

    def _write(
        self, messages: Sequence[Message], prompt: bool, tools: Sequence[Tool] | None
    ) -> str:
        # Templates test whether `tools` and `documents` are none, which an undefined value is not.
        return self._template.render(
            messages=messages,
            add_generation_prompt=prompt,
            tools=tools,
            documents=None,
            **self._tokens,
        )

    def _renders_simplest(self) -> bool:
        try:
            self._write(list(SIMPLEST_CONVERSATION), False, None)
        except Exception:
            return False
        return True

    def _mark_block(self, caller: Callable[[], str]) -> str:
        """Return the text of a block, between marks if they are wanted."""
        return caller() if not self._marks else self._marks[0] + caller() + self._marks[1]


def special_token_end(text: str, start: int, stop: int) -> int:
    """Return where a special token's own characters end in a text, from its offsets in it: those that
    the library states include the white space that some special tokens take up (`rstrip`)."""
    return start + (len(text[start:stop].rstrip()) or stop - start)


def _environment(jinja: Any) -> Any:
    """Return Jinja configured as published templates expect: without the white space around blocks, and
    with `raise_exception`, `tojson`, loop controls and {% generation %}."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  # Jinja's own declaration

        def parse(self, parser: Any) -> Any:
            environment.marks_spans = True
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = nodes.Call(nodes.Name("_marked", "load"), [], [], None, None)
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.marks_spans = False
    environment.filters["tojson"] = _json

    def refuse(message: object) -> None:
        raise jinja.TemplateError(str(message))

    environment.globals["raise_exception"] = refuse
    return environment


def _parse_date(date: str) -> datetime:
    try:
        return datetime.fromisoformat(date)
    except ValueError:
        raise BadTemplate(f"needs a date, and {date!r} is not one") from None


def _json(value: Any, **options: Any) -> str:
    # Jinja's own `tojson` escapes < and & for HTML.
    return json.dumps(
        value,
        ensure_ascii=bool(options.get("ensure_ascii")),
        indent=options.get("indent"),
        separators=options.get("separators"),
        sort_keys=bool(options.get("sort_keys")),
    )


def _import_jinja() -> Any:
    try:
        import jinja2
        import jinja2.sandbox
    except ImportError:
        raise UserError(
            ExitCode.TRAINER,
            "chat templates cannot be used here: the package jinja2 is not installed",
            "install it with: pip install 'distro-node[train]'",
        ) from None
    return jinja2
