"""Which version of the protocol peers speak: told to whoever asks, asked where nobody gives the swarm.

A swarm's description names its version, but who is too old may not even get that: the ways to fetch it
may have changed. This question and its answer stay the same in all versions.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from ....crypto.identity import PeerId
from ....protocol.wire.errors import ProtocolError
from ....protocol.wire.introductions import MAX_SPOKEN_BYTES, Spoken, decode_spoken
from ....protocol.wire.manifest import PROTOCOL_VERSION
from ..errors import RequestError
from ..network import Network

SPEAKING = "/distro/version/1"

_ASK_SECONDS = 5.0
# The word of some is enough for a sentence; nothing else follows from it.
_MOST_ASKED = 8


def serve_version(network: Network) -> None:
    """Tell whoever asks what this program speaks."""

    async def answer(peer: PeerId, data: bytes) -> bytes:
        return Spoken(PROTOCOL_VERSION).encode()

    network.serve(SPEAKING, answer, max_request=1, max_concurrent=16)


async def spoken_versions(network: Network, peers: Iterable[PeerId]) -> set[int]:
    """What some connected peers say they speak; those that do not say are left out."""
    versions: set[int] = set()

    async def ask(peer: PeerId) -> None:
        try:
            answer = await network.request(
                peer, SPEAKING, b"", max_response=MAX_SPOKEN_BYTES, timeout=_ASK_SECONDS
            )
            versions.add(decode_spoken(answer).version)
        except RequestError:
            pass
        except ProtocolError as error:
            network.penalise(peer, error.reason)

    async with trio.open_nursery() as nursery:
        for peer in list(peers)[:_MOST_ASKED]:
            nursery.start_soon(ask, peer)
    return versions
