"""Introducing peers to each other: a bootstrap peer does so for any swarm, a member for its own."""

from __future__ import annotations

import secrets
from collections.abc import Collection

import trio

from ....crypto.identity import PeerId
from ....protocol.wire.errors import ProtocolError
from ....protocol.wire.introductions import (
    MAX_PEER_RECORDS,
    MAX_REQUEST_BYTES,
    IntroductionResponse,
    Registry,
    decode_request,
    open_peer_record,
)
from ....protocol.wire.manifest import SwarmId
from ..network import Network
from .version_query import serve_version

PROTOCOL = "/distro/introduce/1"
"""Request: an `IntroductionRequest`. Answer: an `IntroductionResponse`."""


class IntroductionService:
    """Introduces peers of `swarms` to each other, or of any swarm if it is None."""

    def __init__(
        self, network: Network, registry: Registry, swarms: Collection[SwarmId] | None = None
    ) -> None:
        self._registry = registry
        self._swarms = swarms
        network.serve(PROTOCOL, self._answer, max_request=MAX_REQUEST_BYTES, max_concurrent=16)
        serve_version(network)

    async def _answer(self, peer: PeerId, data: bytes) -> bytes:
        request = decode_request(data)
        swarm = SwarmId(request.swarm)
        if self._swarms is not None and swarm not in self._swarms:
            return IntroductionResponse(records=()).encode()
        now, newer = trio.current_time(), None
        if request.record is not None:
            record = open_peer_record(request.record, swarm)
            if record.peer != peer:
                raise ProtocolError("impersonation", "a peer sent another peer's record as its own")
            newer = self._registry.add(record, now)
        chosen = self._registry.sample(swarm, now, secrets.token_bytes(8), peer)
        if newer is not None:
            # The peer's own newer record, so that it learns why this one is refused and which number to
            # use next.
            chosen = [newer, *chosen[: MAX_PEER_RECORDS - 1]]
        return IntroductionResponse(records=tuple(record.sealed for record in chosen)).encode()
