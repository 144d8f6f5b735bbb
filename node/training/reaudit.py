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
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import trio

from ...crypto.identity import PeerId
from ...protocol.audit.disputes import OPEN_ROUNDS
from ...protocol.audit.reputation import Audit
from ...protocol.audit.sign_score import SignSums
from ...protocol.chain.ledger import Ledger
from ...protocol.member.effects import RunReaudit
from ...protocol.member.inputs import ReauditDone
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.messages import MAX_AUDITS, AuditScore
from ..settings.components import TrainerSettings
from ..storage.blob_files import DiskFull
from ..storage.blob_store import BlobStore
from ..storage.swarm_store import LocalSnapshot
from .client import TrainerClient, TrainerDied, TrainerFailed, TrainerSpec, open_trainer
from .main_memory import free_main_memory
from .reaudit_order import next_reaudit
from .replay import NotKept, ReplayTrainer, StoredRun

_log = logging.getLogger(__name__)

# Most disputes that can be open: the records of the `OPEN_ROUNDS` rounds that one lasts have no more
# audits.
_MAX_WAITING = OPEN_ROUNDS * MAX_AUDITS
# How long an idle trainer is kept: it takes memory, but a new one takes time to start.
_KEEP_ALIVE_SECONDS = 60.0
# Number of other members' samples whose mean gradient serves as the reference: about a share's size.
_OTHERS = 4
# A dispute may last for hours if rounds are long. An audit that takes longer than this is given up.
_LONGEST_SECONDS = 3600.0
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

    def looked(self, what: ReauditDone) -> None:
        """Accept the result of a re-audit."""


class ReauditWorker:
    """The re-audits of one node, one at a time."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        spec: TrainerSpec,
        store: BlobStore,
        states: SnapshotSource,
        momentum: Path,
        me: PeerId,
        bring: Callable[[Sequence[int]], Awaitable[None]],
        start: Callable[[TrainerSpec], AbstractAsyncContextManager[TrainerClient]] = open_trainer,
    ) -> None:
        """`spec` describes the node's training trainer, and `momentum` is the path where that one saves
        its state. `states` lists snapshots, `me` is this member, and `start` starts a trainer. `bring`
        returns when the data of these samples is on disk."""
        self._manifest = manifest
        self._spec = spec
        self._store = store
        self._states = states
        self._momentum = momentum
        self._me = me
        self._bring = bring
        self._start = start
        self._waiting: dict[Audit, RunReaudit] = {}
        self._wake = trio.Event()
        # The number of rounds that were decided during the last re-audit.
        self._takes = 0

    def put(self, effect: RunReaudit) -> None:
        """Queue a re-audit."""
        if len(self._waiting) == _MAX_WAITING:
            # Drop the oldest, whose dispute has ended: no more disputes than this can be open.
            del self._waiting[next(iter(self._waiting))]
        self._waiting[effect.low_audit] = effect
        self._wake.set()

    async def run(self, hears: ReauditReports) -> None:
        """Run re-audits for ever."""
        while True:
            first = await self._next_dispute(hears)
            if not await self._is_replayable(first.round, hears.ledger()):
                # Starting a trainer would be useless.
                _log.info(
                    "no re-audit of round %d: its parameters are no longer stored", first.round
                )
                self._waiting.pop(first, None)
                continue
            try:
                async with self._start(self._aside()) as trainer:
                    await self._reaudit_with(trainer, hears)
            except (TrainerFailed, TrainerDied) as problem:
                # The trainer did not start, and would not start for the next dispute either.
                _log.info("no re-audit of %d rounds: %s", len(self._waiting), problem)
                self._waiting.clear()

    async def _next_dispute(self, hears: ReauditReports) -> Audit:
        """Return the dispute to audit next, once there is one. It stays in the queue."""
        while (first := self._next(hears.ledger())) is None:
            self._wake = trio.Event()
            await self._wake.wait()
        return first

    def _next(self, ledger: Ledger) -> Audit | None:
        """Return the dispute to audit next. Disputes that have ended are dropped."""
        if ledger.audits is None:
            return None
        accounts = ledger.audits.reputation
        waiting = self._waiting.items()
        self._waiting = {first: each for first, each in waiting if first in accounts.disputes}
        return next_reaudit(self._waiting, accounts, self._me, len(ledger), self._takes)

    async def _is_replayable(self, round_: int, ledger: Ledger) -> bool:
        """Whether the parameters that a round was trained on can be reconstructed here."""
        states, past = await self._states.at_hand(), self._past(ledger)
        start = await trio.to_thread.run_sync(past.start_for, self._trained_on(round_), states)
        return start is not None

    def _past(self, ledger: Ledger) -> StoredRun:
        # A copy of the chain, which does not grow while it is read.
        known = ledger.truncated(len(ledger))
        return StoredRun(manifest=self._manifest, ledger=known, store=self._store)

    def _trained_on(self, round_: int) -> int:
        """Return the round after which the model had the parameters that this round was trained on."""
        return round_ - 1 - self._manifest.rounds.overlap

    async def _reaudit_with(self, trainer: TrainerClient, hears: ReauditReports) -> None:
        """Audit one dispute after another, until there is none for a while or the trainer is no
        longer usable."""
        replayed = ReplayTrainer(trainer)
        usable = True
        while usable:
            first: Audit | None = None
            with trio.move_on_after(_KEEP_ALIVE_SECONDS):
                first = await self._next_dispute(hears)
            if first is None:
                return
            usable = await self._while_open(replayed, self._waiting.pop(first), hears)

    async def _while_open(
        self, replayed: ReplayTrainer, effect: RunReaudit, hears: ReauditReports
    ) -> bool:
        """Audit, unless the dispute ends first. Return whether the trainer can be used further: not if
        it died or is still busy with an abandoned audit."""
        began, usable, done = len(hears.ledger()), False, False
        async with trio.open_nursery() as nursery:

            async def reaudit() -> None:
                nonlocal usable, done
                scores, usable = await self._reaudit_or_log(replayed, effect, hears.ledger())
                done = True
                if scores is not None:
                    self._takes = max(0, len(hears.ledger()) - began)
                    hears.looked(ReauditDone(effect.low_audit, scores))
                nursery.cancel_scope.cancel()

            nursery.start_soon(reaudit)
            with trio.move_on_after(_LONGEST_SECONDS):
                while _is_open(effect.low_audit, hears.ledger()):  # noqa: ASYNC110 - ends by itself
                    await trio.sleep(_WATCH_SECONDS)
            nursery.cancel_scope.cancel()
        if not done:
            _log.info(
                "no re-audit of round %d: it was not finished in time", effect.low_audit.round
            )
            # The audit would have taken at least as many rounds as have been decided since it began.
            self._takes = max(self._takes, len(hears.ledger()) - began)
        return usable

    async def _reaudit_or_log(
        self, replayed: ReplayTrainer, effect: RunReaudit, ledger: Ledger
    ) -> tuple[tuple[AuditScore, ...] | None, bool]:
        """Return the scores, if any, and whether the trainer is alive."""
        round_ = effect.low_audit.round
        try:
            found = await self._look(replayed, effect, self._past(ledger))
        except (NotKept, DiskFull, TrainerFailed, TrainerDied) as problem:
            _log.info("no re-audit of round %d: %s", round_, problem)
            return None, not isinstance(problem, TrainerDied)
        if not all(each.squares for each in found):
            _log.info(
                "no re-audit of round %d: some of its samples contain nothing to learn", round_
            )
            return None, True
        said = [f"{each.score:.1f}" for each in found]
        _log.info("re-audited round %d: %s", round_, ", ".join(said))
        return tuple(AuditScore(each.total, each.squares) for each in found), True

    async def _look(
        self, replayed: ReplayTrainer, effect: RunReaudit, past: StoredRun
    ) -> list[SignSums]:
        round_ = effect.low_audit.round
        body = await trio.to_thread.run_sync(self._store.get, effect.update)
        if body is None:
            raise NotKept("the update is no longer stored")
        others = assigned_to_others(past.ledger, round_, effect.low_audit.peer, self._me)[:_OTHERS]
        if not others:
            raise NotKept("there is nothing to compare it with")
        await self._bring((*effect.samples, *others))
        before = self._trained_on(round_)
        await replayed.go_to(past, before, await self._states.at_hand())
        # Only after the replay, which would change the momentum.
        await replayed.trainer.load_momentum(self._momentum)
        return await replayed.trainer.run_reaudit(
            round_, body, effect.samples, others, effect.share_size
        )

    def _aside(self) -> TrainerSpec:
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
        found += ledger.share(round_, other) or ()
    return tuple(found)


def _is_open(first: Audit, ledger: Ledger) -> bool:
    return ledger.audits is not None and first in ledger.audits.reputation.disputes
