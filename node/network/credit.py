"""Credit: how many bytes one end of a stream may send before it hears from the other.

The library grants new credit after every read, which costs both ends as much work as the bytes, and a
sender that has none looks a hundred times a second whether some has come. Here credit is granted for
half a window at a time, and a sender without any sleeps until it comes.
"""

from __future__ import annotations

from typing import Any

import trio
from libp2p.stream_muxer.yamux.yamux import YamuxStream

# The credit with which a large answer begins. The library's 256 KiB fill a line of 10 Mbit/s only while
# word of what was read comes back within a fifth of a second, and uploads keep it waiting for longer.
_FIRST_WINDOW_BYTES = 1 << 20
# A sender that gets no credit for five seconds gives up; half a window takes a slow line longer.
_GRANT_SECONDS = 1.0
_LOT = "_waiting_for_credit"


class Announced:
    """An attribute whose setting wakes whoever waits in `wait_for_credit`.

    The library keeps credit, and the end of a stream, in plain attributes, and sets them where it
    handles what comes in.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, stream: Any, owner: type | None = None) -> Any:
        if stream is None:
            return self
        try:
            return vars(stream)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, stream: Any, value: Any) -> None:
        attributes = vars(stream)
        attributes[self._name] = value
        waiting = attributes.get(_LOT)
        if waiting is not None:
            waiting.unpark_all()


async def wait_for_credit(stream: Any, seconds: float) -> bool:
    """Wait until a stream may send, or has ended; False if neither happens in so many seconds."""
    waiting = vars(stream).setdefault(_LOT, trio.lowlevel.ParkingLot())
    with trio.move_on_after(seconds):
        while stream.send_window <= 0 and not (stream.closed or stream.send_closed):
            await waiting.park()
        return True
    return False


async def widen(stream: Any, size: int) -> None:
    """Let the other side of a new stream send up to `size` bytes, or a MiB, before it hears from us."""
    muxed = stream.muxed_stream
    window = min(size, _FIRST_WINDOW_BYTES)
    if not isinstance(muxed, YamuxStream) or window <= muxed.target_recv_window:
        return
    credit = window - muxed.target_recv_window
    muxed.target_recv_window = window
    muxed.recv_window += credit
    await muxed.send_window_update(credit)


async def grant_credit(self: YamuxStream, *, bytes_read: int = 0) -> None:
    """In place of `YamuxStream._auto_tune_and_send_window_update`: credit for half a window at a time,
    or for what was read in a second.

    As in the reference implementation: the window grows while the sender uses it up in a few round
    trips; but only of a stream that we have opened, on which we know what comes. A sender without
    credit has filled the window, so reading it empty always grants some.
    """
    if self.recv_closed:
        return
    unread = len(self.conn.stream_buffers.get(self.stream_id, b""))
    credit = self.target_recv_window - (self.recv_window + unread)
    now = trio.current_time()
    # The first reads of a stream that was opened to us are of the few bytes that say what it is for.
    first = now - _GRANT_SECONDS if self.is_initiator else now
    waited = now - vars(self).setdefault("_granted_at", first)
    if credit <= 0 or (2 * credit < self.target_recv_window and waited < _GRANT_SECONDS):
        return
    vars(self)["_granted_at"] = now
    self.recv_window += credit
    if self.is_initiator:
        credit += self._apply_autotune_epoch(unread)
    await self.send_window_update(credit)
