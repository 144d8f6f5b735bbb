"""What must be finished (or given up) on our own terms: cancel scopes, and farewells."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import trio

log = logging.getLogger(__name__)


def shielded(seconds: float) -> Any:
    """A `trio.CancelScope` that keeps cancellation from outside away for at most `seconds`.

    Everything that is shielded is bounded in time, so that a shutdown always comes to an end.
    """
    # libp2p brings stubs of an old trio along, which know no `shield`.
    return trio.move_on_after(seconds, shield=True)  # pyright: ignore[reportCallIssue]


def open_scope() -> Any:
    """A `trio.CancelScope` for later, with no deadline."""
    # The same stubs take the attributes of the class for arguments of its constructor.
    return trio.CancelScope()  # pyright: ignore[reportCallIssue]


async def close_all(connections: Iterable[Any]) -> None:
    """Close them all at once. Never raises."""
    async with trio.open_nursery() as nursery:
        for connection in list(connections):
            nursery.start_soon(close_quietly, connection)


async def close_quietly(closable: Any) -> None:
    """Close something. Never raises: what breaks while it is being closed is closed."""
    try:
        await closable.close()
    except Exception as error:
        log.info("something did not close: %r", error)
