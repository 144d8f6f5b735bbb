"""The updates of a swarm on this node: fetched when announced, checked, kept, removed.

An update is requested until it is here or its round no longer needs it: from a relay if there is one,
otherwise from its author or from peers that have it by now. Only updates that the codec accepts are
reported as held. While the member has no parameters no update is requested, because the connection is
needed to download the parameters.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import trio

from ...crypto.envelope import Envelope
from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId, short_peer
from ...protocol.chain.retention import ReceivedUpdates, first_needed, updates_from
from ...protocol.codec.update import manifest_layout
from ...protocol.member.effects import FetchUpdate
from ...protocol.member.inputs import Input, UpdateHeld
from ...protocol.member.update_fetch import FETCH_PAUSE_SECONDS, FETCH_SECONDS, UpdateDownloads
from ...protocol.member.view import MemberView
from ...protocol.util.bounded_dict import BoundedTable
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.messages import decode_message, round_of
from ...protocol.wire.relay_requests import RelayRequest, open_relay_request, relay_request
from ..network.cancel_scopes import open_scope
from ..network.exchange.blobs import BlobFetcher, FetchFailed
from ..network.exchange.update_relay_client import Relays
from ..network.network import Network
from ..storage.blob_store import BlobStore
from ..storage.update_notes import UpdateNotes
from ..telemetry.telemetry import Telemetry
from ..util.progress import Progress
from ..util.system_errors import is_shortage, note_shortage
from .update_parts import ALL_WHOLE, UpdateParts

_log = logging.getLogger(__name__)

RECENT_UPDATES = 16_384
"""Number of updates whose bytes are counted as update traffic: several rounds of a swarm of any size."""


class UpdateExchange:
    """Fetches the updates that a member asks for, and reports the results to it."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        member: MemberView,
        network: Network,
        store: BlobStore,
        fetcher: BlobFetcher,
        relays: Relays,
        telemetry: Telemetry,
        ids: BoundedTable[ContentId, None],
        report: Callable[[Input], None],
        expect: Callable[[int, ContentId], None],
        parts: UpdateParts = ALL_WHOLE,
    ) -> None:
        """`ids` is kept filled with the ids of recent updates; `report` passes an input to the member;
        `expect` is called with the round and id of each update in the store that a record may name.
        `parts` is what members exchange of updates that are not exchanged whole."""
        self._manifest = manifest
        self._member = member
        self._network = network
        self._store = store
        self._fetcher = fetcher
        self._relays = relays
        self._telemetry = telemetry
        self._ids = ids
        self._report = report
        self._expect = expect
        self._layout = manifest_layout(manifest)
        self._parts = parts
        # Bodies are decoded one at a time, because decoding takes memory as well as time.
        self._decode_limiter = trio.CapacityLimiter(1)
        self._fetching = UpdateDownloads()
        self._requests: set[trio.CancelScope] = set()
        self._kept = ReceivedUpdates()
        self._notes = UpdateNotes(store.root, manifest.swarm)
        for round, update in self._notes.noted:
            self._kept.note(round, update)

    async def fetch(self, wanted: FetchUpdate) -> None:
        """Fetch an update and check it, retrying while its round needs it. Of an update that is split,
        fetch only the part that this node needs, if any. Raises `DiskFull`."""
        if not self._fetching.begin(wanted, stored=self._store.has(wanted.update)):
            return
        try:
            while self._continues(wanted):
                try:
                    if await self._try_once(wanted):
                        return
                except OSError as error:
                    if not is_shortage(error):
                        raise
                    note_shortage(error)
                    await trio.sleep(FETCH_PAUSE_SECONDS)
        finally:
            self._fetching.end(wanted)

    def cancel(self) -> None:
        """Cancel the requests under way, because the member has dropped its parameters."""
        for scope in self._requests:
            scope.cancel()

    async def offer(self, announcement: Envelope) -> None:
        """Upload our own update to a relay, if other members are there to fetch it. Parts of an update
        are not relayed: only a few members need each."""
        is_split = self._parts.splits(round_of(decode_message(announcement)))
        if not is_split and len(self._member.members) > 1:
            sealed = self._manifest.swarm + announcement.encode()
            await self._relays.offer(open_relay_request(sealed))

    def keep(self, round: int, update: ContentId) -> None:
        """Note that an update of `round` is in the store."""
        self._kept.note(round, update)
        self._notes.note(round, update)
        self._ids[update] = None
        self._expect(round, update)

    async def sweep(self, round: int) -> None:
        """Remove updates that missed their round, since no one will ever request them."""
        ledger = self._member.ledger
        oldest = min((noted for noted, _ in self._notes.noted), default=round)
        missed = self._kept.missed(round, ledger)
        if missed:
            # The same bytes may count in a round that is still to be applied, or may have counted in one
            # whose updates are still kept for others. Updates of an earlier process may be older.
            first = min(first_needed(ledger, round), oldest)
            known = ledger.truncated(len(ledger))
            # Reads up to two hundred entries, most of them from the disk.
            missed -= await trio.to_thread.run_sync(updates_from, known, first)
            # Also keep the updates of entries decided meanwhile, or of a chain that the member switched
            # to.
            now = self._member.ledger
            missed -= updates_from(now, len(known) if now is ledger else first)
            missed -= self._kept.awaited() | self._fetching.under_way
        await self._parts.sweep(round)
        files = self._store.set_aside(missed)
        await trio.to_thread.run_sync(self._store.delete_files, files)
        self._notes.forget(round)

    async def _try_once(self, wanted: FetchUpdate) -> bool:
        """Try once to get an update, or the part of it that this member needs; return whether no further
        try is needed. Pauses before it returns False."""
        if self._parts.splits(wanted.round):
            if await self._parts.get(wanted):
                self._report(UpdateHeld(wanted.update))
                return True
            await trio.sleep(FETCH_PAUSE_SECONDS)
            return False
        body = await self._get(wanted)
        if body is None:
            return False
        if self._fetching.is_new(wanted):
            self._telemetry.received(wanted.round, len(body))
        await self._check(wanted, body)
        return True

    async def _get(self, wanted: FetchUpdate) -> bytes | None:
        def providers() -> list[PeerId]:
            connected = list(self._network.connected())
            random.shuffle(connected)
            return self._fetching.providers(wanted, self._member.ledger, connected)

        scope = open_scope()
        self._requests.add(scope)
        try:
            with scope:
                return await self._fetcher.fetch(
                    wanted.update,
                    max_bytes=self._parts.max_bytes(self._layout),
                    providers=providers,
                    kind="update",
                    timeout=FETCH_SECONDS,
                    wanted=lambda: self._is_needed(wanted.round),
                    relay=self._relay_request(wanted),
                )
        except FetchFailed as failure:
            await self._note_failure(wanted, failure)
        finally:
            self._requests.discard(scope)
        return None

    async def _note_failure(self, wanted: FetchUpdate, failure: FetchFailed) -> None:
        """Report that an update cannot be fetched now, and pause before the next request."""
        _log.info("an update of round %d is not available yet: %s", wanted.round, failure.reason)
        member = self._member
        if self._continues(wanted) and member.applied_round + 1 == wanted.round < member.round:
            # The round is decided and is the next to apply: this node replays, and waits for the update.
            what = f"waiting for a peer that has the updates of round {wanted.round}"
            self._telemetry.report(Progress(what=what, kind="waiting"))
        if failure.is_hopeless:
            for report in self._fetching.in_vain(wanted, member.ledger, member.applied_round):
                self._report(report)
        await trio.sleep(FETCH_PAUSE_SECONDS)

    def _continues(self, wanted: FetchUpdate) -> bool:
        member = self._member
        loaded = member.fingerprint is not None
        return self._fetching.continues(wanted, member.applied_round, loaded=loaded)

    def _is_needed(self, round: int) -> bool:
        member = self._member
        return self._fetching.is_needed(round, member.ledger, member.applied_round)

    def _relay_request(self, wanted: FetchUpdate) -> RelayRequest | None:
        """Return the request to show a relay; None if we have not received the update's announcement."""
        heard = self._member.announcement(wanted.round, wanted.peer)
        if heard is None or heard[0].update != wanted.update:
            return None
        return relay_request(self._manifest.swarm, wanted.peer, *heard)

    async def _check(self, wanted: FetchUpdate, body: bytes) -> None:
        problem: ProtocolError | None = None
        try:
            # Takes a fifth of a second for a large model; votes and heartbeats must not wait for it.
            await trio.to_thread.run_sync(
                self._parts.check, self._layout, body, limiter=self._decode_limiter
            )
        except ProtocolError as error:
            problem = error
        verdict = self._fetching.arrived(wanted, decodes=problem is None)
        if problem is None:
            self.keep(wanted.round, wanted.update)
        else:
            self._network.traffic.reject(problem.reason)
            _log.debug("from peer %s: an invalid update: %s", short_peer(wanted.peer), problem)
        if verdict.culprit is not None and problem is not None:
            self._network.penalise(verdict.culprit, problem.reason)
        if verdict.discard:
            self._store.remove(wanted.update)
        self._report(verdict.report)
