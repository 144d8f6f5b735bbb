"""The layers around the muxer: an encrypted connection that counts bytes, and bounded receive
buffers."""

from __future__ import annotations

import logging
import struct
from typing import Any

import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_RST,
    HEADER_SIZE,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)

from ...protocol.util.token_bucket import TokenRate
from .cancel_scopes import shielded
from .cpu_budget import CpuBudget
from .fast_paths import BufferedNoise

log = logging.getLogger(__name__)

# A connection that does not move 64 KiB in this time (6.5 KB/s) is dead, and a broken connection is
# better for the waiting streams than a stalled one.
WRITE_STALL_SECONDS = 10.0
_WRITE_STALL_BYTES = 1 << 16
# Bytes received and not read yet, over all streams that one peer has opened: enough for 32 stalled
# circuits of a relay before one of them is given up.
MAX_UNREAD_PER_CONNECTION = 8 << 20
# Every frame costs CPU time whatever it carries, and one Noise message holds 5,000 empty ones: pings,
# window updates, data for closed streams. A peer may send frames at the rate that a busy connection
# needs; every 512 bytes received allow one more, so frames with data never wait.
_BYTES_PER_FRAME = 512
_FRAMES = TokenRate(at_once=1000.0, per_second=200.0)
# While a stream's buffer is smaller than this, the bytes of all streams are not added up.
_LITTLE_UNREAD = 1 << 14


class GuardedConnection:
    """The encrypted connection below the muxer, with byte counts, timeouts and safe cancellation.

    A write that is cancelled between encryption and the last byte desynchronises the two ends of Noise,
    which breaks every stream of the connection. So a write that has begun is finished, or the connection
    is closed.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._wire = BufferedNoise(inner)
        self._frames = CpuBudget(_FRAMES)
        self.sent = 0
        """Bytes written to the connection, before encryption."""
        self.received = 0
        """Bytes read from the connection, after decryption."""
        self.last_received_at = trio.current_time()
        """Time of the last received bytes, on trio's clock."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self, n: int | None = None) -> bytes:
        if n == HEADER_SIZE:
            await self._frames.spend()
        data = await self._wire.read(n)
        self.received += len(data)
        self._frames.earn(len(data) / _BYTES_PER_FRAME)
        self.last_received_at = trio.current_time()
        return data

    def take(self, count: int) -> bytes | None:
        """Return the next `count` bytes if they have already arrived, else None."""
        data = self._wire.take(count)
        self.received += len(data or b"")
        self._frames.earn(len(data or b"") / _BYTES_PER_FRAME)
        return data

    async def write(self, data: bytes) -> None:
        with shielded(WRITE_STALL_SECONDS * max(1, len(data) / _WRITE_STALL_BYTES)) as scope:
            await self._wire.write(data)
        if scope.cancelled_caught:
            with shielded(2):
                await self._inner.close()
            raise ConnectionClosedError(
                "the connection made no progress for too long", transport="tcp"
            )
        self.sent += len(data)


class _Unread(bytearray):
    """The bytes that a stream has received and that are not read yet."""

    def __init__(self, muxer: Yamux, stream: int, data: bytearray) -> None:
        super().__init__(data)
        self._muxer = muxer
        self._stream = stream

    def extend(self, data: Any) -> None:
        # The library notices a peer that ignores its window, but goes on buffering. It treats an
        # exception from here as the end of the stream, except at the stream's first frame: so the stream
        # is ended here.
        stream = self._muxer.streams[self._stream]
        if len(data) > stream.recv_window:
            abandon(stream)
            raise ValueError("the peer exceeds its send window")
        if (
            len(self) + len(data) > _LITTLE_UNREAD
            and self._peer_unread_bytes() > MAX_UNREAD_PER_CONNECTION
        ):
            abandon(stream)
            raise ValueError("the peer has too much unread data on too many streams")
        super().extend(data)

    def _peer_unread_bytes(self) -> int:
        """Return the unread bytes of all streams that the peer opened. Those that we opened are few, and
        we read them."""
        streams, buffers = self._muxer.streams, self._muxer.stream_buffers
        return sum(
            len(buffers.get(number, b""))
            for number, stream in streams.items()
            if not stream.is_initiator
        )


class UnreadByStream(dict[int, bytearray]):
    """The receive buffers of a muxer, bounded per stream and over all streams that the peer opened."""

    def __init__(self, muxer: Yamux) -> None:
        super().__init__()
        self._muxer = muxer

    def __setitem__(self, stream: int, buffer: bytearray) -> None:
        super().__setitem__(stream, _Unread(self._muxer, stream, buffer))


def abandon(stream: YamuxStream) -> None:
    """End a stream at once in both directions, and discard what it had received.

    It does not wait for the line: a task of the muxer sends the reset to the other side.
    """
    muxer, number = stream.conn, stream.stream_id
    if not stream.closed and not muxer.event_shutting_down.is_set() and muxer._nursery is not None:
        muxer._nursery.start_soon(_send_reset, muxer, number)
    stream.closed = stream.send_closed = stream.recv_closed = stream.reset_received = True
    if number in muxer.stream_events:
        muxer.stream_events[number].set()
    muxer._finalize_stream_locked(stream, fully_closed=True)
    for table in (muxer.streams, muxer.stream_buffers, muxer.stream_events):
        table.pop(number, None)


async def _send_reset(muxer: Yamux, stream: int) -> None:
    frame = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_WINDOW_UPDATE, FLAG_RST, stream, 0)
    try:
        await muxer._write_frame(frame)
    except Exception as error:
        # The connection has ended, and the stream with it on the other side.
        log.debug("sending a reset failed: %r", error)
