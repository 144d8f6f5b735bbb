"""Credit: how many bytes one end of a stream may send before the other end grants more.

The library grants new credit after every read, which costs both ends as much work as the bytes do, and a
sender without credit polls for it a hundred times a second. Here credit is granted for half a window at
a time, and a sender without credit sleeps until it arrives.
"""

from __future__ import annotations

from typing import Any

import trio
from libp2p.stream_muxer.yamux.yamux import YamuxStream

# Credit at the start of a large answer. The library's 256 KiB fill a line of 10 Mbit/s only if new
# credit arrives within a fifth of a second, and uploads delay it for longer.
_INITIAL_WINDOW_BYTES = 1 << 20
# Once half of a sender's credit is used, more is granted at least this often: it gives up after five
# seconds without any, and half a window takes longer than that to read on a slow line.
_GRANT_SECONDS = 1.0
_PARKING_LOT = "_waiting_for_credit"


class NotifyingAttribute:
    """An attribute whose assignment wakes the tasks that wait in `wait_for_credit`.

    The library keeps the credit and the end of a stream in plain attributes, and sets them where it
    handles received frames.
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
        waiting = attributes.get(_PARKING_LOT)
        if waiting is not None:
            waiting.unpark_all()


async def wait_for_credit(stream: Any, seconds: float) -> bool:
    """Wait until a stream may send or has ended; False after `seconds` without either."""
    waiting = vars(stream).setdefault(_PARKING_LOT, trio.lowlevel.ParkingLot())
    with trio.move_on_after(seconds):
        while stream.send_window <= 0 and not (stream.closed or stream.send_closed):
            await waiting.park()
        return True
    return False


async def widen_window(stream: Any, size: int) -> None:
    """Let the other side of a new stream send `size` bytes from the start, at most a MiB."""
    muxed = stream.muxed_stream
    window = min(size, _INITIAL_WINDOW_BYTES)
    if not isinstance(muxed, YamuxStream) or window <= muxed.target_recv_window:
        return
    credit = window - muxed.target_recv_window
    muxed.target_recv_window = window
    muxed.recv_window += credit
    await muxed.send_window_update(credit)


async def grant_credit(self: YamuxStream, *, bytes_read: int = 0) -> None:
    """Grant credit for half a window at a time, or, to a sender that has less than that left, for what
    was read in a second.

    Replaces `YamuxStream._auto_tune_and_send_window_update`. As in the reference implementation, the
    window grows while the sender uses it up in a few round trips, but only on streams that we have
    opened, where we know what to expect. A sender without credit has filled the window, so reading it
    empty always grants some.
    """
    if self.recv_closed:
        return
    unread = len(self.conn.stream_buffers.get(self.stream_id, b""))
    credit = self.target_recv_window - (self.recv_window + unread)
    now = trio.current_time()
    waited = now - vars(self).setdefault("_granted_at", now)
    has_half = 2 * self.recv_window >= self.target_recv_window
    is_little = 2 * credit < self.target_recv_window
    if credit <= 0 or (is_little and (has_half or waited < _GRANT_SECONDS)):
        return
    vars(self)["_granted_at"] = now
    self.recv_window += credit
    if self.is_initiator:
        credit += self._apply_autotune_epoch(unread)
    await self.send_window_update(credit)
