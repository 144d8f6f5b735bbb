"""The runner of a member: carries out the effects of the protocol's state machine.

One task owns the state machine. Every input goes through `_dispatch` and every effect through
`_perform`, so nothing here races. Gossip, downloads and the trainer run in tasks of their own and
report back. The swarm store writes to disk in the order of the effects; no message and no answer to a
peer is sent until all earlier writes are on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from ...crypto.envelope import Envelope, EnvelopeError, open_envelope, sign
from ...crypto.hashing import ContentId
from ...crypto.identity import Identity, PeerId, short_peer
from ...protocol.chain.ledger import Ledger
from ...protocol.chain.sync import SyncAnswer
from ...protocol.member.aggregation import MakeAggregate
from ...protocol.member.auditor import AuditScored, ReauditDone, RunReaudit, ScoreAudit
from ...protocol.member.effects import (
    Apply,
    AskSync,
    CompareChains,
    Effect,
    FetchUpdate,
    LogMessage,
    Note,
    Publish,
    RecallOwnMessages,
    Resync,
    StoreEntry,
    StoreFinality,
    Train,
)
from ...protocol.member.inputs import (
    Applied,
    Connected,
    Disconnected,
    Input,
    LeaveRequested,
    Loaded,
    MessageReceived,
    Rebased,
    Recalled,
    Tick,
)
from ...protocol.member.member import Member
from ...protocol.member.shutdown import ShutdownTimer
from ...protocol.member.signed_log import SignedLog
from ...protocol.member.sync_ingest import AnswerIngest
from ...protocol.member.vote_recovery import RecallRequests
from ...protocol.util.bounded_dict import BoundedTable
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.messages import Announcement, SnapshotEntry, decode_message, round_of
from ..errors import ExitCode, UserError
from ..network.events import PeerUp
from ..network.exchange.blobs import BlobFetcher
from ..network.exchange.update_relay_client import Relays
from ..network.network import Network
from ..storage.blob_store import BlobStore
from ..storage.swarm_store import SwarmStore
from ..telemetry.telemetry import Telemetry
from ..training.client import TrainedUpdate
from ..training.reaudit import NoReaudits, ReauditWorker
from ..training.supervisor import TrainerSupervisor
from .aggregator_task import open_own_updates
from .attendance import attendance_of
from .audit_report import count_audits
from .own_updates import OwnUpdates
from .progress_report import report_state
from .sign_vote_exchange import open_sign_votes
from .sync import Synchronizer
from .update_exchange import UpdateExchange

_log = logging.getLogger(__name__)

TICK_SECONDS = 0.2
# Validated gossip messages that are kept decoded until they are handled, which is usually at once.
_MOST_VALIDATED = 64
# Longest wait for the others to record the departure of a node that leaves without being told to.
_GOODBYE_SECONDS = 8.0
# After this many mismatches in a row the node gives up: each time, the swarm's updates led to other
# parameters here than in the swarm. The first reload already repairs a single memory error.
_MAX_MISMATCHES = 3
# After this time without being able to take part in a round, the status says so. Normal rounds, in which
# a record is applied within less, do not flicker.
_HELD_UP_SECONDS = 15.0


class Runner:
    """One node's membership in a swarm, from the point where it has the ledger."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        identity: Identity,
        network: Network,
        store: BlobStore,
        fetcher: BlobFetcher,
        relays: Relays,
        swarm_store: SwarmStore,
        ledger: Ledger,
        telemetry: Telemetry,
        start_number: int,
        ticket: bytes,
        update_ids: BoundedTable[ContentId, None],
    ) -> None:
        """The runner keeps `update_ids` filled with the ids of recent updates, so that their bytes can
        be counted as update traffic."""
        self.telemetry = telemetry
        self._manifest = manifest
        self._identity = identity
        self._network = network
        self._swarm_store = swarm_store
        self.member = Member(
            manifest=manifest,
            me=identity.peer,
            sign=self._sign,
            ledger=ledger,
            now=trio.current_time(),
            start_number=start_number,
            ticket=ticket,
            # Always, because a node cannot tell a restored backup, which lacks its latest messages,
            # from its own current disk.
            recall=True,
        )
        self._count_audits()
        self._signed: SignedLog[bytes] = SignedLog()
        self._restore(swarm_store.signed())
        self._topic = f"distro/{manifest.swarm.hex()}"
        # Gossip messages between validation and handling, by their bytes. One that is evicted is opened
        # again.
        self._validated: BoundedTable[bytes, MessageReceived] = BoundedTable(_MOST_VALIDATED)
        self._outgoing, self._to_publish = trio.open_memory_channel[Envelope](1024)
        self._updates, self._own_updates = self._open_updates(store, fetcher, relays, update_ids)
        self._shutdown_timer = ShutdownTimer()
        self._sync = Synchronizer(
            network, manifest, self.member.view, swarm_store.written, on_served=self.note_served
        )
        self._syncing = False
        self._comparing_chains = False
        self._leave_by = float("inf")
        # Since when the member has been unable to take part, with no state reported meanwhile; None: it
        # is able.
        self._held_up_since: float | None = None
        self._until_round: int | None = None
        self._serve_result = False
        self._nursery: trio.Nursery | None = None
        self.trainer_supervisor: TrainerSupervisor | None = None
        self.reaudits: ReauditWorker | NoReaudits = NoReaudits()
        """Does the re-audits that the member is called to; without it the member declines them."""
        self.finished = trio.Event()
        """Set once a polite leave is complete, or has timed out."""

    def _open_updates(
        self,
        store: BlobStore,
        fetcher: BlobFetcher,
        relays: Relays,
        ids: BoundedTable[ContentId, None],
    ) -> tuple[UpdateExchange, OwnUpdates]:
        """Return what fetches the others' updates, and what publishes the node's own."""
        manifest, view = self._manifest, self.member.view
        parts = open_sign_votes(
            manifest, view, self._network, self._swarm_store.sign_votes, self.telemetry
        )
        updates = UpdateExchange(
            manifest=manifest,
            member=view,
            network=self._network,
            store=store,
            fetcher=fetcher,
            relays=relays,
            telemetry=self.telemetry,
            ids=ids,
            report=self._dispatch,
            expect=self._expect,
            parts=parts,
        )
        return updates, open_own_updates(
            manifest, store, updates, parts, self._dispatch, self._spawn
        )

    def _restore(self, signed: Sequence[Envelope]) -> None:
        """Hand the member what it had signed before this node's last stop."""
        for envelope in signed:
            # The messages belong to this round or, if the ledger's end was lost, to a later one.
            raw = envelope.encode()
            self._signed.note(round_of(decode_message(envelope)), raw, len(raw))
        self.member.restore(signed, trio.current_time())

    async def run(
        self,
        trainer_supervisor: TrainerSupervisor,
        *,
        until_round: int | None = None,
        serve_result: bool = False,
    ) -> None:
        """Take part until `finished`; with `serve_result` go on after the end of the run, to serve its
        result to any peer. The supervisor must not have been opened yet."""
        self.trainer_supervisor = trainer_supervisor
        self._serve_result = serve_result
        self._until_round = until_round
        async with trio.open_nursery() as nursery:
            # Set first, because a leave may be requested at any time from now on.
            self._nursery = nursery
            received = await self._network.subscribe(self._topic, self._validate)
            nursery.start_soon(self._publish)
            nursery.start_soon(self._watch_peers)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._write)
            nursery.start_soon(trainer_supervisor.run, self)
            nursery.start_soon(trainer_supervisor.forward_expected)
            nursery.start_soon(trainer_supervisor.report_starts)
            nursery.start_soon(self.reaudits.run, self)
            nursery.start_soon(self._receive, received)
            await self.finished.wait()
            await self._swarm_store.written()
            nursery.cancel_scope.cancel()

    def ledger(self) -> Ledger:
        """Return the chain that the member currently follows."""
        return self.member.view.ledger

    def diverged_peers(self) -> frozenset[PeerId]:
        """Return connected peers whose chain diverges from ours before the final round, so that neither
        side can follow the other."""
        return self._sync.diverged_peers()

    @property
    def leaving(self) -> bool:
        """Whether the node is leaving."""
        return self._leave_by < float("inf")

    def leave(self, patience: float) -> None:
        """Say goodbye, and finish once the others have recorded it, after at most `patience` seconds."""
        if self.leaving:
            return
        self.telemetry.enter("leaving")
        self._leave_by = trio.current_time() + patience
        self._trainer_supervisor.stop_steps()
        self._dispatch(LeaveRequested())

    def note_served(self, peer: PeerId, *, blob: bool = False) -> None:
        """Note that a peer received records that it lacked or, with `blob`, requested a blob of a
        snapshot. Only peers that are not members count."""
        if peer not in self.member.view.members:
            self._shutdown_timer.note_request(trio.current_time(), blob=blob)

    # Reports of the trainer's supervisor

    def loaded(self, round: int, fingerprint: int, snapshot: SnapshotEntry | None) -> None:
        """Note that the trainer holds the parameters after `round`."""
        self.telemetry.loaded(round, fingerprint)
        self._dispatch(Loaded(round, fingerprint, snapshot))
        self._report_state()

    async def trained(self, what: Train, made: TrainedUpdate) -> None:
        """Take our own finished update. Raises `DiskFull`."""
        self.telemetry.round_times(what.round).trained = trio.current_time()
        await self._own_updates.take(what, made)

    async def applied(
        self,
        record_round: int,
        fingerprint: int,
        seconds: float,
        snapshot: SnapshotEntry | None,
        *,
        left_out: int = 0,
    ) -> None:
        """Note that the trainer has applied a record, but for `left_out` of its updates."""
        if not self.member.view.awaits(record_round):
            # The record belongs to a chain that was abandoned in the meantime.
            return
        now = trio.current_time()
        ledger = self.member.view.ledger
        record = ledger[record_round].record
        if record.updates or record_round == 0:
            self.telemetry.applied(
                record,
                len(ledger.membership(record_round)),
                fingerprint,
                seconds,
                now,
                attendance=attendance_of(ledger, record, self.telemetry.me),
                left_out=left_out,
                at_tip=len(ledger) - record_round <= 1 + self._manifest.rounds.overlap,
            )
        self._dispatch(Applied(record_round, fingerprint, snapshot, seconds))
        self._report_state()
        # After its last round the run ends without anyone leaving: with a record that needs all members.
        over = self._manifest.last_round is not None and record_round >= self._manifest.last_round
        if self._until_round is not None and record_round >= self._until_round and not over:
            self.leave(_GOODBYE_SECONDS)
        await self._updates.sweep(record_round)

    def audited(self, what: AuditScored | ReauditDone) -> None:
        """Take the result of an audit or a re-audit."""
        self._dispatch(what)

    def privacy_budget_spent(self) -> None:
        """Leave, because the privacy budget of our own data is spent."""
        self.leave(_GOODBYE_SECONDS)

    # Inputs

    def _expect(self, round: int, update: ContentId) -> None:
        if self.trainer_supervisor is not None:
            self.trainer_supervisor.expect(round, update)

    def _dispatch(self, what: Input) -> None:
        """Pass an input to the state machine and perform its effects. Raises `ProtocolError`."""
        self._perform(self.member.handle(what, trio.current_time()))

    def _validate(self, sender: PeerId, data: bytes) -> str | None:
        """Validate a gossip message before it is forwarded; return the reason to reject it, or None."""
        try:
            received = MessageReceived(self._open(data))
            if received.envelope.sender != sender:
                return "bad_signature"
            self.member.screen(received, trio.current_time())
        except (EnvelopeError, ProtocolError) as error:
            return error.reason
        self._validated[data] = received
        return None

    async def _receive(self, received: trio.MemoryReceiveChannel[tuple[PeerId, bytes]]) -> None:
        async for sender, data in received:
            try:
                validated = self._validated.pop(data, None)
                self._dispatch(validated or MessageReceived(self._open(data)))
            except (EnvelopeError, ProtocolError) as error:
                self._reject(sender, error.reason, str(error))

    def _reject(self, sender: PeerId, reason: str, text: str) -> None:
        self._network.traffic.reject(reason)
        _log.debug("from peer %s: %s", short_peer(sender), text)

    async def _watch_peers(self) -> None:
        with self._network.peer_events() as events:
            async for event in events:
                up = isinstance(event, PeerUp)
                self._dispatch(Connected(event.peer) if up else Disconnected(event.peer))

    async def _tick(self) -> None:
        while True:
            self._dispatch(Tick())
            self._note_collected()
            now = trio.current_time()
            self._note_held_up(now)
            if self.member.view.is_expelled or self.member.view.is_outdated:
                # The node would never be admitted again; the daemon explains why.
                self.finished.set()
            if self.member.view.ledger.versions.soon_outdated:
                self.leave(_GOODBYE_SECONDS)
            if self.leaving and (now >= self._leave_by or self._may_leave()):
                self.finished.set()
            done = self.member.view.may_end(now, self._network.connected())
            if done and not self._serve_result and self._may_stop_serving(now):
                self.finished.set()
            await trio.sleep(TICK_SECONDS)

    def _note_held_up(self, now: float) -> None:
        """Report the state once the member has for a while been unable to take part in the round."""
        if self.member.view.state not in ("loading", "applying", "asking"):
            self._held_up_since = None
        elif self._held_up_since is None:
            self._held_up_since = now
        # In another state of the status, what is loaded or replayed is reported already.
        elif (
            self.telemetry.state in ("training", "waiting")
            and now >= self._held_up_since + _HELD_UP_SECONDS
        ):
            self._report_state()

    def _may_leave(self) -> bool:
        """Whether the others can go on without us: our departure is recorded, the run is over, or they
        all leave as well."""
        others = set(self.member.view.members) - {self.member.view.me}
        over = not self.member.view.is_member or self.member.view.is_finished
        return over or others <= self.member.view.leaving

    def _may_stop_serving(self, now: float) -> bool:
        """Whether no one is fetching the run's result any more."""
        watched = not self._network.connected() <= set(self.member.view.members)
        return self._shutdown_timer.may_go(now, watched=watched)

    # Effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._perform_one(effect)

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case Publish(envelope, durable, message):
                if durable:
                    self._log_signed(envelope)
                if isinstance(message, Announcement):
                    # Not the member's own round: a lone member has already decided this one.
                    times = self.telemetry.round_times(message.round)
                    times.announced = trio.current_time()
                try:
                    self._outgoing.send_nowait(envelope)
                except trio.WouldBlock:
                    # Peers ask for messages that they miss; a longer backlog would not help them.
                    _log.warning("too many messages wait to be sent, so one was dropped")
            case LogMessage(envelope):
                self._log_signed(envelope)
            case RecallOwnMessages(round_):
                self._spawn(self._recall, round_)
            case FetchUpdate():
                self._spawn(self._updates.fetch, effect)
            case Train():
                self.telemetry.round_times(effect.round).began = trio.current_time()
                self._trainer_supervisor.train(effect)
            case MakeAggregate():
                self._spawn(self._own_updates.make_aggregate, effect)
            case Apply():
                self._trainer_supervisor.apply(effect)
            case ScoreAudit():
                self._trainer_supervisor.judge(effect)
            case RunReaudit():
                self.reaudits.put(effect)
            case StoreEntry(decided):
                round_ = decided.record.round
                times = self.telemetry.round_times(round_)
                times.collected, times.decided = self.member.view.last_ready, trio.current_time()
                ledger = self.member.view.ledger
                self._swarm_store.keep(ledger.raw(round_))
                if round_ + 1 == len(ledger):
                    self._swarm_store.keep_indexes(ledger)
                if self._signed.forget(round_):
                    self._swarm_store.forget_signed(self._signed.kept())
            case StoreFinality(checkpoint):
                self._swarm_store.keep_final(checkpoint)
            case AskSync():
                if not self._syncing:
                    self._syncing = True
                    self._spawn(self._request_sync)
            case Resync(reason, failed):
                self.telemetry.event("resync", self.member.view.round, None, reason)
                if failed >= _MAX_MISMATCHES:
                    raise _wrong_computation_error(failed, self.telemetry.device)
                self._updates.cancel()
                self._trainer_supervisor.reload()
                # The download of a snapshot may take an hour.
                self._report_state()
            case CompareChains(round_):
                # One comparison at a time: each differing entry of an answer requests one.
                if not self._comparing_chains:
                    self._comparing_chains = True
                    # Another peer has a different record, or nothing was decided for a while.
                    # A node that waits for its swarm to begin asks every minute, and has no chain.
                    level = logging.INFO if round_ > 0 else logging.DEBUG
                    _log.log(level, "comparing this node's chain, up to round %d", round_)
                    self._spawn(self._compare_chains)
            case Note("decided"):
                self._count_audits()
            case Note(kind, round_, peer, text):
                self.telemetry.event(kind, round_, peer, text)

    def _count_audits(self) -> None:
        count_audits(self.telemetry.counts.audits, self.member.view.ledger, self.member.view.me)

    @property
    def _trainer_supervisor(self) -> TrainerSupervisor:
        assert self.trainer_supervisor is not None  # `run` sets it before anything can happen
        return self.trainer_supervisor

    def _spawn(self, function: Callable[..., object], *arguments: object) -> None:
        assert self._nursery is not None  # `run` sets it first, too
        self._nursery.start_soon(function, *arguments)  # type: ignore[arg-type]  # async functions

    def _sign(self, kind: str, body: bytes) -> Envelope:
        return sign(self._identity, kind, self._manifest.swarm, body)

    def _log_signed(self, envelope: Envelope) -> None:
        raw = envelope.encode()
        self._signed.note(self.member.view.round, raw, len(raw))
        self._swarm_store.sign(raw)

    async def _publish(self) -> None:
        async for envelope in self._to_publish:
            await self._swarm_store.written()
            if envelope.kind == "announcement":
                self._spawn(self._updates.offer, envelope)
            await self._network.publish(self._topic, envelope.encode())

    async def _write(self) -> None:
        """Keep writing queued changes that no task waits for, such as the ledger of a node that
        publishes nothing."""
        while True:
            await self._swarm_store.written()
            await trio.sleep(TICK_SECONDS)

    async def _request_sync(self) -> None:
        """Ask one peer for what we may have missed."""
        try:
            found = await self._sync.ask(self.member.view.round)
            if found is None:
                return
            await self._ingest(*found)
        finally:
            self._syncing = False

    async def _ingest(self, peer: PeerId, answer: SyncAnswer) -> bool:
        """Pass a peer's answer to the state machine. Return whether the whole answer was accepted."""
        ingest = AnswerIngest(peer, answer.entries(), answer.envelopes, self._open)
        while (what := ingest.next_input()) is not None:
            try:
                self._dispatch(what)
            except ProtocolError as error:
                self._network.traffic.reject(error.reason)
                ingest.refused()
            await trio.lowlevel.checkpoint()
        if ingest.blame is not None:
            self._network.traffic.reject(ingest.blame.reason)
            self._network.penalise(peer, ingest.blame.reason)
        return ingest.all_held

    def _open(self, raw: bytes) -> Envelope:
        # The ledger remembers signatures that were verified, here and in records (`SignatureCache`).
        verify = self.member.view.ledger.verify
        return open_envelope(raw, swarm=self._manifest.swarm, verify=verify)

    async def _recall(self, round: int) -> None:
        """Ask all other members what they have of `round`.

        The member itself decides how long to wait for the answers.
        """
        others = set(self.member.view.members) - {self.member.view.me}
        requests = RecallRequests(round, others, trio.current_time())

        async def ingest_answers() -> None:
            for peer, answer in requests.drain():
                requests.note_processed(peer, all_held=await self._ingest(peer, answer))

        await self._sync.recall(requests, ingest_answers)
        if requests.complete:
            self._dispatch(Recalled(round))

    async def _compare_chains(self) -> None:
        """Compare our chain with the others', and switch to theirs if the fork choice prefers it."""
        try:
            abandoned = self.member.view.is_abandoned(trio.current_time())
            better = await self._sync.better_chain(self.member.view.ledger, abandoned=abandoned)
            for peer in self._sync.newly_diverged():
                final = str(max(0, self.member.view.ledger.floor - 1))
                self.telemetry.event("diverged", self.member.view.round, peer, final)
            if better is not None:
                self._swarm_store.replace_chain(better)
                self._dispatch(Rebased(better))
        finally:
            self._comparing_chains = False

    def _note_collected(self) -> None:
        ready = self.member.view.ready_since
        if ready is not None:
            self.telemetry.round_times(self.member.view.round).collected = ready

    def _report_state(self) -> None:
        self._held_up_since = None
        report_state(self.member.view, self.telemetry, self._manifest.last_round)


def _wrong_computation_error(times: int, device: str | None) -> UserError:
    on_cpu = device == "cpu"
    return UserError(
        ExitCode.NO_DEVICE,
        f"the parameters computed here differed from the swarm's {times} times in a row, each "
        f"time starting from a state that the swarm had certified: {device or 'the device'} or "
        "its memory computes wrongly, unless the swarm does",
        "test this computer's memory; if other members end like this too, the members that "
        "decide compute wrongly: tell the founder"
        if on_cpu
        else "choose another with --device; --device cpu works everywhere",
    )
