"""The supervisor of the trainer process: the work queued for it, and its restart.

Jobs are done one at a time in the order they came. A trainer that dies is started again, loaded with the
newest snapshot at hand and caught up by replaying rounds; the node stays in the swarm meanwhile, and
waits for nothing but its own next update.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import trio

from ...protocol.codec.schedule import learning_rate
from ...protocol.member.effects import Apply, Judge, Train
from ...protocol.member.inputs import Judged
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.messages import SnapshotEntry
from ..content.snapshots import Snapshots
from ..errors import ExitCode, UserError
from ..storage.blob_store import BlobStore
from ..telemetry.history import MAX_SAMPLE_CHARACTERS
from ..telemetry.telemetry import OwnUpdate, Telemetry
from .client import (
    Trained,
    TrainerClient,
    TrainerDied,
    TrainerFailed,
    TrainerSpec,
    open_trainer,
)
from .counted import counted_bodies
from .restart_policy import RestartPolicy
from .start_report import report_start
from .task_names import DIFFUSION

_log = logging.getLogger(__name__)

# Before lost data is asked for once more.
_DATA_PAUSE_SECONDS = 1.0

_HELDOUT_SEQUENCES = 128

# A few lines on a page; on a processor some seconds of a trainer that has nothing else to do.
_SAMPLE_TOKENS = 64
_SAMPLE_TEMPERATURE = 0.8

# A gradient that takes several rounds is asked for so often.
_ASIDE_SECONDS = 0.25

Draw = Callable[[TrainerClient, int], Awaitable[tuple[int, ...] | None]]
"""Which sequences of the node's own data are trained where so many are dealt; None: no more ever."""


class LookedAt(Protocol):
    """Where the data of looked-at samples comes from: `Prefetch`."""

    def wish(self, samples: tuple[int, ...]) -> None:
        """Fetch these before anything that is not needed at once."""

    def has(self, samples: tuple[int, ...]) -> bool:
        """Whether those wished for last are here."""
        ...


OpenTrainer = Callable[[TrainerSpec], AbstractAsyncContextManager[TrainerClient]]
"""How a trainer is started, as `open_trainer` does it."""


class Reports(Protocol):
    """Who hears of finished work: the runner."""

    def loaded(self, round: int, fingerprint: int, snapshot: SnapshotEntry | None) -> None:
        """The trainer holds the parameters after `round`."""

    async def trained(self, what: Train, made: Trained) -> None:
        """The own update that was asked for is ready."""

    async def applied(
        self, record_round: int, fingerprint: int, seconds: float, snapshot: SnapshotEntry | None
    ) -> None:
        """A record is in the parameters."""

    def looked(self, what: Judged) -> None:
        """What came of a look at somebody's work."""

    def may_train_no_more(self) -> None:
        """Nothing will be trained any more: the node has told of its own data what it may."""


@dataclass(frozen=True)
class _Train:
    effect: Train
    begun: bool = False
    """Whether the trainer is at it, beside other work."""
    drawn: tuple[int, ...] | None = None
    """What of the node's own data is trained in the place of what was dealt."""


@dataclass(frozen=True)
class _Evaluate:
    pass


_Job = _Train | Apply | Judge | _Evaluate


class _Reload(Exception):
    """The parameters are to be loaded again."""


class TrainerSupervisor:
    """Owns the trainer of one swarm."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        spec: TrainerSpec,
        store: BlobStore,
        snapshots: Snapshots,
        momentum: Path,
        telemetry: Telemetry,
        evaluate_every: int,
        sample_prompt: str | None = None,
        last_round: int | None = None,
        data_ready: Callable[[tuple[int, ...]], Awaitable[None]] | None = None,
        base_ready: Callable[[], Awaitable[None]] | None = None,
        looked_at: LookedAt | None = None,
        draw: Draw | None = None,
        start: OpenTrainer = open_trainer,
    ) -> None:
        """After each measurement the model goes on from `sample_prompt`, if there is one and it writes
        text. `data_ready` returns when the data of these training samples is on the disk, `base_ready`
        when the weights are that adapters stand beside; `looked_at` fetches the data of a sample that is
        looked at, without it none is; `draw` says what of the node's own data is
        trained, if it trains any; `start` starts a trainer."""
        self._manifest = manifest
        self._start = start
        self._spec = spec
        self._restarts = RestartPolicy(spec)
        self._store = store
        self._snapshots = snapshots
        self._momentum = momentum
        self._telemetry = telemetry
        self._evaluate_every = evaluate_every
        self._sample_prompt = None if manifest.task == DIFFUSION else sample_prompt
        self._last_round = last_round
        self._data_ready = data_ready
        self._base_ready = base_ready
        self._looked_at = looked_at
        # Seconds that the last look kept other work waiting.
        self._delayed = 0.0
        self._draw = draw
        self._overtaken = trio.Event()
        self._jobs: deque[_Job] = deque()
        # What the trainer is at beside other work.
        self._aside: _Train | None = None
        self._wake = trio.Event()
        self._reload = False
        self._applied = -1

    def train(self, effect: Train) -> None:
        """Queue: compute an update; `aside` while other rounds are applied."""
        self._put(_Train(effect))

    def apply(self, effect: Apply) -> None:
        """Queue: apply a record."""
        self._put(effect)
        self._overtaken.set()

    def judge(self, effect: Judge) -> None:
        """Say what came of a look, before anything else that is queued: it is a matter of moments, and
        what is to be judged is kept for a round or two."""
        self._jobs.appendleft(effect)
        self._wake.set()

    def reload(self) -> None:
        """Drop everything queued and load the newest certified snapshot."""
        self._jobs.clear()
        self._reload = True
        self._wake.set()
        self._overtaken.set()

    async def run(self, reports: Reports) -> None:
        """Work for ever. Raises `UserError` for what a restart cannot mend."""
        while True:
            if self._base_ready is not None:
                # Before each start: the last one may have found that the disk lost some of it.
                await self._base_ready()
            try:
                async with self._start(self._restarts.spec) as trainer:
                    report_start(trainer, self._telemetry)
                    await self._serve(trainer, reports, self._restarts.certified_only)
            except (TrainerDied, TrainerFailed) as failure:
                reason = self._restarts.after(failure)
                self._telemetry.event("trainer", max(0, self._applied), None, reason)
            await trio.sleep(self._restarts.pause_seconds())

    async def _serve(self, trainer: TrainerClient, reports: Reports, certified_only: bool) -> None:
        while True:
            self._reload = False
            await self._load(trainer, reports, certified_only)
            try:
                while True:
                    await self._do(trainer, reports, await self._next())
            except _Reload:
                certified_only = True

    async def _load(self, trainer: TrainerClient, reports: Reports, certified_only: bool) -> None:
        """Load a snapshot and the momentum, and say so."""
        snapshot = await self._snapshots.best(certified_only=certified_only)
        # The list of a large model names tens of thousands.
        chunks = await trio.to_thread.run_sync(self._snapshots.chunks, snapshot)
        fingerprint = await trainer.load(chunks)
        keeps = not self._spec.ways.stateless
        if keeps and await trainer.load_momentum(self._momentum):
            _log.info("took up the momentum where it was saved")
        # All queued jobs were for other parameters; the report makes the member ask anew.
        self._jobs.clear()
        self._aside = None
        self._applied = snapshot.round
        reports.loaded(snapshot.round, fingerprint, self._snapshots.entry(snapshot))

    async def _do(self, trainer: TrainerClient, reports: Reports, job: _Job) -> None:
        kind, done = type(job).__name__, True
        self._restarts.begins(kind)
        match job:
            case _Train():
                done = await self._train(trainer, reports, job)
            case Apply():
                await self._apply(trainer, reports, job)
            case Judge():
                await self._judge(trainer, reports, job)
            case _Evaluate():
                await self._evaluate(trainer)
        if done:
            self._restarts.has_done(kind)

    async def _train(self, trainer: TrainerClient, reports: Reports, job: _Train) -> bool:
        """Compute the update; False if the trainer was not asked, or its data was gone."""
        effect = job.effect
        round_, samples = effect.round, effect.samples
        if not job.begun and not await self._have_data(samples):
            self._put_back(job)
            return False
        if self._draw is not None:
            found = await self._draw(trainer, len(samples)) if job.drawn is None else job.drawn
            if found is None:
                reports.may_train_no_more()
                return False
            samples, job = found, replace(job, drawn=found)
        looks = self._looked_at is not None and effect.look is not None
        if self._looked_at is not None and effect.look is not None:
            self._looked_at.wish((effect.look,))
        try:
            if effect.aside:
                trained = await trainer.train_aside(round_, samples)
            else:
                trained = await trainer.train(round_, samples, looks=looks)
        except TrainerFailed as failure:
            if failure.kind != "missing_data":
                raise
            if self._draw is not None:
                raise UserError(
                    ExitCode.DATA_MISSING,
                    "the disk has lost some of your data, as it was read for training",
                    "start the same command again: what is missing is read anew",
                ) from None
            # The disk has lost some of it since: it is waited for once more.
            _log.warning("%s", failure)
            await trio.sleep(_DATA_PAUSE_SECONDS)
            self._jobs.appendleft(replace(job, begun=False))
            return False
        if trained is None:
            self._aside = replace(job, begun=True)
            return True
        times = self._telemetry.round_times(round_)
        times.compute, times.encode = trained.compute_seconds, trained.encode_seconds
        update = OwnUpdate(len(trained.body), trained.coefficients, trained.tokens, len(samples))
        self._telemetry.trained(round_, update)
        # What a look kept waiting is time that the update took, and not its sequences.
        encoding, self._delayed = trained.encode_seconds + self._delayed, 0.0
        await reports.trained(effect, replace(trained, encode_seconds=encoding))
        if looks:
            await self._look(trainer, effect)
        return True

    async def _look(self, trainer: TrainerClient, effect: Train) -> None:
        """Compute somebody else's sample beside the update that was just handed over, if its data is
        here and there is time."""
        sample, looked_at = effect.look, self._looked_at
        # Who is behind its own round would be even later.
        late = any(isinstance(j, Apply) and j.record.round >= effect.round for j in self._jobs)
        if late or self._reload or sample is None or looked_at is None:
            return
        if not looked_at.has((sample,)):
            return
        try:
            seconds = await trainer.look(effect.round, sample, effect.look_share)
        except TrainerFailed as failure:
            _log.info("no look in round %d: %s", effect.round, failure)
            return
        if seconds is not None and self._jobs:
            self._delayed = seconds

    async def _judge(self, trainer: TrainerClient, reports: Reports, job: Judge) -> None:
        body = await trio.to_thread.run_sync(self._store.get, job.update)
        if body is None:
            return
        try:
            found = await trainer.judge(job.round, body)
        except TrainerFailed as failure:
            _log.info("the look in round %d came to nothing: %s", job.round, failure)
            return
        if found is not None:
            reports.looked(found.said_of(job.round))

    async def _evaluate(self, trainer: TrainerClient) -> None:
        """Measure, of whatever the parameters are by now: several rounds may have been queued."""
        try:
            loss = await trainer.evaluate(_HELDOUT_SEQUENCES)
        except TrainerFailed as failure:
            if failure.kind != "missing_data":
                raise
            # Nobody waits for a measurement; until the next one it is fetched again.
            _log.warning("%s", failure)
        else:
            # The rounds behind the run's last one change nothing: these are still its parameters.
            run = self._manifest.last_round
            of = self._applied if run is None else min(run, self._applied)
            self._telemetry.evaluated(of, loss)
            if self._sample_prompt is not None:
                await self._sample(trainer, self._sample_prompt, of)

    async def _sample(self, trainer: TrainerClient, prompt: str, round_: int) -> None:
        """Let the model write, so that people see how it gets on; whatever is to be done comes first."""
        text = ""
        try:
            # The same chance each time, so that what differs is what was learned.
            await trainer.begin_text(
                prompt, seed=0, temperature=_SAMPLE_TEMPERATURE, max_tokens=_SAMPLE_TOKENS
            )
            while len(text) < MAX_SAMPLE_CHARACTERS and not self._jobs and not self._reload:
                piece = await trainer.next_text()
                if piece is None:
                    break
                text += piece
        except TrainerFailed as failure:
            if failure.kind != "bad_data":
                raise
            _log.warning("the model writes no sample: %s", failure)
            self._sample_prompt = None
        except TrainerDied:
            # A tokenizer may be built to end its process. It does so once.
            _log.warning("the trainer ended over a sample: the model writes none any more")
            self._sample_prompt = None
            raise
        if text:
            self._telemetry.sampled(round_, text[:MAX_SAMPLE_CHARACTERS])

    async def _have_data(self, samples: tuple[int, ...]) -> bool:
        """Wait for the data of these samples; False if a record came to be applied meanwhile."""
        ready = self._data_ready
        if ready is None:
            return True
        self._overtaken = trio.Event()
        if self._reload or any(isinstance(job, Apply) for job in self._jobs):
            return False
        complete = False
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def fetch() -> None:
                nonlocal complete
                await ready(samples)
                complete = True
                nursery.cancel_scope.cancel()

            nursery.start_soon(fetch)
            await self._overtaken.wait()
            nursery.cancel_scope.cancel()
        self._telemetry.idle(trio.current_time() - began)
        return complete

    def _put_back(self, job: _Train) -> None:
        """Train after the record that overtook it; if that is its own round's, it comes too late."""
        waiting = [each.record.round for each in self._jobs if isinstance(each, Apply)]
        if waiting and waiting[-1] < job.effect.round and not self._reload:
            # With overlap: the data may be here by then, and there never is more than one record.
            self._jobs.append(job)

    async def _apply(self, trainer: TrainerClient, reports: Reports, job: Apply) -> None:
        record = job.record
        # All at once: 90 MB at 32 members.
        counted = await trio.to_thread.run_sync(counted_bodies, self._store, job.needed)
        if counted is None:
            raise TrainerDied("an update that was held has vanished from the disk")
        # Round 0 only gathers members; rates count from 1.
        rate = learning_rate(self._manifest.schedule, max(1, record.round))
        applied = await trainer.apply(
            record.round, counted.bodies, rate, job.own_counted, counted.counts
        )
        self._applied = record.round
        self._telemetry.metrics.updates_left_out.inc(applied.left_out)
        snapshot = None
        if job.snapshot_due:
            snapshot = await self._take_snapshot(trainer, record.round)
        await self._measure_memory(trainer)
        last = record.round == self._last_round
        if last:
            # The node leaves upon the report, and whoever ran it wants to know how well it ended.
            await self._do(trainer, reports, _Evaluate())
        await reports.applied(record.round, applied.fingerprint, applied.seconds, snapshot)
        closing = self._manifest.schedule.closing_round
        changed = closing is None or record.round < closing
        if record.round % self._evaluate_every == 0 and changed and not last:
            # Behind the training that was just queued: nobody waits for a measurement.
            self._put(_Evaluate())

    async def _take_snapshot(self, trainer: TrainerClient, round: int) -> SnapshotEntry:
        made = await trainer.snapshot()
        blob = await trio.to_thread.run_sync(self._store.put, made.blob_list)
        entry = SnapshotEntry(round, blob, made.size)
        await self._snapshots.keep(entry)
        if not self._spec.ways.stateless:
            await trainer.save_momentum(self._momentum)
        return entry

    async def _measure_memory(self, trainer: TrainerClient) -> None:
        memory = await trainer.memory()
        process, device = memory["process_bytes"], memory["device_bytes"]
        self._telemetry.memory = process, device or None
        self._telemetry.metrics.memory["trainer"].set(process)
        self._telemetry.metrics.memory["device"].set(device)

    def _put(self, job: _Job) -> None:
        self._jobs.append(job)
        self._wake.set()

    async def _next(self) -> _Job:
        while True:
            if self._reload:
                raise _Reload
            if self._jobs:
                return self._jobs.popleft()
            self._wake = trio.Event()
            if self._aside is not None:
                with trio.move_on_after(_ASIDE_SECONDS):
                    await self._wake.wait()
                if not self._jobs and not self._reload:
                    job, self._aside = self._aside, None
                    return job
                continue
            began = trio.current_time()
            await self._wake.wait()
            self._telemetry.idle(trio.current_time() - began)
