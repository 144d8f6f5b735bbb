"""Frames on raw streams: a request one way, a reply the other, bounded in size and in time.

A request is a length (4 bytes, big-endian) and that many bytes; a reply is a status byte, a length and
bytes. The library's own request protocol is not used: it gives up on slow lines and leaks a stream for
every cancelled call.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from math import inf
from typing import Any, Protocol

import trio
from libp2p.stream_muxer.yamux.yamux import YamuxStream

from .cancel_scopes import shielded
from .fast_paths import BATCH_BYTES, FRAME_BYTES
from .rate_limits import Rate
from .upload_priority import Priority

_READ_BYTES = 1 << 18
_RESET_SECONDS = 1.0
# The end of a stream follows its last bytes at once, unless the line is full of other traffic.
_END_SECONDS = 10.0

MAX_REASON_BYTES = 64
"""Size limit of a reply other than OK."""

_UNLIMITED = Rate()


class ReplyStatus(IntEnum):
    """The first byte of a reply."""

    OK = 0
    REFUSED = 1
    """The peer does not answer this request (it breaks the protocol, or asks for what is not here); the
    bytes give the reason."""
    BUSY = 2
    FAILED = 3


class StreamIdle(Exception):
    """The other side sent nothing for too long."""


class StreamEnded(Exception):
    """The other side ended the stream in the middle of a frame."""


class FrameOversized(Exception):
    """The other side announced more bytes than it may send."""


class FlowBroken(Exception):
    """The source of a flow will not deliver the rest."""


class Flow(Protocol):
    """Bytes to send that may still be arriving."""

    @property
    def size(self) -> int:
        """Number of bytes in all."""
        ...

    async def piece(self, start: int, most: int) -> bytes:
        """Return at least one and at most `most` bytes from `start` on, as soon as there are any.

        Raises `FlowBroken` if the rest will not arrive.
        """
        ...


async def read_bytes(
    stream: Any,
    count: int,
    idle: float,
    progress: Callable[[int], None] | None = None,
    rate: Rate = _UNLIMITED,
    into: bytearray | None = None,
) -> bytes:
    """Read `count` bytes at `rate`, calling `progress` with the number of bytes read so far.

    They are collected in `into`, if it is given, for callers that cannot wait for the last byte. Raises
    `StreamIdle` after `idle` seconds without data, `StreamEnded` if the stream ends early, and what the
    stream raises.
    """
    buffer = bytearray() if into is None else into
    with trio.move_on_after(idle) as scope:
        while len(buffer) < count:
            piece = await stream.read(min(count - len(buffer), rate.piece(_READ_BYTES)))
            if not piece:
                raise StreamEnded(f"ended after {len(buffer)} of {count} bytes")
            buffer += piece
            # While we do not read, the stream's window fills up and the sender must stop: our own
            # waiting does not count as its silence.
            if rate.is_limited:
                scope.deadline = inf
                await rate.spend(len(piece))
            scope.deadline = trio.current_time() + idle
            if progress is not None:
                progress(len(buffer))
    if scope.cancelled_caught:
        raise StreamIdle(f"no data for {idle:g} s")
    return bytes(buffer)


async def read_frame(
    stream: Any,
    limit: int,
    idle: float,
    progress: Callable[[int], None] | None = None,
    rate: Rate = _UNLIMITED,
    into: bytearray | None = None,
) -> bytes:
    """Read a length and that many bytes. Raises `FrameOversized` and what `read_bytes` raises."""
    size = int.from_bytes(await read_bytes(stream, 4, idle), "big")
    if size > limit:
        raise FrameOversized(f"a frame of {size} bytes exceeds the limit of {limit}")
    return await read_bytes(stream, size, idle, progress, rate, into)


async def read_reply(
    stream: Any,
    limit: int,
    idle: float,
    progress: Callable[[int], None] | None = None,
    rate: Rate = _UNLIMITED,
    into: bytearray | None = None,
) -> tuple[ReplyStatus, bytes]:
    """Read a reply. Raises what `read_frame` raises, and `ValueError` for an unknown status."""
    status = ReplyStatus((await read_bytes(stream, 1, idle))[0])
    if status is not ReplyStatus.OK:
        limit, into = MAX_REASON_BYTES, None
    return status, await read_frame(stream, limit, idle, progress, rate, into)


async def write_frame(
    stream: Any,
    data: bytes,
    prefix: bytes = b"",
    rate: Rate | Priority = _UNLIMITED,
    count: Callable[[int], None] = lambda size: None,
) -> None:
    """Write `prefix`, a length and the bytes at `rate`, in pieces between which other streams can
    send; call `count` with the number of these bytes in each piece that is written."""
    view = memoryview(data)
    header = prefix + len(data).to_bytes(4, "big")
    while header or view:
        # Evaluated each time: the size may depend on the other transfers at the moment.
        size = max(0, rate.piece(FRAME_BYTES) - len(header))
        piece, header, rest = header + view[:size], b"", view[size:]
        await rate.spend(len(piece))
        await stream.write(piece)
        count(len(view) - len(rest))
        view = rest


async def write_flow(
    stream: Any,
    flow: Flow,
    prefix: bytes,
    rate: Rate | Priority = _UNLIMITED,
    count: Callable[[int], None] = lambda size: None,
) -> None:
    """Write `prefix`, a length and the bytes of `flow` at `rate`, as they arrive; call `count` as
    `write_frame` does.

    The pieces are larger than a member's: a relay has a fast line and many streams to serve. Raises what
    `flow` and the stream raise.
    """
    piece = prefix + flow.size.to_bytes(4, "big")
    sent = -len(piece)
    while True:
        await rate.spend(len(piece))
        await stream.write(piece)
        count(len(piece) if sent >= 0 else 0)
        sent += len(piece)
        if sent == flow.size:
            return
        piece = await flow.piece(sent, rate.piece(BATCH_BYTES))


async def reset(stream: Any) -> None:
    """End a stream at once in both directions, even while being cancelled. Never raises."""
    with shielded(_RESET_SECONDS):
        await stream.reset()


async def wait_for_reset(stream: Any) -> bool:
    """Wait until the other side resets a stream, or its connection ends. No other task may read
    meanwhile.

    Returns False if both sides end the stream in good order instead.
    """
    muxed: YamuxStream = stream.muxed_stream
    while not muxed.reset_received and not muxed.conn.event_shutting_down.is_set():
        if not await _wait_for_event(muxed):
            return False
    return True


async def finish(stream: Any) -> None:
    """Release a stream that we have closed: wait for the other side's end, up to a limit.

    Without that end the stream stays in the muxer's tables, and anything the other side sends stays in
    memory; so a peer that sends more, or nothing for ten seconds, gets a reset.
    """
    muxed: YamuxStream = stream.muxed_stream
    with trio.move_on_after(_END_SECONDS):
        while not muxed.closed and not muxed.conn.stream_buffers.get(muxed.stream_id):
            if not await _wait_for_event(muxed):
                break
    await reset(stream)


async def _wait_for_event(muxed: YamuxStream) -> bool:
    """Wait for anything that arrives on a stream; False if the muxer has dropped the stream."""
    events = muxed.conn.stream_events
    event = events.get(muxed.stream_id)
    if event is None:
        return False
    if event.is_set():
        events[muxed.stream_id] = event = trio.Event()
    await event.wait()
    return True
