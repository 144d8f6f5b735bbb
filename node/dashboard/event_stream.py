"""The data of the dashboard page: the status every second, and rounds as they arrive.

Without viewers almost no work is done. For any number of viewers a status is encoded once, and the files
are read once, in a thread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ..control.status_rows import dense_bytes, rows
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
_AGAIN_ROWS = 16
# Repeated requests for all rounds get the same response for this long.
_FRESH_SECONDS = 1.0


class EventStream:
    """The event stream of a node's dashboard. `run` keeps it up to date while there are viewers."""

    def __init__(
        self, status: Callable[[], Status], chronicle: Callable[[], RunHistory | None]
    ) -> None:
        """`status` must not block. `chronicle` returns the swarm's history by round, or None if there is
        none yet; it may block, because it is called in a thread."""
        self._status = status
        self._open = chronicle
        self._chronicle: RunHistory | None = None
        self._reading = trio.Lock()
        self.streams = 0
        """Number of open streams."""
        self._wanted = trio.Event()
        self._said = trio.Event()
        self._status_news = b""
        self._round_news = b""
        self._whole = b""
        self._whole_at = -math.inf

    # Single requests

    def status(self) -> bytes:
        """Return the status, with the verdict and texts derived from it, as JSON."""
        return _json(_told(self._status()))

    async def rounds(self) -> bytes:
        """Return all rounds as JSON."""
        async with self._reading:
            if trio.current_time() - self._whole_at >= _FRESH_SECONDS:
                self._whole = await trio.to_thread.run_sync(self._all_rounds)
                self._whole_at = trio.current_time()
            return self._whole

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
            status, rounds = self._status_news, self._round_news
            while True:
                said = self._said
                if rounds is not self._round_news:
                    rounds = self._round_news
                    await send(_event("rounds", rounds))
                elif status is not self._status_news:
                    status = self._status_news
                    await send(_event("status", status))
                else:
                    with trio.move_on_after(_PING_SECONDS) as silence:
                        await said.wait()
                    if silence.cancelled_caught:
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
                self._said.set()
                self._said = trio.Event()
            await trio.sleep(_EVERY_SECONDS)

    async def _gather_status(self) -> bool:
        self._status_news = self.status()
        return True

    async def _gather_rounds(self) -> bool:
        async with self._reading:
            news = await trio.to_thread.run_sync(self._latest_rounds)
        if news is not None:
            self._round_news = news
        return news is not None

    # In a thread

    def _refresh(self) -> RunHistory | None:
        if self._chronicle is None:
            self._chronicle = self._open()
        if self._chronicle is not None:
            while self._chronicle.refresh():
                pass
        return self._chronicle

    def _all_rounds(self) -> bytes:
        chronicle = self._refresh()
        return _json(None if chronicle is None else chronicle.whole())

    def _contributions(self) -> list[dict[str, Any]]:
        chronicle = self._refresh()
        return [] if chronicle is None else chronicle.contributions()

    def _latest_rounds(self) -> bytes | None:
        """Return the latest rounds if anything changed; None if nothing did."""
        chronicle = self._refresh()
        if chronicle is None:
            return None
        news = _json(chronicle.latest(_AGAIN_ROWS))
        return None if news == self._round_news else news


def _told(status: Status) -> dict[str, Any]:
    """Return the status and the texts derived from it. Untrusted text is sanitized."""
    how = verdict(status)
    return {
        "status": encode_status(status),
        "verdict": {
            "tone": how.tone,
            "sentence": harmless(how.sentence),
            "remedy": harmless(how.remedy),
        },
        "name": None if status.swarm is None else harmless(status.swarm.name),
        "dense_bytes": dense_bytes(status),
        "rows": [[row.name, harmless(row.value), harmless(row.note)] for row in rows(status)],
    }


def _event(kind: str, data: bytes) -> bytes:
    # This JSON is ASCII without line breaks, so it fits on one line.
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
