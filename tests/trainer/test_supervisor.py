"""The supervisor, with a fake trainer that records its calls: the order of work through all failures."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from distro_node.crypto.hashing import content_id
from distro_node.node.errors import ExitCode, UserError, leaves
from distro_node.node.private_data.trainer import PrivateTraining
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.node.training.answers import Judgement
from distro_node.node.training.call_limits import CallLimits
from distro_node.node.training.client import (
    StepApplied,
    TrainedUpdate,
    TrainerDied,
    TrainerFailed,
    TrainerSpec,
)
from distro_node.node.training.frames import ExpectedUpdate, StopSteps
from distro_node.node.training.supervisor import TrainerSupervisor
from distro_node.node.training.text_request import TextRequest, TextStart
from distro_node.node.training.training_data import TrainingData
from distro_node.node.util.progress import Progress
from distro_node.protocol.audit.sign_score import SignSums
from distro_node.protocol.member.auditor import AuditScored, ScoreAudit
from distro_node.protocol.member.effects import Apply, Train
from distro_node.protocol.wire.manifest import MAX_MEMBERS
from distro_node.protocol.wire.messages import AuditScore, Record, RecordId
from simulation.swarm import identity, toy_manifest

pytestmark = pytest.mark.virtual_time

LOADED_ROUND = 3
FIRST = LOADED_ROUND + 1
ASSIGNED = TrainingData()
LAST = LOADED_ROUND + 5
"""The last round that the member requests of its own accord."""


def apply_effect(round_: int) -> Apply:
    record = Record(round_, RecordId(bytes(32)), 0, (), (), (), None)
    return Apply(record, (), own_counted=False, snapshot_due=False)


def train_effect(round_: int, assigned: int | None = None) -> Train:
    return Train(round_, RecordId(bytes(32)), (1,), round_ if assigned is None else assigned)


def audit_effect(round_: int) -> Train:
    return replace(train_effect(round_), audit=7, audit_share=3)


class FakeSupervisor:
    """A supervisor with fake trainers, and the member it reports to, which requests the next round.

    A trainer's parameters are the number of the last round that was applied to them.
    """

    device, gpus, compiled, memory_use = "fake", (), None, "all that there is"
    sandbox, sequence_flops, matmul_flops = ("files",), None, None

    def __init__(
        self,
        tmp_path: Path,
        prompt: str | None = None,
        evaluate_every: int = 1000,
        training_data: TrainingData = ASSIGNED,
        local_steps: int = 1,
        task: str = "causal_lm",
    ) -> None:
        # How often each failure happens: a death, lost data, no device, an error after the first round;
        # a lack of memory by the kind of work, and where several devices lack it, with which number of
        # sequences each trainer suggests to try next.
        self.deaths = self.losses = self.gone = self.after_first_round = 0
        self.short: dict[str, int] = {}
        self.fitting: list[int] = []
        self.here, self.audits_fail, self.start_seconds = True, False, 0.0
        self.heldout: float | None = None
        self.pieces = ["and ", "so ", "on"]
        pause: Callable[[], Any] = trio.lowlevel.checkpoint
        self.while_writing = self.before_load = self.base_ready = pause
        self.data_ready: Callable[[tuple[int, ...]], Any] = lambda _: pause()
        # What happened.
        self.specs: list[TrainerSpec] = []
        self.expected: list[ExpectedUpdate] = []
        self.stops: list[StopSteps] = []
        self.while_training: Callable[[], Any] = trio.lowlevel.checkpoint
        self.prompts: list[str] = []
        self.applied_rounds: list[int] = []
        self.left_out: list[int] = []
        self.trained_on: dict[int, int] = {}
        self.trained_samples: list[object] = []
        self.wished: list[tuple[int, ...]] = []
        self.encoding: list[float] = []
        self.did: list[str] = []
        self.stopped = False
        self.store = BlobStore(tmp_path / "blobs")
        self.telemetry = Telemetry(identity(0).peer)
        self.parameters = -1
        # Of trainers, snapshots and the member only the attributes with the same names here are used.
        fake: Any = self
        self.supervisor = TrainerSupervisor(
            manifest=toy_manifest(local_steps=local_steps, task=task),
            spec=TrainerSpec(manifest=b"", blobs=tmp_path),
            store=self.store,
            snapshots=fake,
            momentum=tmp_path / "momentum",
            telemetry=self.telemetry,
            evaluate_every=evaluate_every,
            sample_prompt=prompt,
            data_ready=lambda samples: self.data_ready(samples),
            base_ready=lambda: self.base_ready(),
            audit_data=fake,
            training_data=training_data,
            start=fake.start,
        )

    async def run_until(self, done: Callable[[], object]) -> None:
        fake: Any = self
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.supervisor.run, fake)
            with trio.fail_after(1000):
                while not done():  # noqa: ASYNC110 - whatever ends the wait has no event
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    async def run(self) -> None:
        await self.run_until(lambda: LAST in self.applied_rounds)

    # Trainers.

    @asynccontextmanager
    async def start(self, spec: TrainerSpec) -> AsyncIterator[FakeSupervisor]:
        self.specs.append(spec)
        await trio.sleep(self.start_seconds)
        # A fresh start finds no room, and later ones do not while other programs hold the memory.
        for when in ("first", "open"):
            if self.short.get(when) and (when == "first" or len(self.specs) > 2):
                self.short[when] -= 1
                raise TrainerFailed("model_too_large", "the device has 1 GiB free")
        if self.gone and not self.after_first_round:
            self.gone -= 1
            raise TrainerFailed("no_device", "no device 'cuda' here")
        self.parameters = -1
        yield self

    async def expect(self, update: ExpectedUpdate) -> None:
        self.expected.append(update)

    async def stop_steps(self, stop: StopSteps) -> None:
        self.stops.append(stop)

    async def load(self, chunks: object) -> int:
        await self.before_load()
        self.parameters = LOADED_ROUND
        return self.parameters

    async def load_momentum(self, path: Path) -> bool:
        return False

    def _short(self, method: str) -> None:
        if self.short.get(method):
            self.short[method] -= 1
            raise TrainerFailed("out_of_memory", "CUDA out of memory")

    async def train(self, round_: int, samples: object, *, audits: bool = False) -> TrainedUpdate:
        self._short("train")
        if self.losses:
            self.losses -= 1
            raise TrainerFailed("missing_data", "a chunk is damaged")
        self.trained_on[round_] = self.parameters
        self.trained_samples.append(samples)
        await self.while_training()
        return TrainedUpdate(b"", 0.0, 0, 1, 0.0, 0.0)

    async def train_in_background(self, round_: int, samples: object) -> TrainedUpdate | None:
        self.trained_samples.append(samples)
        self.trained_on.setdefault(round_, self.parameters)
        done = self.parameters >= LOADED_ROUND + 3
        return TrainedUpdate(b"", 0.0, 0, 1, 0.0, 0.0) if done else None

    async def audit(self, round_: int, sample: int, share: int) -> float | None:
        if self.audits_fail:
            raise TrainerFailed("missing_data", "a chunk is damaged")
        self.did.append(f"audit {round_}: {sample} of {share}")
        return 2.5

    async def judge(self, round_: int, body: bytes) -> Judgement | None:
        if self.audits_fail:
            raise TrainerFailed("internal", "it does not decode")
        done = f"audit {round_}: 7 of 3" in self.did
        return Judgement(SignSums(30, 9), SignSums(20, 4)) if done else None

    async def apply(self, round_: int, *_: object) -> StepApplied:
        # In its first round memory still suffices.
        if self.parameters > LOADED_ROUND or self.short.get("train"):
            self._short("apply")
        if self.after_first_round and self.parameters > LOADED_ROUND:
            self.after_first_round -= 1
            raise TrainerFailed("internal", "AcceleratorError: CUDA error: unknown error")
        if self.fitting:
            raise TrainerDied("no memory", self.fitting.pop(0))
        if self.deaths:
            self.deaths -= 1
            raise TrainerDied("killed by a test")
        assert round_ == self.parameters + 1, f"round {round_} applied to {self.parameters}"
        self.parameters = round_
        return StepApplied(round_, 0.0, round_)

    async def evaluate(self, sequences: int) -> float:
        if self.heldout is None:
            raise TrainerFailed("missing_data", "a chunk is damaged")
        return self.heldout

    async def begin_text(self, request: TextRequest) -> TextStart:
        self.prompts.append(request.prompt)
        if request.prompt == "too long":
            raise TrainerFailed("bad_data", "the prompt has 9 tokens, but the model takes 1 to 7")
        if request.prompt == "bomb":
            raise TrainerDied("the trainer was ended by signal 6")
        self._left = iter(self.pieces)
        return TextStart(prompt_tokens=1, max_tokens=request.max_tokens)

    async def next_text(self) -> str | None:
        await self.while_writing()
        return next(self._left, None)

    async def memory(self) -> dict[str, int]:
        return {"process_bytes": 0, "device_bytes": 0}

    # Snapshots, and the data of audits.

    async def best(self, *, certified_only: bool) -> SimpleNamespace:
        return SimpleNamespace(round=LOADED_ROUND)

    def chunks(self, snapshot: object) -> tuple[bytes, ...]:
        return (content_id(b"chunk"),)

    def entry(self, snapshot: object) -> None:
        return None

    def want_for_audit(self, samples: tuple[int, ...]) -> None:
        self.wished.append(samples)

    def has(self, samples: tuple[int, ...]) -> bool:
        return self.here and samples == self.wished[-1]

    # The member.

    def loaded(self, round: int, *_: object) -> None:
        self.supervisor.apply(apply_effect(round + 1))

    async def trained(self, what: Train, made: TrainedUpdate) -> None:
        assert what.round in self.trained_on
        self.did.append(f"trained {what.round}")
        self.encoding.append(made.encode_seconds)

    async def applied(self, record_round: int, *_: object, left_out: int = 0) -> None:
        self.applied_rounds.append(record_round)
        self.left_out.append(left_out)
        self.did.append(f"applied {record_round}")
        if record_round < LAST:
            self.supervisor.apply(apply_effect(record_round + 1))

    def audited(self, what: AuditScored) -> None:
        self.did.append(f"judged {what.round}: {what.total}, {what.squares}, {what.first_half}")

    def privacy_budget_spent(self) -> None:
        self.stopped = True


@pytest.fixture
def fake(tmp_path: Path) -> Any:
    return FakeSupervisor(tmp_path)


async def test_a_job_queued_for_a_dead_trainer_is_not_done_by_the_next(fake: Any) -> None:
    """A round may be decided while no trainer runs; it is applied after the replay. Before each trainer
    the base is fetched again: one that finds pieces of it missing ends."""
    fake.deaths, bases = 1, []

    async def decide_meanwhile() -> None:
        if fake.deaths == 0:
            fake.supervisor.apply(apply_effect(LOADED_ROUND + 4))

    async def base_ready() -> None:
        bases.append(len(fake.specs))

    fake.before_load, fake.base_ready = decide_meanwhile, base_ready
    await fake.run()
    assert fake.applied_rounds == fake.left_out == [*range(FIRST, LAST + 1)]
    assert bases == [0, 1]


async def test_the_trainer_learns_which_updates_have_arrived(fake: Any) -> None:
    """Not a trainer that is only being started, and never more than are in memory anyway."""
    supervisor, update = fake.supervisor, content_id(b"update")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.forward_expected)
        for _ in range(2 * MAX_MEMBERS):
            supervisor.expect(1, update)
        await trio.sleep(1)
        assert fake.expected == []
        nursery.start_soon(supervisor.run, fake)
        await trio.sleep(1)
        supervisor.expect(2, update)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert fake.expected == [ExpectedUpdate(2, update)]


@pytest.mark.parametrize("local_steps", [1, 4])
async def test_a_node_that_leaves_ends_the_steps_of_the_update_in_progress(
    tmp_path: Path, local_steps: int
) -> None:
    """And no others: between two updates there is nothing to end."""
    fake: Any = FakeSupervisor(tmp_path, local_steps=local_steps)
    left: list[int] = []

    async def leave_meanwhile() -> None:
        left.extend(fake.trained_on)
        fake.supervisor.stop_steps()
        await trio.testing.wait_all_tasks_blocked()

    async def trained(what: Train, made: TrainedUpdate) -> None:
        fake.supervisor.apply(apply_effect(what.round))

    fake.while_training, fake.trained = leave_meanwhile, trained
    fake.loaded = lambda round, *_: fake.supervisor.train(train_effect(round + 1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.supervisor.forward_expected)
        fake.supervisor.stop_steps()
        await fake.run()
        fake.supervisor.stop_steps()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert left == [FIRST]
    assert fake.stops == ([StopSteps(FIRST)] if local_steps > 1 else [])


async def test_the_seconds_of_a_start_go_on(fake: Any) -> None:
    """A trainer takes up to half a minute to start: the second start, too, counts from zero."""
    fake.start_seconds, fake.deaths = 3.5, 1
    seconds: list[int] = []

    def report(progress: Progress) -> None:
        if progress.kind == "starting_trainer":
            assert progress.what == "starting the trainer"
            seconds.append(progress.done)

    fake.telemetry.report = report
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.supervisor.report_starts)
        await fake.run()
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert seconds == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("failures", "sizes", "seconds"),
    [
        # Several devices without memory go on with smaller steps.
        ({"fitting": [4, 2]}, [None, 4, 2], 0.0),
        # While it applied a round, a game took the GPU; the next trainer does not even find room.
        ({"short": {"apply": 2, "open": 4}}, 7 * [None], 10.0),
        # A driver takes the device away for a moment.
        ({"after_first_round": 1, "gone": 3}, 5 * [None], 7.0),
    ],
)
async def test_what_may_come_back_is_waited_for(
    fake: Any, failures: dict[str, Any], sizes: list[int | None], seconds: float
) -> None:
    vars(fake).update(failures)
    began = trio.current_time()
    await fake.run()
    # Each new trainer starts at the snapshot.
    assert fake.applied_rounds[-5:] == [*range(FIRST, LAST + 1)]
    assert [spec.settings.micro_batch for spec in fake.specs] == sizes
    assert trio.current_time() - began > seconds


@pytest.mark.parametrize(
    ("failures", "code", "words", "sizes"),
    [
        # Each time with the owner's own settings: a new plan is made for the free memory.
        (
            {"fitting": [1] + 20 * [0]},
            ExitCode.MODEL_TOO_LARGE,
            "one sequence does not fit: no memory; tried 10 times in a row",
            [None, 1] + 9 * [None],
        ),
        # Training never fits, though rounds are applied in between.
        ({"short": {"train": 1000}}, ExitCode.MODEL_TOO_LARGE, "tried 10 times", 10 * [None]),
        ({"short": {"first": 1}}, ExitCode.MODEL_TOO_LARGE, "", [None]),
        (
            {"after_first_round": 1, "gone": 100},
            ExitCode.NO_DEVICE,
            "no device 'cuda' here; tried 5 times in a row",
            5 * [None],
        ),
        ({"gone": 1}, ExitCode.NO_DEVICE, "", [None]),
        ({"deaths": 100}, ExitCode.TRAINER, "failed 5 times in a row: killed", 5 * [None]),
    ],
)
async def test_what_does_not_come_back_is_given_up(
    fake: Any, failures: dict[str, Any], code: ExitCode, words: str, sizes: list[int | None]
) -> None:
    vars(fake).update(failures)
    if "train" in fake.short:

        def loaded(round: int, *_: object) -> None:
            fake.supervisor.apply(apply_effect(round + 1))
            fake.supervisor.train(train_effect(round + 9))

        fake.loaded = loaded
    error = await problem(fake)
    assert error.code is code
    assert words in error.problem
    assert [spec.settings.micro_batch for spec in fake.specs] == sizes


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(("kind", "starts"), [("out_of_memory", 10), ("internal", 5)])
async def test_gradients_that_always_fail_are_given_up_though_rounds_are_replayed(
    fake: Any, kind: Any, starts: int, long: bool
) -> None:
    """Also where a gradient fails only after it has begun in the background."""
    begun: set[int] = set()

    async def fail(*_: object, **__: object) -> None:
        if long and len(fake.specs) not in begun:
            begun.add(len(fake.specs))
            return
        raise TrainerFailed(kind, "the gradient failed")

    async def applied(round_: int, *_: object, **__: object) -> None:
        fake.supervisor.train(train_effect(round_ + 3, round_ + 1 if long else None))

    fake.train = fake.train_in_background = fail
    fake.applied, began = applied, trio.current_time()
    error = await problem(fake)
    assert f"{starts} times in a row" in error.problem
    assert len(fake.specs) == starts
    # The pauses double.
    assert trio.current_time() - began >= 2 ** (min(starts, 6) - 1) - 1


@pytest.mark.parametrize(("hangs", "seconds"), [("train", 600.0), ("start", 3600.0)])
async def test_a_trainer_that_hangs_is_replaced(fake: Any, hangs: str, seconds: float) -> None:
    """A swarm of two cannot go on without it."""

    async def base_ready() -> None:
        fake.start_seconds = 2 * seconds if hangs == "start" and not fake.specs else 0.0

    async def hang_once() -> None:
        if len(fake.specs) == 1:
            await trio.sleep_forever()

    def loaded(*_: object) -> None:
        # The record is there once the second trainer is.
        if len(fake.specs) == 1:
            fake.supervisor.train(train_effect(FIRST))
        else:
            fake.supervisor.apply(apply_effect(FIRST))

    fake.base_ready, fake.while_training, fake.loaded = base_ready, hang_once, loaded
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.supervisor.run, fake)
        await trio.sleep(seconds + 60.0)
        nursery.cancel_scope.cancel()
    (event,) = fake.telemetry.events
    assert f"no answer for {seconds:.0f} s" in event.text
    assert fake.applied_rounds == [*range(FIRST, LAST + 1)]


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
async def test_a_shortage_of_the_system_costs_a_start(fake: Any, number: int) -> None:
    async def lack_once() -> None:
        if len(fake.specs) == 1:
            raise OSError(number, os.strerror(number))

    fake.before_load = lack_once
    await fake.run()
    (event,) = fake.telemetry.events
    assert os.strerror(number) in event.text
    assert fake.applied_rounds == [*range(FIRST, LAST + 1)]


async def test_a_broken_disk_is_no_failure_of_the_trainer(fake: Any) -> None:
    async def fail() -> None:
        raise OSError(errno.EIO, "the disk is broken")

    fake.before_load = fail
    with pytest.raises(BaseExceptionGroup) as caught:
        await fake.run()
    (error,) = leaves(caught.value)
    assert isinstance(error, OSError)


async def test_slow_work_is_given_more_time() -> None:
    limits = CallLimits(collect_max_seconds=60.0)
    for seconds in (500.0, 9_000.0):
        await limits.call(trio.sleep, seconds)
    with pytest.raises(TrainerDied, match="no answer for 180000 s"):
        await limits.call(trio.sleep, 200_000.0)


async def problem(fake: Any) -> UserError:
    with pytest.raises(BaseExceptionGroup) as caught:
        await fake.run_until(lambda: False)
    (error,) = leaves(caught.value)
    assert isinstance(error, UserError)
    return error


async def test_a_reload_drops_what_was_queued_for_the_old_parameters(fake: Any) -> None:
    loads = 0

    async def count() -> None:
        nonlocal loads
        loads += 1
        if loads == 1:
            # As when a mismatch is found while the first load is still in progress.
            fake.supervisor.reload()
            fake.supervisor.apply(apply_effect(LOADED_ROUND + 4))

    fake.before_load = count
    await fake.run()
    assert loads == 2


async def test_work_of_several_rounds_holds_up_no_record(fake: Any) -> None:
    """It is started on the current parameters and reported when it is done; rounds go on meanwhile."""
    reported: list[tuple[int, int]] = []

    async def trained(what: Train, made: TrainedUpdate) -> None:
        reported.append((what.round, fake.applied_rounds[-1]))

    fake.loaded = lambda round, *_: fake.supervisor.train(train_effect(round + 9, round + 1))
    fake.trained = trained
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.run_until, lambda: reported)
        await trio.sleep(2.0)
        fake.supervisor.apply(apply_effect(FIRST))
    assert fake.trained_on == {LOADED_ROUND + 9: LOADED_ROUND}
    assert reported[0][0] == LOADED_ROUND + 9
    assert reported[0][1] >= LOADED_ROUND + 3


async def test_training_ahead_whose_data_is_late_lets_the_record_pass(fake: Any) -> None:
    arrived = trio.Event()

    def loaded(round: int, *_: object) -> None:
        # A request for a round that is decided before its data arrives is dropped.
        fake.supervisor.train(train_effect(round + 1))
        fake.supervisor.train(train_effect(round + 2))

    async def applied(round: int, *_: object, **__: object) -> None:
        fake.applied_rounds.append(round)

    fake.data_ready, fake.loaded, fake.applied = lambda _: arrived.wait(), loaded, applied
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.run_until, lambda: LOADED_ROUND + 2 in fake.trained_on)
        await trio.sleep(10.0)
        fake.supervisor.apply(apply_effect(FIRST))
        await trio.sleep(10.0)
        assert fake.applied_rounds == [FIRST]
        arrived.set()
    assert fake.trained_on == {LOADED_ROUND + 2: FIRST}


async def test_training_ahead_on_the_parameters_that_there_are_and_waiting_is_counted(
    fake: Any,
) -> None:
    loaded = trio.Event()

    def train_ahead(round: int, *_: object) -> None:
        fake.supervisor.train(train_effect(round + 2))
        loaded.set()

    fake.loaded = train_ahead
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.run_until, lambda: fake.applied_rounds)
        # The clock runs on while a thread does the loading.
        await loaded.wait()
        await trio.sleep(7.0)
        fake.supervisor.apply(apply_effect(FIRST))
    assert fake.trained_on == {LOADED_ROUND + 2: LOADED_ROUND}
    assert fake.telemetry.counts.idle_seconds == pytest.approx(7.0, abs=0.1)


async def test_data_that_the_disk_has_lost_is_waited_for_and_the_trainer_lives(
    tmp_path: Path,
) -> None:
    """However many chunks of a share were damaged; nor does an evaluation end anything."""
    fake: Any = FakeSupervisor(tmp_path, evaluate_every=1)
    fake.losses, asked = 12, []

    async def ready(samples: tuple[int, ...]) -> None:
        asked.append(samples)

    fake.data_ready = ready
    fake.loaded = lambda round, *_: fake.supervisor.train(train_effect(round + 1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.run)
        while FIRST not in fake.trained_on:  # noqa: ASYNC110
            await trio.sleep(0.1)
        fake.supervisor.apply(apply_effect(FIRST))
    assert len(asked) >= 13
    assert fake.telemetry.counts.events["trainer"] == 0


async def test_a_measured_loss_is_never_of_a_round_after_the_runs_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounds in which the members only sign the end change no parameters."""
    fake: Any = FakeSupervisor(tmp_path, evaluate_every=1)
    fake.heldout, last, manifest = 1.0, LOADED_ROUND + 2, toy_manifest()
    schedule = replace(
        manifest.schedule, total_rounds=last, warmup_rounds=0, decay_rounds=0, at_end="finish"
    )
    # Private here: `_manifest`: the end of a run has no seam of its own in the supervisor
    monkeypatch.setattr(fake.supervisor, "_manifest", replace(manifest, schedule=schedule))
    rounds: list[int] = []
    fake.telemetry.evaluated = lambda round_, *_: rounds.append(round_)
    await fake.run()
    assert rounds
    assert max(rounds) <= last


async def test_a_measured_loss_names_the_parameters(tmp_path: Path) -> None:
    """The chain of the round may be abandoned later."""
    fake: Any = FakeSupervisor(tmp_path, evaluate_every=1)
    fake.heldout = 1.0
    fake.telemetry.keep_history(tmp_path / "history")
    await fake.run()
    lines = [json.loads(line) for line in (tmp_path / "history").read_text().splitlines()]
    measured = [(line["round"], line["parameters"]) for line in lines if "heldout" in line]
    assert measured
    # The parameters of this trainer have their round as a fingerprint.
    assert measured == [(round_, f"{round_:016x}") for round_, _ in measured]


async def test_the_model_writes_after_each_measurement_until_there_is_work(tmp_path: Path) -> None:
    """The last round's evaluation comes after all other work."""

    def sampled() -> dict[int, str]:
        history = tmp_path / "history"
        lines = history.read_text(encoding="utf-8").splitlines() if history.exists() else ()
        found = map(json.loads, lines)
        return {line["round"]: line["sample"] for line in found if "sample" in line}

    fake: Any = FakeSupervisor(tmp_path, "Once upon a time", evaluate_every=LAST)
    fake.telemetry.keep_history(tmp_path / "history")
    fake.heldout = 2.5
    await fake.run_until(sampled)
    assert sampled() == {LAST: "and so on"}
    assert fake.prompts == ["Once upon a time"]

    async def decide() -> None:
        fake.supervisor.apply(apply_effect(LAST + 1))

    (tmp_path / "history").unlink()
    fake.while_writing = decide
    fake.applied_rounds.clear()
    fake.telemetry.keep_history(tmp_path / "history")
    await fake.run_until(lambda: LAST + 1 in fake.applied_rounds)
    assert sampled() == {LAST: "and "}


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("bomb", "ended while generating a sample text"),
        ("too long", "the model generates no sample text"),
        (None, ""),
    ],
)
async def test_a_tokenizer_that_ends_its_process_does_so_once(
    tmp_path: Path, prompt: str | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A beginning that the model cannot take is tried once, and none where nobody asked for it."""
    fake: Any = FakeSupervisor(tmp_path, prompt, evaluate_every=1)
    fake.heldout = 2.5
    await fake.run()
    assert fake.prompts == ([prompt] if prompt else [])
    assert words in caplog.text
    assert fake.telemetry.heldout is not None


@pytest.mark.parametrize(("task", "warned"), [("diffusion", True), ("causal_lm", False)])
async def test_a_prompt_for_a_model_that_does_not_write_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, task: str, warned: bool
) -> None:
    FakeSupervisor(tmp_path, "Once upon a time", task=task)
    assert ("--sample-prompt has no effect" in caplog.text) == warned
    caplog.clear()
    FakeSupervisor(tmp_path, task=task)
    assert not caplog.text


class OwnDraws(PrivateTraining):
    """A member's own sequences, a given number of times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.counts: list[int] = []

    async def choose(self, trainer: object, samples: tuple[int, ...]) -> tuple[int, ...] | None:
        self.counts.append(len(samples))
        self.left -= 1
        return (100 + len(self.counts),) if self.left >= 0 else None


async def test_own_data_is_trained_in_the_place_of_what_is_assigned(tmp_path: Path) -> None:
    draws = OwnDraws(2)
    fake: Any = FakeSupervisor(tmp_path, training_data=draws)

    def loaded(round: int, *_: object) -> None:
        for number in range(1, 4):
            fake.supervisor.train(train_effect(round + number))

    fake.loaded = loaded
    await fake.run_until(lambda: fake.stopped)
    # One sequence is assigned each time; the third time none is left.
    assert draws.counts == [1, 1, 1]
    assert fake.trained_samples == [(101,), (102,)]


async def test_own_data_is_drawn_once_for_work_of_several_rounds_and_its_loss_is_one_line(
    tmp_path: Path,
) -> None:
    draws = OwnDraws(5)
    fake: Any = FakeSupervisor(tmp_path, training_data=draws)
    fake.loaded = lambda round, *_: fake.supervisor.train(train_effect(round + 9, round + 1))
    await fake.run_until(lambda: len(fake.trained_samples) > 3)
    assert draws.counts == [1]
    assert set(fake.trained_samples) == {(101,)}
    fake.losses = 1
    fake.loaded = lambda round, *_: fake.supervisor.train(train_effect(round + 1))
    assert (await problem(fake)).code == ExitCode.DATA_MISSING


async def do_all(fake: Any, *effects: Train | Apply | ScoreAudit) -> list[str]:
    """Queue these for a trainer that has its parameters, and return what it did with them."""
    queue = {Train: "train", Apply: "apply", ScoreAudit: "judge"}

    def loaded(*_: object) -> None:
        for effect in effects:
            getattr(fake.supervisor, queue[type(effect)])(effect)

    async def applied(round_: int, *_: object, **__: object) -> None:
        fake.did.append(f"applied {round_}")

    fake.loaded, fake.applied = loaded, applied
    with trio.move_on_after(5.0):
        await fake.run_until(lambda: False)
    return fake.did


async def test_an_audit_runs_after_the_own_update(fake: Any) -> None:
    did = await do_all(fake, audit_effect(FIRST), train_effect(FIRST + 1))
    assert fake.wished == [(7,)]
    assert did == ["trained 4", "audit 4: 7 of 3", "trained 5"]
    # The delay by the audit belongs to the next update's time, not to the time of its sequences.
    assert fake.encoding == [0.0, 2.5]


async def test_an_audit_without_data_or_that_fails_costs_the_audit_alone(fake: Any) -> None:
    fake.here = False
    judge = ScoreAudit(FIRST, fake.store.put(b"an update"))
    effects = audit_effect(FIRST), train_effect(FIRST + 1), judge
    assert await do_all(fake, *effects) == ["trained 4", "trained 5"]
    fake.here, fake.audits_fail = True, True
    fake.did.clear()
    assert await do_all(fake, *effects) == ["trained 4", "trained 5"]
    # One for each of the two.
    assert len(fake.specs) == 2


async def test_with_overlap_the_record_before_waits_for_an_audit(fake: Any) -> None:
    """On other parameters it would be worthless."""

    async def trained(what: Train, made: TrainedUpdate) -> None:
        fake.supervisor.apply(apply_effect(FIRST))

    fake.trained = trained
    assert await do_all(fake, audit_effect(FIRST + 1)) == ["audit 5: 7 of 3", "applied 4"]


async def test_who_is_behind_its_own_round_does_not_audit(fake: Any) -> None:
    async def trained(what: Train, made: TrainedUpdate) -> None:
        fake.supervisor.apply(apply_effect(what.round))

    fake.trained = trained
    assert await do_all(fake, audit_effect(FIRST)) == ["applied 4"]


async def test_an_update_that_was_audited_is_judged_before_what_is_queued(fake: Any) -> None:
    update = fake.store.put(b"an update")

    async def trained(what: Train, made: TrainedUpdate) -> None:
        fake.did.append(f"trained {what.round}")
        if what.round == FIRST + 1:
            for cid in (update, content_id(b"not here")):
                fake.supervisor.judge(ScoreAudit(FIRST, cid))
                fake.supervisor.judge(ScoreAudit(FIRST + 9, cid))

    fake.trained = trained
    did = await do_all(fake, audit_effect(FIRST), *(train_effect(FIRST + n) for n in range(1, 4)))
    judged = f"judged 4: 30, 9, {AuditScore(20, 4)}"
    updates = ("trained 5", judged, "trained 6", "trained 7")
    assert did == ["trained 4", "audit 4: 7 of 3", *updates]
