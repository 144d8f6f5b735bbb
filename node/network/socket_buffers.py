"""Bounds on the kernel's socket queues, so that bulk data does not delay small messages or waste CPU
time.

By default the kernel accepts megabytes from us for a connection that sends one megabyte per second;
votes, window updates and everything else on that connection then arrive seconds late, and the other
side's downloads stall meanwhile. It also wakes us for every packet, forty times for one message.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any

import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream

from ..util.operating_system import set_socket_option, tcp_info, unread_bytes
from .ledbat import TcpSample

UNSENT_BYTES = 128 << 10
"""Two frames: enough to keep the line busy, and a vote waits only a tenth of a second at 10 Mbit/s."""

RELAY_UNSENT_BYTES = 1 << 20
"""For a relay that serves dozens of members: each gets its turn only now and then, and the line is
fast."""

# The layers between a muxer and its socket: encryption, messages, connection, stream, socket.
_LAYERS = ("secured_conn", "_inner", "conn", "read_writer", "read_write_closer", "stream", "stream")
# Fewer bytes than a packet or two are not worth a system call.
_WORTH_WAITING_BYTES = 4096
# The most the kernel is asked to gather: one Noise message.
_GATHERED_BYTES = 1 << 16
# From Linux's `struct tcp_info` (include/uapi/linux/tcp.h): tcpi_snd_mss, tcpi_unacked, tcpi_rtt and
# tcpi_rttvar (microseconds), tcpi_bytes_acked, tcpi_notsent_bytes, tcpi_min_rtt (microseconds).
_INFO = struct.Struct("=16xI4xI40xII44xQ16xII")


Gauge = Callable[[], TcpSample | None]


def limit_unsent(muxer: Any, unsent: int = UNSENT_BYTES) -> bool:
    """Limit the unsent bytes that the kernel holds for a connection to `unsent`.

    Returns False if the connection has no socket of ours (a circuit through another peer), or the system
    does not support it.
    """
    stream = _socket(muxer)
    return stream is not None and set_socket_option(stream, "TCP_NOTSENT_LOWAT", unsent)


def is_on_this_machine(muxer: Any) -> bool:
    """Whether both ends of a connection have the same address, which is this machine's."""
    stream = _socket(muxer)
    try:
        sock = getattr(stream, "socket", None)
        return sock is not None and sock.getsockname()[0] == sock.getpeername()[0]
    except (OSError, trio.ClosedResourceError):
        return False


def gauge(muxer: Any) -> Gauge:
    """Return a function that samples a connection's TCP state.

    That function returns None if the connection has no socket of ours or has ended, and on systems other
    than Linux.
    """
    stream = _socket(muxer)

    def read() -> TcpSample | None:
        try:
            # Before Linux 4.6 the structure was shorter.
            info = tcp_info(stream, _INFO.size)
        except trio.ClosedResourceError:
            return None
        if info is None:
            return None
        packet, unacknowledged, round_trip, deviation, arrived, unsent, shortest = _INFO.unpack(
            info
        )
        return TcpSample(
            now=trio.current_time(),
            round_trip=round_trip / 1e6,
            deviation=deviation / 1e6,
            shortest=shortest / 1e6,
            acknowledged=arrived,
            in_flight=unacknowledged * packet,
            unsent=unsent,
        )

    return read if stream is not None else lambda: None


async def read_gathered(self: TrioTCPStream, n: int | None = None) -> bytes:
    """Wait until all `n` bytes are there and read them. Replaces `TrioTCPStream.read` with the same
    errors.

    It may return fewer: what had already arrived, what came before the end of the stream, or as much as
    the kernel holds.
    """
    return b"" if n == 0 else await read_ready(self, n or 1, n)


async def read_ready(self: TrioTCPStream, least: int, most: int | None) -> bytes:
    """Wait until `least` bytes are there, and read up to `most`."""
    sock: Any = self.stream.socket
    async with self.read_lock:
        try:
            ready = unread_bytes(sock)
            if ready is not None and ready < least:
                _gather(self, least if least >= _WORTH_WAITING_BYTES else 1)
                # Reading at once would return little and cost a second call.
                await trio.lowlevel.wait_readable(sock)
                ready = unread_bytes(sock)
            if ready is not None and most is not None:
                # The size requested is allocated, used or not.
                most = min(most, max(ready, 1))
            return await self.stream.receive_some(most)
        except trio.BrokenResourceError as error:
            raise ConnectionClosedError(
                f"TCP connection reset by remote peer: {error}", transport="tcp"
            ) from error
        except trio.ClosedResourceError:
            return b""


def _socket(muxer: Any) -> Any:
    """Return the socket below a muxer, or None."""
    layer = muxer
    for name in _LAYERS:
        layer = getattr(layer, name, None)
    return layer if hasattr(layer, "setsockopt") else None


def _gather(stream: Any, count: int) -> None:
    """Ask the kernel not to wake us before `count` bytes are there."""
    count = min(count, _GATHERED_BYTES)
    if count == vars(stream).get("_gathered", 1):
        return
    # The read itself fails if the connection is broken or closed.
    with contextlib.suppress(trio.ClosedResourceError):
        if set_socket_option(stream.stream, "SO_RCVLOWAT", count):
            stream._gathered = count
