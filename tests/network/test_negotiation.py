"""A protocol is negotiated once with a peer; afterwards requests go out with their proposal."""

from __future__ import annotations

from typing import Any

import pytest
from distro_node.node.network.errors import RequestError
from libp2p.custom_types import TProtocol
from network.support import ECHO, echo, star

# Private here: `_host`: how often the library negotiates, and a peer that no longer has a protocol.


async def test_a_protocol_is_negotiated_once_and_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with star(2) as (a, b):
        b.serve(ECHO, echo, max_request=1 << 20, max_concurrent=4)
        negotiated = 0
        new_stream = a._host.new_stream

        async def counted(*arguments: Any) -> Any:
            nonlocal negotiated
            negotiated += 1
            return await new_stream(*arguments)

        monkeypatch.setattr(a._host, "new_stream", counted)

        async def ask(request: bytes) -> bytes:
            return await a.request(b.peer, ECHO, request, max_response=1 << 20, timeout=60)

        for request in (b"", b"once", bytes(1 << 18)):
            assert await ask(request) == request
        assert negotiated == 1
        # As after a restart with another version.
        b._host.multiselect.remove_handler(TProtocol(ECHO))
        with pytest.raises(RequestError):
            await ask(b"again")
        for _ in range(2):
            with pytest.raises(RequestError, match="has no /test/echo/1") as caught:
                await ask(b"again")
            assert caught.value.reason == "refused"
        assert negotiated == 3
