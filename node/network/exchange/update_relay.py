"""An update relay, which fetches each update once from its author and serves it to all members.

A member's request contains the author's signed announcement, so that a relay needs no other knowledge of
the swarm. Bytes are forwarded while they arrive; the last piece follows only after the hash check, so an
update delivered in full is correct. A relay keeps a bounded number of bytes, in memory only, and may
disappear at any time: members then turn to another relay, or to each other.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable

import trio

from ....crypto.hashing import ContentId, content_id
from ....crypto.identity import PeerId, short_peer
from ....protocol.wire.blobs import MAX_BLOB_BYTES
from ....protocol.wire.manifest import SwarmId
from ....protocol.wire.relay_requests import (
    MAX_RELAY_REQUEST_BYTES,
    RelayRequest,
    open_relay_request,
)
from ...settings.components import RelayLimits
from ..cancel_scopes import open_scope
from ..errors import RequestError
from ..network import Network
from ..socket_buffers import RELAY_UNSENT_BYTES
from ..streams import FlowBroken
from .blobs import FOUND
from .blobs import PROTOCOL as BLOBS
from .update_relay_client import PROTOCOL

_log = logging.getLogger(__name__)

# Members request a dozen updates at a time (`blobs`), and some of them twice when connections break.
_STREAMS_PER_PEER = 32
# Updates kept per author: the rounds that can be open at once, plus one. An author's older updates make
# room for newer ones.
_PER_AUTHOR = 3
# Unfinished fetches per author, over all swarms: an author may take part in any number of swarms of its
# own, and each fetch takes a task and a buffer for half a minute at least.
_FETCHES_PER_AUTHOR = 16
# Every piece wakes all streams being served, so pieces are large: a quarter of a MiB; less towards the
# end (or the last piece would be late), and no more than an author sends in a quarter of a second.
_MOST_GATHERED_BYTES = 1 << 18
_SHARE_OF_REST = 8
_GATHER_SECONDS = 0.25
# The end of an update, which is held back until the hash is verified.
_LAST_PIECE_BYTES = 1 << 15
# An update that nobody has requested for this long is dropped: it has most likely reached all members.
_KEPT_SECONDS = 300.0
_SWEEP_SECONDS = 30.0
_IDLE_SECONDS = 10.0
# Pauses before a busy author is asked again. An author that serves others directly, because they do not
# know this relay, has a free slot soon.
_BUSY_PAUSES_SECONDS = (0.2, 0.4, 0.8, 1.6)
# The same timeout as members use: half a minute, plus the time that the bytes take at 64 kbit/s.
_FETCH_SECONDS = 30.0
_SLOWEST_BYTES_PER_SECOND = 8_000


class UpdateRelay:
    """Relays updates on a network while it is open."""

    def __init__(self, network: Network, limits: RelayLimits | None = None) -> None:
        self._network = network
        self._limits = limits or RelayLimits()
        # In order of the last request, so that a flood of updates displaces first those that nobody
        # requests any more. The author is part of the key: a faulty member that announces another's
        # update must not block it.
        self._updates: OrderedDict[tuple[PeerId, ContentId], _RelayedUpdate] = OrderedDict()
        self._held_bytes: Counter[SwarmId] = Counter()
        self.fetched = 0
        """Number of updates fetched completely so far."""
        network.unsent_bytes = RELAY_UNSENT_BYTES
        network.serve(
            PROTOCOL,
            self._answer,
            max_request=MAX_RELAY_REQUEST_BYTES,
            max_concurrent=self._limits.max_streams,
            max_per_peer=_STREAMS_PER_PEER,
            kind="relayed",
        )
        network.spawn(self._sweep)

    async def _answer(self, peer: PeerId, request: bytes) -> bytes | _RelayedUpdate:
        if not request:
            return b""
        wanted = open_relay_request(request)
        relayed = self._updates.get((wanted.author, wanted.announcement.update))
        if relayed is None:
            relayed = self._start_fetch(wanted)
        if relayed is None:
            return b""
        self._updates.move_to_end(relayed.key)
        relayed.requested_at = trio.current_time()
        return b"" if peer == wanted.author else relayed

    def _start_fetch(self, wanted: RelayRequest) -> _RelayedUpdate | None:
        """Start fetching an update; None if it is too large, its author is not connected, or there is no
        room."""
        announced = wanted.announcement
        if announced.size > min(MAX_BLOB_BYTES, self._limits.max_bytes_per_swarm):
            return None
        if wanted.author not in self._network.connected() or not self._make_room_for(wanted):
            return None
        relayed = _RelayedUpdate(wanted)
        self._updates[relayed.key] = relayed
        self._network.spawn(self._fetch, relayed)
        return relayed

    def _make_room_for(self, wanted: RelayRequest) -> bool:
        """Drop the author's oldest update if there are too many; False if the requested one is not
        newer, or too many of the author's are being fetched."""
        of_author = [each for each in self._updates.values() if each.author == wanted.author]
        if sum(not each.complete for each in of_author) >= _FETCHES_PER_AUTHOR:
            return False
        kept = [each for each in of_author if each.swarm == wanted.swarm]
        if len(kept) < _PER_AUTHOR:
            return True
        oldest = min(kept, key=lambda each: each.round)
        if oldest.round >= wanted.announcement.round:
            return False
        self._drop(oldest)
        return True

    async def _fetch(self, relayed: _RelayedUpdate) -> None:
        def note(count: int) -> None:
            # A status byte comes before the update: whether the author has it.
            relayed.note_arrival(count - len(FOUND))
            self._enforce_limits(relayed)

        try:
            with relayed.scope:
                answer = await self._ask(relayed, note)
                data = await trio.to_thread.run_sync(_verified_data, relayed, answer)
                if data is not None and self._keeps(relayed):
                    relayed.finish(data)
                    self._enforce_limits(relayed)
                    self.fetched += 1
                elif data is None and answer.startswith(FOUND):
                    self._network.penalise(relayed.author, "bad_hash")
        except RequestError as error:
            author = short_peer(relayed.author)
            _log.info("fetching the update of peer %s failed: %s", author, error)
        finally:
            if not relayed.complete:
                self._drop(relayed)

    async def _ask(self, relayed: _RelayedUpdate, note: Callable[[int], None]) -> bytes:
        """Request the update from its author, again if the author is busy. Raises `RequestError` if it
        does not arrive."""
        for pause in _BUSY_PAUSES_SECONDS:
            try:
                return await self._network.request(
                    relayed.author,
                    BLOBS,
                    relayed.update,
                    max_response=len(FOUND) + relayed.size,
                    timeout=_FETCH_SECONDS + relayed.size / _SLOWEST_BYTES_PER_SECOND,
                    idle_timeout=_IDLE_SECONDS,
                    kind="relayed",
                    progress=note,
                    into=relayed.buffer,
                )
            except RequestError as error:
                # Also retried if no stream could be opened: at the start of a round all members ask at
                # once.
                if error.reason not in ("busy", "closed") or relayed.buffer:
                    raise
                await trio.sleep(pause)
        raise RequestError("busy", "the author is busy serving others")

    def _enforce_limits(self, relayed: _RelayedUpdate) -> None:
        """Update the byte counts and enforce the limits by dropping the least recently requested
        updates."""
        if not self._keeps(relayed):
            # Dropped while a write to its author, which cannot be cancelled, was under way: its bytes
            # have been subtracted.
            return
        swarm = relayed.swarm
        self._held_bytes[swarm] += relayed.held - relayed.counted_bytes
        relayed.counted_bytes = relayed.held
        while self._held_bytes[swarm] > self._limits.max_bytes_per_swarm:
            self._drop(next(each for each in self._updates.values() if each.swarm == swarm))
        while self._held_bytes.total() > self._limits.max_bytes:
            self._drop(next(iter(self._updates.values())))

    def _keeps(self, relayed: _RelayedUpdate) -> bool:
        return self._updates.get(relayed.key) is relayed

    def _drop(self, relayed: _RelayedUpdate) -> None:
        if self._keeps(relayed):
            del self._updates[relayed.key]
            self._held_bytes[relayed.swarm] -= relayed.counted_bytes
            if not self._held_bytes[relayed.swarm]:
                del self._held_bytes[relayed.swarm]
        relayed.give_up()

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(_SWEEP_SECONDS)
            oldest = trio.current_time() - _KEPT_SECONDS
            for relayed in [each for each in self._updates.values() if each.requested_at < oldest]:
                self._drop(relayed)


class _RelayedUpdate:
    """One update from its first byte on; as a `Flow` it can be sent to any number of members at once."""

    def __init__(self, wanted: RelayRequest) -> None:
        self.swarm: SwarmId = wanted.swarm
        self.author = wanted.author
        self.round = wanted.announcement.round
        self.update = wanted.announcement.update
        self.requested_at = trio.current_time()
        """Time of the last request."""
        self.counted_bytes = 0
        """Bytes counted for it in the relay's total."""
        self.buffer = bytearray()
        """The author's answer so far: the status byte, and the update."""
        self.scope = open_scope()
        self._size = wanted.announcement.size
        self._data: bytes | None = None
        self._ready = 0
        # When the streams being served were last woken because more was ready.
        self._woken_at = float("-inf")
        self._broken = False
        self._changed = trio.Event()

    @property
    def key(self) -> tuple[PeerId, ContentId]:
        """Its key in the relay's table."""
        return self.author, self.update

    @property
    def size(self) -> int:
        """Bytes of the whole update."""
        return self._size

    @property
    def held(self) -> int:
        """Bytes of it in memory."""
        return len(self.buffer) if self._data is None else len(self._data)

    @property
    def complete(self) -> bool:
        """Whether it has arrived completely and matches its id."""
        return self._data is not None

    def note_arrival(self, count: int) -> None:
        """Note that `count` bytes of the update have arrived so far; wake its readers if enough are
        new."""
        now = trio.current_time()
        enough = min(_MOST_GATHERED_BYTES, (self._size - self._ready) / _SHARE_OF_REST)
        if count - self._ready >= enough or now >= self._woken_at + _GATHER_SECONDS:
            self._ready = min(count, self._size - _LAST_PIECE_BYTES)
            self._woken_at = now
            self._wake()

    def finish(self, data: bytes) -> None:
        """Note that the update is complete and correct."""
        self._data, self._ready = data, len(data)
        self.buffer = bytearray()
        self._wake()

    def give_up(self) -> None:
        """Drop it: it will not arrive, or has to make room. The streams being served are cut off."""
        self._broken = True
        self.scope.cancel()
        self._data = None
        self.buffer = bytearray()
        self._wake()

    async def piece(self, start: int, most: int) -> bytes:
        """See `Flow`."""
        while not self._broken:
            if start < self._ready:
                end = min(self._ready, start + most)
                if self._data is not None:
                    return self._data[start:end]
                with memoryview(self.buffer) as view:
                    return bytes(view[len(FOUND) + start : len(FOUND) + end])
            await self._changed.wait()
        raise FlowBroken(f"the update of round {self.round} is not available")

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _verified_data(relayed: _RelayedUpdate, answer: bytes) -> bytes | None:
    data = answer[len(FOUND) :]
    good = answer.startswith(FOUND) and len(data) == relayed.size
    return data if good and content_id(data) == relayed.update else None
