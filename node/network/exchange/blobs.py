"""Blobs between peers: ask by content id, check the hash, keep what is right.

A fetch ends with exactly the bytes that were asked for or with `FetchFailed`. Slow providers are
overtaken by others, frozen ones too, liars are scored; a blob that several tasks want at once comes
over the line once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Container, Sequence
from statistics import median

import trio

from ....crypto.hashing import ContentId, content_id
from ....crypto.identity import PeerId
from ....protocol.wire.backoff import Backoff
from ....protocol.wire.blobs import MAX_BLOB_BYTES
from ....protocol.wire.errors import ProtocolError
from ....protocol.wire.relay_requests import RelayRequest
from ...storage.blob_files import BlobFiles
from ...system_errors import is_shortage, note_shortage
from ..errors import RequestError
from ..network import Network
from ..scopes import open_scope
from .attempt import PATIENCE, Attempt
from .quarantine import Quarantine
from .relays import PROTOCOL as RELAY
from .relays import Relays
from .speeds import Speeds

PROTOCOL = "/distro/blob/1"
"""Request: a content id. Answer: a zero byte and the blob, or a one byte: not here."""
PART_PROTOCOL = "/distro/part/1"
"""The same for parts of sheets. Request: a part's name, to which nothing hashes; so whoever was led to
ask for one as if it were a content id is told that it is not here."""

Providers = Callable[[], Sequence[PeerId]]
Wanted = Callable[[], bool]
"""Whether something is still worth waiting for."""


def _always() -> bool:
    return True


FOUND, _NOT_FOUND = b"\x00", b"\x01"
# What comes of asking a peer that does not have a blob.
_LACKING = ("not found", "not connected")
# A peer that has failed so often has not got it either, whatever it says: a liar is busy for ever.
_MOST_FAILURES = 3
_CONTENT_ID_BYTES = 32
MAX_UPLOADS = 4
"""So many blobs are served at a time."""
# One provider's share of our downloads; it gives any one peer half of its upload slots.
_PER_PROVIDER = 2
# Updates on their way from one relay. At first each comes as slowly as its author sends it: a dozen at
# 10 Mbit/s fill a line of 100.
_PER_RELAY = 12
# A third provider is asked when two dawdle; more would multiply the bytes for no speed.
_MAX_HEDGES = 3
# A provider that takes too long has earned a competitor, but never sooner than this: on a busy line a
# second of silence is nothing.
_MIN_PATIENCE_SECONDS = 1.0
# A relay that sends nothing at all for this long, whatever it was asked for, is of no use now …
_RELAY_PATIENCE_SECONDS = 5.0
# … but a single update may come as slowly as its author sends it. A relay gives up on an author after
# ten seconds and says so; asking that author directly would cost its line a second time.
_RELAY_STALL_SECONDS = 12.0
_RELAY_WHOLE = 3.0
# Our own process had no chance to notice anything for this long: nobody else is to blame.
_LAG_SECONDS = 1.0
_POLL_SECONDS = 0.2
# How long a provider that failed is left alone, doubled with each failure.
_RETRY_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
# The weight of the newest measurement in what counts as usual.
_NEWEST = 0.2
_IDLE_SECONDS = 10.0


class FetchFailed(Exception):
    """No provider had the blob in time; `tried` says what came of each, `vain` that none will."""

    def __init__(self, cid: ContentId, tried: dict[PeerId, str], *, vain: bool = False) -> None:
        counts = Counter(tried.values())
        outcome = ", ".join(f"{count} × {what}" for what, count in counts.most_common())
        super().__init__(outcome or "nobody to ask")
        lacking = vain or set(tried.values()) <= set(_LACKING)
        self.is_vain = "not found" in tried.values() and lacking
        """Whether it is not that nobody could be asked: nobody has it."""
        self.cid = cid
        self.reason = outcome or "nobody to ask"
        self.tried = tried


def serve_blobs(
    network: Network,
    store: BlobFiles,
    kind_of: Callable[[ContentId], str] = lambda cid: "blob",
    asked: Callable[[PeerId, ContentId], None] = lambda peer, cid: None,
    relays: Container[PeerId] = (),
) -> None:
    """Serve the blobs of `store` to everybody who is connected, `MAX_UPLOADS` at a time.

    `kind_of` says what the bytes of a blob are counted as; `asked` hears of every request. `relays`
    are never sent away because others are being served: they save us from serving these.
    """

    async def answer(peer: PeerId, request: bytes) -> bytes:
        asked(peer, _requested(request))
        return await _answer(store, request)

    network.serve(
        PROTOCOL,
        answer,
        max_request=_CONTENT_ID_BYTES,
        max_concurrent=MAX_UPLOADS,
        first=lambda peer: peer in relays,
        kind=lambda request: kind_of(ContentId(request)),
    )


def serve_parts(network: Network, store: BlobFiles) -> None:
    """Serve parts of sheets to everybody who is connected, as many at a time."""

    async def answer(peer: PeerId, request: bytes) -> bytes:
        return await _answer(store, request)

    network.serve(
        PART_PROTOCOL,
        answer,
        max_request=_CONTENT_ID_BYTES,
        max_concurrent=MAX_UPLOADS,
        kind=lambda request: "update",
    )


async def _answer(store: BlobFiles, request: bytes) -> bytes:
    data = await trio.to_thread.run_sync(store.get, _requested(request))
    return _NOT_FOUND if data is None else FOUND + data


class BlobFetcher:
    """Fetches blobs into `store`."""

    def __init__(
        self,
        network: Network,
        store: BlobFiles,
        relays: Relays | None = None,
        protocol: str = PROTOCOL,
        longest_pause: float = _LONGEST_PAUSE_SECONDS,
    ) -> None:
        """A provider that failed is left alone for `longest_pause` seconds at most."""
        self._network = network
        self._store = store
        self._protocol = protocol
        self._longest_pause = longest_pause
        self._relays = relays
        self._downloads: dict[ContentId, _Download] = {}
        self._busy: Counter[PeerId] = Counter()
        # When a relay last sent a piece of anything, or was asked for the first of what it owes us.
        self._heard: dict[PeerId, float] = {}
        # What is usual: seconds to the first byte, and bytes a second from there on.
        self._latency = 0.25
        self._rate = 1e6
        self._speeds = Speeds()
        self._frozen = Quarantine()
        self._watching = False

    async def fetch(
        self,
        cid: ContentId,
        *,
        max_bytes: int,
        providers: Providers,
        kind: str = "blob",
        timeout: float,
        wanted: Wanted = _always,
        relay: RelayRequest | None = None,
    ) -> bytes:
        """Return a blob from the store or from a provider, and keep it in the store.

        `providers` is asked anew whenever somebody is needed; those not connected are passed over.
        Where there are relays, they are asked first for an update, with `relay`.
        Providers that fail are tried again while `timeout` seconds last, or until `wanted` says no
        while nobody has it. Raises `FetchFailed`, and `DiskFull` if the blob cannot be kept.
        """
        data = await trio.to_thread.run_sync(self._store.get, cid)
        if data is not None:
            return data
        download = self._downloads.get(cid)
        if download is None:
            max_bytes = min(max_bytes, MAX_BLOB_BYTES)
            pauses = Backoff[PeerId](_RETRY_SECONDS, self._longest_pause)
            download = _Download(cid, max_bytes, providers, kind, wanted, relay, pauses)
            self._downloads[cid] = download
            self._network.spawn(self._run, download)
            if not self._watching:
                self._watching = True
                self._network.spawn(self._watch)
        download.waiting += 1
        try:
            with trio.move_on_after(timeout):
                await download.done.wait()
        finally:
            download.waiting -= 1
            if not download.waiting:
                # Nobody wants it any more: the tasks end, and their streams with them.
                download.scope.cancel()
                if self._downloads.get(cid) is download:
                    del self._downloads[cid]
        if download.error is not None:
            raise download.error
        if download.data is None:
            raise FetchFailed(cid, dict(download.tried), vain=download.is_vain)
        return download.data

    async def _run(self, download: _Download) -> None:
        with download.scope:
            async with trio.open_nursery() as nursery:
                while download.data is None and download.error is None:
                    self._start_attempts(download, nursery)
                    if download.is_vain and not download.wanted():
                        break
                    await download.changed.wait()
                    download.changed = trio.Event()
                # The others have lost.
                nursery.cancel_scope.cancel()
        download.done.set()

    async def _watch(self) -> None:
        """Let every download look now and then at how it fares; an alarm for each would be dear."""
        while self._downloads:
            began = trio.current_time()
            await trio.sleep(_POLL_SECONDS)
            lag = trio.current_time() - began - _POLL_SECONDS
            for download in self._downloads.values():
                if lag > _LAG_SECONDS:
                    self._excuse(download, lag)
                download.changed.set()
        self._watching = False

    def _start_attempts(self, download: _Download, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        # A snapshot's chunks, and a round's updates, may well be slow because of each other.
        usual = self._usual_rate(download, now)
        waiting = [each for each in download.attempts if not self._overdue(each, now, usual)]
        # One is enough as long as it is making headway.
        if waiting or len(download.attempts) >= _MAX_HEDGES:
            return
        relay = self._choose_relay(download, now)
        if relay is not None and self._busy[relay] >= _PER_RELAY:
            # It will soon be free, and nobody else has anything by then that it has not.
            return
        peer = relay or self._choose(download, now)
        if peer is not None:
            expected = self._latency + download.max_bytes / self._rate
            stall = max(_MIN_PATIENCE_SECONDS, PATIENCE * self._latency)
            whole = max(2 * _MIN_PATIENCE_SECONDS, PATIENCE * expected)
            if relay is not None:
                stall, whole = max(stall, _RELAY_STALL_SECONDS), _RELAY_WHOLE * whole
            attempt = Attempt(
                peer,
                now,
                stall=stall,
                whole=whole,
                size=download.max_bytes,
                is_relay=relay is not None,
            )
            download.attempts.append(attempt)
            nursery.start_soon(self._attempt, download, attempt)

    def _choose_relay(self, download: _Download, now: float) -> PeerId | None:
        """The relay to ask next; None if there is none that could help."""
        if download.relay is None or self._relays is None:
            return None
        asked = {attempt.peer for attempt in download.attempts}
        for relay in self._relays.order(download.cid):
            waits = download.pauses.rests(relay, now)
            stuck = self._busy[relay] >= _PER_RELAY and self._silent(relay, now)
            if relay not in asked and relay not in download.excluded and not waits and not stuck:
                return relay
        return None

    def _overdue(self, attempt: Attempt, now: float, usual: float) -> bool:
        """Whether somebody else should have a go at it, too; `usual` as in `Attempt`."""
        if attempt.overdue(now, usual):
            return True
        waited = now - attempt.started > _RELAY_PATIENCE_SECONDS
        return attempt.is_relay and waited and self._silent(attempt.peer, now)

    def _silent(self, relay: PeerId, now: float) -> bool:
        return now - self._heard.get(relay, float("-inf")) > _RELAY_PATIENCE_SECONDS

    def _excuse(self, download: _Download, lag: float) -> None:
        for attempt in download.attempts:
            attempt.excuse(lag)
            if attempt.is_relay:
                self._heard[attempt.peer] = trio.current_time()

    def _choose(self, download: _Download, now: float) -> PeerId | None:
        connected = self._network.connected()
        asked = {attempt.peer for attempt in download.attempts}
        choices: list[PeerId] = []
        for peer in download.providers():
            if peer not in connected:
                download.tried.setdefault(peer, "not connected")
            elif (
                peer not in asked
                and peer not in download.excluded
                and not download.pauses.rests(peer, now)
                and self._busy[peer] < _PER_PROVIDER
            ):
                choices.append(peer)
        # Those who take questions and answer none come last.
        choices = [peer for peer in choices if peer not in self._frozen] or choices
        # Every peer prefers another provider for every blob: the load spreads by itself.
        own = self._network.peer

        def cost(peer: PeerId) -> float:
            busy = self._busy[peer]
            # An update is asked of everybody alike; a round should not hang on a few fast lines.
            return self._speeds.cost(peer, busy) if download.kind == "blob" else busy

        return min(
            choices,
            key=lambda peer: (cost(peer), content_id(own + download.cid + peer)),
            default=None,
        )

    def _usual_rate(self, download: _Download, now: float) -> float:
        """What one transfer of several brings at present, in bytes a second."""
        rates = [
            attempt.received / (now - attempt.started)
            for other in self._downloads.values()
            for attempt in other.attempts
            if other is not download and attempt.received and now - attempt.started > 1.0
        ]
        return median(rates) if rates else self._rate

    async def _attempt(self, download: _Download, attempt: Attempt) -> None:
        peer = attempt.peer
        self._busy[peer] += 1
        self._heard.setdefault(peer, trio.current_time())

        def note(size: int) -> None:
            attempt.note(size)
            if attempt.is_relay:
                self._heard[peer] = trio.current_time()

        protocol, question = self._protocol, bytes(download.cid)
        if attempt.is_relay and download.relay is not None:
            protocol, question = RELAY, download.relay.sealed
        try:
            response = await self._network.request(
                peer,
                protocol,
                question,
                max_response=1 + download.max_bytes,
                timeout=_longest(download.max_bytes),
                idle_timeout=_IDLE_SECONDS,
                kind=download.kind,
                progress=note,
            )
            attempt.ended = True
            await self._judge(download, attempt, response)
        except RequestError as error:
            attempt.ended |= error.reason != "timeout"
            download.failed(peer, "too large" if error.reason == "oversized" else error.reason)
            if error.reason == "oversized":
                # No liar for certain (whoever told us the size may be one), but of no use.
                download.excluded.add(peer)
        except OSError as error:
            if is_shortage(error):
                note_shortage(error)
                download.failed(peer, "failed")
            else:
                download.error = error
        finally:
            seconds = trio.current_time() - attempt.started
            if download.tried.get(peer) not in _LACKING:
                self._speeds.note(peer, attempt.received, seconds, self._busy[peer])
            if attempt.first_byte is not None:
                self._frozen.forgive(peer)
            elif not attempt.ended and self._frozen.waited(peer, seconds):
                self._network.traffic.reject("frozen")
            self._busy[peer] -= 1
            if not self._busy[peer]:
                del self._busy[peer]
                self._heard.pop(peer, None)
            download.attempts.remove(attempt)
            download.changed.set()
            for other in self._downloads.values():
                if not other.attempts:
                    # It may have waited for this provider.
                    other.changed.set()

    async def _judge(self, download: _Download, attempt: Attempt, response: bytes) -> None:
        peer = attempt.peer
        # A relay has nothing to say but the update itself.
        says, data = (FOUND, response) if attempt.is_relay else (response[:1], response[1:])
        if not response or (says == _NOT_FOUND and not data):
            download.failed(peer, "not found")
            return
        good = says == FOUND and await trio.to_thread.run_sync(self._store.keep, download.cid, data)
        if not good:
            download.failed(peer, "wrong content")
            download.excluded.add(peer)
            self._network.traffic.reject("bad_hash")
            self._network.penalise(peer, "bad_hash")
            return
        download.data = data
        self._learn(attempt, len(data))
        if self._relays is not None and not attempt.is_relay:
            for beaten in download.attempts:
                if beaten.is_relay and self._silent(beaten.peer, trio.current_time()):
                    self._relays.too_slow(beaten.peer)

    def _learn(self, attempt: Attempt, size: int) -> None:
        first = attempt.first_byte or trio.current_time()
        self._latency += _NEWEST * (first - attempt.started - self._latency)
        seconds = trio.current_time() - first
        # Small blobs say nothing about the rate.
        if size >= 1 << 16 and seconds > 0:
            self._rate += _NEWEST * (size / seconds - self._rate)


class _Download:
    """One blob on its way, for everybody who waits for it."""

    def __init__(
        self,
        cid: ContentId,
        max_bytes: int,
        providers: Providers,
        kind: str,
        wanted: Wanted,
        relay: RelayRequest | None,
        pauses: Backoff[PeerId],
    ) -> None:
        self.cid = cid
        self.max_bytes = max_bytes
        self.providers = providers
        self.kind = kind
        self.wanted = wanted
        self.relay = relay
        self.waiting = 0
        self.scope = open_scope()
        self.done = trio.Event()
        self.changed = trio.Event()
        self.attempts: list[Attempt] = []
        self.tried: dict[PeerId, str] = {}
        self.excluded: set[PeerId] = set()
        self.failures: Counter[PeerId] = Counter()
        self.pauses = pauses
        self.data: bytes | None = None
        self.error: OSError | None = None

    @property
    def is_vain(self) -> bool:
        """Whether nobody is at it, and nobody who could be has it, as far as can be told."""
        return not self.attempts and all(
            self.tried.get(peer) in _LACKING
            or peer in self.excluded
            or self.failures[peer] >= _MOST_FAILURES
            for peer in self.providers()
        )

    def failed(self, peer: PeerId, outcome: str) -> None:
        self.tried[peer] = outcome
        self.failures[peer] += 1
        # Those who were told "busy" together do not come back together.
        self.pauses.failed(peer, trio.current_time(), random.uniform(0.5, 1.0))


def _requested(request: bytes) -> ContentId:
    if len(request) != _CONTENT_ID_BYTES:
        raise ProtocolError("malformed", f"a content id has 32 bytes, not {len(request)}")
    return ContentId(request)


def _longest(max_bytes: int) -> float:
    """The most that one provider may take: 64 kbit/s and half a minute."""
    return 30.0 + max_bytes / 8_000
