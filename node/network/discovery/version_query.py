"""The query for a peer's protocol version, used if no peer serves the swarm's manifest.

A manifest names the swarm's version, but a program that is too old may not even get it, because the ways
to fetch it may have changed. This query and its answer stay the same in all versions.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from ....crypto.identity import PeerId
from ....protocol.wire.errors import ProtocolError
from ....protocol.wire.introductions import (
    MAX_VERSION_BYTES,
    VersionMessage,
    decode_version_message,
)
from ....protocol.wire.manifest import PROTOCOL_VERSION
from ..errors import RequestError
from ..network import Network

PROTOCOL = "/distro/version/1"
"""Request: empty. Answer: a `VersionMessage`."""

_REQUEST_TIMEOUT_SECONDS = 5.0
# A few answers are enough for one sentence to the user; nothing else depends on them.
_MAX_ASKED = 8


def serve_version(network: Network) -> None:
    """Answer version queries with this program's protocol version."""

    async def answer(peer: PeerId, data: bytes) -> bytes:
        return VersionMessage(PROTOCOL_VERSION).encode()

    network.serve(PROTOCOL, answer, max_request=1, max_concurrent=16)


async def query_versions(network: Network, peers: Iterable[PeerId]) -> set[int]:
    """Return the versions that some connected peers report; peers that do not answer are left out."""
    versions: set[int] = set()

    async def ask(peer: PeerId) -> None:
        try:
            answer = await network.request(
                peer,
                PROTOCOL,
                b"",
                max_response=MAX_VERSION_BYTES,
                timeout=_REQUEST_TIMEOUT_SECONDS,
            )
            versions.add(decode_version_message(answer).version)
        except RequestError:
            pass
        except ProtocolError as error:
            network.penalise(peer, error.reason)

    async with trio.open_nursery() as nursery:
        for peer in list(peers)[:_MAX_ASKED]:
            nursery.start_soon(ask, peer)
    return versions
