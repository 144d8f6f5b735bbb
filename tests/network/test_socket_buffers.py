"""The kernel accepts only little of what waits to be sent."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest
import trio
import trio.testing
from distro_node.node.network.socket_buffers import UNSENT_BYTES, gauge, limit_unsent, read_ready
from libp2p.io.trio import TrioTCPStream
from libp2p.stream_muxer.yamux.yamux import DEFAULT_WINDOW_SIZE, YamuxStream
from network.support import muxers, star, until


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system cannot do it")
async def test_every_connection_is_kept_short() -> None:
    async with star(2) as opened:
        for network in opened:
            for muxer in muxers(network):
                layer: Any = muxer
                for name in ("secured_conn", "_inner", "conn", "read_writer"):
                    layer = getattr(layer, name)
                stream = layer.read_write_closer.stream.stream
                option = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
                assert option == UNSENT_BYTES


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere it may take several")
async def test_what_comes_in_bit_by_bit_is_read_at_once() -> None:
    """And nothing is left waiting: what follows is read as soon as it arrives."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        near = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        far = await listener.accept()
        reader = TrioTCPStream(near)
        pieces: list[bytes] = []

        async def read() -> None:
            pieces.append(await read_ready(reader, 40_000, 100_000))
            pieces.append(await read_ready(reader, 1, 100_000))
            pieces.append(await read_ready(reader, 5000, 100_000))

        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for _ in range(20):
                await far.send_all(bytes(2000))
                await trio.testing.wait_all_tasks_blocked()
            await until(lambda: len(pieces) == 1)
            await far.send_all(b"a vote")
            await until(lambda: len(pieces) == 2)
            await far.aclose()
        assert [len(piece) for piece in pieces] == [40_000, 6, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="this system does not tell")
async def test_how_a_connection_is_doing_is_known_as_long_as_it_lasts() -> None:
    data = bytes(1_000_000)
    async with star(2) as (a, b):

        async def answer(peer: bytes, request: bytes) -> bytes:
            return data

        a.serve("/test/1", answer, max_request=1, max_concurrent=1)
        (muxer,) = muxers(a)
        read = gauge(muxer)
        before = read()
        assert before is not None
        assert await b.request(a.peer, "/test/1", b"", max_response=len(data), timeout=60) == data
        after = read()
        assert after is not None
        assert after.acknowledged - before.acknowledged >= len(data)
        assert 0.0 < after.shortest <= after.round_trip < 1.0
        assert 0.0 <= after.deviation < 1.0
        assert after.in_flight < len(data)
        assert after.unsent <= UNSENT_BYTES
    assert read() is None


def test_where_there_is_no_socket_nothing_happens() -> None:
    assert not limit_unsent(object())
    assert gauge(object())() is None


async def test_credit_is_granted_for_half_a_window_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For any size of the pieces in which a stream is read: the library sends one for each read."""
    granted: list[int] = []
    real = YamuxStream.send_window_update

    async def noting(self: Any, increment: int, skip_lock: bool = False) -> None:
        granted.append(increment)
        await real(self, increment, skip_lock)

    monkeypatch.setattr(YamuxStream, "send_window_update", noting)
    data = bytes(3_000_000)
    async with star(2) as (a, b):

        async def answer(peer: bytes, request: bytes) -> bytes:
            return data

        b.serve("/test/1", answer, max_request=1, max_concurrent=1)
        assert await a.request(b.peer, "/test/1", b"", max_response=len(data), timeout=60) == data
    assert granted
    assert min(granted) >= DEFAULT_WINDOW_SIZE // 2
    assert len(granted) < 2 * len(data) / DEFAULT_WINDOW_SIZE
