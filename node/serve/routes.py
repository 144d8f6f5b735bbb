"""The routes of OpenAI's interface: models, completions and chat completions."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from urllib.parse import unquote

from ..dashboard.access_control import AccessGuard, answer_guarded
from ..dashboard.http import Request, Response, Send, text_response
from ..training.text_request import TextRequest, TextStart
from ..util.sanitize import harmless
from .api_error import ApiError
from .completion_request import CompletionRequest, parse_completion
from .completion_response import DONE, Choice, Responder, Usage, encode, event
from .model_source import ModelName
from .text_service import TextService, Turn

_log = logging.getLogger(__name__)

_JSON = "application/json"
_MODELS = "/v1/models"
_COMPLETIONS = "/v1/completions"
_CHAT = "/v1/chat/completions"


def error_response(error: ApiError) -> Response:
    """Return the response that reports an error."""
    headers = {"Content-Type": _JSON, "Cache-Control": "no-store"}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(status=error.status, headers=headers, body=encode(error.body))


def refusal(status: int, text: str) -> Response:
    """Return the response to something that is no valid request."""
    return error_response(ApiError(status, text))


class CompletionRoutes:
    """Answers the requests of clients."""

    def __init__(self, guard: AccessGuard, service: TextService, most_tokens: int) -> None:
        """`most_tokens`: the greatest length of a text, whatever a client requests."""
        self._guard = guard
        self._service = service
        self._most_tokens = most_tokens
        self._created = int(time.time())

    async def answer(self, request: Request) -> Response:
        """Return the response to a request, with the security headers."""
        return await answer_guarded(self._guard, request, self._answer)

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._routed(request)
        except ApiError as error:
            return error_response(error)

    async def _routed(self, request: Request) -> Response:
        path = request.path.rstrip("/") or "/"
        if path == "/":
            return text_response(200, "The API is below /v1: see `distro-node serve --help`.")
        if not self._guard.may_read(request):
            raise ApiError(
                401,
                "the key is missing or wrong: send the one that `distro-node serve` prints, or that of "
                "its --key-file, as Authorization: Bearer KEY",
                code="invalid_api_key",
            )
        if path in (_COMPLETIONS, _CHAT):
            _require(request, "POST")
            # A page elsewhere may send other types without the browser's asking this server first.
            if request.headers.get("content-type", "").partition(";")[0].strip() != _JSON:
                raise ApiError(415, f"the body must have the content type {_JSON}")
            asked = parse_completion(
                request.body, chat=path == _CHAT, most_tokens=self._most_tokens
            )
            return await self._complete(asked)
        if path == _MODELS:
            _require(request, "GET", "HEAD")
            listed = {"object": "list", "data": [self._model(await self._name())]}
            return Response(headers={"Content-Type": _JSON}, body=encode(listed))
        if path.startswith(f"{_MODELS}/"):
            _require(request, "GET", "HEAD")
            name = await self._name()
            _check_model(unquote(path.removeprefix(f"{_MODELS}/")), name)
            return Response(headers={"Content-Type": _JSON}, body=encode(self._model(name)))
        raise ApiError(404, f"there is no {request.method} {path[:80]}", code="unknown_url")

    async def _name(self) -> ModelName:
        await self._service.ensure_open()
        name = self._service.name
        if name is None:
            raise self._service.unavailable()
        return name

    def _model(self, name: ModelName) -> dict[str, object]:
        return {
            "id": name.name,
            "object": "model",
            "created": self._created,
            "owned_by": "distro-node",
            "round": name.round,
        }

    async def _complete(self, asked: CompletionRequest) -> Response:
        turn = await self._service.take_turn()
        try:
            response = await self._written(asked, turn)
        except BaseException:
            turn.close()
            raise
        if response.stream is not None:
            # The turn ends when the stream is sent, or the client has disconnected.
            return replace(response, close=turn.close)
        turn.close()
        return response

    async def _written(self, asked: CompletionRequest, turn: Turn) -> Response:
        _check_model(asked.model, turn.name)
        texts = asked.choices(secrets.randbits(62))
        # Begun before the response, so that a prompt that cannot be taken is an error of its own.
        start = await self._service.begin(turn, texts[0])
        job = _Job(self._service, turn, asked, texts, start)
        if asked.stream:
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
            return Response(headers=headers, stream=job.stream)
        choices, usage = await job.run(_nothing, _nothing, _nothing)
        body = job.responder.whole(choices, usage)
        return Response(headers={"Content-Type": _JSON}, body=body)


class _Job:
    """The texts of one request, in its turn."""

    def __init__(
        self,
        service: TextService,
        turn: Turn,
        asked: CompletionRequest,
        texts: list[TextRequest],
        start: TextStart,
    ) -> None:
        """`start`: the first of the texts, which was begun."""
        self._service, self._turn, self._asked = service, turn, asked
        self._texts, self._start = texts, start
        prefix = "chatcmpl" if asked.chat else "cmpl"
        self.responder = Responder(
            chat=asked.chat,
            identifier=f"{prefix}-{secrets.token_hex(12)}",
            created=int(time.time()),
            model=turn.name.full,
            fingerprint=turn.name.system_fingerprint,
            include_usage=asked.include_usage,
        )

    async def run(
        self,
        begun: Callable[[int], Awaitable[None]],
        ended: Callable[[int, Choice], Awaitable[None]],
        show: Callable[[int, str], Awaitable[None]],
    ) -> tuple[list[Choice], Usage]:
        """Write all texts; pass what happens on with the index of the text. Raises `ApiError`."""
        choices: list[Choice] = []
        prompt = completion = 0
        began = time.monotonic()
        for index, text in enumerate(self._texts):
            start = self._start if index == 0 else await self._service.begin(self._turn, text)
            await begun(index)
            choice, usage = await self._service.write(
                self._turn, start, self._asked.stop, partial(show, index)
            )
            await ended(index, choice)
            choices.append(choice)
            # Several texts of one prompt count it once.
            prompt += usage.prompt if index % self._asked.n == 0 else 0
            completion += usage.completion
        _log.info(
            "%d tokens after %d in %.1f s (%s)",
            completion,
            prompt,
            time.monotonic() - began,
            self._turn.name.full,
        )
        return choices, Usage(prompt=prompt, completion=completion)

    async def stream(self, send: Send) -> None:
        """Send the texts as events."""
        made = self.responder

        async def begun(index: int) -> None:
            await _send(send, made.begin(index))

        async def ended(index: int, choice: Choice) -> None:
            await _send(send, made.end(index, choice.reason))

        async def show(index: int, text: str) -> None:
            await _send(send, made.piece(index, text))

        try:
            _, usage = await self.run(begun, ended, show)
        except ApiError as error:
            # The status is sent already, so clients take the error from an event.
            await send(event(error.body))
            return
        await _send(send, made.usage(usage) + DONE)


async def _send(send: Send, data: bytes) -> None:
    if data:
        await send(data)


async def _nothing(*_: object) -> None:
    pass


def _require(request: Request, *methods: str) -> None:
    if request.method not in methods:
        raise ApiError(405, f"{request.path[:80]} takes {methods[0]} requests", code="wrong_method")


def _check_model(requested: str, served: ModelName) -> None:
    if requested not in (served.name, served.full):
        raise ApiError(
            404,
            f"there is no model {harmless(requested[:100])!r} here; this one is: {served.full}",
            param="model",
            code="model_not_found",
        )
