"""Peers connecting and disconnecting: the library's notifications, and events for readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio
from libp2p.abc import INotifee

from ...crypto.identity import PeerId

_BUFFERED_EVENTS = 1024


@dataclass(frozen=True)
class PeerUp:
    """A peer has connected."""

    peer: PeerId


@dataclass(frozen=True)
class PeerDown:
    """The last connection to a peer has ended."""

    peer: PeerId


PeerEvent = PeerUp | PeerDown


class Events:
    """A queue that drops its oldest entry instead of blocking the sender."""

    def __init__(self) -> None:
        self._send, self.receiver = trio.open_memory_channel[PeerEvent](_BUFFERED_EVENTS)
        self._drain = self.receiver.clone()

    @property
    def abandoned(self) -> bool:
        """Whether the reader has closed its channel."""
        return self._drain.statistics().open_receive_channels == 1

    def put(self, event: PeerEvent) -> None:
        """Add an event."""
        try:
            self._send.send_nowait(event)
        except trio.WouldBlock:
            self._drain.receive_nowait()
            self._send.send_nowait(event)


class ConnectionNotifee(INotifee):
    """Receiver of the library's connection notifications. The library waits for each call to return, so
    the callbacks must not block."""

    def __init__(
        self, on_connected: Callable[[Any], None], on_disconnected: Callable[[Any], None]
    ) -> None:
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected

    async def connected(self, network: Any, conn: Any) -> None:
        self._on_connected(conn)

    async def disconnected(self, network: Any, conn: Any) -> None:
        self._on_disconnected(conn)

    async def _ignore(self, *_: Any, **options: Any) -> None:
        pass

    opened_stream = closed_stream = listen = listen_close = _ignore
