"""Exchange of blobs between peers: request by content id, check the hash, store correct content.

A fetch ends with exactly the requested bytes or with `FetchFailed`. Slow and frozen providers get
competitors, and providers of wrong content are penalised. A blob that several tasks want at once is
transferred once. A transfer that breaks off is continued where it was, by any provider.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from statistics import median

import trio

from ....crypto.hashing import ContentId, content_id
from ....crypto.identity import PeerId
from ....protocol.util.backoff import Backoff
from ....protocol.wire.blobs import MAX_BLOB_BYTES
from ....protocol.wire.errors import ProtocolError
from ....protocol.wire.relay_requests import RelayRequest
from ...storage.blob_files import BlobFiles
from ...util.system_errors import is_shortage, note_shortage
from ..cancel_scopes import open_scope
from ..errors import RequestError
from ..network import Network
from .attempt import PATIENCE, TransferAttempt, superfluous
from .partial_blobs import Beginning, PartialBlob, PartialBlobs
from .quarantine import Quarantine
from .speeds import ProviderSpeeds
from .update_relay_client import PROTOCOL as RELAY
from .update_relay_client import Relays

PROTOCOL = "/distro/blob/1"
"""Request: a content id. Answer: the byte 0 and then the blob, or the byte 1 alone if it is not
found."""
REST_PROTOCOL = "/distro/blob-rest/1"
"""Request: a content id, and in 8 bytes (big-endian) how many of the blob's bytes to leave out. Answer:
as above, with the bytes after these."""
PART_PROTOCOL = "/distro/part/1"
"""The same for parts of sign votes. Request: a part's name, which no bytes hash to: so if a peer is
tricked into requesting a part as a blob, the answer is that it is not found."""

Providers = Callable[[], Sequence[PeerId]]
Wanted = Callable[[], bool]
"""Whether a blob is still worth waiting for."""


def _always() -> bool:
    return True


FOUND, _NOT_FOUND = b"\x00", b"\x01"
# Outcomes that mean that the peer does not have the blob.
_LACKING_OUTCOMES = ("not found", "not connected")
# After this many failures a peer counts as not having the blob, whatever it answers …
_MOST_FAILURES = 3
# … unless it answers that it is busy, because many nodes may ask the same few peers at once. A faulty
# peer may answer "busy" for ever, so this counts for a limited time only.
_BUSY_SECONDS = 20.0
# A transfer that made progress before it broke off, or that ended with the connection, is a fault of the
# line and no such failure. A faulty peer may break off for ever, so this holds for this many times as
# long as one provider may take for the whole blob.
_LINE_FAULT_FACTOR = 2.0
_CONTENT_ID_BYTES, _OFFSET_BYTES = 32, 8
MAX_UPLOADS = 4
"""Number of blobs served at a time."""
# Concurrent downloads from one provider. A provider gives one peer at most half of its upload slots
# (`MAX_UPLOADS`).
_PER_PROVIDER = 2
# Concurrent updates from one relay. At first each arrives at its author's upload rate: a dozen at 10
# Mbit/s fill a connection of 100 Mbit/s.
_PER_RELAY = 12
# A third provider is asked when two are slow; more would multiply the bytes without being faster.
_MAX_HEDGES = 3
# A slow provider gets a competitor, but never sooner than this: on a busy line a second of silence is
# normal.
_MIN_PATIENCE_SECONDS = 1.0
# A relay that sends nothing at all for this long, on any request, is of no use now …
_RELAY_PATIENCE_SECONDS = 5.0
# … but a single update may arrive at its author's rate. A relay gives up on an author after ten seconds
# and reports it; until then, asking that author directly would use the author's upload a second time.
_RELAY_STALL_SECONDS = 12.0
# A relay may take this many times as long as another provider for the whole update.
_RELAY_TOTAL_FACTOR = 3.0
# If our own process was not scheduled for this long, the delay is not held against any peer.
_LAG_SECONDS = 1.0
_POLL_SECONDS = 0.2
# Pause after a provider's failure, doubled with each further failure.
_RETRY_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
# The weight of the newest measurement in the moving averages.
_NEWEST = 0.2
_IDLE_SECONDS = 10.0


class FetchFailed(Exception):
    """No provider delivered the blob in time; `outcomes` has each one's. `hopeless`: no attempt is under
    way, and no provider appears to have the blob."""

    def __init__(
        self, cid: ContentId, outcomes: dict[PeerId, str], *, hopeless: bool = False
    ) -> None:
        counts = Counter(outcomes.values())
        outcome = ", ".join(f"{count} × {what}" for what, count in counts.most_common())
        super().__init__(outcome or "no peer to ask")
        lacking = hopeless or set(outcomes.values()) <= set(_LACKING_OUTCOMES)
        self.is_hopeless = "not found" in outcomes.values() and lacking
        """Whether at least one peer answered that it does not have the blob, and none appears to have
        it."""
        self.cid = cid
        self.reason = outcome or "no peer to ask"
        self.outcomes = outcomes


def serve_blobs(
    network: Network,
    store: BlobFiles,
    kind_of: Callable[[ContentId], str] = lambda cid: "blob",
    on_request: Callable[[PeerId, ContentId], None] = lambda peer, cid: None,
    relays: Container[PeerId] = (),
) -> None:
    """Serve the blobs of `store` to all connected peers, `MAX_UPLOADS` at a time.

    `kind_of` returns the traffic class of a blob; `asked` is called with every request. `relays` are
    served even when all slots are taken: each of them serves other members in our place.
    """

    async def answer(peer: PeerId, request: bytes) -> bytes:
        cid = _parse_request(request)
        on_request(peer, cid)
        return await _answer(store, cid)

    async def answer_rest(peer: PeerId, request: bytes) -> bytes:
        cid, offset = _parse_rest_request(request)
        on_request(peer, cid)
        return await _answer(store, cid, offset)

    network.serve(
        PROTOCOL,
        answer,
        max_request=_CONTENT_ID_BYTES,
        max_concurrent=MAX_UPLOADS,
        is_prioritised=lambda peer: peer in relays,
        kind=lambda request: kind_of(ContentId(request)),
    )
    network.serve(
        REST_PROTOCOL,
        answer_rest,
        max_request=_CONTENT_ID_BYTES + _OFFSET_BYTES,
        max_concurrent=MAX_UPLOADS,
        is_prioritised=lambda peer: peer in relays,
        kind=lambda request: kind_of(ContentId(request[:_CONTENT_ID_BYTES])),
    )


def serve_parts(network: Network, store: BlobFiles) -> None:
    """Serve parts of sign votes to all connected peers, `MAX_UPLOADS` at a time."""

    async def answer(peer: PeerId, request: bytes) -> bytes:
        return await _answer(store, _parse_request(request))

    network.serve(
        PART_PROTOCOL,
        answer,
        max_request=_CONTENT_ID_BYTES,
        max_concurrent=MAX_UPLOADS,
        kind=lambda request: "update",
    )


async def _answer(store: BlobFiles, cid: ContentId, offset: int = 0) -> bytes:
    data = await trio.to_thread.run_sync(store.get, cid)
    return _NOT_FOUND if data is None else FOUND + memoryview(data)[offset:]


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
        """Fetch over `protocol`. The pause before a provider that failed is asked again grows to at most
        `longest_pause` seconds."""
        self._network = network
        self._store = store
        self._protocol = protocol
        self._longest_pause = longest_pause
        self._relays = relays
        self._downloads: dict[ContentId, _BlobDownload] = {}
        self._partials = PartialBlobs()
        self._busy: Counter[PeerId] = Counter()
        # When each relay last sent a piece of any update, or was asked for the first of those that it
        # has not delivered yet.
        self._last_received: dict[PeerId, float] = {}
        # Moving averages: seconds to the first byte, and bytes per second from there on.
        self._latency = 0.25
        self._rate = 1e6
        self._speeds = ProviderSpeeds()
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

        `providers` is called again whenever a provider is needed; those not connected are skipped. If
        `relay` is given, the connected relays are asked first, with this request. Providers that fail
        are tried again for `timeout` seconds, or until no provider has the blob and `wanted` returns
        False. Tasks that wait for one blob share its transfer, and what each of them allows. Raises
        `FetchFailed` if it does not arrive, and `DiskFull` if it cannot be stored.
        """
        data = await trio.to_thread.run_sync(self._store.get, cid)
        if data is not None:
            return data
        wish = _Wish(min(max_bytes, MAX_BLOB_BYTES), providers, wanted)
        download = self._downloads.get(cid)
        if download is None:
            pauses = Backoff[PeerId](_RETRY_SECONDS, self._longest_pause)
            partial = self._partials.take(cid)
            download = _BlobDownload(cid, kind, pauses, self._frozen, partial)
            self._downloads[cid] = download
            download.join(wish, relay)
            self._network.spawn(self._run, download)
            if not self._watching:
                self._watching = True
                self._network.spawn(self._watch)
        else:
            download.join(wish, relay)
        try:
            with trio.move_on_after(timeout):
                await download.done.wait()
            is_hopeless = download.is_hopeless
        finally:
            download.wishes.remove(wish)
            if not download.wishes:
                # No task wants it any more: the attempts end, and their streams with them.
                download.scope.cancel()
                if self._downloads.get(cid) is download:
                    del self._downloads[cid]
                    if download.data is None:
                        # The next fetch may begin before the attempts have ended.
                        self._partials.put(cid, download.partial)
        if download.error is not None:
            raise download.error
        if download.data is None:
            raise FetchFailed(cid, dict(download.outcomes), hopeless=is_hopeless)
        return download.data

    async def _run(self, download: _BlobDownload) -> None:
        with download.scope:
            async with trio.open_nursery() as nursery:
                while download.data is None and download.error is None:
                    self._start_attempts(download, nursery)
                    if download.is_hopeless and not download.wanted():
                        break
                    await download.changed.wait()
                    download.changed = trio.Event()
                # One attempt has won; cancel the others.
                nursery.cancel_scope.cancel()
        if download.data is None and download.cid not in self._downloads:
            # With what came until the attempts ended.
            self._partials.put(download.cid, download.partial)
        download.done.set()

    async def _watch(self) -> None:
        """Wake every download regularly to check its attempts; a timer for each would cost too much."""
        while self._downloads:
            began = trio.current_time()
            await trio.sleep(_POLL_SECONDS)
            lag = trio.current_time() - began - _POLL_SECONDS
            for download in self._downloads.values():
                if lag > _LAG_SECONDS:
                    self._discount_lag(download, lag)
                download.changed.set()
        self._watching = False

    def _start_attempts(self, download: _BlobDownload, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        self._end_competition(download, now)
        # Concurrent transfers, of a snapshot's chunks or a round's updates, may slow each other down:
        # then none of them is overdue.
        typical_rate = self._typical_rate(download, now)
        waiting = [
            each for each in download.attempts if not self._is_overdue(each, now, typical_rate)
        ]
        # One attempt is enough as long as it makes progress.
        if waiting or len(download.attempts) >= _MAX_HEDGES:
            return
        relay = self._choose_relay(download, now)
        if relay is not None and self._busy[relay] >= _PER_RELAY:
            # The relay will be free soon, and until then hardly any other peer will have an update that
            # the relay lacks.
            return
        peer = relay or self._choose(download, now)
        if peer is not None:
            expected = self._latency + download.max_bytes / self._rate
            stall = max(_MIN_PATIENCE_SECONDS, PATIENCE * self._latency)
            total = max(2 * _MIN_PATIENCE_SECONDS, PATIENCE * expected)
            if relay is not None:
                stall, total = max(stall, _RELAY_STALL_SECONDS), _RELAY_TOTAL_FACTOR * total
            beginning = Beginning()
            if relay is None and peer not in download.whole_only:
                beginning = download.partial.beginning(peer)
            attempt = TransferAttempt(
                peer,
                now,
                stall=stall,
                total=total,
                size=download.max_bytes - len(beginning.data),
                is_relay=relay is not None,
                beginning=beginning,
            )
            for other in download.attempts:
                other.note_competitor(now)
            download.attempts.append(attempt)
            nursery.start_soon(self._attempt, download, attempt)

    @staticmethod
    def _end_competition(download: _BlobDownload, now: float) -> None:
        """Of attempts that compete for one blob, cancel the superfluous one as soon as it is known which
        it is."""
        # Relays do not compete: their rate may be limited by the author's upload, and by the many
        # members that they serve.
        rivals = [
            each for each in download.attempts if not each.is_relay and not each.scope.cancel_called
        ]
        superfluous_attempt = superfluous(rivals, now)
        if superfluous_attempt is not None:
            superfluous_attempt.scope.cancel()
            for each in rivals:
                if each is not superfluous_attempt:
                    each.continue_alone(now)

    def _choose_relay(self, download: _BlobDownload, now: float) -> PeerId | None:
        """Return the relay to ask next; None if no relay can help."""
        if download.relay is None or self._relays is None:
            return None
        competing = {attempt.peer for attempt in download.attempts}
        for relay in self._relays.order(download.cid):
            pausing = download.pauses.rests(relay, now)
            saturated = self._busy[relay] >= _PER_RELAY and self._is_silent(relay, now)
            if (
                relay not in competing
                and not download.excludes(relay)
                and not pausing
                and not saturated
            ):
                return relay
        return None

    def _is_overdue(self, attempt: TransferAttempt, now: float, typical_rate: float) -> bool:
        """Whether another provider should be asked as well; `typical_rate` as in `TransferAttempt`."""
        if attempt.is_overdue(now, typical_rate):
            return True
        waited = now - attempt.started > _RELAY_PATIENCE_SECONDS
        return attempt.is_relay and waited and self._is_silent(attempt.peer, now)

    def _is_silent(self, relay: PeerId, now: float) -> bool:
        return now - self._last_received.get(relay, float("-inf")) > _RELAY_PATIENCE_SECONDS

    def _discount_lag(self, download: _BlobDownload, lag: float) -> None:
        for attempt in download.attempts:
            attempt.discount(lag)
            if attempt.is_relay:
                self._last_received[attempt.peer] = trio.current_time()

    def _choose(self, download: _BlobDownload, now: float) -> PeerId | None:
        connected = self._network.connected()
        competing = {attempt.peer for attempt in download.attempts}
        choices: list[PeerId] = []
        for peer in download.providers():
            if peer not in connected:
                download.outcomes.setdefault(peer, "not connected")
            elif (
                peer not in competing
                and not download.excludes(peer)
                and not download.pauses.rests(peer, now)
                and self._busy[peer] < _PER_PROVIDER
            ):
                choices.append(peer)
        # Peers that accept requests and do not answer come last.
        choices = [peer for peer in choices if peer not in self._frozen] or choices
        # Each node prefers a different provider for each blob, which spreads the load.
        own = self._network.peer

        def cost(peer: PeerId) -> float:
            busy = self._busy[peer]
            # For an update the measured speeds do not count, so that a round does not depend on a few
            # fast members.
            return self._speeds.cost(peer, busy) if download.kind == "blob" else busy

        return min(
            choices,
            key=lambda peer: (cost(peer), content_id(own + download.cid + peer)),
            default=None,
        )

    def _typical_rate(self, download: _BlobDownload, now: float) -> float:
        """Return the median rate of the other transfers under way, in bytes per second; if there are
        none, the moving average of past ones."""
        rates = [
            attempt.received / (now - attempt.started)
            for other in self._downloads.values()
            for attempt in other.attempts
            if other is not download and attempt.received and now - attempt.started > 1.0
        ]
        return median(rates) if rates else self._rate

    async def _attempt(self, download: _BlobDownload, attempt: TransferAttempt) -> None:
        peer = attempt.peer
        self._busy[peer] += 1
        self._last_received.setdefault(peer, trio.current_time())

        def note(size: int) -> None:
            attempt.note(size)
            if attempt.is_relay:
                self._last_received[peer] = trio.current_time()

        protocol, question = self._question(download, attempt)
        max_bytes = download.max_bytes
        received = bytearray()
        try:
            with attempt.scope:
                response = await self._network.request(
                    peer,
                    protocol,
                    question,
                    max_response=1 + max_bytes - len(attempt.beginning.data),
                    timeout=_provider_timeout(max_bytes),
                    idle_timeout=_IDLE_SECONDS,
                    kind=download.kind,
                    progress=note,
                    into=received,
                )
            if attempt.scope.cancelled_caught:
                return
            received = bytearray()
            attempt.blameless = True
            await self._process_response(download, attempt, response)
        except RequestError as error:
            attempt.blameless |= error.reason != "timeout"
            if protocol == REST_PROTOCOL and error.reason == "refused":
                # Its program is older than the request for a rest.
                download.whole_only.add(peer)
                return
            is_line_fault = self._keep(download, attempt, received)
            received = bytearray()
            if error.reason in ("closed", "timeout"):
                is_line_fault |= peer not in self._network.connected()
            download.failed(
                peer,
                "too large" if error.reason == "oversized" else error.reason,
                is_line_fault=is_line_fault,
            )
            if error.reason == "oversized":
                # Not provably faulty (the announced size may have been wrong), but of no use.
                download.oversized[peer] = max_bytes
        except OSError as error:
            if is_shortage(error):
                note_shortage(error)
                download.failed(peer, "failed")
            else:
                download.error = error
        finally:
            # Empty unless the attempt was cancelled.
            self._keep(download, attempt, received)
            self._judge_speed(download, attempt)
            self._release(download, attempt)

    def _question(self, download: _BlobDownload, attempt: TransferAttempt) -> tuple[str, bytes]:
        """Return the protocol of an attempt's request, and its content."""
        beginning = attempt.beginning.data
        if attempt.is_relay and download.relay is not None:
            return RELAY, download.relay.sealed
        if beginning:
            return REST_PROTOCOL, download.cid + len(beginning).to_bytes(_OFFSET_BYTES, "big")
        return self._protocol, bytes(download.cid)

    def _judge_speed(self, download: _BlobDownload, attempt: TransferAttempt) -> None:
        """Note how fast the provider of an attempt that is over was, and whether it ever answered."""
        peer, seconds = attempt.peer, trio.current_time() - attempt.started
        if download.outcomes.get(peer) not in _LACKING_OUTCOMES:
            self._speeds.note(peer, attempt.received, seconds, self._busy[peer])
        if attempt.first_byte is not None:
            self._frozen.release(peer)
        elif not attempt.blameless and self._frozen.note_wait(peer, seconds):
            self._network.traffic.reject("frozen")

    def _release(self, download: _BlobDownload, attempt: TransferAttempt) -> None:
        """Free the provider of an attempt that is over."""
        peer = attempt.peer
        self._busy[peer] -= 1
        if not self._busy[peer]:
            del self._busy[peer]
            self._last_received.pop(peer, None)
        download.attempts.remove(attempt)
        download.changed.set()
        for other in self._downloads.values():
            if not other.attempts:
                # This download may have been waiting for the provider that is free now.
                other.changed.set()

    async def _process_response(
        self, download: _BlobDownload, attempt: TransferAttempt, response: bytes
    ) -> None:
        peer = attempt.peer
        # A relay answers with the update alone, without a leading byte.
        status, data = (FOUND, response) if attempt.is_relay else (response[:1], response[1:])
        if not response or (status == _NOT_FOUND and not data):
            download.failed(peer, "not found")
            return
        data = attempt.beginning.data + data
        good = status == FOUND and await trio.to_thread.run_sync(
            self._store.keep, download.cid, data
        )
        if not good and not download.partial.note_mismatch(peer, attempt.beginning):
            return
        if not good:
            download.failed(peer, "wrong content")
            download.excluded.add(peer)
            self._network.traffic.reject("bad_hash")
            self._network.penalise(peer, "bad_hash")
            return
        download.data = data
        self._update_averages(attempt, len(data))
        if self._relays is not None and not attempt.is_relay:
            for slower in download.attempts:
                if slower.is_relay and self._is_silent(slower.peer, trio.current_time()):
                    self._relays.note_slow(slower.peer)

    def _keep(self, download: _BlobDownload, attempt: TransferAttempt, received: bytearray) -> bool:
        """Keep what an attempt received before it ended; return whether it made progress."""
        if attempt.is_relay or self._protocol != PROTOCOL or received[:1] != FOUND:
            return False
        return download.partial.keep(attempt.peer, attempt.beginning, memoryview(received)[1:])

    def _update_averages(self, attempt: TransferAttempt, size: int) -> None:
        first = attempt.first_byte or trio.current_time()
        self._latency += _NEWEST * (first - attempt.started - self._latency)
        seconds = trio.current_time() - first
        # Small blobs do not measure the rate.
        if size >= 1 << 16 and seconds > 0:
            self._rate += _NEWEST * (size / seconds - self._rate)


@dataclass(frozen=True, eq=False)
class _Wish:
    """What a task that waits for a blob has asked for."""

    max_bytes: int
    providers: Providers
    wanted: Wanted


class _BlobDownload:
    """One blob being fetched, for all tasks that wait for it: by the widest of their bounds, from all of
    their providers, as long as one of them wants it."""

    def __init__(
        self,
        cid: ContentId,
        kind: str,
        pauses: Backoff[PeerId],
        frozen: Container[PeerId],
        partial: PartialBlob,
    ) -> None:
        self.cid = cid
        self.kind = kind
        self.wishes: list[_Wish] = []
        # Of the first task that had one; it stays, because an attempt may be using it.
        self.relay: RelayRequest | None = None
        self.scope = open_scope()
        self.done = trio.Event()
        self.changed = trio.Event()
        self.attempts: list[TransferAttempt] = []
        self.outcomes: dict[PeerId, str] = {}
        self.excluded: set[PeerId] = set()
        # By peer: the bound that its answer exceeded.
        self.oversized: dict[PeerId, int] = {}
        self.failures: Counter[PeerId] = Counter()
        self.pauses = pauses
        self.frozen = frozen
        self.partial = partial
        # Peers that cannot send a rest.
        self.whole_only: set[PeerId] = set()
        self._began = trio.current_time()
        # By peer: since when it has answered every request with "busy".
        self.busy: dict[PeerId, float] = {}
        self.data: bytes | None = None
        self.error: OSError | None = None

    def join(self, wish: _Wish, relay: RelayRequest | None) -> None:
        """Fetch the blob for one more task."""
        self.wishes.append(wish)
        self.relay = self.relay or relay
        self.changed.set()

    @property
    def max_bytes(self) -> int:
        """The largest size that a waiting task accepts."""
        return max((wish.max_bytes for wish in self.wishes), default=0)

    def providers(self) -> list[PeerId]:
        """Return the providers of all waiting tasks."""
        return list(dict.fromkeys(peer for wish in self.wishes for peer in wish.providers()))

    def wanted(self) -> bool:
        """Whether a task still wants it. Each is asked, because some report that they wait."""
        answers = [wish.wanted() for wish in self.wishes]
        return any(answers)

    def excludes(self, peer: PeerId) -> bool:
        """Whether this peer's answers are of no use."""
        return peer in self.excluded or self.oversized.get(peer, -1) >= self.max_bytes

    @property
    def is_hopeless(self) -> bool:
        """Whether no attempt is under way, and no provider that could be asked appears to have it. An
        attempt at a quarantined peer that has sent nothing does not count."""
        at_work = any(each.received or each.peer not in self.frozen for each in self.attempts)
        return not at_work and all(map(self._lacks, self.providers()))

    def failed(self, peer: PeerId, outcome: str, *, is_line_fault: bool = False) -> None:
        now = trio.current_time()
        self.outcomes[peer] = outcome
        patience = _LINE_FAULT_FACTOR * _provider_timeout(self.max_bytes)
        if is_line_fault and now < self._began + patience:
            self.failures[peer] = 0
            self.pauses.pop(peer, None)
        else:
            self.failures[peer] += 1
        if outcome == "busy":
            self.busy.setdefault(peer, now)
        else:
            self.busy.pop(peer, None)
        # Random, so that nodes that got "busy" at the same time do not ask again at the same time.
        self.pauses.failed(peer, now, random.uniform(0.5, 1.0))

    def _lacks(self, peer: PeerId) -> bool:
        if (
            self.outcomes.get(peer) in _LACKING_OUTCOMES
            or self.excludes(peer)
            or peer in self.frozen
        ):
            return True
        may_be_busy = trio.current_time() - self.busy.get(peer, -math.inf) < _BUSY_SECONDS
        return self.failures[peer] >= _MOST_FAILURES and not may_be_busy


def _parse_request(request: bytes) -> ContentId:
    if len(request) != _CONTENT_ID_BYTES:
        raise ProtocolError("malformed", f"a content id has 32 bytes, not {len(request)}")
    return ContentId(request)


def _parse_rest_request(request: bytes) -> tuple[ContentId, int]:
    cid = _parse_request(request[:_CONTENT_ID_BYTES])
    offset = request[_CONTENT_ID_BYTES:]
    if len(offset) != _OFFSET_BYTES:
        raise ProtocolError("malformed", f"an offset has {_OFFSET_BYTES} bytes, not {len(offset)}")
    return cid, int.from_bytes(offset, "big")


def _provider_timeout(max_bytes: int) -> float:
    """Return the timeout for one provider in seconds: half a minute, plus the time that the bytes take
    at 64 kbit/s."""
    return 30.0 + max_bytes / 8_000
