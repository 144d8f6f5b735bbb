"""A cancel scope for what must be finished (or given up) on our own terms."""

from __future__ import annotations

from typing import Any

import trio


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
