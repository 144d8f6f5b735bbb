"""Detection of peers that have frozen or vanished without closing the connection.

A connection is alive while bytes arrive. A quiet one is pinged (twelve bytes); one that stays silent is
closed, so that the tasks waiting on it fail. Bytes of any kind count, because the answer to a ping may
be queued after a long transfer on a slow line. A connection that loses large packets is closed as well,
and dialled again with smaller segments (`segment_size`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

import trio
from libp2p.stream_muxer.yamux.yamux import FLAG_SYN, TYPE_PING, YAMUX_HEADER_FORMAT, Yamux

from .connection import GuardedConnection
from .segment_size import LossWatch, SegmentSizes

CHECK_SECONDS = 1.0
# A connection that is quiet for this long is pinged.
QUIET_SECONDS = 2.0
# A connection that is silent for this long is closed. Home routers delay packets by a second or two when
# a line is full.
SILENT_SECONDS = 8.0


async def watch(connections: Callable[[], Iterable[Yamux]], sizes: SegmentSizes) -> None:
    """Ping quiet connections and close silent ones, for ever; shrink the `sizes` for addresses that lose
    large packets."""
    async with trio.open_nursery() as nursery:
        pinging: set[Yamux] = set()
        watches: WeakKeyDictionary[Yamux, LossWatch] = WeakKeyDictionary()
        last = trio.current_time()
        while True:
            await trio.sleep(CHECK_SECONDS)
            now = trio.current_time()
            # If our own process was suspended (laptop lid, debugger), no peer is to blame.
            suspended = now - last - CHECK_SECONDS
            last = now
            for connection in list(connections()):
                wire = connection.secured_conn
                if not isinstance(wire, GuardedConnection) or connection.is_closed:
                    continue
                if suspended > CHECK_SECONDS:
                    wire.last_received_at = now
                    watches.pop(connection, None)
                    continue
                silent = now - wire.last_received_at
                loses = connection.is_initiator and _shrinks(connection, wire, watches, sizes, now)
                if loses or silent >= SILENT_SECONDS:
                    nursery.start_soon(_close_connection, wire)
                elif silent >= QUIET_SECONDS and connection not in pinging:
                    nursery.start_soon(_ping, connection, pinging)


def _shrinks(
    connection: Yamux,
    wire: GuardedConnection,
    watches: WeakKeyDictionary[Yamux, LossWatch],
    sizes: SegmentSizes,
    now: float,
) -> bool:
    """Whether a connection loses large packets and can be dialled with smaller ones."""
    if connection not in watches:
        watches[connection] = LossWatch(connection, wire)
    loss, address = watches[connection].finds_loss(now), wire.get_remote_address()
    if loss is None or address is None:
        return False
    host = str(address[0])
    return sizes.shrink(host) if loss == "certain" else sizes.shrink_if_again(host, now)


async def _ping(connection: Yamux, pinging: set[Yamux]) -> None:
    # More pings may be due while one waits for a long write; one is enough.
    pinging.add(connection)
    try:
        connection._ping_sent_time = trio.current_time()
        header = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_PING, FLAG_SYN, 0, 0)
        await connection._write_frame(header)
    except Exception:
        # The connection is breaking; its own reader notices and reports it.
        return
    finally:
        pinging.discard(connection)


async def _close_connection(wire: GuardedConnection) -> None:
    # Not the muxer's `close`, whose goodbye would wait for the very write that is stuck.
    with trio.move_on_after(2):
        await wire.close()
