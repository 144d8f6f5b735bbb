"""The data of the dashboard page: the status every second, and rounds as they arrive.

Without viewers almost no work is done. However many viewers there are, each status is encoded once, and
the ledger and the history file are read once, in a thread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ..control.status_rows import dense_exchange_bytes, rows
from ..telemetry.health import verdict
from ..telemetry.status import Status, encode_status
from ..util.sanitize import harmless
from .http import Send
from .run_history import RunHistory

MAX_STREAMS = 64
"""Maximum number of streams open at once; each dashboard page in a browser opens one."""

_EVERY_SECONDS = 1.0
# Proxies close a stream on which nothing is sent.
_PING_SECONDS = 15.0
# The number of newest rows that are sent with each event, new or not: a round's row is completed later
# from the history file, and a page that was just loaded has missed the last events.
_RESENT_ROWS = 16
# Repeated requests for all rounds get the same response for this long.
_CACHE_SECONDS = 1.0


class EventStream:
    """The event stream of a node's dashboard. `run` keeps it up to date while there are viewers."""

    def __init__(
        self, status: Callable[[], Status], open_history: Callable[[], RunHistory | None]
    ) -> None:
        """`status` must not block. `open_history` returns the swarm's history by round, or None if
        there is none yet; it may block, because it is called in a thread."""
        self._status = status
        self._open_history = open_history
        self._history: RunHistory | None = None
        self._reading = trio.Lock()
        self.streams = 0
        """Number of open streams."""
        self._wanted = trio.Event()
        self._changed = trio.Event()
        self._latest_status = b""
        self._latest_round_rows = b""
        self._all_rounds_json = b""
        self._all_rounds_time = -math.inf

    # Single requests

    def status(self) -> bytes:
        """Return the status, with the verdict and texts derived from it, as JSON."""
        return _json(_status_json(self._status()))

    async def rounds(self) -> bytes:
        """Return all rounds as JSON."""
        async with self._reading:
            if trio.current_time() - self._all_rounds_time >= _CACHE_SECONDS:
                self._all_rounds_json = await trio.to_thread.run_sync(self._all_rounds)
                self._all_rounds_time = trio.current_time()
            return self._all_rounds_json

    async def contributions(self) -> list[dict[str, Any]]:
        """Return the contributions of all current and former members."""
        async with self._reading:
            return await trio.to_thread.run_sync(self._contributions)

    # The stream

    @property
    def full(self) -> bool:
        """Whether the maximum number of streams is open."""
        return self.streams >= MAX_STREAMS

    async def stream(self, send: Send) -> None:
        """Send server-sent events until the client disconnects. Raises what `send` raises then."""
        self.streams += 1
        self._wanted.set()
        self._wanted = trio.Event()
        try:
            await send(b"retry: 3000\n\n" + _event("status", self.status()))
            status, rounds = self._latest_status, self._latest_round_rows
            while True:
                changed = self._changed
                if rounds is not self._latest_round_rows:
                    rounds = self._latest_round_rows
                    await send(_event("rounds", rounds))
                elif status is not self._latest_status:
                    status = self._latest_status
                    await send(_event("status", status))
                else:
                    with trio.move_on_after(_PING_SECONDS) as timeout:
                        await changed.wait()
                    if timeout.cancelled_caught:
                        await send(b": still here\n\n")
        finally:
            self.streams -= 1

    async def run(self) -> None:
        """Gather the events until cancelled."""
        async with trio.open_nursery() as nursery:
            # Reading the files of a long run for the first time takes long; the status does not wait.
            nursery.start_soon(self._repeat, self._gather_status)
            nursery.start_soon(self._repeat, self._gather_rounds)

    async def _repeat(self, gather: Callable[[], Awaitable[bool]]) -> None:
        while True:
            while not self.streams:
                await self._wanted.wait()
            if await gather():
                self._changed.set()
                self._changed = trio.Event()
            await trio.sleep(_EVERY_SECONDS)

    async def _gather_status(self) -> bool:
        self._latest_status = self.status()
        return True

    async def _gather_rounds(self) -> bool:
        async with self._reading:
            news = await trio.to_thread.run_sync(self._latest_rounds)
        if news is not None:
            self._latest_round_rows = news
        return news is not None

    # In a thread

    def _refresh(self) -> RunHistory | None:
        if self._history is None:
            self._history = self._open_history()
        if self._history is not None:
            while self._history.refresh():
                pass
        return self._history

    def _all_rounds(self) -> bytes:
        history = self._refresh()
        return _json(None if history is None else history.everything())

    def _contributions(self) -> list[dict[str, Any]]:
        history = self._refresh()
        return [] if history is None else history.contributions()

    def _latest_rounds(self) -> bytes | None:
        """Return the latest rounds if anything changed; None if nothing did."""
        history = self._refresh()
        if history is None:
            return None
        news = _json(history.latest(_RESENT_ROWS))
        return None if news == self._latest_round_rows else news


def _status_json(status: Status) -> dict[str, Any]:
    """Return the status and the texts derived from it. Untrusted text is sanitized."""
    health = verdict(status)
    return {
        "status": encode_status(status),
        "verdict": {
            "tone": health.tone,
            "sentence": harmless(health.sentence),
            "remedy": harmless(health.remedy),
        },
        "name": None if status.swarm is None else harmless(status.swarm.name),
        "dense_bytes": dense_exchange_bytes(status),
        "rows": [[row.name, harmless(row.value), harmless(row.note)] for row in rows(status)],
    }


def _event(kind: str, data: bytes) -> bytes:
    # This JSON is ASCII without line breaks, so it fits on one line.
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
