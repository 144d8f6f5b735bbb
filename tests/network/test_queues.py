"""The kernel takes only little of what waits to be sent."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from distro_node.node.network.queues import UNSENT_BYTES, shorten
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
