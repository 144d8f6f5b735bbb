"""Requests of OpenAI's interface: what is accepted, with which meaning, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from distro_node.node.serve.api_error import ApiError
from distro_node.node.serve.completion_request import (
    MAX_CHOICES,
    CompletionRequest,
    parse_completion,
)


def completion(**given: Any) -> CompletionRequest:
    body = json.dumps({"model": "m", "prompt": "a"} | given).encode()
    return parse_completion(body, chat=False, most_tokens=100)


def chat(**given: Any) -> CompletionRequest:
    messages = [{"role": "user", "content": "Hm?"}]
    body = json.dumps({"model": "m", "messages": messages} | given).encode()
    return parse_completion(body, chat=True, most_tokens=100)


def refusal_of(ask: Any, **given: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        ask(**given)
    assert refused.value.status == 400
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    return refused.value


def test_defaults_are_those_of_the_interface() -> None:
    asked = completion()
    (text,) = asked.choices(7)
    assert (text.prompt, text.as_text, text.messages) == ("a", True, None)
    assert (text.temperature, text.top_p, text.max_tokens, text.seed) == (1.0, 1.0, 16, 7)
    assert (asked.stop, asked.stream, asked.include_usage) == ((), False, False)
    # A chat completion may be as long as the owner allows.
    assert chat().texts[0].max_tokens == 100


def test_parameters_are_taken() -> None:
    asked = completion(
        temperature=0,
        top_p=0.5,
        max_tokens=3,
        seed=5,
        stop="\n",
        stream=True,
        stream_options={"include_usage": True},
        user="somebody",
    )
    assert asked.stop == ("\n",)
    assert asked.stream
    assert asked.include_usage
    (text,) = asked.choices(9)
    assert (text.temperature, text.top_p, text.max_tokens, text.seed) == (0.0, 0.5, 3, 5)
    assert chat(max_completion_tokens=4, max_tokens=9).texts[0].max_tokens == 4


def test_the_owners_limit_holds() -> None:
    assert completion(max_tokens=1 << 40).texts[0].max_tokens == 100


def test_several_texts_differ_by_their_seed() -> None:
    asked = completion(prompt=["a", "b"], n=2, seed=2**63 - 1)
    texts = asked.choices(0)
    assert [(text.prompt, text.seed) for text in texts] == [
        *(("a", 2**63 - 1), ("a", -(2**63))),
        *(("b", 2**63 - 1), ("b", -(2**63))),
    ]


def test_an_answer_may_come_back_as_clients_keep_it() -> None:
    kept = {"tool_calls": [], "function_call": None, "refusal": None, "annotations": []}
    message = {"role": "assistant", "content": "x", "name": "Bob"}
    assert chat(messages=[message | kept]).texts[0].messages == (
        {"role": "assistant", "content": "x"},
    )


def test_messages_may_be_in_parts() -> None:
    asked = chat(
        messages=[
            {"role": "developer", "content": "Short."},
            {"role": "user", "content": [{"type": "text", "text": x} for x in ("H", "m?")]},
        ]
    )
    assert asked.texts[0].messages == (
        {"role": "system", "content": "Short."},
        {"role": "user", "content": "Hm?"},
    )


@pytest.mark.parametrize(
    "neutral",
    [
        *({"logprobs": None}, {"logprobs": False}, {"frequency_penalty": 0.0}, {"best_of": 1}),
        *(
            {"response_format": {"type": "text"}},
            {"tools": []},
            {"logit_bias": {}},
            {"echo": False},
            {"top_logprobs": 0},
        ),
    ],
)
def test_values_without_effect_are_accepted(neutral: dict[str, Any]) -> None:
    assert completion(**neutral) == completion()


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": [[1, 2]]}, "prompt"),
        ({"prompt": ["a"] * (MAX_CHOICES + 1)}, "prompt"),
        ({"prompt": ["a"] * MAX_CHOICES, "n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": 10**6}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": "a" * 257}, "stop"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_usage": "yes"}},
            "stream_options.include_usage",
        ),
        ({"stream": True, "stream_options": {"more": 1}}, "stream_options.more"),
        ({"logprobs": 5}, "logprobs"),
        # The log probability of each token that was written, and of no other.
        ({"logprobs": 0}, "logprobs"),
        ({"echo": 0}, "echo"),
        ({"top_logprobs": False}, "top_logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"echo": True}, "echo"),
        ({"top_k": 5}, "top_k"),
    ],
)
def test_other_values_are_refused_by_name(given: dict[str, Any], param: str) -> None:
    assert refusal_of(completion, **given).param == param


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("Hm?", "messages"),
        ([{"role": "user"}] * 1025, "messages"),
        (["Hm?"], "messages[0]"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": "x", "prefix": True}], "messages[0].prefix"),
        ([{"role": "user", "content": "x", "tool_call_id": "1"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
    ],
)
def test_messages_that_are_none(messages: Any, param: str) -> None:
    assert refusal_of(chat, messages=messages).param == param


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"1", b'{"model": NaN}', b"\xff", b'{"a":' * 100_000, b"9" * 10_000),
        b'{"model": "m", "prompt": "\\ud800"}',
    ],
)
def test_what_is_no_request(body: bytes) -> None:
    with pytest.raises(ApiError, match="not a JSON object"):
        parse_completion(body, chat=False, most_tokens=100)
