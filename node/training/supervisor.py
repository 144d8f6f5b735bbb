"""The supervisor of the trainer process: it queues the process's work, and restarts it.

Jobs run one at a time, in the order in which they were queued; only the judging of an audit goes
first. A trainer that dies is restarted, loaded with the newest available snapshot and caught up by
replaying rounds. Meanwhile the node stays in the swarm; only its own next update waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import trio

from ...crypto.hashing import ContentId
from ...protocol.codec.schedule import learning_rate
from ...protocol.member.auditor import AuditScored, ScoreAudit
from ...protocol.member.effects import Apply, Train
from ...protocol.wire.manifest import MAX_MEMBERS, Manifest
from ...protocol.wire.messages import RecordId, SnapshotEntry
from ...protocol.wire.swarm_id import swarm_text
from ..content.snapshots import Snapshots
from ..storage.blob_store import BlobStore
from ..telemetry.history import MAX_SAMPLE_CHARACTERS
from ..telemetry.messages import starting_trainer
from ..telemetry.task_scores import heldout_accuracy
from ..telemetry.telemetry import OwnUpdate, Telemetry
from ..util.progress import Progress
from ..util.system_errors import is_shortage
from .call_limits import CallLimits
from .client import (
    TrainedUpdate,
    TrainerClient,
    TrainerDied,
    TrainerFailed,
    TrainerSpec,
    open_trainer,
)
from .counted_bodies import counted_bodies
from .frames import ExpectedUpdate, StopSteps
from .restart_policy import RestartPolicy
from .start_report import report_start
from .task_names import CLASSIFICATION, ON_IMAGES, WITH_ACCURACY
from .text_request import TextRequest
from .training_data import TrainingData

_log = logging.getLogger(__name__)

# Wait before training data that was lost from the disk is requested once more.
_DATA_PAUSE_SECONDS = 1.0

_HELDOUT_SEQUENCES = 128

# Length of a sample text: a few lines on a page, and on a CPU some seconds of an otherwise idle trainer.
_SAMPLE_TOKENS = 64
_SAMPLE_TEMPERATURE = 0.8

# How often the duration of a trainer's start is reported.
_START_REPORT_SECONDS = 1.0

# How often the trainer is asked whether a gradient that takes several rounds is done.
_BACKGROUND_POLL_SECONDS = 0.25


class AuditData(Protocol):
    """The source of data for audited samples: `Prefetch`."""

    def want_for_audit(self, samples: tuple[int, ...]) -> None:
        """Fetch the data of these samples before any data that is not needed immediately."""

    def has(self, samples: tuple[int, ...]) -> bool:
        """Whether the data of these samples, those of the last `want_for_audit`, is here."""
        ...


OpenTrainer = Callable[[TrainerSpec], AbstractAsyncContextManager[TrainerClient]]
"""The function that starts a trainer, such as `open_trainer`."""


class Reports(Protocol):
    """The receiver of finished work: the runner."""

    def loaded(self, round: int, fingerprint: int, snapshot: SnapshotEntry | None) -> None:
        """Report that the trainer holds the parameters after `round`."""

    async def trained(self, what: Train, made: TrainedUpdate) -> None:
        """Accept this node's own update, which `what` requested."""

    async def applied(
        self,
        record_round: int,
        fingerprint: int,
        seconds: float,
        snapshot: SnapshotEntry | None,
        *,
        left_out: int,
    ) -> None:
        """Report that a record has been applied to the parameters, but for `left_out` of its updates,
        which the outlier filter left out."""

    def audited(self, what: AuditScored) -> None:
        """Accept the result of an audit of another member's work."""

    def privacy_budget_spent(self) -> None:
        """Report that training ends: the privacy budget of the node's own data is spent."""


@dataclass(frozen=True)
class _Train:
    effect: Train
    started: bool = False
    """Whether the trainer is already computing it in the background."""
    chosen: tuple[int, ...] | None = None
    """What to train on, once that is chosen (`TrainingData.choose`)."""


@dataclass(frozen=True)
class _Evaluate:
    pass


_Job = _Train | Apply | ScoreAudit | _Evaluate


class _Reload(Exception):
    """The parameters must be loaded again."""


class TrainerSupervisor:
    """The owner of one swarm's trainer process."""

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
        audit_data: AuditData,
        training_data: TrainingData,
        sample_prompt: str | None = None,
        last_round: int | None = None,
        data_ready: Callable[[tuple[int, ...]], Awaitable[None]] | None = None,
        base_ready: Callable[[], Awaitable[None]] | None = None,
        start: OpenTrainer = open_trainer,
    ) -> None:
        """The model is evaluated every `evaluate_every` rounds, and after `last_round`, in which the
        node leaves, if given. After each evaluation the model continues `sample_prompt`, if given and
        if the model writes text. `data_ready` returns when the data of these training samples is on
        disk, `base_ready` when the frozen weights under adapters are. `audit_data` fetches the data of
        audited samples, and `training_data` is what the node trains on. `start` starts a trainer."""
        self._manifest = manifest
        self._start = start
        self._spec = spec
        self._restarts = RestartPolicy(spec)
        self._limits = CallLimits(manifest.rounds.collect_max_seconds)
        self._store = store
        self._snapshots = snapshots
        self._momentum = momentum
        self._telemetry = telemetry
        self._evaluate_every = evaluate_every
        writes_text = manifest.task not in (*ON_IMAGES, *CLASSIFICATION)
        self._sample_prompt = sample_prompt if writes_text else None
        if sample_prompt is not None and not writes_text:
            task = manifest.task
            _log.warning(
                "--sample-prompt has no effect: the task %r trains no model that writes", task
            )
        # Round, record id and fingerprint of the last parameters that a record led to here.
        self._last_state: tuple[int, RecordId, int] | None = None
        self._last_round = last_round
        self._data_ready = data_ready
        self._base_ready = base_ready
        self._audit_data = audit_data
        # Seconds by which the last audit delayed other work.
        self._audit_delay = 0.0
        self._training_data = training_data
        self._overtaken = trio.Event()
        self._jobs: deque[_Job] = deque()
        # The job that the trainer computes in the background.
        self._background_job: _Train | None = None
        self._wake = trio.Event()
        self._reload = False
        self._applied = -1
        # Fingerprint of the present parameters.
        self._fingerprint = 0
        # The round whose update the trainer computes now; None: none.
        self._training_round: int | None = None
        self._trainer: TrainerClient | None = None
        # When the trainer that is starting now was started; None: none is starting.
        self._starting_since: float | None = None
        self._starts = trio.Event()
        self._expected_sender, self._expected_receiver = trio.open_memory_channel[
            ExpectedUpdate | StopSteps
        ](MAX_MEMBERS)

    def expect(self, round: int, update: ContentId) -> None:
        """Note that an update of `round` is in the store, so that the trainer may decode it early."""
        # If the channel is full, the update is decoded only when its step is taken.
        with suppress(trio.WouldBlock):
            self._expected_sender.send_nowait(ExpectedUpdate(round, update))

    def stop_steps(self) -> None:
        """Let the trainer end its local steps after the present one: what the finished ones moved may
        still count before this node has left."""
        if self._manifest.rounds.local_steps > 1 and self._training_round is not None:
            with suppress(trio.WouldBlock):
                self._expected_sender.send_nowait(StopSteps(self._training_round))

    def train(self, effect: Train) -> None:
        """Queue the computation of an update. If it is `long`, it runs in the background while other
        rounds are applied."""
        self._put(_Train(effect))

    def apply(self, effect: Apply) -> None:
        """Queue the application of a record."""
        self._put(effect)
        self._overtaken.set()

    def judge(self, effect: ScoreAudit) -> None:
        """Queue the judging of an audit before everything else: it takes only moments, and the data
        it needs is kept for only a round or two."""
        self._jobs.appendleft(effect)
        self._wake.set()

    def reload(self) -> None:
        """Drop everything queued and load the newest certified snapshot."""
        self._jobs.clear()
        self._reload = True
        self._wake.set()
        self._overtaken.set()

    async def run(self, reports: Reports) -> None:
        """Run for ever. Raises `UserError` if the trainer fails in a way that a restart cannot mend."""
        while True:
            if self._base_ready is not None:
                # Before each start, since the previous trainer may have found some of the base missing.
                await self._base_ready()
            self._start_begins()
            try:
                async with AsyncExitStack() as stack:
                    opened = self._start(self._restarts.spec)
                    trainer = await self._limits.call(stack.enter_async_context, opened)
                    self._start_ends()
                    report_start(trainer, self._telemetry)
                    self._trainer = trainer
                    await self._serve(trainer, reports, self._restarts.certified_only)
            except (TrainerDied, TrainerFailed, OSError) as error:
                failure = _failure(error)
                self._start_ends()
                self._trainer = None
                reason = self._restarts.handle(failure)
                self._telemetry.event("trainer", max(0, self._applied), None, reason)
            await trio.sleep(self._restarts.pause_seconds())

    async def report_starts(self) -> None:
        """Report for how many seconds the trainer has been starting, whenever one starts, for ever."""
        while True:
            await self._starts.wait()
            await trio.sleep(_START_REPORT_SECONDS)
            if self._starting_since is not None:
                self._telemetry.report(starting_trainer(trio.current_time() - self._starting_since))

    def _start_begins(self) -> None:
        self._starting_since = trio.current_time()
        self._telemetry.report(starting_trainer(0.0))
        self._starts.set()

    def _start_ends(self) -> None:
        self._starting_since, self._starts = None, trio.Event()

    async def forward_expected(self) -> None:
        """Pass expected updates, and the end of local steps, to the running trainer, for ever."""
        async for message in self._expected_receiver:
            # If the trainer has died, the call in progress reports it.
            with suppress(TrainerDied):
                if self._trainer is None:
                    continue
                if isinstance(message, StopSteps):
                    await self._trainer.stop_steps(message)
                else:
                    await self._trainer.expect(message)

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
        """Load a snapshot and the momentum, and report the loaded snapshot."""
        snapshot = await self._snapshots.best(certified_only=certified_only)
        what = "the parameters" if snapshot.round < 0 else f"the state of round {snapshot.round}"
        self._telemetry.report(Progress(what=f"loading {what}"))
        # In a thread: a large model's list names tens of thousands of chunks.
        chunks = await trio.to_thread.run_sync(self._snapshots.chunks, snapshot)
        fingerprint = await self._limits.call(trainer.load, chunks)
        keeps_momentum = not self._spec.policy.stateless
        if keeps_momentum and await self._limits.call(trainer.load_momentum, self._momentum):
            _log.info("resumed with the saved momentum")
        # All queued jobs were for other parameters. After the report the member requests its jobs again.
        self._jobs.clear()
        self._background_job = None
        self._applied, self._fingerprint = snapshot.round, fingerprint
        reports.loaded(snapshot.round, fingerprint, self._snapshots.entry(snapshot))

    async def _do(self, trainer: TrainerClient, reports: Reports, job: _Job) -> None:
        kind, done = type(job).__name__, True
        self._restarts.job_started(kind)
        match job:
            case _Train():
                done = await self._train(trainer, reports, job)
            case Apply():
                await self._apply(trainer, reports, job)
            case ScoreAudit():
                await self._judge(trainer, reports, job)
            case _Evaluate():
                await self._evaluate(trainer)
        if done:
            self._restarts.job_done(kind)
        else:
            self._restarts.job_dropped()

    async def _train(self, trainer: TrainerClient, reports: Reports, job: _Train) -> bool:
        """Compute the update; return False if it is not computed yet, or its data was lost."""
        effect = job.effect
        round_, samples = effect.round, effect.samples
        if not job.started and not await self._have_data(samples):
            self._put_back(job)
            return False
        chosen = job.chosen
        if chosen is None:
            chosen = await self._limits.call(self._training_data.choose, trainer, samples)
        if chosen is None:
            reports.privacy_budget_spent()
            return False
        samples, job = chosen, replace(job, chosen=chosen)
        if effect.audit is not None:
            self._audit_data.want_for_audit((effect.audit,))
        try:
            if effect.long:
                trained = await self._limits.call(trainer.train_in_background, round_, samples)
            else:
                self._training_round = round_
                try:
                    trained = await self._limits.call(
                        trainer.train, round_, samples, audits=effect.audit is not None
                    )
                finally:
                    self._training_round = None
        except TrainerFailed as failure:
            if failure.kind != "missing_data":
                raise
            self._training_data.note_loss()
            # Some of the data has been lost from the disk since it was fetched: wait until it is back.
            _log.warning("%s", failure)
            await trio.sleep(_DATA_PAUSE_SECONDS)
            self._jobs.appendleft(replace(job, started=False))
            return False
        if trained is None:
            self._background_job = replace(job, started=True)
            return False
        times = self._telemetry.round_times(round_)
        times.compute, times.encode = trained.compute_seconds, trained.encode_seconds
        update = OwnUpdate(len(trained.body), trained.coefficients, trained.tokens, len(samples))
        self._telemetry.trained(round_, update)
        # The delay by an audit counts as encoding: `compute_seconds` must hold only the sequences' time.
        encoding, self._audit_delay = trained.encode_seconds + self._audit_delay, 0.0
        await reports.trained(effect, replace(trained, encode_seconds=encoding))
        if effect.audit is not None:
            await self._audit(trainer, effect, effect.audit)
        return True

    async def _audit(self, trainer: TrainerClient, effect: Train, sample: int) -> None:
        """Compute another member's sample after the update was handed over, if its data is here and
        there is time."""
        # If a record of this round is already queued, the node is late and must not fall further behind.
        late = any(isinstance(j, Apply) and j.record.round >= effect.round for j in self._jobs)
        if late or self._reload or not self._audit_data.has((sample,)):
            return
        try:
            seconds = await self._limits.call(
                trainer.audit, effect.round, sample, effect.audit_share
            )
        except TrainerFailed as failure:
            _log.info("no audit in round %d: %s", effect.round, failure)
            return
        if seconds is not None and self._jobs:
            self._audit_delay = seconds

    async def _judge(self, trainer: TrainerClient, reports: Reports, job: ScoreAudit) -> None:
        body = await trio.to_thread.run_sync(self._store.get, job.update)
        if body is None:
            return
        try:
            found = await self._limits.call(trainer.judge, job.round, body)
        except TrainerFailed as failure:
            _log.info("the audit in round %d failed: %s", job.round, failure)
            return
        if found is not None:
            reports.audited(found.to_input(job.round))

    async def _evaluate(self, trainer: TrainerClient) -> None:
        """Evaluate the current parameters: rounds applied since the job was queued are included."""
        try:
            loss = await self._limits.call(trainer.evaluate, _HELDOUT_SEQUENCES)
        except TrainerFailed as failure:
            if failure.kind != "missing_data":
                raise
            # No work depends on an evaluation; the data is fetched again before the next one.
            _log.warning("%s", failure)
        else:
            # The rounds after the run's last one change nothing: these are still that round's
            # parameters.
            run = self._manifest.last_round
            last_changed = self._applied if run is None else min(run, self._applied)
            self._telemetry.evaluated(last_changed, loss, self._fingerprint)
            if self._manifest.task in WITH_ACCURACY:
                await self._score(trainer, last_changed)
            if self._sample_prompt is not None:
                await self._sample(trainer, self._sample_prompt, last_changed)

    async def _score(self, trainer: TrainerClient, round_: int) -> None:
        """Measure the accuracy of the current parameters on held-out samples, if a record applied here
        led to them."""
        if self._last_state is None or self._last_state[0] != round_:
            return
        found = await self._limits.call(trainer.accuracy, _HELDOUT_SEQUENCES)
        if found is not None:
            _, record, fingerprint = self._last_state
            swarm = swarm_text(self._manifest.swarm)
            self._telemetry.measured(
                heldout_accuracy(swarm, round_, record.hex(), fingerprint, *found)
            )

    async def _sample(self, trainer: TrainerClient, prompt: str, round_: int) -> None:
        """Let the model write a sample text, so that people see its progress. It ends early if other
        work is queued."""
        text = ""
        try:
            # A fixed seed, so that differences come from learning alone.
            await self._limits.call(
                trainer.begin_text,
                TextRequest(
                    prompt=prompt, temperature=_SAMPLE_TEMPERATURE, max_tokens=_SAMPLE_TOKENS
                ),
            )
            while len(text) < MAX_SAMPLE_CHARACTERS and not self._jobs and not self._reload:
                piece = await self._limits.call(trainer.next_text)
                if piece is None:
                    break
                text += piece
        except TrainerFailed as failure:
            if failure.kind != "bad_data":
                raise
            _log.warning("the model generates no sample text: %s", failure)
            self._sample_prompt = None
        except TrainerDied:
            # A malicious tokenizer may kill its process. It can do so only once: no sample text follows.
            _log.warning("the trainer ended while generating a sample text: no more are generated")
            self._sample_prompt = None
            raise
        if text:
            self._telemetry.sampled(round_, text[:MAX_SAMPLE_CHARACTERS])

    async def _have_data(self, samples: tuple[int, ...]) -> bool:
        """Wait for the data of these samples; return False if a record to apply arrives meanwhile."""
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
        """Queue the training again after the record that overtook it, unless that is its own round's
        record: then it is too late."""
        waiting = [each.record.round for each in self._jobs if isinstance(each, Apply)]
        if waiting and waiting[-1] < job.effect.round and not self._reload:
            # This happens if rounds overlap. When that record is applied, the data may be here. At most
            # one record waits.
            self._jobs.append(job)

    async def _apply(self, trainer: TrainerClient, reports: Reports, job: Apply) -> None:
        record = job.record
        # All bodies are read at once: 90 MB for 32 members.
        counted = await trio.to_thread.run_sync(counted_bodies, self._store, job.needed)
        if counted is None:
            raise TrainerDied("an update that was stored is missing on the disk")
        # Round 0 only admits members; learning rates count from 1.
        rate = learning_rate(self._manifest.schedule, max(1, record.round))
        applied = await self._limits.call(
            trainer.apply,
            record.round,
            counted.bodies,
            rate,
            job.own_counted,
            counted.update_weights,
        )
        self._applied, self._fingerprint = record.round, applied.fingerprint
        if self._manifest.schedule.trains(record.round):
            self._last_state = record.round, record.id, applied.fingerprint
        snapshot = None
        if job.snapshot_due:
            snapshot = await self._take_snapshot(trainer, record.round)
        await self._measure_memory(trainer)
        last = record.round == self._last_round
        if last:
            # The node leaves as soon as this is reported, and its owner wants to know the final loss.
            await self._do(trainer, reports, _Evaluate())
        await reports.applied(
            record.round,
            applied.fingerprint,
            applied.seconds,
            snapshot,
            left_out=applied.left_out,
        )
        closing = self._manifest.schedule.closing_round
        changed = closing is None or record.round < closing
        if record.round % self._evaluate_every == 0 and changed and not last:
            # It is queued after the training that `applied` has just queued: no work depends on it.
            self._put(_Evaluate())

    async def _take_snapshot(self, trainer: TrainerClient, round: int) -> SnapshotEntry:
        result = await self._limits.call(trainer.snapshot)
        blob = await trio.to_thread.run_sync(self._store.put, result.blob_list)
        entry = SnapshotEntry(round, blob, result.size)
        await self._snapshots.keep(entry)
        if not self._spec.policy.stateless:
            await self._limits.call(trainer.save_momentum, self._momentum)
        return entry

    async def _measure_memory(self, trainer: TrainerClient) -> None:
        memory = await self._limits.call(trainer.memory)
        process, device = memory["process_bytes"], memory["device_bytes"]
        self._telemetry.memory = process, device or None

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
            if self._background_job is not None:
                with trio.move_on_after(_BACKGROUND_POLL_SECONDS):
                    await self._wake.wait()
                if not self._jobs and not self._reload:
                    job, self._background_job = self._background_job, None
                    return job
                continue
            began = trio.current_time()
            await self._wake.wait()
            self._telemetry.idle(trio.current_time() - began)


def _failure(error: TrainerDied | TrainerFailed | OSError) -> TrainerDied | TrainerFailed:
    """Return an error as a failure of the trainer. The system's shortages pass, also one in which no
    process can be started; any other `OSError` is raised."""
    if not isinstance(error, OSError):
        return error
    if not is_shortage(error):
        raise error
    return TrainerDied(f"the system has too few resources: {error}")
