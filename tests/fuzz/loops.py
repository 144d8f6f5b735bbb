"""Event loops that run across inputs: starting one for each would take five times as long as the input.

On the `idle` loop there is nothing but the input, and its clock advances when nothing else happens,
so a timeout of a minute takes no time. On the `busy` one a network is open, on loopback, with the
real clock.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing

_PATIENCE_SECONDS = 60.0


class Loop:
    """trio in a thread of its own, from the first call until the program ends."""

    def __init__(
        self, main: Callable[[Callable[[Any], None]], Awaitable[None]], idle: bool
    ) -> None:
        self._main = main
        self._idle = idle
        self._token: Any = None
        self._there = threading.Event()
        self.content: Any = None
        """The value that `main` has passed on."""

    def run(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Return or raise what a task does, without the exception groups of nurseries."""
        if self._token is None:
            threading.Thread(target=self._begin, daemon=True).start()
            if not self._there.wait(_PATIENCE_SECONDS):
                raise RuntimeError("the loop did not begin")
        return trio.from_thread.run(_plainly, function, *arguments, trio_token=self._token)

    def _begin(self) -> None:
        clock = trio.testing.MockClock(autojump_threshold=0.0) if self._idle else None
        trio.run(self._serve, clock=clock)

    async def _serve(self) -> None:
        def tell(content: Any) -> None:
            self.content = content
            self._token = trio.lowlevel.current_trio_token()
            self._there.set()

        await self._main(tell)


async def _plainly(function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    try:
        return await function(*arguments)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


async def _nothing(tell: Callable[[Any], None]) -> None:
    tell(None)
    await trio.sleep_forever()


idle = Loop(_nothing, idle=True)
