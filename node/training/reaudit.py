"""The re-audit worker: it recomputes shares to which another member's audit gave a low score.

It does so in a trainer process of its own. It reconstructs the parameters on which the update was
computed, from a snapshot and the later updates, and computes the share's samples on them. It uses only
idle CPU time, half of the free memory, and the time until the dispute ends. If anything is missing it
omits the re-audit, since other members are called to re-audit the same share. All members choose the
same dispute to audit first (`next_reaudit`).

For a small model, starting the trainer takes longer than an audit. So the trainer stays while there
are disputes to audit, and goes on from its current parameters to those of a later round.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Protocol

import trio

from ...crypto.identity import PeerId
from ...protocol.audit.disputes import OPEN_ROUNDS
from ...protocol.audit.reputation import Audit
from ...protocol.audit.sign_score import SignSums
from ...protocol.chain.audits import AuditLedger
from ...protocol.chain.ledger import Ledger
from ...protocol.member.auditor import ReauditDone, RunReaudit
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.messages import MAX_AUDITS, AuditScore
from ..settings.components import TrainerSettings
from ..storage.blob_files import DiskFull
from ..storage.blob_store import BlobStore
from ..storage.swarm_store import LocalSnapshot
from ..util.system_errors import is_shortage
from .call_limits import CallLimits
from .client import TrainerClient, TrainerDied, TrainerFailed, TrainerSpec, open_trainer
from .main_memory import free_main_memory
from .reaudit_order import next_reaudit
from .replay import CannotReplay, ReplayTrainer, StoredRun

_log = logging.getLogger(__name__)

# Most disputes that can be open: the records of the `OPEN_ROUNDS` rounds that one lasts have no more
# audits.
_MAX_WAITING = OPEN_ROUNDS * MAX_AUDITS
# How long an idle trainer is kept: it takes memory, but a new one takes time to start.
_KEEP_ALIVE_SECONDS = 60.0
# Number of other members' samples whose mean gradient serves as the reference: about a share's size.
_MAX_REFERENCE_SAMPLES = 4
# A dispute may last for hours if rounds are long. An audit that takes longer than this is given up.
_MAX_SECONDS = 3600.0
# How often the worker checks whether the dispute is still open.
_WATCH_SECONDS = 1.0
# The re-audit's scheduling priority, below that of the owner's programs and of the node's training.
_NICE = 10


class SnapshotSource(Protocol):
    """The snapshots on this disk: `Snapshots`."""

    async def at_hand(self) -> list[LocalSnapshot]:
        """Return the complete snapshots, sorted from the oldest."""
        ...


class ReauditReports(Protocol):
    """The receiver of results: the runner."""

    def ledger(self) -> Ledger:
        """Return the chain currently followed."""
        ...

    def audited(self, what: ReauditDone) -> None:
        """Accept the result of a re-audit."""


class NoReaudits:
    """Declines all re-audits."""

    def put(self, effect: RunReaudit) -> None:
        """Ignore a re-audit."""

    async def run(self, reports: ReauditReports) -> None:
        """Return at once: there is nothing to do."""


class ReauditWorker:
    """The re-audits of one node, one at a time. In a swarm without audits none is ever asked for."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        spec: TrainerSpec,
        store: BlobStore,
        snapshots: SnapshotSource,
        momentum: Path,
        me: PeerId,
        fetch_samples: Callable[[Sequence[int]], Awaitable[None]],
        start: Callable[[TrainerSpec], AbstractAsyncContextManager[TrainerClient]] = open_trainer,
    ) -> None:
        """`spec` describes the node's training trainer, and `momentum` is the path where that one saves
        its state. `snapshots` lists snapshots, `me` is this member, and `start` starts a trainer.
        `fetch_samples` returns when the data of these samples is on disk."""
        self._manifest = manifest
        self._spec = spec
        self._store = store
        self._snapshots = snapshots
        self._momentum = momentum
        self._me = me
        self._fetch_samples = fetch_samples
        self._start = start
        self._limits = CallLimits(manifest.rounds.collect_max_seconds)
        self._waiting: dict[Audit, RunReaudit] = {}
        self._wake = trio.Event()
        # The number of rounds that were decided during the last re-audit.
        self._rounds_taken = 0

    def put(self, effect: RunReaudit) -> None:
        """Queue a re-audit."""
        if len(self._waiting) == _MAX_WAITING:
            # Drop the oldest, whose dispute has ended: no more disputes than this can be open.
            del self._waiting[next(iter(self._waiting))]
        self._waiting[effect.low_audit] = effect
        self._wake.set()

    async def run(self, reports: ReauditReports) -> None:
        """Run re-audits for ever."""
        while True:
            low_audit = await self._next_dispute(reports)
            try:
                if not await self._is_replayable(low_audit.round, reports.ledger()):
                    # Starting a trainer would be useless.
                    _log.info(
                        "no re-audit of round %d: its parameters are no longer stored",
                        low_audit.round,
                    )
                    self._waiting.pop(low_audit, None)
                    continue
                async with AsyncExitStack() as stack:
                    opened = self._start(self._trainer_spec())
                    trainer = await self._limits.call(stack.enter_async_context, opened)
                    await self._reaudit_with(trainer, reports)
            except (TrainerFailed, TrainerDied, OSError) as problem:
                if isinstance(problem, OSError) and not is_shortage(problem):
                    raise
                # The trainer did not start, and would not start for the next dispute either.
                _log.info("no re-audit of %d rounds: %s", len(self._waiting), problem)
                self._waiting.clear()

    async def _next_dispute(self, reports: ReauditReports) -> Audit:
        """Return the dispute to audit next, once there is one. It stays in the queue."""
        while (low_audit := self._next(reports.ledger())) is None:
            self._wake = trio.Event()
            await self._wake.wait()
        return low_audit

    def _next(self, ledger: Ledger) -> Audit | None:
        """Return the dispute to audit next. Disputes that have ended are dropped."""
        work = ledger.find(AuditLedger)
        if work is None:
            return None
        reputation = work.reputation
        waiting = self._waiting.items()
        self._waiting = {
            low_audit: each for low_audit, each in waiting if low_audit in reputation.disputes
        }
        return next_reaudit(self._waiting, reputation, self._me, len(ledger), self._rounds_taken)

    async def _is_replayable(self, round_: int, ledger: Ledger) -> bool:
        """Whether the parameters that a round was trained on can be reconstructed here."""
        snapshots, stored_run = await self._snapshots.at_hand(), self._stored_run(ledger)
        start = await trio.to_thread.run_sync(
            stored_run.start_for, self._trained_on(round_), snapshots
        )
        return start is not None

    def _stored_run(self, ledger: Ledger) -> StoredRun:
        # A copy of the chain, which does not grow while it is read.
        known = ledger.truncated(len(ledger))
        return StoredRun(manifest=self._manifest, ledger=known, store=self._store)

    def _trained_on(self, round_: int) -> int:
        """Return the round after which the model had the parameters that this round was trained on."""
        return round_ - 1 - self._manifest.rounds.overlap

    async def _reaudit_with(self, trainer: TrainerClient, reports: ReauditReports) -> None:
        """Audit one dispute after another, until there is none for a while or the trainer is no
        longer usable."""
        replay_trainer = ReplayTrainer(trainer)
        usable = True
        while usable:
            low_audit: Audit | None = None
            with trio.move_on_after(_KEEP_ALIVE_SECONDS):
                low_audit = await self._next_dispute(reports)
            if low_audit is None:
                return
            usable = await self._while_open(replay_trainer, self._waiting.pop(low_audit), reports)

    async def _while_open(
        self, replay_trainer: ReplayTrainer, effect: RunReaudit, reports: ReauditReports
    ) -> bool:
        """Audit, unless the dispute ends first. Return whether the trainer can be used further: not if
        it died or is still busy with an abandoned audit."""
        began, usable, done = len(reports.ledger()), False, False
        async with trio.open_nursery() as nursery:

            async def reaudit() -> None:
                nonlocal usable, done
                scores, usable = await self._reaudit_or_log(
                    replay_trainer, effect, reports.ledger()
                )
                done = True
                if scores is not None:
                    self._rounds_taken = max(0, len(reports.ledger()) - began)
                    reports.audited(ReauditDone(effect.low_audit, scores))
                nursery.cancel_scope.cancel()

            nursery.start_soon(reaudit)
            with trio.move_on_after(_MAX_SECONDS):
                while _is_open(effect.low_audit, reports.ledger()):  # noqa: ASYNC110 - ends by itself
                    await trio.sleep(_WATCH_SECONDS)
            nursery.cancel_scope.cancel()
        if not done:
            _log.info(
                "no re-audit of round %d: it was not finished in time", effect.low_audit.round
            )
            # The audit would have taken at least as many rounds as have been decided since it began.
            self._rounds_taken = max(self._rounds_taken, len(reports.ledger()) - began)
        return usable

    async def _reaudit_or_log(
        self, replay_trainer: ReplayTrainer, effect: RunReaudit, ledger: Ledger
    ) -> tuple[tuple[AuditScore, ...] | None, bool]:
        """Return the scores, if any, and whether the trainer is alive."""
        round_ = effect.low_audit.round
        try:
            found = await self._reaudit(replay_trainer, effect, self._stored_run(ledger))
        except (CannotReplay, TrainerFailed, TrainerDied, OSError) as problem:
            passes = isinstance(problem, DiskFull) or is_shortage(problem)
            if isinstance(problem, OSError) and not passes:
                raise
            _log.info("no re-audit of round %d: %s", round_, problem)
            return None, not isinstance(problem, TrainerDied)
        if not all(each.squares for each in found):
            _log.info(
                "no re-audit of round %d: some of its samples contain nothing to learn", round_
            )
            return None, True
        scores = [f"{each.score:.1f}" for each in found]
        _log.info("re-audited round %d: %s", round_, ", ".join(scores))
        return tuple(AuditScore(each.total, each.squares) for each in found), True

    async def _reaudit(
        self, replay_trainer: ReplayTrainer, effect: RunReaudit, stored_run: StoredRun
    ) -> list[SignSums]:
        round_ = effect.low_audit.round
        body = await trio.to_thread.run_sync(self._store.get, effect.update)
        if body is None:
            raise CannotReplay("the update is no longer stored")
        others = assigned_to_others(stored_run.ledger, round_, effect.low_audit.peer, self._me)[
            :_MAX_REFERENCE_SAMPLES
        ]
        if not others:
            raise CannotReplay("there is nothing to compare it with")
        await self._fetch_samples((*effect.samples, *others))
        before = self._trained_on(round_)
        await replay_trainer.replay_to(stored_run, before, await self._snapshots.at_hand())
        # Only after the replay, which would change the momentum.
        await replay_trainer.trainer.load_momentum(self._momentum)
        return await replay_trainer.trainer.run_reaudit(
            round_, body, effect.samples, others, effect.share_size
        )

    def _trainer_spec(self) -> TrainerSpec:
        spec = self._spec
        return TrainerSpec(
            manifest=spec.manifest,
            blobs=spec.blobs,
            settings=TrainerSettings(
                # The GPU, and the memory that it may still need, belong to the training trainer.
                device="cpu",
                threads=spec.settings.threads,
                micro_batch=1,
                memory=free_main_memory() // 2,
                sandbox=spec.settings.sandbox,
            ),
            readable=(self._momentum.parent,),
            nice=_NICE,
        )


def assigned_to_others(ledger: Ledger, round_: int, peer: PeerId, me: PeerId) -> tuple[int, ...]:
    """Return the samples that a round assigned to members other than `peer`. Those of this node (`me`)
    come first, because their data is here."""
    runs = ledger.assignments.assignment(round_).runs
    found: list[int] = []
    for other in sorted(runs.keys() - {peer}, key=lambda each: (each != me, each)):
        found += ledger.assignments.share(round_, other) or ()
    return tuple(found)


def _is_open(low_audit: Audit, ledger: Ledger) -> bool:
    work = ledger.find(AuditLedger)
    return work is not None and low_audit in work.reputation.disputes
