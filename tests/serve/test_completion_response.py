"""Responses as the `openai` package reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from distro_node.node.serve.api_error import ApiError
from distro_node.node.serve.completion_response import DONE, Choice, Responder, Usage, event

pytest.importorskip("openai")
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

USAGE = Usage(prompt=3, completion=2)


def responder(*, chat: bool, include_usage: bool = False) -> Responder:
    return Responder(
        chat=chat,
        identifier="cmpl-1",
        created=1,
        model="swarm-x@round-7",
        fingerprint="round-7-ab",
        include_usage=include_usage,
    )


def data_of(sent: bytes) -> Any:
    """Return the JSON of the only event."""
    assert sent.startswith(b"data: ")
    assert sent.endswith(b"\n\n")
    assert sent.count(b"\n") == 2
    return json.loads(sent[6:])


def test_a_completion() -> None:
    body = responder(chat=False).whole([Choice(text="yes\n", reason="stop")], USAGE)
    found = Completion.model_validate_json(body, strict=True)
    assert (found.choices[0].text, found.choices[0].finish_reason) == ("yes\n", "stop")
    assert found.usage is not None
    assert found.usage.total_tokens == 5
    assert (found.model, found.system_fingerprint) == ("swarm-x@round-7", "round-7-ab")


def test_a_chat_completion() -> None:
    body = responder(chat=True).whole([Choice(text="yes", reason="length")], USAGE)
    found = ChatCompletion.model_validate_json(body, strict=True)
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("yes", "length")


@pytest.mark.parametrize("include_usage", [False, True])
def test_events_of_a_chat(include_usage: bool) -> None:
    made = responder(chat=True, include_usage=include_usage)
    events = [made.begin(0), made.piece(0, "line\nü"), made.end(0, "stop")]
    chunks = [ChatCompletionChunk.model_validate(data_of(each)) for each in events]
    assert [each.choices[0].delta.role for each in chunks] == ["assistant", None, None]
    assert [each.choices[0].delta.content for each in chunks] == ["", "line\nü", None]
    assert [each.choices[0].finish_reason for each in chunks] == [None, None, "stop"]
    if include_usage:
        last = data_of(made.usage(USAGE))
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == 5
    else:
        assert made.usage(USAGE) == b""


def test_events_of_a_completion() -> None:
    made = responder(chat=False)
    assert made.begin(0) == b""
    assert data_of(made.piece(1, "x"))["choices"][0] == {
        "index": 1,
        "text": "x",
        "logprobs": None,
        "finish_reason": None,
    }
    assert data_of(made.end(1, "length"))["choices"][0]["finish_reason"] == "length"
    assert DONE == b"data: [DONE]\n\n"


def test_an_error_in_the_middle_of_a_stream_is_an_event() -> None:
    assert data_of(event(ApiError(500, "no", code="x").body)) == {
        "error": {"message": "no", "type": "server_error", "param": None, "code": "x"}
    }
