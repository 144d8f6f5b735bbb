"""Cancel scopes: shielded ones for cleanup with a time limit, and quiet closing."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import trio

log = logging.getLogger(__name__)


def shielded(seconds: float) -> Any:
    """Return a `trio.CancelScope` that is shielded from outside cancellation for at most `seconds`.

    Everything shielded is bounded in time, so that a shutdown always completes.
    """
    # libp2p ships stubs of an old trio, which lack `shield`.
    return trio.move_on_after(seconds, shield=True)  # pyright: ignore[reportCallIssue]


def open_scope() -> Any:
    """Return a `trio.CancelScope` for later use, without a deadline."""
    # The same stubs treat the class's attributes as arguments of its constructor.
    return trio.CancelScope()  # pyright: ignore[reportCallIssue]


async def close_all(connections: Iterable[Any]) -> None:
    """Close all connections concurrently. Never raises."""
    async with trio.open_nursery() as nursery:
        for connection in list(connections):
            nursery.start_soon(close_quietly, connection)


async def close_quietly(closable: Any) -> None:
    """Close something. Never raises: if closing fails, it counts as closed."""
    try:
        await closable.close()
    except Exception as error:
        log.info("closing a connection or stream failed: %r", error)
