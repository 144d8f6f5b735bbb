"""Happy eyeballs: trying several addresses so that a dead one costs a quarter of a second (RFC 8305).

Addresses arrive as names resolve. They are tried in order, alternating between the two families, IPv6
first. Each attempt gets a head start before the next one begins in parallel; the first success cancels
the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from .cancel_scopes import shielded

C = TypeVar("C")
T = TypeVar("T")

ATTEMPT_SECONDS = 0.25
"""The head start of an attempt: RFC 8305, section 5."""

MAX_CANDIDATES = 16
"""A bound, because a name may have any number of addresses."""

_DISCARD_SECONDS = 1.0


class Candidates(Generic[C]):
    """Addresses in the order in which to try them, added as they become known."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[C]] = {6: deque(), 4: deque()}
        self._order = (6, 4)
        self._remaining = MAX_CANDIDATES
        self._closed = False
        self._changed = trio.Event()
        self.reasons: list[str] = []
        """The reasons why names led to no address."""

    def add(self, version: int, candidate: C) -> None:
        """Add an address of IPv4 or IPv6; beyond `MAX_CANDIDATES` it is dropped."""
        if self._remaining > 0:
            self._remaining -= 1
            self._waiting[version].append(candidate)
            self._notify()

    def close(self) -> None:
        """Note that no more addresses will be added."""
        self._closed = True
        self._notify()

    async def next(self) -> C | None:
        """Return the next address once it is known; None after the last."""
        while True:
            for version in self._order:
                if self._waiting[version]:
                    self._order = (10 - version, version)
                    return self._waiting[version].popleft()
            if self._closed:
                return None
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def race(
    candidates: Candidates[C],
    attempt: Callable[[C], Awaitable[T]],
    discard: Callable[[T], Awaitable[None]] | None = None,
) -> tuple[T | None, list[Exception]]:
    """Return the first successful attempt's result, or None, and the exceptions of the failed attempts.

    `discard` is called with the result of any other attempt that succeeded at the same moment.
    """
    results: list[T] = []
    failures: list[Exception] = []

    async def run(candidate: C, ended: trio.Event) -> None:
        try:
            results.append(await attempt(candidate))
        except Exception as error:
            failures.append(error)
        else:
            nursery.cancel_scope.cancel()
        ended.set()

    async with trio.open_nursery() as nursery:
        while (candidate := await candidates.next()) is not None:
            ended = trio.Event()
            nursery.start_soon(run, candidate, ended)
            with trio.move_on_after(ATTEMPT_SECONDS):
                await ended.wait()
    if discard is not None:
        for result in results[1:]:
            with shielded(_DISCARD_SECONDS):
                await discard(result)
    return (results[0] if results else None), failures
