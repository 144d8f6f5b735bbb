"""What the page shows, made once for all who look: the status each second, the rounds as they come.

It costs next to nothing while nobody looks. However many do, a status is encoded once, and the files are
read once, in a thread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ..control.rows import dense_bytes, rows
from ..harmless import harmless
from ..telemetry.status import Status, encode_status
from ..telemetry.verdict import verdict
from .chronicle import Chronicle
from .http import Send

MAX_STREAMS = 64
"""Pages that are kept up to date at once."""

_EVERY_SECONDS = 1.0
# A stream on which nothing is sent looks dead to whatever stands between.
_PING_SECONDS = 15.0
# Rows that are said again with each news: what is told of a round comes in two parts, and a page that
# was just loaded has not heard the last ones.
_AGAIN_ROWS = 16
# Whoever asks for all rounds again and again gets what was made this long ago.
_FRESH_SECONDS = 1.0


class Feed:
    """The news of a node. `run` keeps it up while somebody looks."""

    def __init__(
        self, status: Callable[[], Status], chronicle: Callable[[], Chronicle | None]
    ) -> None:
        """`status` must not block. `chronicle` may: it is called in a thread."""
        self._status = status
        self._open = chronicle
        self._chronicle: Chronicle | None = None
        self._reading = trio.Lock()
        self.streams = 0
        """How many look."""
        self._wanted = trio.Event()
        self._said = trio.Event()
        self._status_news = b""
        self._round_news = b""
        self._whole = b""
        self._whole_at = -math.inf

    # What is asked for once

    def status(self) -> bytes:
        """The status, and what follows from it, as JSON."""
        return _json(_told(self._status()))

    async def rounds(self) -> bytes:
        """All rounds as JSON."""
        async with self._reading:
            if trio.current_time() - self._whole_at >= _FRESH_SECONDS:
                self._whole = await trio.to_thread.run_sync(self._all_rounds)
                self._whole_at = trio.current_time()
            return self._whole

    async def contributions(self) -> list[dict[str, Any]]:
        """Who has added what."""
        async with self._reading:
            return await trio.to_thread.run_sync(self._contributions)

    # What goes on

    @property
    def full(self) -> bool:
        """Whether as many look as are kept up to date."""
        return self.streams >= MAX_STREAMS

    async def stream(self, send: Send) -> None:
        """Send the news as server-sent events, until nobody reads them any more."""
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
        """Gather the news, for ever."""
        async with trio.open_nursery() as nursery:
            # A long run takes a while to read for the first time: the status does not wait for it.
            nursery.start_soon(self._again_and_again, self._gather_status)
            nursery.start_soon(self._again_and_again, self._gather_rounds)

    async def _again_and_again(self, gather: Callable[[], Awaitable[bool]]) -> None:
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

    def _refresh(self) -> Chronicle | None:
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
        """What is new; None: nothing."""
        chronicle = self._refresh()
        if chronicle is None:
            return None
        news = _json(chronicle.latest(_AGAIN_ROWS))
        return None if news == self._round_news else news


def _told(status: Status) -> dict[str, Any]:
    """The status, and what people are told of it. A stranger's words are made harmless."""
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
    # JSON has no line breaks of its own here, and ASCII alone.
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
