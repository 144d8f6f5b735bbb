"""The kernel takes only little of what waits to be sent."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from distro_node.node.network.queues import UNSENT_BYTES, shorten
from libp2p.stream_muxer.yamux.yamux import DEFAULT_WINDOW_SIZE, YamuxStream
from network.support import muxers, star


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


def test_where_there_is_no_socket_nothing_happens() -> None:
    assert not shorten(object())


async def test_credit_is_granted_for_half_a_window_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However small the pieces in which a stream is read: the library sends one for each read."""
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
