"""Fast paths through libp2p's stack: the same behaviour at a third of the CPU time.

Encryption is a fiftieth of a frame's cost in the library. The rest goes into locks that yield to all
other tasks although they are free, into layers that each read the kernel's bytes in two steps and copy
them, and into debug log lines that are discarded. The bytes on the wire, the errors, and the places
where a task can be cancelled stay the same.
"""

from __future__ import annotations

import struct
from types import TracebackType
from typing import Any

import trio
from libp2p.io.exceptions import ConnectionClosedError, IncompleteReadError
from libp2p.io.trio import TrioTCPStream
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH, NoiseTransportReadWriter
from libp2p.security.secure_session import SecureSession
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.yamux.yamux import (
    HEADER_SIZE,
    TYPE_DATA,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)

from .flow_control import grant_credit, wait_for_credit
from .socket_buffers import read_ready

# The library's originals, for the cases that the fast paths do not handle.
_READ_BODY = Yamux._read_data_body
_READ_STREAM = YamuxStream.read
FRAME_BYTES = MAX_PLAINTEXT_LENGTH - HEADER_SIZE
"""The payload that makes, with its header, exactly one Noise message."""

BATCH_BYTES = 4 * FRAME_BYTES
"""The most bytes that are written at once. Other messages on the connection wait for it, a fiftieth of a
second at 100 Mbit/s."""

_LENGTH_BYTES = 2
# Read ahead at most four messages. Bytes read ahead stay in memory for as long as their sender wants, on
# hundreds of connections.
_AHEAD_BYTES = 4 * (_LENGTH_BYTES + 65_535)
_NOTHING = memoryview(b"")
# As in the library: a sender gives up after this time without credit.
_CREDIT_SECONDS = 5.0


class EagerLock:
    """A lock for `async with` that is acquired without yielding when it is free.

    trio's own lets every other task run first. As there, waiting tasks are served in order.
    """

    def __init__(self) -> None:
        self._taken = False
        self._waiting = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._taken:
            # The task that releases the lock passes it on: it stays taken, and is ours when `park`
            # returns.
            await self._waiting.park()
        self._taken = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._waiting:
            self._waiting.unpark()
        else:
            self._taken = False


class BufferedNoise:
    """A Noise session that reads a message, and the length of the next, in one system call.

    It takes over the session, which no other code may read from or write to afterwards.
    """

    def __init__(self, session: SecureSession) -> None:
        noise: Any = session.conn
        self._noise: NoiseTransportReadWriter = noise
        self._raw: Any = noise.read_writer.read_write_closer
        # Bytes that arrived together with the negotiation of the muxer.
        self._plain = memoryview(session._drain(None))
        self._sealed = b""

    def take(self, count: int) -> bytes | None:
        """Return the next `count` bytes if they have already arrived, else None."""
        return self._cut(count) if len(self._plain) >= count else None

    async def read(self, n: int | None = None) -> bytes:
        """Return at least one and at most `n` bytes. Raises what `SecureSession.read` raises."""
        if not self._plain:
            self._plain = memoryview(await self._read_message())
            if not self._plain:
                raise ConnectionClosedError("Connection closed")
        return self._cut(len(self._plain) if n is None else min(n, len(self._plain)))

    async def write(self, data: bytes) -> None:
        """Encrypt and send. A write that has begun must be finished: see `GuardedConnection`."""
        parts: list[bytes] = []
        for start in range(0, len(data), MAX_PLAINTEXT_LENGTH):
            sealed = self._noise.encrypt(data[start : start + MAX_PLAINTEXT_LENGTH])
            parts += (len(sealed).to_bytes(_LENGTH_BYTES, "big"), sealed)
        await self._raw.write(b"".join(parts))

    async def _read_message(self) -> bytes:
        while (lacking := self._lacking()) > 0:
            piece = await self._read_sealed(lacking)
            if not piece:
                raise IncompleteReadError(
                    "the connection ended",
                    expected_bytes=len(self._sealed) + lacking,
                    received_bytes=len(self._sealed),
                )
            self._sealed += piece
        end = len(self._sealed) + lacking
        message, self._sealed = self._sealed[_LENGTH_BYTES:end], self._sealed[end:]
        return self._noise.decrypt(message)

    def _cut(self, count: int) -> bytes:
        piece, rest = bytes(self._plain[:count]), self._plain[count:]
        # An empty view would keep the message in memory.
        self._plain = rest if rest else _NOTHING
        return piece

    def _lacking(self) -> int:
        """Return how many bytes the next message lacks; if negative, how many bytes follow it."""
        have = len(self._sealed)
        if have < _LENGTH_BYTES:
            return _LENGTH_BYTES - have
        return _LENGTH_BYTES + int.from_bytes(self._sealed[:_LENGTH_BYTES], "big") - have

    async def _read_sealed(self, least: int) -> bytes:
        most = max(least + _LENGTH_BYTES, _AHEAD_BYTES)
        stream = self._raw.stream
        if isinstance(stream, TrioTCPStream):
            return await read_ready(stream, least, most)
        # A circuit through another peer.
        return await self._raw.read(most)


async def write_frame(self: Yamux, data: bytes) -> None:
    """Write a frame. Replaces `Yamux._write_frame`, without its log line."""
    async with self._write_lock:
        await self.secured_conn.write(data)


async def write_stream(self: YamuxStream, data: bytes) -> None:
    """Write several frames at once, with one copy and without the stream's lock.

    Replaces `YamuxStream.write`. No other task runs between reading the window and taking from it, so no
    lock is needed.
    """
    view = memoryview(data)
    if self.send_closed:
        raise MuxedStreamError("Stream is closed for sending")
    while view:
        if not self.send_window and not await wait_for_credit(self, _CREDIT_SECONDS):
            raise MuxedStreamError("the peer grants no credit")
        if self.send_closed or self.closed:
            raise MuxedStreamError("Stream is closed")
        size = min(self.send_window, BATCH_BYTES, len(view))
        self.send_window -= size
        parts: list[bytes | memoryview] = []
        for start in range(0, size, FRAME_BYTES):
            part = view[start : min(start + FRAME_BYTES, size)]
            header = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, self.stream_id, len(part))
            parts += (header, part)
        await self.conn._write_frame(b"".join(parts))
        view = view[size:]


async def read_body(self: Yamux, length: int) -> bytes:
    """Read a frame's body. Replaces `Yamux._read_data_body`, without a timer for bytes that are already
    here."""
    wire: Any = self.secured_conn
    body: bytes | None = wire.take(length)
    return await _READ_BODY(self, length) if body is None else body


async def read_stream(self: YamuxStream, n: int | None = -1) -> bytes:
    """Read up to `n` bytes of an open stream. Replaces `YamuxStream.read` in that case only."""
    conn, number = self.conn, self.stream_id
    while n is not None and n > 0 and not (self.recv_closed or self.closed or self.reset_received):
        buffer, event = conn.stream_buffers.get(number), conn.stream_events.get(number)
        if buffer is None or event is None:
            break
        if buffer:
            await trio.lowlevel.checkpoint_if_cancelled()
            with memoryview(buffer) as view:
                data = bytes(view[:n])
            del buffer[:n]
            await grant_credit(self, bytes_read=len(data))
            return data
        if event.is_set():
            conn.stream_events[number] = event = trio.Event()
        await event.wait()
    return await _READ_STREAM(self, n)
