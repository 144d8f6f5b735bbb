"""A member's side of the list of public swarms: it renews its entry at the bootstrap peers."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import trio

from ...crypto.identity import Identity, PeerId
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest
from ..network.errors import RequestError
from ..network.network import Network
from ..storage.monotonic_counter import MonotonicCounter
from .entries import (
    MAX_LISTED_MANIFEST_BYTES,
    MAX_PUBLISH_RESPONSE_BYTES,
    MAX_TOKENS_PER_SECOND,
    PUBLISH_PROTOCOL,
    PublishRequest,
    PublishResponse,
    decode_publish_response,
    open_entry,
    seal_entry,
)

_log = logging.getLogger(__name__)

RENEWAL_SECONDS = 180.0
"""Interval between renewals: two may be lost before an entry expires."""
_SOON_SECONDS = 5.0
_REQUEST_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class SwarmState:
    """What a member reports about its public swarm."""

    manifest: Manifest
    members: int
    rounds_done: int
    tokens_per_second: float | None


class ListingPublisher:
    """Publishes entries about one swarm."""

    def __init__(
        self,
        network: Network,
        identity: Identity,
        bootstrap: Collection[PeerId],
        message_numbers: MonotonicCounter,
        state: Callable[[], SwarmState | None],
    ) -> None:
        """`state` returns None while there is nothing to publish: the swarm is not public, or this node
        is not a member yet, or the run is over."""
        self._network = network
        self._identity = identity
        self._bootstrap = bootstrap
        self._message_numbers = message_numbers
        self._state = state

    async def run(self) -> None:
        """Publish an entry at every connected bootstrap peer, and renew it; for ever. Returns if the
        swarm cannot be listed."""
        while True:
            state = self._state()
            peers = self._network.connected() & frozenset(self._bootstrap)
            if state is None or not peers:
                await trio.sleep(_SOON_SECONDS)
                continue
            manifest = state.manifest.encode()
            if len(manifest) > MAX_LISTED_MANIFEST_BYTES:
                _log.warning(
                    "the swarm is public, but its manifest is too large for lists: %d bytes, of at "
                    "most %d",
                    len(manifest),
                    MAX_LISTED_MANIFEST_BYTES,
                )
                return
            for peer in peers:
                await self._publish(peer, state, manifest)
            await trio.sleep(RENEWAL_SECONDS * random.uniform(0.7, 1.0))

    async def _publish(self, peer: PeerId, state: SwarmState, manifest: bytes) -> None:
        try:
            answer = await self._send(peer, state, None)
            if answer.wants_manifest:
                answer = await self._send(peer, state, manifest)
            if answer.newer is not None:
                newer = open_entry(answer.newer, state.manifest.swarm)
                if newer.publisher != self._identity.peer:
                    raise ProtocolError("invalid", "the newer entry is another peer's")
                # Our numbers were lost with the data directory: continue from the one known there.
                self._message_numbers.beyond(newer.number)
                await self._send(peer, state, manifest)
        except RequestError as error:
            # Most bootstrap peers keep no list.
            _log.debug("the entry was not published: %s", error)
        except ProtocolError as error:
            self._network.penalise(peer, error.reason)

    async def _send(
        self, peer: PeerId, state: SwarmState, manifest: bytes | None
    ) -> PublishResponse:
        pace, swarm = state.tokens_per_second, state.manifest.swarm
        entry = seal_entry(
            self._identity,
            swarm,
            number=self._message_numbers.next(),
            written=max(0, int(time.time())),
            members=state.members,
            rounds_done=state.rounds_done,
            # It follows from what members announce, and a liar may announce any number.
            tokens_per_second=None if pace is None else min(int(pace), MAX_TOKENS_PER_SECOND),
        )
        return decode_publish_response(
            await self._network.request(
                peer,
                PUBLISH_PROTOCOL,
                PublishRequest(swarm, entry, manifest).encode(),
                max_response=MAX_PUBLISH_RESPONSE_BYTES,
                timeout=_REQUEST_TIMEOUT_SECONDS,
            )
        )
