"""The routes of the dashboard page: its static files, its data, and its commands.

No file path is taken from a request: the files are a fixed list, read once.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import segno
import trio

from ..control.command_socket import Handler
from .access_control import AccessGuard, answer_guarded
from .event_stream import EventStream
from .http import Answer, Request, Response, text_response

_log = logging.getLogger(__name__)

_TEXT = "text/html; charset=utf-8"
_SCRIPT = "text/javascript; charset=utf-8"
_STYLE = "text/css; charset=utf-8"
_FILES = {
    "/": ("index.html", _TEXT),
    "/app.js": ("app.js", _SCRIPT),
    "/talk.js": ("talk.js", _SCRIPT),
    "/charts.js": ("charts.js", _SCRIPT),
    "/words.js": ("words.js", _SCRIPT),
    "/style.css": ("style.css", _STYLE),
    "/uplot.js": ("uplot.js", _SCRIPT),
    "/uplot.css": ("uplot.css", _STYLE),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

_JSON = "application/json"
# The columns of contributions.csv.
_COLUMNS: tuple[str, ...] = (
    *("peer", "joined", "left", "why", "counted", "tokens", "day_tokens", "week_tokens", "last"),
    "loss",
)
# Response to a request without the token.
_REFUSED = "open the link that `distro-node dashboard` prints, which has the token for this"


Directory = Callable[[], Awaitable[list[dict[str, Any]] | None]]
"""Returns the public swarms that the page shows, as tables for JSON; None: there is no list."""


class Routes:
    """Answers the requests of the dashboard page."""

    def __init__(
        self,
        guard: AccessGuard,
        events: EventStream,
        commands: Mapping[str, Handler],
        invitation: Callable[[], str | None] = lambda: None,
        *,
        model: Answer | None = None,
        directory: Directory | None = None,
        names: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`commands` are the owner's commands by name; they must not block. `invitation` returns the
        invite link that is shown to all viewers, or None; it is called in a thread. `model` answers the
        owner's requests below /v1; None: there is no model. `names` returns members' names for
        themselves, by peer id."""
        self._invitation = invitation
        self._model = model
        self._directory = directory
        self._names = names
        self._guard = guard
        self._events = events
        self._commands = commands
        folder = Path(__file__).parent / "static"
        self._files = {
            path: (kind, (folder / name).read_bytes()) for path, (name, kind) in _FILES.items()
        }

    async def answer(self, request: Request) -> Response:
        """Return the response to a request, with the security headers."""
        return await answer_guarded(self._guard, request, self._answer)

    async def _answer(self, request: Request) -> Response:
        if request.path.startswith("/api/act/"):
            return self._act(request)
        if self._model is not None and request.path.startswith("/v1/"):
            # Generating text costs processor time: it needs the token, even where everybody may read.
            if not self._guard.may_act(request):
                return text_response(401, _REFUSED)
            return await self._model(request)
        if request.method not in ("GET", "HEAD"):
            return text_response(405, "this can only be read")
        known = self._files.get(request.path)
        if known is not None:
            kind, content = known
            return Response(headers={"Content-Type": kind}, body=content)
        if not request.path.startswith("/api/"):
            return text_response(404, "there is no such page")
        if not self._guard.may_read(request):
            return text_response(401, _REFUSED)
        match request.path:
            case "/api/status":
                return _json(self._events.status())
            case "/api/rounds":
                return _json(await self._events.rounds())
            case "/api/stream":
                if self._events.full or request.method == "HEAD":
                    return text_response(503, "the page has too many readers; try again later")
                headers = {"Content-Type": "text/event-stream"}
                return Response(headers=headers, stream=self._events.stream)
            case "/api/invitation":
                link = await trio.to_thread.run_sync(self._invitation)
                return _json(json.dumps({"link": link}).encode())
            case "/api/invitation.svg":
                image = await trio.to_thread.run_sync(self._invitation_image)
                if image is None:
                    return text_response(404, "there is no link")
                return Response(headers={"Content-Type": "image/svg+xml"}, body=image)
            case "/api/directory":
                swarms = None if self._directory is None else await self._directory()
                return _json(json.dumps({"swarms": swarms}).encode())
            case "/api/names":
                return _json(json.dumps(self._names()).encode())
            case "/api/token":
                acts = self._guard.may_act(request)
                facts = {"acts": acts, "model": acts and self._model is not None}
                return _json(json.dumps(facts).encode())
            case "/api/contributions.json":
                return _json(json.dumps(await self._events.contributions()).encode())
            case "/api/contributions.csv":
                return _csv(await self._events.contributions())
        return text_response(404, "there is no such page")

    def _invitation_image(self) -> bytes | None:
        link = self._invitation()
        return None if link is None else _qr_code(link)

    def _act(self, request: Request) -> Response:
        if request.method != "POST":
            return text_response(405, "commands are sent with POST")
        # A form of another page cannot send JSON. This check may come before that of the token: its
        # response reveals nothing.
        if request.headers.get("content-type", "").partition(";")[0].strip() != _JSON:
            return text_response(415, "commands are sent as JSON")
        if not self._guard.may_act(request):
            return text_response(403, _REFUSED)
        handler = self._commands.get(request.path.removeprefix("/api/act/"))
        if handler is None:
            return text_response(404, "there is no such command")
        parameters = read_body(request.body)
        if parameters is None:
            return text_response(400, "the body of a command is a JSON object")
        answer = handler(parameters)
        _log.info("command from the page: %s", request.path.removeprefix("/api/act/"))
        # A rejection by the node ({"error"}) is a normal answer, too.
        return _json(json.dumps(answer).encode())


def read_body(body: bytes) -> dict[str, Any] | None:
    """Return a command's parameters: the JSON object in `body`, or {} for an empty one; None for
    anything else."""
    if not body:
        return {}
    try:
        parameters = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parameters if isinstance(parameters, dict) else None


def _json(body: bytes) -> Response:
    return Response(headers={"Content-Type": _JSON}, body=body)


@functools.lru_cache(maxsize=1)
def _qr_code(link: str) -> bytes:
    """Return a link's QR code as SVG. Cached: drawing it takes 30 ms, and any viewer may ask for it."""
    image = io.BytesIO()
    # The code is black on white in dark mode as well, because cameras expect that.
    segno.make_qr(link, error="L").save(image, kind="svg", scale=4, border=4, light="white")
    return image.getvalue()


def _csv(rows: list[dict[str, Any]]) -> Response:
    text = io.StringIO()
    table = csv.DictWriter(text, _COLUMNS, extrasaction="ignore")
    table.writeheader()
    table.writerows(rows)
    headers = {
        "Content-Type": "text/csv; charset=utf-8",
        "Content-Disposition": 'attachment; filename="contributions.csv"',
    }
    return Response(headers=headers, body=text.getvalue().encode())
