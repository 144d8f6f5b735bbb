"""An observer: follows a swarm's decisions without being a member.

It asks for the swarm's records repeatedly, as a newcomer does, and verifies them as a member does. No
member waits for it, and it has no vote. Of two chains it follows the one that a newcomer would choose,
with more contributors, and does not commit to it. It publishes what it learns on the swarm's page. It
needs neither torch nor the model: the records are enough, some kilobytes a round.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import partial

import trio

from ..crypto.identity import Identity, PeerId, peer_text
from ..protocol.chain.fork_search import FetchBackoff
from ..protocol.chain.ledger import Ledger
from ..protocol.member.shutdown import CHECK_INTERVAL_SECONDS
from ..protocol.util.bounded_dict import BoundedTable
from ..protocol.wire.introductions import Registry
from ..protocol.wire.manifest import Manifest
from ..protocol.wire.messages import RecordId
from ..protocol.wire.swarm_id import Invite, invite_text
from .control.limits import BandwidthLimits
from .daemon import serve_owner
from .listing.bootstrap_directory import BootstrapDirectory
from .network.cancel_scopes import open_scope
from .network.network import Network
from .session.audit_report import audits_status, count_audits
from .session.join import fetch_ledger, find_manifest, follow_ledger
from .session.peering import SwarmPeering
from .session.seeding import ResultSeeder
from .session.sync import compare_chains
from .session.version_watch import change_status
from .settings.tree import DaemonSettings
from .storage.data_dir import DataDir
from .storage.swarm_store import SwarmStore
from .telemetry.audit_status import AuditsStatus
from .telemetry.status import ChangeStatus, MemberStatus, SessionStatus, SwarmStatus
from .telemetry.telemetry import Telemetry
from .training.task_names import LOSS_UNITS
from .util.background import keep_running

# Pause between requests for new records. Each has some hundred bytes and goes to a few peers; a page
# three seconds late is still live.
_RETRY_SECONDS = 3.0
# After this many requests an observer compares its chain with others': its own may have been abandoned.
_REQUESTS_PER_COMPARISON = 10
# Reported rounds that are remembered, to report a chain that replaces another from where they part.
_ROUNDS_REMEMBERED = 4096


async def run_observer(settings: DaemonSettings) -> None:
    """Follow a swarm until told to leave. Raises `UserError`."""
    invite, directory = partial(public_link, settings.full_invite), BootstrapDirectory()
    await serve_owner(
        settings,
        partial(ObserverSession, directory=directory),
        observer=True,
        invite=invite,
        directory=directory.rows,
    )


def public_link(entry: Invite, manifest: Manifest) -> str | None:
    """Return the link with which any peer can join the swarm; None if it is by invitation only."""
    # A ticket belongs to one guest, who gets it from the founder.
    if manifest.admission.issuer is not None:
        return None
    return invite_text(replace(entry, ticket=None))


class ObserverSession:
    """One observer session, from the first connection to the end."""

    run_is_over = False

    def __init__(
        self,
        settings: DaemonSettings,
        data: DataDir,
        identity: Identity,
        network: Network,
        telemetry: Telemetry,
        registry: Registry | None = None,
        directory: BootstrapDirectory | None = None,
    ) -> None:
        """`registry`: as in `SwarmPeering`. `directory` reads the bootstrap peers' lists of public
        swarms for the page; None: the page has another."""
        self._identity = identity
        self._network = network
        self._telemetry = telemetry
        self._peering = SwarmPeering(
            settings, data, identity, network, telemetry, registry=registry
        )
        self._directory, self._bootstrap = directory, settings.full_invite.bootstrap
        self.leave_requested = False
        self._seeds_result, self._shared = settings.serve_result, registry is not None
        self._following = open_scope()
        self._manifest: Manifest | None = None
        self._seeder: ResultSeeder | None = None
        self._chain_state: _ChainState | None = None
        self._observed = ObservedRounds(telemetry, trio.current_time())

    async def run(self, ticket: bytes) -> None:
        """Find the swarm and follow it until told to leave. Raises `UserError`."""
        del ticket  # an observer asks no one to admit it
        async with trio.open_nursery() as nursery:
            self._peering.start_tasks(nursery)
            if self._directory is not None:
                read = partial(self._directory.run, self._network, self._bootstrap)
                nursery.start_soon(keep_running, read)
            with self._following:
                await self._follow(nursery)
            nursery.cancel_scope.cancel()

    def leave(self) -> None:
        """End the session. An observer has no one to say goodbye to."""
        self.leave_requested = True
        self._following.cancel()

    def apply_limits(self, limits: BandwidthLimits) -> None:
        """Apply these bandwidth limits from now on."""
        self._peering.apply_limits(limits)

    def status(self) -> SessionStatus:
        """Return the parts of the status that hold during this session."""
        return SessionStatus(swarm=self._swarm_status(), line=self._peering.line(), reach=None)

    async def _follow(self, nursery: trio.Nursery) -> None:
        context, telemetry = self._peering.join_context, self._telemetry
        telemetry.enter("connecting")
        manifest = self._manifest = await find_manifest(context, takes_part=False)
        store = SwarmStore(context.directory, manifest, self._identity)
        await trio.to_thread.run_sync(telemetry.keep_history, store.history)
        telemetry.enter("syncing")
        ledger = await fetch_ledger(context, manifest, store)
        telemetry.caught_up(len(ledger))
        telemetry.progress = None
        telemetry.enter("observing")
        if self._seeds_result:
            self._seeder = ResultSeeder(context, manifest, store, ledger, shared=self._shared)
            nursery.start_soon(keep_running, self._seeder.run)
        self._report_rounds(ledger, len(ledger) - 1)
        requests, backoff = 0, FetchBackoff()
        while True:
            await trio.sleep(CHECK_INTERVAL_SECONDS if ends_soon(ledger) else _RETRY_SECONDS)
            length, head = len(ledger), ledger.head
            await follow_ledger(context, manifest, ledger, store, _ignore_progress)
            first = first_new_round(ledger, length, head)
            requests += 1
            if requests % _REQUESTS_PER_COMPARISON == 0:
                _, better = await compare_chains(
                    self._network,
                    manifest,
                    ledger,
                    backoff,
                    me=context.me,
                    abandoned=False,
                    peers=context.connected,
                )
                if better is not None:
                    store.replace_chain(better)
                    await store.written()
                    telemetry.event("forked", len(better) - 1)
                    ledger, first = better, 0
            self._report_rounds(ledger, first)

    def _report_rounds(self, ledger: Ledger, first: int) -> None:
        """Report the rounds from `first` on, and update the state that is shown."""
        rounds, now = range(max(0, first), len(ledger)), trio.current_time()
        if rounds and self._seeder is not None:
            self._seeder.update_ledger(ledger)
        self._observed.report(ledger, first, now)
        # Another thread may extend the ledger while the status is read.
        self._chain_state = _ChainState(
            len(ledger),
            ledger.final_round,
            ledger.membership(len(ledger)).peers,
            ledger.versions[len(ledger)].now,
            change_status(ledger),
            audits_status(ledger, None),
            ended=ledger.finished,
        )
        count_audits(self._telemetry.counts.audits, ledger, None)

    def _swarm_status(self) -> SwarmStatus | None:
        if self._manifest is None:
            return None
        state, connected = self._chain_state, self._network.connected()
        return SwarmStatus(
            name=self._manifest.name,
            parameters=self._manifest.elements,
            loss_unit=LOSS_UNITS.get(self._manifest.task),
            start_members=self._manifest.rounds.start_members,
            last_round=self._manifest.last_round,
            round=None if state is None else state.round,
            final_round=None if state is None or state.final < 0 else state.final,
            members=None if state is None else _members(state.members, connected),
            awaited=(),
            ended=state is not None and state.ended,
            decided_seconds=self._telemetry.learned_seconds(trio.current_time()),
            diverged=(),
            version=None if state is None else state.version,
            version_change=None if state is None else state.change,
            served_round=None if self._seeder is None else self._seeder.round,
            audits=None if state is None else state.audits,
        )


class ObservedRounds:
    """Reports to the telemetry each round that an observer learns of, once. Times are of any one
    clock."""

    def __init__(self, telemetry: Telemetry, now: float) -> None:
        self._telemetry = telemetry
        self._reported: BoundedTable[int, RecordId] = BoundedTable(_ROUNDS_REMEMBERED)
        self._last = now

    def report(self, ledger: Ledger, first: int, now: float) -> None:
        """Report the rounds from `first` on; of a chain that replaced another, those that differ."""
        if first >= len(ledger):
            return
        known = (
            round_ + 1
            for round_ in sorted(self._reported, reverse=True)
            if round_ < len(ledger) and ledger.parent(round_ + 1) == self._reported[round_]
        )
        rounds = range(max(0, first, next(known, 0)), len(ledger))
        if not rounds:
            return
        abandoned = [round_ for round_ in self._reported if round_ >= rounds.start]
        for round_ in abandoned:
            del self._reported[round_]
        # Rounds learned together were decided one after the other since the last one that was learned,
        # also if no peer could be reached meanwhile, so their times are spread over that interval.
        since, self._last = self._last, now
        for number, round_ in enumerate(rounds, 1):
            record, members = ledger[round_].record, ledger.membership(round_)
            at = since + (now - since) * number / len(rounds)
            self._telemetry.observed(record, len(members), at)
            self._reported[round_] = ledger.parent(round_ + 1)
        if abandoned:
            # Nobody knows when the rounds of the other chain were decided.
            self._telemetry.caught_up(len(ledger))


def first_new_round(ledger: Ledger, length: int, head: RecordId) -> int:
    """Return the first round of a ledger that is new to a reader who knew `length` rounds up to `head`:
    0 if the ledger was replaced by another chain."""
    grew = len(ledger) >= length and ledger.parent(length) == head
    return length if grew else 0


def ends_soon(ledger: Ledger) -> bool:
    """Whether members may leave at any moment, and take records along that an observer lacks."""
    closing = ledger.manifest.schedule.closing_round
    return closing is not None and len(ledger) >= closing - 1 and not ledger.finished


@dataclass(frozen=True)
class _ChainState:
    """The current state of the swarm according to the chain."""

    round: int
    """The round to be decided next."""
    final: int
    """The last final round; -1 if there is none."""
    members: Sequence[PeerId]
    """Members in the round to be decided next."""
    version: int
    """Protocol version in that round."""
    change: ChangeStatus | None
    audits: AuditsStatus | None
    ended: bool
    """Whether the chain has the run's last record."""


def _members(peers: Sequence[PeerId], connected: Container[PeerId]) -> tuple[MemberStatus, ...]:
    return tuple(
        MemberStatus(
            peer=peer_text(peer), me=False, connected=peer in connected, last_message_seconds=None
        )
        for peer in peers
    )


def _ignore_progress(done: int, total: int) -> None:
    """Ignore progress: no one waits for the few rounds decided in three seconds."""
