"""Asking other members what was missed, and answering them.

One request serves a member that lost a message, one that fell behind and a newcomer that has nothing: it
names a round, and the answer is what the other knows from there on.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from ..crypto.identity import PeerId, short_peer
from ..protocol.errors import ProtocolError
from ..protocol.fork import better_chain
from ..protocol.ledger import Ledger
from ..protocol.manifest import Manifest
from ..protocol.member import Member
from ..protocol.messages import Decided
from ..protocol.sync import (
    MAX_SYNC_REQUEST_BYTES,
    MAX_SYNC_RESPONSE_BYTES,
    SYNC_PROTOCOL,
    SyncRequest,
    SyncResponse,
    compose_response,
    decode_request,
    decode_response,
)
from ..protocol.wire import encode
from .network.errors import RequestError
from .network.network import Network

_log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 60.0
_MAX_CONCURRENT = 8
# How far back a fork is looked for, in steps that double.
_FORK_STEPS = (8, 64, 512, 4096, 1 << 40)
# Weeks of rounds. A member that calls all others silent can make a chain as long as it likes.
_MAX_FORK_ROUNDS = 1 << 16


def serve_sync(network: Network, manifest: Manifest, member: Member) -> None:
    """Answer sync requests out of a member's ledger and mailbox."""

    async def answer(peer: PeerId, data: bytes) -> bytes:
        request = decode_request(data)
        if request.swarm != manifest.swarm:
            raise ProtocolError("wrong_swarm", "a sync request for another swarm")
        ledger = member.ledger
        entries = (ledger[round_] for round_ in range(request.round, len(ledger)))
        envelopes = (
            [envelope.encode() for envelope in member.messages(request.round)]
            if request.round == len(ledger)
            else []
        )
        return encode(compose_response(len(ledger), entries, envelopes))

    network.serve(
        SYNC_PROTOCOL,
        answer,
        max_request=MAX_SYNC_REQUEST_BYTES,
        max_concurrent=_MAX_CONCURRENT,
        kind="ledger",
    )


async def ask_peer(
    network: Network, manifest: Manifest, peer: PeerId, round: int
) -> SyncResponse | None:
    """What one peer knows from `round` on; None if it does not answer (it may not be a member)."""
    request = encode(SyncRequest(manifest.swarm, round))
    try:
        data = await network.request(
            peer,
            SYNC_PROTOCOL,
            request,
            max_response=MAX_SYNC_RESPONSE_BYTES,
            timeout=_TIMEOUT_SECONDS,
            kind="ledger",
        )
        return decode_response(data)
    except RequestError:
        return None
    except ProtocolError as error:
        network.penalise(peer, error.reason)
        return None


async def ask_any(
    network: Network, manifest: Manifest, round: int, preferred: Callable[[], set[PeerId]]
) -> tuple[PeerId, SyncResponse] | None:
    """The answer of a random connected peer, one of `preferred` if there is any."""
    connected = list(network.connected())
    random.shuffle(connected)
    likely = preferred()
    connected.sort(key=lambda peer: peer not in likely)
    for peer in connected:
        answer = await ask_peer(network, manifest, peer, round)
        if answer is not None:
            return peer, answer
    return None


class Synchronizer:
    """A member's questions to the others."""

    def __init__(self, network: Network, manifest: Manifest, member: Member) -> None:
        self._network = network
        self._manifest = manifest
        self._member = member
        serve_sync(network, manifest, member)

    async def ask(self, round: int) -> SyncResponse | None:
        """What some member knows from `round` on."""
        found = await ask_any(self._network, self._manifest, round, self._others)
        return found[1] if found is not None else None

    async def better_chain(self, ours: Ledger) -> Ledger | None:
        """A chain of some other peer's that is heavier than ours, checked; None if there is none."""
        for peer in self._network.connected():
            try:
                theirs = await self._chain_of(peer, ours)
                better = better_chain(ours, theirs)
            except ProtocolError as error:
                _log.info("peer %s offers a chain that fails: %s", short_peer(peer), error)
                self._network.penalise(peer, error.reason)
                continue
            if better is not None:
                return better
        return None

    async def _chain_of(self, peer: PeerId, ours: Ledger) -> list[Decided]:
        """A peer's ledger from a round on that both have; empty if it has none or is ours.

        Each entry is checked before more is asked for. Raises `ProtocolError`.
        """
        for step in _FORK_STEPS:
            first = max(0, len(ours) - step)
            answer = await ask_peer(self._network, self._manifest, peer, first)
            if answer is None or not answer.entries:
                return []
            entries = answer.decided()
            if first and entries[0].record.parent != ours.parent(first):
                continue
            chain = ours.truncated(first)
            followed: list[Decided] = []
            while entries and len(followed) < _MAX_FORK_ROUNDS:
                for decided in entries:
                    chain.append(decided)
                followed += entries
                answer = await ask_peer(self._network, self._manifest, peer, len(chain))
                entries = answer.decided() if answer is not None else []
            return followed
        return []

    def _others(self) -> set[PeerId]:
        return set(self._member.members) - {self._member.me}
