"""Requests for completions and chat completions, parsed and checked.

A parameter that would change the text, and that this endpoint does not support, is refused unless it has
the value that changes nothing: an answer that silently ignores it would be a wrong one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from ..training.text_request import ChatMessage, TextRequest
from .api_error import ApiError, invalid

MAX_BODY_BYTES = 1 << 20
MAX_CHOICES = 8
"""Texts of one request: prompts times `n`."""
MAX_MESSAGES = 1024
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
_ROLES = frozenset({"system", "developer", "user", "assistant"})
# OpenAI's default for completions.
_USUAL_TOKENS = 16
_MOST_TEMPERATURE = 2.0
# The range of seeds in OpenAI's interface.
_SEEDS = -(1 << 63), (1 << 63) - 1
_SHOWN = 80

# Parameters that change no text.
_WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
    | {"prompt_cache_retention", "parallel_tool_calls"}
)
# Parameters that are not supported, with the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
}

# What a message may have beside role and content, with the values that change nothing. Clients send an
# assistant's message back as they got it. Few templates have a place for a name, so it is not passed on.
_NEUTRAL_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tool_calls", "annotations"), ([],)),
    **dict.fromkeys(("function_call", "tool_call_id", "refusal", "audio"), ()),
}


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A checked request."""

    model: str
    chat: bool
    """Whether it is a chat completion."""
    texts: tuple[TextRequest, ...]
    """What to write, one for each prompt; a seed of 0 stands for any if `seed` is None."""
    n: int = 1
    """Texts for each prompt."""
    stop: tuple[str, ...] = ()
    """Sequences that end a text and are not part of it."""
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the numbers of tokens."""

    def choices(self, any_seed: int) -> list[TextRequest]:
        """Return what to write for each choice, in the order of their indices; `any_seed` is taken if
        the client gives none."""
        first = any_seed if self.seed is None else self.seed
        return [
            replace(text, seed=_wrapped(first + number))
            for text in self.texts
            for number in range(self.n)
        ]


def _wrapped(seed: int) -> int:
    low, high = _SEEDS
    return low + (seed - low) % (high - low + 1)


def parse_completion(body: bytes, *, chat: bool, most_tokens: int) -> CompletionRequest:
    """Parse the body of a request. An answer has at most `most_tokens` tokens, whatever is requested.
    Raises `ApiError` (400)."""
    given = _Parameters(_object(body))
    model = given.text("model")
    stream = given.flag("stream")
    options = _Parameters(given.value("stream_options", dict, {}), "stream_options.")
    if options and not stream:
        raise invalid("stream_options", "is for streams alone: set stream to true")
    include_usage = options.flag("include_usage")
    options.check_rest({"include_obfuscation": (False,)})
    wanted = given.whole("max_tokens", None, 1, None)
    if chat:
        # The newer name; if both are given, it counts.
        wanted = given.whole("max_completion_tokens", wanted, 1, None)
    usual = most_tokens if chat else _USUAL_TOKENS
    common = TextRequest(
        temperature=given.number("temperature", 1.0, 0.0, _MOST_TEMPERATURE),
        top_p=given.number("top_p", 1.0, 0.0, 1.0),
        max_tokens=min(most_tokens, usual if wanted is None else wanted),
        as_text=True,
    )
    n = given.whole("n", 1, 1, MAX_CHOICES) or 1
    stop = _stop(given.take("stop"))
    seed = given.whole("seed", None, *_SEEDS)
    if chat:
        texts = [replace(common, messages=_messages(given.take("messages")))]
    else:
        texts = [replace(common, prompt=prompt) for prompt in _prompts(given.take("prompt"))]
    if n * len(texts) > MAX_CHOICES:
        raise invalid("n", f"a request is for at most {MAX_CHOICES} texts in all")
    for name in _WITHOUT_EFFECT:
        given.take(name)
    given.check_rest(_NEUTRAL)
    return CompletionRequest(
        model=model,
        chat=chat,
        texts=tuple(texts),
        n=n,
        stop=stop,
        seed=seed,
        stream=stream,
        include_usage=include_usage,
    )


class _Parameters:
    """The parameters of a request, or those within one of them, each taken once; null counts as absent.
    Errors name a parameter with `place` before it."""

    def __init__(self, given: dict[str, Any], place: str = "") -> None:
        self._left = {name: value for name, value in given.items() if value is not None}
        self._place = place

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, name: str) -> Any:
        return self._left.pop(name, None)

    def value(self, name: str, kind: type, default: Any) -> Any:
        value = self.take(name)
        if value is None:
            return default
        if type(value) is not kind:
            raise invalid(self._place + name, f"is not of the type {_TYPES[kind]}")
        return value

    def text(self, name: str) -> str:
        value = self.value(name, str, None)
        if value is None:
            raise invalid(self._place + name, "is missing", code="missing_required_parameter")
        return value

    def flag(self, name: str) -> bool:
        return self.value(name, bool, False)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.take(name)
        if value is None:
            return default
        # Neither true nor NaN is a number here; `_object` has refused the latter.
        if type(value) not in (int, float) or not low <= value <= high:
            raise invalid(self._place + name, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def whole(self, name: str, default: int | None, low: int, high: int | None) -> int | None:
        value = self.take(name)
        if value is None:
            return default
        if type(value) is not int or value < low or (high is not None and value > high):
            upper = "" if high is None else f" and at most {high}"
            raise invalid(self._place + name, f"must be a whole number of at least {low}{upper}")
        return value

    def check_rest(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse unknown parameters, and those with another value than the `neutral` ones."""
        for name, value in self._left.items():
            known, shown = neutral.get(name), self._place + name[:_SHOWN]
            if known is None:
                raise ApiError(
                    400, f"unknown parameter: {shown!r}", param=shown, code="unknown_parameter"
                )
            if not any(_is_same(value, each) for each in known):
                raise invalid(shown, "is not supported here", code="unsupported_parameter")


_TYPES = {str: "string", bool: "boolean", dict: "object"}


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two values are the same in JSON, where 0 is 0.0 and not false."""
    return value == other and isinstance(value, bool) is isinstance(other, bool)


def _object(body: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        found = json.loads(body, parse_constant=refuse)
        # Half of a surrogate pair is no text, and nothing further on could encode it.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ApiError(400, "the body is not a JSON object in UTF-8")
    return found


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise invalid("stop", "must be a string, or a list of strings")
    if len(stops) > MAX_STOPS or any(len(each) > MAX_STOP_CHARACTERS for each in stops):
        raise invalid(
            "stop", f"at most {MAX_STOPS} sequences of at most {MAX_STOP_CHARACTERS} characters"
        )
    return tuple(each for each in stops if each)


def _prompts(value: Any) -> list[str]:
    prompts = [value] if isinstance(value, str) else value
    if value is None:
        raise invalid("prompt", "is missing", code="missing_required_parameter")
    if not isinstance(prompts, list) or not prompts:
        raise invalid("prompt", "must be a string, or a list of strings")
    if not all(isinstance(each, str) for each in prompts):
        raise invalid("prompt", "must be text: lists of token ids are not supported")
    if len(prompts) > MAX_CHOICES:
        raise invalid("prompt", f"a request is for at most {MAX_CHOICES} texts in all")
    return prompts


def _messages(value: Any) -> tuple[ChatMessage, ...]:
    if value is None:
        raise invalid("messages", "is missing", code="missing_required_parameter")
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise invalid("messages", f"must be a list of 1 to {MAX_MESSAGES} messages")
    return tuple(_message(number, each) for number, each in enumerate(value))


def _message(number: int, value: Any) -> ChatMessage:
    place = f"messages[{number}]"
    if not isinstance(value, dict):
        raise invalid(place, "is not an object with role and content")
    given = _Parameters(value, f"{place}.")
    role, content = given.take("role"), given.take("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"{place}.role", f"must be one of {', '.join(sorted(_ROLES))}")
    if isinstance(content, list):
        content = _joined(place, content)
    if not isinstance(content, str):
        raise invalid(f"{place}.content", "must be text")
    given.value("name", str, None)
    given.check_rest(_NEUTRAL_IN_MESSAGE)
    # Newer clients say `developer` for what templates call `system`.
    return {"role": "system" if role == "developer" else role, "content": content}


def _joined(place: str, parts: list[Any]) -> str:
    """Return the text of a content in parts; all of them must be text."""
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise invalid(
                f"{place}.content", "must be text: images, sound and files are not supported"
            )
        texts.append(text)
    return "".join(texts)
