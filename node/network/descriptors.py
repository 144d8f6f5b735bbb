"""File descriptors: the limit of this process, and the number of connections that fit under it.

Every connection takes one descriptor. macOS gives a program 256 and Linux 1,024 as a soft limit, which
the program may raise up to the hard limit. If that is too low for the configured connections, the node
accepts fewer, so that strangers who open as many as they can never leave it without a descriptor for a
file.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

from ..util.operating_system import process_limit, set_process_limit

_log = logging.getLogger(__name__)

RESERVED = 96
"""Descriptors kept for other uses: files, the trainer's pipes, the page, the event loop, outgoing
dials."""


@dataclass(frozen=True)
class ConnectionRoom:
    """The numbers of connections and handshakes that fit under the limit of descriptors."""

    connections: int
    handshakes: int


def raise_limit(wanted: int) -> int | None:
    """Raise the soft limit to `wanted` descriptors if it is lower, as far as the system allows.

    Returns the limit in force; None if there is none.
    """
    soft, hard = process_limit("NOFILE") or (None, None)
    if soft is not None and soft < wanted:
        most = wanted if hard is None else min(wanted, hard)
        # macOS refuses more than `kern.maxfilesperproc`, whatever the hard limit is.
        with contextlib.suppress(OSError, ValueError):
            set_process_limit("NOFILE", most)
        soft, _ = process_limit("NOFILE") or (None, None)
    return soft


def room_under(limit: int | None, connections: int, handshakes: int) -> ConnectionRoom:
    """Return how many of the wanted connections and handshakes fit under a limit."""
    free = connections + handshakes if limit is None else max(2, limit - RESERVED)
    if connections + handshakes <= free:
        return ConnectionRoom(connections, handshakes)
    fewer = min(handshakes, max(1, free // 4))
    return ConnectionRoom(min(connections, free - fewer), fewer)


def make_room(connections: int, handshakes: int) -> ConnectionRoom:
    """Raise the limit for these connections and handshakes, and return how many of them fit."""
    limit = raise_limit(connections + handshakes + RESERVED)
    room = room_under(limit, connections, handshakes)
    if room.connections < connections:
        _log.warning(
            "this program may open %d files, so it accepts %d connections instead of %d; raise "
            "the limit with `ulimit -n`",
            limit,
            room.connections,
            connections,
        )
    return room
