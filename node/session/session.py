"""One session of a member: from the first connection to the goodbye.

The session finds the swarm, fetches what is missing (`join`), runs the member, and reports its status at
any time.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import trio

from ...crypto.envelope import sign
from ...crypto.hashing import ContentId
from ...crypto.identity import Identity, PeerId, peer_text
from ...protocol.chain.ledger import Ledger
from ...protocol.member.view import MemberView
from ...protocol.util.bounded_dict import BoundedTable
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.messages import TICKET_KIND
from ..content.prefetch import Prefetch, outlook, upcoming_samples
from ..content.snapshots import Snapshots
from ..control.limits import BandwidthLimits
from ..listing.publisher import ListingPublisher, SwarmState
from ..network.cancel_scopes import open_scope
from ..network.exchange.blobs import serve_blobs
from ..network.exchange.chunks import serve_chunks
from ..network.exchange.update_relay import UpdateRelay
from ..network.exchange.update_relay_client import Relays
from ..network.nat.traversal import NatTraversal
from ..network.network import Network
from ..private_data.trainer import check_choices, prepare
from ..settings.tree import DaemonSettings
from ..storage.data_dir import DataDir
from ..storage.swarm_store import SwarmStore
from ..telemetry.messages import WEIGHTS
from ..telemetry.status import (
    Awaited,
    Connection,
    MemberStatus,
    ReachStatus,
    SessionStatus,
    SwarmStatus,
)
from ..telemetry.telemetry import Telemetry
from ..training.client import TrainerSpec, open_trainer
from ..training.reaudit import ReauditWorker
from ..training.supervisor import OpenTrainer, TrainerSupervisor
from ..training.task_names import LOSS_UNITS
from ..training.training_data import TrainingData
from ..util.background import keep_running
from .audit_report import audits_status
from .effect_runner import Runner
from .join import (
    check_invitation,
    check_not_expelled,
    fetch_base,
    fetch_data,
    fetch_ledger,
    find_manifest,
)
from .peering import SwarmPeering
from .update_exchange import RECENT_UPDATES
from .version_watch import change_status, check_version

_log = logging.getLogger(__name__)

# Longest wait for the others to record the departure of a node that was told to leave.
_LEAVE_SECONDS = 5.0
_EVALUATE_ROUNDS = 10


class SwarmSession:
    """One session in the swarm, from the first connection to the goodbye.

    When told to leave, it says goodbye if it is already taking part; before that it has no one to
    tell.
    """

    def __init__(
        self,
        settings: DaemonSettings,
        data: DataDir,
        identity: Identity,
        network: Network,
        telemetry: Telemetry,
        start_trainer: OpenTrainer = open_trainer,
    ) -> None:
        self._settings = settings
        self._data = data
        self._identity = identity
        self._network = network
        self._telemetry = telemetry
        self._start_trainer = start_trainer
        self._relays = Relays(network)
        self._peering = SwarmPeering(settings, data, identity, network, telemetry, self._relays)
        self._context = self._peering.join_context
        self._publisher = ListingPublisher(
            network,
            identity,
            self._peering.introducer.bootstrap_peers,
            self._peering.message_numbers,
            self._listed_state,
        )
        self._reach = NatTraversal(network, self._peering.introducer, upnp=settings.reach.upnp)
        self._leave_requested = False
        self._joining = open_scope()
        # What is known of the swarm so far; the status may be requested at any time.
        self._manifest: Manifest | None = None
        self._ended = False
        self._membership: _Membership | None = None

    async def run(self, ticket: bytes) -> None:
        """Join, take part, leave. Raises `UserError`."""
        async with trio.open_nursery() as nursery:
            self._start_peering(nursery)
            with self._joining:
                membership = await self._join(ticket)
                # From here on there are members to say goodbye to.
                self._membership = membership
                self._network.is_exempt = lambda peer: peer in membership.runner.member.view.members
            if (
                self._membership is not None
                and not self._leave_requested
                and not self._is_past_until_round()
            ):
                await self._take_part(self._membership)
            nursery.cancel_scope.cancel()

    def _is_past_until_round(self) -> bool:
        """Return whether the round after which the owner wants to leave has already passed; if so, log
        it."""
        until = self._settings.until_round
        assert self._membership is not None
        reached = len(self._membership.runner.ledger()) - 1
        if until is None or self._ended or reached < until:
            return False
        _log.warning(
            "the swarm is at round %d already, so a node that leaves after round %d has nothing "
            "to do: give a later round with --until-round, or omit the option",
            reached,
            until,
        )
        return True

    @property
    def leave_requested(self) -> bool:
        """Whether this session was told to end; otherwise it ended by itself."""
        return self._leave_requested

    @property
    def run_is_over(self) -> bool:
        """Whether the swarm's run has ended and its result is on this disk."""
        return self._membership is not None and self._membership.runner.member.view.is_finished

    def leave(self) -> None:
        """Say goodbye and end."""
        self._leave_requested = True
        if self._membership is None:
            self._joining.cancel()
        else:
            self._membership.runner.leave(_LEAVE_SECONDS)

    def apply_limits(self, limits: BandwidthLimits) -> None:
        """Apply these bandwidth limits from now on."""
        self._peering.apply_limits(limits)

    def status(self) -> SessionStatus:
        """Return the parts of the status that hold for this session."""
        return SessionStatus(
            swarm=self._swarm_status(),
            line=self._peering.line(),
            reach=_reach_status(self._reach, self._network),
        )

    # The phases

    def _start_peering(self, nursery: trio.Nursery) -> None:
        """Keep finding peers and being found while the nursery is open."""
        nursery.start_soon(keep_running, self._relays.run)
        limits = self._settings.relay.limits
        if limits is not None:
            UpdateRelay(self._network, limits)
        self._peering.start_tasks(nursery)
        nursery.start_soon(self._reach.run)
        nursery.start_soon(keep_running, self._publisher.run)

    async def _join(self, ticket: bytes) -> _Membership:
        """Find the swarm, fetch what is missing, and build the member."""
        context, telemetry = self._context, self._telemetry
        telemetry.enter("connecting")
        manifest = self._manifest = await find_manifest(context)
        check_choices(self._settings.privacy, self._settings.trainer, manifest)
        swarm_store = SwarmStore(context.directory, manifest, self._identity)
        await trio.to_thread.run_sync(telemetry.keep_history, swarm_store.history)
        update_ids: BoundedTable[ContentId, None] = BoundedTable(RECENT_UPDATES)
        # From now on peers may fetch from this node what has already arrived.
        serve_blobs(
            self._network,
            context.store,
            kind_of=lambda cid: "update" if cid in update_ids else "blob",
            on_request=self._note_request,
            relays=self._relays,
        )
        serve_chunks(self._network, context.store, on_request=self._note_request)
        telemetry.enter("syncing")
        if manifest.admission.issuer == context.me:
            # The issuer of the tickets signs its own ticket.
            ticket = sign(self._identity, TICKET_KIND, manifest.swarm, context.me).signature
        ledger = await fetch_ledger(context, manifest, swarm_store)
        check_not_expelled(ledger, context.me)
        check_invitation(manifest, ledger, context.me, ticket)
        telemetry.caught_up(len(ledger))
        self._ended = ledger.finished
        prefetch = await fetch_data(context, manifest)
        training_data = await self._training_data(manifest, ledger)
        runner = Runner(
            manifest=manifest,
            identity=self._identity,
            network=self._network,
            store=context.store,
            fetcher=context.fetcher,
            relays=self._relays,
            swarm_store=swarm_store,
            ledger=ledger,
            telemetry=telemetry,
            start_number=self._peering.message_numbers.start_number,
            ticket=ticket,
            update_ids=update_ids,
        )
        snapshots = Snapshots(
            manifest=manifest,
            store=context.store,
            swarm_store=swarm_store,
            downloads=context.downloads(context.fetcher),
            ledger=runner.ledger,
            # A node with a disk limit has no space for others' snapshots.
            keeps_for_readers=self._settings.disk.max_disk is None,
        )
        spec = self._spec(manifest, training_data)
        trainer = self._trainer(manifest, spec, snapshots, prefetch, training_data)
        runner.reaudits = ReauditWorker(
            manifest=manifest,
            spec=spec,
            store=context.store,
            snapshots=snapshots,
            momentum=context.directory.momentum,
            me=context.me,
            fetch_samples=prefetch.fetch_for_reaudit,
            start=self._start_trainer,
        )
        return _Membership(runner, snapshots, prefetch, trainer, training_data)

    async def _training_data(self, manifest: Manifest, ledger: Ledger) -> TrainingData:
        context, telemetry = self._context, self._telemetry
        return await prepare(
            self._settings.privacy,
            self._settings.trainer,
            manifest,
            context.directory,
            self._data.blobs,
            len({*ledger.membership(len(ledger)).peers, context.me}),
            len(ledger),
            telemetry.report,
            telemetry.set_privacy,
            partial(telemetry.event, "private_data", len(ledger), None),
        )

    def _spec(self, manifest: Manifest, training_data: TrainingData) -> TrainerSpec:
        settings, context = self._settings, self._context
        return TrainerSpec(
            manifest=manifest.encode(),
            blobs=self._data.blobs,
            settings=settings.trainer,
            writable=(context.directory.momentum.parent,),
            caches=context.directory.caches,
            policy=dataclasses.replace(training_data.policy, stateless=settings.stateless),
        )

    def _trainer(
        self,
        manifest: Manifest,
        spec: TrainerSpec,
        snapshots: Snapshots,
        prefetch: Prefetch,
        training_data: TrainingData,
    ) -> TrainerSupervisor:
        settings, context = self._settings, self._context
        return TrainerSupervisor(
            manifest=manifest,
            spec=spec,
            store=context.store,
            snapshots=snapshots,
            momentum=context.directory.momentum,
            telemetry=self._telemetry,
            evaluate_every=settings.evaluation.evaluate_every or _EVALUATE_ROUNDS,
            sample_prompt=settings.evaluation.sample_prompt,
            last_round=_earliest_of(settings.until_round, manifest.last_round),
            data_ready=prefetch.ready,
            audit_data=prefetch,
            base_ready=functools.partial(fetch_base, context, manifest),
            training_data=training_data,
            start=self._start_trainer,
        )

    async def _take_part(self, membership: _Membership) -> None:
        """Train until the goodbye. Raises `UserError` if the swarm has expelled this node, the privacy
        budget is spent, or the swarm's protocol version has become too new for this program."""
        runner, me = membership.runner, self._identity.peer

        def upcoming(rounds: int) -> Callable[[], list[int]]:
            # A copy, because the chain grows while a thread computes the samples.
            known = runner.ledger().truncated(len(runner.ledger()))
            return partial(upcoming_samples, known, me, rounds)

        def as_of() -> object:
            return outlook(runner.ledger(), me)

        prefetch = partial(membership.prefetch.run, upcoming, as_of)
        self._network.spawn(keep_running, prefetch)
        settings = self._settings
        await runner.run(
            membership.trainer, until_round=settings.until_round, serve_result=settings.serve_result
        )
        check_not_expelled(runner.ledger(), me)
        membership.training_data.check()
        if not self._leave_requested:
            check_version(runner.ledger())

    # Status during the session

    def _listed_state(self) -> SwarmState | None:
        """Return what this member publishes about a public swarm; None: nothing now."""
        if self._membership is None or self._manifest is None:
            return None
        view, manifest = self._membership.runner.member.view, self._manifest
        if not manifest.admission.public or view.ledger.finished or view.me not in view.members:
            return None
        return SwarmState(
            manifest=manifest,
            members=len(view.members),
            rounds_done=self._telemetry.round or 0,
            tokens_per_second=self._telemetry.swarm_pace(trio.current_time()),
        )

    def _note_request(self, peer: PeerId, blob: ContentId) -> None:
        if self._membership is not None and self._membership.snapshots.note_request(peer, blob):
            self._membership.runner.note_served(peer, blob=True)

    def _swarm_status(self) -> SwarmStatus | None:
        if self._manifest is None:
            return None
        member = None if self._membership is None else self._membership.runner.member.view
        return SwarmStatus(
            name=self._manifest.name,
            parameters=self._manifest.elements,
            loss_unit=LOSS_UNITS.get(self._manifest.task),
            start_members=self._manifest.rounds.start_members,
            last_round=self._manifest.last_round,
            round=None if member is None else member.round,
            final_round=None if member is None else _final_round(member),
            members=None if member is None else _members(member, self._network.connected()),
            awaited=() if member is None else _awaited(member),
            ended=self._ended if member is None else member.ledger.finished,
            decided_seconds=self._telemetry.learned_seconds(trio.current_time()),
            diverged=()
            if self._membership is None
            else _peer_texts(self._membership.runner.diverged_peers()),
            version=None if member is None else member.ledger.versions[member.round].now,
            version_change=None if member is None else change_status(member.ledger),
            served_round=None,
            audits=None if member is None else audits_status(member.ledger, member.me),
        )


@dataclass(frozen=True)
class _Membership:
    """A member's runner and the components that work for it."""

    runner: Runner
    snapshots: Snapshots
    prefetch: Prefetch
    trainer: TrainerSupervisor
    training_data: TrainingData


def _earliest_of(wanted: int | None, last: int | None) -> int | None:
    rounds = [each for each in (wanted, last) if each is not None]
    return min(rounds, default=None)


def _final_round(member: MemberView) -> int | None:
    bound = member.ledger.bound
    return None if bound is None else bound.round


def _members(member: MemberView, connected: frozenset[PeerId]) -> tuple[MemberStatus, ...]:
    now = trio.current_time()
    rows = []
    shares = member.ledger.assignments.shares(member.round)
    for peer in member.members:
        last_message, me = member.last_message_time(peer), peer == member.me
        rows.append(
            MemberStatus(
                peer=peer_text(peer),
                me=me,
                connected=me or peer in connected,
                last_message_seconds=None
                if me or last_message is None
                else max(0.0, now - last_message),
                share=shares.part(peer),
                capacity=shares.weights[peer].capacity or None,
                share_reason=WEIGHTS[shares.weights[peer].why],
            )
        )
    return tuple(rows)


def _peer_texts(peers: Iterable[PeerId]) -> tuple[str, ...]:
    return tuple(sorted(map(peer_text, peers)))


def _awaited(member: MemberView) -> tuple[Awaited, ...]:
    """Return the members whose update is due and that have been silent for unusually long."""
    return tuple(
        Awaited(peer=peer_text(peer), silent_seconds=silent, lease_seconds=member.lease)
        for peer, silent in member.overdue(trio.current_time())
    )


def _reach_status(reach: NatTraversal, network: Network) -> ReachStatus:
    relayed = network.relayed()
    return ReachStatus(
        verdict=reach.verdict,
        observed=reach.observed,
        port=reach.port,
        mapped=reach.mapped,
        relays=tuple(peer_text(relay) for relay in reach.relays),
        connections=tuple(
            Connection(peer=peer_text(peer), way="relayed" if peer in relayed else "direct")
            for peer in network.connected()
        ),
    )
