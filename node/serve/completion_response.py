"""Responses of completions and chat completions: whole, and as events of a stream."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

FinishReason = Literal["stop", "length"]

DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Numbers of tokens."""

    prompt: int
    completion: int

    def plain(self) -> dict[str, int]:
        """Return them as the interface names them."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A finished text."""

    text: str
    reason: FinishReason


@dataclass(frozen=True, kw_only=True)
class Responder:
    """The parts that all responses to one request share."""

    chat: bool
    identifier: str
    created: int
    """Seconds since 1970."""
    model: str
    fingerprint: str
    """`system_fingerprint`: names the round and the parameters."""
    include_usage: bool = False
    """Whether a stream ends with the numbers of tokens."""

    def whole(self, choices: list[Choice], usage: Usage) -> bytes:
        """Return the body of a response that is no stream."""
        kind = "chat.completion" if self.chat else "text_completion"
        listed = []
        for index, choice in enumerate(choices):
            text: dict[str, Any] = {"text": choice.text}
            if self.chat:
                text = {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
            listed.append(
                {"index": index, **text, "logprobs": None, "finish_reason": choice.reason}
            )
        return encode(self._head(kind) | {"choices": listed, "usage": usage.plain()})

    def begin(self, index: int) -> bytes:
        """Return the event with which a choice begins; empty for completions, which have none."""
        if not self.chat:
            return b""
        return self._choice(index, {"delta": {"role": "assistant", "content": ""}}, None)

    def piece(self, index: int, text: str) -> bytes:
        """Return the event for a piece of a choice."""
        return self._choice(
            index, {"delta": {"content": text}} if self.chat else {"text": text}, None
        )

    def end(self, index: int, reason: FinishReason) -> bytes:
        """Return the event with which a choice ends."""
        return self._choice(index, {"delta": {}} if self.chat else {"text": ""}, reason)

    def usage(self, usage: Usage) -> bytes:
        """Return the event with the numbers of tokens; empty if the client has not asked for it."""
        if not self.include_usage:
            return b""
        return event(self._chunk([]) | {"usage": usage.plain()})

    def _choice(self, index: int, text: dict[str, Any], reason: FinishReason | None) -> bytes:
        choice = {"index": index, **text, "logprobs": None, "finish_reason": reason}
        return event(self._chunk([choice]) | ({"usage": None} if self.include_usage else {}))

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self._head(kind) | {"choices": choices}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.identifier,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def encode(value: Any) -> bytes:
    """Return JSON in ASCII on one line."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def event(value: Any) -> bytes:
    """Return an event of a stream with this JSON."""
    return b"data: %s\n\n" % encode(value)
