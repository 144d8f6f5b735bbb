"""What a peer may make us hold on its streams, and for how long."""

from __future__ import annotations

import struct
from typing import Any

import trio
from distro_node.node.network.addresses import id_of
from distro_node.node.network.connection import MAX_UNREAD_PER_CONNECTION
from distro_node.node.network.network import Network
from distro_node.node.network.streams import read_bytes, write_frame
from libp2p.custom_types import TProtocol
from libp2p.stream_muxer.yamux.yamux import (
    DEFAULT_WINDOW_SIZE,
    FLAG_SYN,
    TYPE_DATA,
    YAMUX_HEADER_FORMAT,
)
from network.support import ECHO, echo, muxers, star, until

# Private here: `_host`, `_write_frame`: a peer that obeys no window.

DEAF = TProtocol("/test/deaf")


async def never_read(stream: Any) -> None:
    await trio.sleep_forever()


async def push(stream: Any, size: int) -> None:
    """Send bytes on a stream regardless of its window."""
    muxed = stream.muxed_stream
    while size > 0:
        part = min(size, 60_000)
        header = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, muxed.stream_id, part)
        await muxed.conn._write_frame(header + bytes(part))
        size -= part


def unread(network: Network) -> int:
    return sum(len(b) for muxer in muxers(network) for b in muxer.stream_buffers.values())


async def wait_until_read(a: Network, b: Network) -> None:
    """Wait until `b` has read everything that `a` has sent so far."""
    assert await a.request(b.peer, ECHO, b"x", max_response=1, timeout=10) == b"x"


async def open_to(a: Network, b: Network, protocol: str = DEAF) -> Any:
    return await a._host.new_stream(id_of(b.peer), [TProtocol(protocol)])


async def test_who_ignores_its_window_loses_the_stream() -> None:
    """Before: 16 MiB of each stream were kept."""
    async with star(2) as (a, b):
        b.serve(ECHO, echo, max_request=10, max_concurrent=4)
        b._host.set_stream_handler(DEAF, never_read)
        stream = await open_to(a, b)
        await push(stream, 4 * DEFAULT_WINDOW_SIZE)
        await wait_until_read(a, b)
        assert unread(b) <= DEFAULT_WINDOW_SIZE
        assert a.connected() == {b.peer}


async def test_nor_may_a_stream_begin_with_more_than_its_window() -> None:
    async with star(2) as (a, b):
        b.serve(ECHO, echo, max_request=10, max_concurrent=4)
        (mine,), (theirs,) = muxers(a), muxers(b)
        size = DEFAULT_WINDOW_SIZE + 1
        numbers = range(1001, 1021, 2)
        for number in numbers:
            header = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, FLAG_SYN, number, size)
            await mine._write_frame(header + bytes(size))
        await wait_until_read(a, b)
        assert theirs.streams
        assert not theirs.streams.keys() & set(numbers)
        assert a.connected() == {b.peer}


async def test_all_streams_of_a_peer_together_have_a_bound() -> None:
    """Before: 374 MB of one peer with 250 streams of a MiB each."""
    async with star(2) as (a, b):
        b.serve(ECHO, echo, max_request=10, max_concurrent=4)
        b._host.set_stream_handler(DEAF, never_read)
        for _ in range(60):
            await push(await open_to(a, b), DEFAULT_WINDOW_SIZE - 1000)
        await wait_until_read(a, b)
        assert unread(b) <= MAX_UNREAD_PER_CONNECTION + (1 << 16)
        assert a.connected() == {b.peer}


async def test_what_comes_on_a_stream_that_was_answered_is_not_kept() -> None:
    async with star(2) as (a, b):
        b.serve(ECHO, echo, max_request=10, max_concurrent=4)
        for _ in range(20):
            stream = await open_to(a, b, ECHO)
            await write_frame(stream, b"x")
            # The answer, and its end; our own side stays open.
            assert await read_bytes(stream, 6, 5.0) == b"\0\0\0\0\1x"
            await push(stream, 200_000)
        await wait_until_read(a, b)
        # Gossip's are left.
        await until(lambda: max(len(muxer.streams) for muxer in muxers(b)) < 5)
        assert unread(b) == 0


async def test_credit_that_nobody_asked_for_costs_nothing() -> None:
    """The other side may grant us as much as it likes: we send what we have."""
    async with star(2) as (a, b):
        b.serve(ECHO, echo, max_request=10, max_concurrent=4)
        stream = await open_to(a, b, ECHO)
        for _ in range(100):
            await stream.muxed_stream.send_window_update(2**32 - 1)
        await write_frame(stream, b"x")
        assert await read_bytes(stream, 6, 5.0) == b"\0\0\0\0\1x"
        await wait_until_read(a, b)
