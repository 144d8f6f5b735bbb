"""A request for generated text, as the node process sends it to a trainer."""

from __future__ import annotations

from dataclasses import dataclass

ChatMessage = dict[str, str]
"""A message of a conversation: its `role` and its `content`."""


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """What to write, and how tokens are drawn."""

    prompt: str = ""
    """The text to continue; in a swarm that learns from conversations a user's message, unless
    `as_text`."""
    messages: tuple[ChatMessage, ...] | None = None
    """A conversation whose next message the assistant writes, instead of a prompt. It needs a chat
    template."""
    as_text: bool = False
    """Whether a prompt is continued as it stands, in a swarm that learns from conversations, too."""
    seed: int = 0
    temperature: float = 1.0
    """0: always the likeliest token."""
    top_p: float = 1.0
    """Each token is drawn from the likeliest ones that together have this probability."""
    max_tokens: int = 200
    memory: int | None = None
    """The main memory in bytes that the work may take beyond what the process has; None: no limit."""


@dataclass(frozen=True, kw_only=True)
class TextStart:
    """The beginning of a text that is being generated."""

    prompt_tokens: int
    max_tokens: int
    """The most tokens that follow: as requested, or as many as the model's context has room for."""
