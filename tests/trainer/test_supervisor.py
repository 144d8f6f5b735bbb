"""The supervisor, with a fake trainer that records its calls: the order of work through all failures."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from distro_node.crypto.hashing import content_id
from distro_node.node.errors import ExitCode, UserError, leaves
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.node.training.answers import Judgement
from distro_node.node.training.client import (
    StepApplied,
    TrainedUpdate,
    TrainerDied,
    TrainerFailed,
    TrainerSpec,
)
from distro_node.node.training.frames import ExpectedUpdate
from distro_node.node.training.supervisor import SequenceDraw, TrainerSupervisor
from distro_node.node.training.text_request import TextRequest, TextStart
from distro_node.node.util.progress import Progress
from distro_node.protocol.audit.sign_score import SignSums
from distro_node.protocol.member.effects import Apply, ScoreAudit, Train
from distro_node.protocol.member.inputs import AuditScored
from distro_node.protocol.wire.manifest import MAX_MEMBERS
from distro_node.protocol.wire.messages import AuditScore, Record, RecordId
from simulation.swarm import identity, toy_manifest

LOADED_ROUND = 3


def apply_effect(round_: int) -> Apply:
    record = Record(round_, RecordId(bytes(32)), 0, (), (), (), None)
    return Apply(record, (), own_counted=False, snapshot_due=False)


def train_effect(round_: int, assigned: int | None = None) -> Train:
    return Train(round_, RecordId(bytes(32)), (1,), round_ if assigned is None else assigned)


class FakeTrainer:
    """A fake trainer; its parameters are the number of the last round that was applied to them."""

    device = "fake"
    gpus = ()
    compiled = None
    memory_use = "all that there is"
    sandbox = ("files",)
    sequence_flops = None
    matmul_flops = None

    def __init__(self, shop: FakeSupervisor) -> None:
        self._shop = shop
        self.parameters = -1

    async def expect(self, update: ExpectedUpdate) -> None:
        self._shop.expected.append(update)

    async def load(self, chunks: object) -> int:
        await self._shop.before_load()
        self.parameters = LOADED_ROUND
        return self.parameters

    async def load_momentum(self, path: Path) -> bool:
        return False

    async def train(self, round_: int, samples: object, *, audits: bool = False) -> TrainedUpdate:
        self._short("train")
        if self._shop.losses:
            self._shop.losses -= 1
            raise TrainerFailed("missing_data", "a chunk is damaged")
        self._shop.trained_on[round_] = self.parameters
        self._shop.trained_samples.append(samples)
        return TrainedUpdate(b"", 0.0, 0, 1, 0.0, 0.0)

    async def audit(self, round_: int, sample: int, share: int) -> float | None:
        if self._shop.audits_fail:
            raise TrainerFailed("missing_data", "a chunk is damaged")
        self._shop.did.append(f"audit {round_}: {sample} of {share}")
        return 2.5

    async def judge(self, round_: int, body: bytes) -> Judgement | None:
        if self._shop.audits_fail:
            raise TrainerFailed("internal", "it does not decode")
        if f"audit {round_}: 7 of 3" not in self._shop.did:
            return None
        return Judgement(SignSums(30, 9), SignSums(20, 4))

    async def train_in_background(self, round_: int, samples: object) -> TrainedUpdate | None:
        self._shop.trained_samples.append(samples)
        if round_ not in self._shop.trained_on:
            self._shop.trained_on[round_] = self.parameters
        return (
            TrainedUpdate(b"", 0.0, 0, 1, 0.0, 0.0) if self.parameters >= LOADED_ROUND + 3 else None
        )

    def _short(self, method: str) -> None:
        if self._shop.short.get(method):
            self._shop.short[method] -= 1
            raise TrainerFailed("out_of_memory", "CUDA out of memory")

    async def apply(self, round_: int, *_: object) -> StepApplied:
        # In its first round memory still suffices.
        if self.parameters > LOADED_ROUND or self._shop.short.get("train"):
            self._short("apply")
        if self._shop.after_first_round and self.parameters > LOADED_ROUND:
            self._shop.after_first_round -= 1
            raise TrainerFailed("internal", "AcceleratorError: CUDA error: unknown error")
        if self._shop.fitting:
            raise TrainerDied("no memory", self._shop.fitting.pop(0))
        if self._shop.deaths:
            self._shop.deaths -= 1
            raise TrainerDied("killed by a test")
        assert round_ == self.parameters + 1, f"round {round_} applied to {self.parameters}"
        self.parameters = round_
        return StepApplied(round_, 0.0, 0)

    async def evaluate(self, sequences: int) -> float:
        if self._shop.heldout is None:
            raise TrainerFailed("missing_data", "a chunk is damaged")
        return self._shop.heldout

    async def begin_text(self, request: TextRequest) -> TextStart:
        prompt = request.prompt
        self._shop.prompts.append(prompt)
        if prompt == "too long":
            raise TrainerFailed("bad_data", "the prompt has 9 tokens, but the model takes 1 to 7")
        if prompt == "bomb":
            raise TrainerDied("the trainer was ended by signal 6")
        self._pieces = iter(self._shop.pieces)
        return TextStart(prompt_tokens=1, max_tokens=request.max_tokens)

    async def next_text(self) -> str | None:
        await self._shop.while_writing()
        return next(self._pieces, None)

    async def memory(self) -> dict[str, int]:
        return {"process_bytes": 0, "device_bytes": 0}


class FakeSupervisor:
    """A supervisor with such trainers, and the member it reports to: it requests the next round."""

    def __init__(
        self,
        tmp_path: Path,
        prompt: str | None = None,
        evaluate_every: int = 1000,
        draw: SequenceDraw | None = None,
    ) -> None:
        self.deaths = 0
        self.losses = 0
        self.gone = 0
        """How often no device is found."""
        self.after_first_round = 0
        """How many trainers die after their first round."""
        self.specs: list[TrainerSpec] = []
        self.expected: list[ExpectedUpdate] = []
        self.short: dict[str, int] = {}
        """How often memory runs out, by the kind of work."""
        self.fitting: list[int] = []
        """How many sequences at once trainers suggest to try next, each when it ends for lack of
        memory."""
        self.heldout: float | None = None
        self.prompts: list[str] = []
        self.pieces = ["and ", "so ", "on"]
        self.while_writing: Callable[[], Any] = trio.lowlevel.checkpoint
        self.applied_rounds: list[int] = []
        self.store = BlobStore(tmp_path / "blobs")
        self.did: list[str] = []
        self.encoding: list[float] = []
        self.wished: list[tuple[int, ...]] = []
        self.here = True
        """Whether the data of audited samples is here."""
        self.audits_fail = False
        self.telemetry = Telemetry(identity(0).peer)
        self.trained_on: dict[int, int] = {}
        self.trained_samples: list[object] = []
        self.stopped = False
        self.before_load: Callable[[], Any] = trio.lowlevel.checkpoint
        self.start_seconds = 0.0

        @asynccontextmanager
        async def open_fake(spec: TrainerSpec) -> AsyncIterator[FakeTrainer]:
            self.specs.append(spec)
            # A fresh start finds no room, and later ones do not while other programs hold the memory.
            for when in ("first", "open"):
                if self.short.get(when) and (when == "first" or len(self.specs) > 2):
                    self.short[when] -= 1
                    raise TrainerFailed("model_too_large", "the device has 1 GiB free")
            if self.gone and not self.after_first_round:
                self.gone -= 1
                raise TrainerFailed("no_device", "no device 'cuda' here")
            await trio.sleep(self.start_seconds)
            yield FakeTrainer(self)

        # Of the snapshots and of the member only the attributes with the same names here are used.
        snapshots: Any = self
        start: Any = open_fake
        self.trainer_supervisor = TrainerSupervisor(
            manifest=toy_manifest(),
            spec=TrainerSpec(manifest=b"", blobs=tmp_path),
            store=self.store,
            snapshots=snapshots,
            momentum=tmp_path / "momentum",
            telemetry=self.telemetry,
            evaluate_every=evaluate_every,
            sample_prompt=prompt,
            data_ready=lambda samples: self.data_ready(samples),
            base_ready=lambda: self.base_ready(),
            audit_data=self,
            draw=draw,
            start=start,
        )
        self.data_ready: Callable[[tuple[int, ...]], Any] = self.has_data
        self.base_ready: Callable[[], Any] = trio.lowlevel.checkpoint

    async def has_data(self, samples: tuple[int, ...]) -> None:
        await trio.lowlevel.checkpoint()

    def want_for_audit(self, samples: tuple[int, ...]) -> None:
        self.wished.append(samples)

    def has(self, samples: tuple[int, ...]) -> bool:
        return self.here and samples == self.wished[-1]

    def audited(self, what: AuditScored) -> None:
        self.did.append(f"judged {what.round}: {what.total}, {what.squares}, {what.first_half}")

    async def best(self, *, certified_only: bool) -> SimpleNamespace:
        return SimpleNamespace(round=LOADED_ROUND)

    def chunks(self, snapshot: object) -> tuple[bytes, ...]:
        return (content_id(b"chunk"),)

    def entry(self, snapshot: object) -> None:
        return None

    def loaded(self, round: int, fingerprint: int, snapshot: object) -> None:
        self.trainer_supervisor.apply(apply_effect(round + 1))

    async def trained(self, what: Train, made: TrainedUpdate) -> None:
        assert what.round in self.trained_on
        self.did.append(f"trained {what.round}")
        self.encoding.append(made.encode_seconds)

    async def applied(self, record_round: int, fingerprint: int, seconds: float, _: object) -> None:
        self.applied_rounds.append(record_round)
        if record_round < LOADED_ROUND + 5:
            self.trainer_supervisor.apply(apply_effect(record_round + 1))

    def privacy_budget_spent(self) -> None:
        self.stopped = True


@pytest.fixture
def shop(tmp_path: Path) -> FakeSupervisor:
    return FakeSupervisor(tmp_path)


async def run_until(shop: FakeSupervisor, done: Callable[[], bool]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shop.trainer_supervisor.run, shop)
        with trio.fail_after(1000):
            while not done():  # noqa: ASYNC110 - whatever ends the wait has no event
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_what_was_queued_for_a_dead_trainer_is_not_done_by_the_next(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    """A round may be decided while no trainer runs; it is applied after the replay."""
    shop.deaths = 1

    async def decide_meanwhile() -> None:
        if shop.deaths == 0:
            shop.trainer_supervisor.apply(apply_effect(LOADED_ROUND + 4))

    shop.before_load = decide_meanwhile
    await run_until(shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
    assert shop.applied_rounds == list(range(LOADED_ROUND + 1, LOADED_ROUND + 6))


async def test_the_trainer_learns_which_updates_have_arrived(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    """Not a trainer that is only being started, and never more than are in memory anyway."""
    supervisor, update = shop.trainer_supervisor, content_id(b"update")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.forward_expected)
        for _ in range(2 * MAX_MEMBERS):
            supervisor.expect(1, update)
        await trio.sleep(1)
        assert shop.expected == []
        nursery.start_soon(supervisor.run, shop)
        await trio.sleep(1)
        supervisor.expect(2, update)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert shop.expected == [ExpectedUpdate(2, update)]


async def test_the_seconds_of_a_start_go_on(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer takes up to half a minute to start: the second start, too, counts from zero."""
    supervisor = shop.trainer_supervisor
    shop.start_seconds, shop.deaths = 3.5, 1
    seconds: list[int] = []

    def report(progress: Progress) -> None:
        if progress.kind == "starting_trainer":
            assert progress.what == "starting the trainer"
            seconds.append(progress.done)

    shop.telemetry.report = report
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.report_starts)
        await run_until(shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert seconds == [0, 1, 2, 3, 0, 1, 2, 3]


async def test_several_devices_without_memory_go_on_with_smaller_steps(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    shop.fitting = [4, 2]
    await run_until(shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
    assert [spec.settings.micro_batch for spec in shop.specs] == [None, 4, 2]


async def test_several_devices_without_memory_for_one_sequence_try_again_and_then_report_it(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    shop.fitting = [1] + 20 * [0]
    with pytest.raises(BaseExceptionGroup) as caught:
        await run_until(shop, lambda: False)
    (error,) = leaves(caught.value)
    assert isinstance(error, UserError)
    assert error.code is ExitCode.MODEL_TOO_LARGE
    assert "one sequence does not fit: no memory; tried 10 times in a row" in error.problem
    # Each time with the owner's own settings: a new plan is made for the free memory.
    assert [spec.settings.micro_batch for spec in shop.specs] == [None, 1] + 9 * [None]


async def test_memory_that_comes_back_is_waited_for(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    """While it applied a round, a game took the GPU; the next trainer does not even find room."""
    shop.short = {"apply": 2, "open": 4}
    began = trio.current_time()
    await run_until(shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
    # Each new trainer starts at the snapshot.
    assert shop.applied_rounds[-5:] == list(range(LOADED_ROUND + 1, LOADED_ROUND + 6))
    assert trio.current_time() - began > 10.0
    assert len(shop.specs) == 7


async def test_a_model_that_never_fitted_is_refused_at_once(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    shop.short = {"first": 1}
    with pytest.raises(BaseExceptionGroup) as caught:
        await run_until(shop, lambda: False)
    (error,) = leaves(caught.value)
    assert isinstance(error, UserError)
    assert error.code is ExitCode.MODEL_TOO_LARGE
    assert len(shop.specs) == 1


async def test_a_device_that_a_driver_takes_away_for_a_moment_is_waited_for(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    shop.after_first_round = 1
    shop.gone = 3
    began = trio.current_time()
    await run_until(shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
    assert len(shop.specs) == 5
    assert trio.current_time() - began > 7.0


async def test_a_device_that_stays_away_is_given_up_with_the_reason(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    shop.after_first_round = 1
    shop.gone = 100
    with pytest.raises(BaseExceptionGroup) as caught:
        await run_until(shop, lambda: False)
    (error,) = leaves(caught.value)
    assert isinstance(error, UserError)
    assert error.code is ExitCode.NO_DEVICE
    assert "no device 'cuda' here; tried 5 times in a row" in error.problem


async def test_a_device_that_never_was_is_refused_at_once(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    shop.gone = 1
    with pytest.raises(BaseExceptionGroup) as caught:
        await run_until(shop, lambda: False)
    (error,) = leaves(caught.value)
    assert isinstance(error, UserError)
    assert error.code is ExitCode.NO_DEVICE
    assert len(shop.specs) == 1


async def test_training_that_never_fits_ends_though_rounds_are_applied_in_between(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    shop.short = {"train": 1000}
    shop.loaded = (  # pyright: ignore[reportAttributeAccessIssue]
        lambda round, *_: (
            shop.trainer_supervisor.apply(apply_effect(round + 1)),
            shop.trainer_supervisor.train(train_effect(round + 9)),
        )
    )
    with pytest.raises(BaseExceptionGroup) as caught:
        await run_until(shop, lambda: False)
    (error,) = leaves(caught.value)
    assert isinstance(error, UserError)
    assert "tried 10 times in a row" in error.problem


async def test_the_base_is_there_before_each_trainer(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    """A trainer that finds pieces of it missing ends; they are fetched again before the next one
    starts."""
    shop.deaths = 1
    happened: list[str] = []

    async def base_ready() -> None:
        happened.append("base")

    async def before_load() -> None:
        happened.append("load")

    shop.base_ready, shop.before_load = base_ready, before_load
    await run_until(shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
    assert happened == ["base", "load"] * 2


async def test_a_reload_drops_what_was_queued_for_the_old_parameters(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock
) -> None:
    loads = 0

    async def count() -> None:
        nonlocal loads
        loads += 1
        if loads == 1:
            # As when a mismatch is found while the first load is still in progress.
            shop.trainer_supervisor.reload()
            shop.trainer_supervisor.apply(apply_effect(LOADED_ROUND + 4))

    shop.before_load = count
    await run_until(shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
    assert loads == 2


async def test_training_ahead_is_done_on_the_parameters_that_there_are(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With overlap, a record that is decided meanwhile waits until the training ends."""
    at_work = trio.Event()

    async def has_data(samples: tuple[int, ...]) -> None:
        at_work.set()

    monkeypatch.setattr(shop, "data_ready", has_data)
    monkeypatch.setattr(
        shop, "loaded", lambda round, *_: shop.trainer_supervisor.train(train_effect(round + 2))
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_until, shop, lambda: shop.applied_rounds)
        await at_work.wait()
        await trio.sleep(1.0)
        shop.trainer_supervisor.apply(apply_effect(LOADED_ROUND + 1))
    assert shop.trained_on == {LOADED_ROUND + 2: LOADED_ROUND}


async def test_what_takes_several_rounds_holds_up_no_record(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started on the current parameters and reported when it is done; rounds go on meanwhile."""
    reported: list[tuple[int, int]] = []

    def loaded(round: int, *_: object) -> None:
        shop.trainer_supervisor.train(train_effect(round + 9, assigned=round + 1))

    async def trained(what: Train, made: TrainedUpdate) -> None:
        reported.append((what.round, shop.applied_rounds[-1]))

    monkeypatch.setattr(shop, "loaded", loaded)
    monkeypatch.setattr(shop, "trained", trained)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_until, shop, lambda: bool(reported))
        await trio.sleep(2.0)
        shop.trainer_supervisor.apply(apply_effect(LOADED_ROUND + 1))
    assert shop.trained_on == {LOADED_ROUND + 9: LOADED_ROUND}
    assert reported[0][0] == LOADED_ROUND + 9
    assert reported[0][1] >= LOADED_ROUND + 3


async def test_training_ahead_whose_data_is_late_lets_the_record_pass(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = trio.Event()

    async def arrives(samples: tuple[int, ...]) -> None:
        await arrived.wait()

    def loaded(round: int, *_: object) -> None:
        # A request for a round that is decided before its data arrives is dropped.
        shop.trainer_supervisor.train(train_effect(round + 1))
        shop.trainer_supervisor.train(train_effect(round + 2))

    async def applied(round: int, *_: object) -> None:
        shop.applied_rounds.append(round)

    monkeypatch.setattr(shop, "data_ready", arrives)
    monkeypatch.setattr(shop, "loaded", loaded)
    monkeypatch.setattr(shop, "applied", applied)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_until, shop, lambda: LOADED_ROUND + 2 in shop.trained_on)
        await trio.sleep(10.0)
        shop.trainer_supervisor.apply(apply_effect(LOADED_ROUND + 1))
        await trio.sleep(10.0)
        assert shop.applied_rounds == [LOADED_ROUND + 1]
        arrived.set()
    assert shop.trained_on == {LOADED_ROUND + 2: LOADED_ROUND + 1}


async def test_waiting_is_counted(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = trio.Event()
    monkeypatch.setattr(shop, "loaded", lambda *_: loaded.set())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_until, shop, lambda: shop.applied_rounds)
        # The clock runs on while a thread does the loading.
        await loaded.wait()
        await trio.sleep(7.0)
        shop.trainer_supervisor.apply(apply_effect(LOADED_ROUND + 1))
    assert shop.telemetry.counts.idle_seconds == pytest.approx(7.0, abs=0.1)


async def test_data_that_the_disk_has_lost_is_waited_for_and_the_trainer_lives(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many chunks of a share were damaged; nor does an evaluation end anything."""
    asked = 0
    shop.losses = 12

    async def ready(samples: tuple[int, ...]) -> None:
        nonlocal asked
        asked += 1

    def loaded(round: int, *_: object) -> None:
        shop.trainer_supervisor.train(train_effect(round + 1))

    monkeypatch.setattr(shop, "data_ready", ready)
    monkeypatch.setattr(shop, "loaded", loaded)
    # Otherwise the fake swarm would need a thousand rounds.
    monkeypatch.setattr(shop.trainer_supervisor, "_evaluate_every", 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_until, shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
        while LOADED_ROUND + 1 not in shop.trained_on:  # noqa: ASYNC110
            await trio.sleep(0.1)
        shop.trainer_supervisor.apply(apply_effect(LOADED_ROUND + 1))
    assert asked >= 13
    assert shop.telemetry.counts.events["trainer"] == 0


async def test_a_measured_loss_is_never_of_a_round_after_the_runs_last(
    shop: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounds in which the members only sign the end change no parameters."""
    last = LOADED_ROUND + 2
    manifest = toy_manifest()
    schedule = replace(
        manifest.schedule, total_rounds=last, warmup_rounds=0, decay_rounds=0, at_end="finish"
    )
    # A supervisor with such a short run; the fixture makes one for all tests.
    monkeypatch.setattr(shop.trainer_supervisor, "_manifest", replace(manifest, schedule=schedule))
    # Otherwise it would evaluate after none of these rounds.
    monkeypatch.setattr(shop.trainer_supervisor, "_evaluate_every", 1)
    rounds: list[int] = []
    monkeypatch.setattr(shop.telemetry, "evaluated", lambda round_, loss: rounds.append(round_))

    async def evaluate(self: FakeTrainer, sequences: int) -> float:
        await trio.lowlevel.checkpoint()
        return 1.0

    monkeypatch.setattr(FakeTrainer, "evaluate", evaluate)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_until, shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
    assert rounds
    assert max(rounds) <= last


def sampled(history: Path) -> dict[int, str]:
    if not history.exists():
        return {}
    lines = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    return {line["round"]: line["sample"] for line in lines if "sample" in line}


async def test_the_model_writes_after_each_measurement(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    """The last round's evaluation comes after all other work."""
    shop = FakeSupervisor(tmp_path, "Once upon a time", evaluate_every=LOADED_ROUND + 5)
    shop.telemetry.keep_history(tmp_path / "history")
    shop.heldout = 2.5
    await run_until(shop, lambda: bool(sampled(tmp_path / "history")))
    assert sampled(tmp_path / "history") == {LOADED_ROUND + 5: "and so on"}
    assert shop.prompts == ["Once upon a time"]


async def test_what_is_to_be_done_comes_before_the_rest_of_a_sample(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    shop = FakeSupervisor(tmp_path, "Once", evaluate_every=LOADED_ROUND + 5)
    shop.telemetry.keep_history(tmp_path / "history")
    shop.heldout = 2.5

    async def decide() -> None:
        shop.trainer_supervisor.apply(apply_effect(LOADED_ROUND + 6))

    shop.while_writing = decide
    await run_until(shop, lambda: LOADED_ROUND + 6 in shop.applied_rounds)
    assert sampled(tmp_path / "history") == {LOADED_ROUND + 5: "and "}


async def test_a_tokenizer_that_ends_its_process_does_so_once(
    tmp_path: Path, autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    shop = FakeSupervisor(tmp_path, "bomb", evaluate_every=1)
    shop.heldout = 2.5
    await run_until(shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
    assert shop.prompts == ["bomb"]
    assert "ended while generating a sample text" in caplog.text


async def test_a_beginning_that_the_model_cannot_take_is_tried_once(
    tmp_path: Path, autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    shop = FakeSupervisor(tmp_path, "too long", evaluate_every=1)
    shop.heldout = 2.5
    await run_until(shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
    assert shop.prompts == ["too long"]
    assert "the model generates no sample text" in caplog.text


async def test_nothing_is_written_where_nobody_asked_for_it(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    shop = FakeSupervisor(tmp_path, None, evaluate_every=1)
    shop.heldout = 2.5
    await run_until(shop, lambda: LOADED_ROUND + 5 in shop.applied_rounds)
    assert shop.telemetry.heldout is not None
    assert shop.prompts == []


class OwnDraws:
    """A member's own sequences, a given number of times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.counts: list[int] = []

    async def __call__(self, trainer: object, count: int) -> tuple[int, ...] | None:
        self.counts.append(count)
        self.left -= 1
        return (100 + len(self.counts),) if self.left >= 0 else None


async def test_own_data_is_trained_in_the_place_of_what_is_assigned(
    tmp_path: Path, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = OwnDraws(2)
    shop = FakeSupervisor(tmp_path, draw=draws)

    def loaded(round: int, *_: object) -> None:
        for number in range(1, 4):
            shop.trainer_supervisor.train(train_effect(round + number))

    monkeypatch.setattr(shop, "loaded", loaded)
    await run_until(shop, lambda: shop.stopped)
    # One sequence is assigned each time; the third time none is left.
    assert draws.counts == [1, 1, 1]
    assert shop.trained_samples == [(101,), (102,)]


async def test_what_is_computed_aside_is_drawn_once(
    tmp_path: Path, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = OwnDraws(5)
    shop = FakeSupervisor(tmp_path, draw=draws)

    def loaded(round: int, *_: object) -> None:
        shop.trainer_supervisor.train(train_effect(round + 9, assigned=round + 1))

    monkeypatch.setattr(shop, "loaded", loaded)
    await run_until(shop, lambda: len(shop.trained_samples) > 3)
    assert draws.counts == [1]
    assert set(shop.trained_samples) == {(101,)}


async def test_own_data_that_the_disk_lost_is_one_line(
    tmp_path: Path, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = FakeSupervisor(tmp_path, draw=OwnDraws(5))
    shop.losses = 1

    def loaded(round: int, *_: object) -> None:
        shop.trainer_supervisor.train(train_effect(round + 1))

    monkeypatch.setattr(shop, "loaded", loaded)
    with pytest.raises(BaseExceptionGroup) as caught:
        await run_until(shop, lambda: False)
    (error,) = leaves(caught.value)
    assert isinstance(error, UserError)
    assert error.code == ExitCode.DATA_MISSING


def audit_effect(round_: int) -> Train:
    return replace(train_effect(round_), audit=7, audit_share=3)


async def do_all(
    shop: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, *effects: Train | Apply | ScoreAudit
) -> None:
    """Queue these for a trainer that has its parameters, and let it complete them."""

    def loaded(*_: object) -> None:
        for effect in effects:
            match effect:
                case Train():
                    shop.trainer_supervisor.train(effect)
                case Apply():
                    shop.trainer_supervisor.apply(effect)
                case ScoreAudit():
                    shop.trainer_supervisor.judge(effect)

    async def applied(round_: int, *_: object) -> None:
        shop.did.append(f"applied {round_}")

    monkeypatch.setattr(shop, "loaded", loaded)
    monkeypatch.setattr(shop, "applied", applied)
    with trio.move_on_after(5.0):
        await run_until(shop, lambda: False)


FIRST = LOADED_ROUND + 1


async def test_an_audit_runs_after_the_own_update(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await do_all(shop, monkeypatch, audit_effect(FIRST), train_effect(FIRST + 1))
    assert shop.wished == [(7,)]
    assert shop.did == ["trained 4", "audit 4: 7 of 3", "trained 5"]
    # The delay by the audit belongs to the next update's time, not to the time of its sequences.
    assert shop.encoding == [0.0, 2.5]


async def test_without_the_data_there_is_no_audit(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.here = False
    await do_all(shop, monkeypatch, audit_effect(FIRST), train_effect(FIRST + 1))
    assert shop.did == ["trained 4", "trained 5"]


async def test_with_overlap_the_record_before_waits_for_an_audit(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other parameters it would be worthless."""

    async def trained(what: Train, made: TrainedUpdate) -> None:
        shop.trainer_supervisor.apply(apply_effect(FIRST))

    monkeypatch.setattr(shop, "trained", trained)
    await do_all(shop, monkeypatch, audit_effect(FIRST + 1))
    assert shop.did == ["audit 5: 7 of 3", "applied 4"]


async def test_who_is_behind_its_own_round_does_not_audit(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def trained(what: Train, made: TrainedUpdate) -> None:
        shop.trainer_supervisor.apply(apply_effect(what.round))

    monkeypatch.setattr(shop, "trained", trained)
    await do_all(shop, monkeypatch, audit_effect(FIRST))
    assert shop.did == ["applied 4"]


async def test_what_was_audited_is_judged_before_what_is_queued(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = shop.store.put(b"an update")

    async def trained(what: Train, made: TrainedUpdate) -> None:
        shop.did.append(f"trained {what.round}")
        if what.round == FIRST + 1:
            for cid in (update, content_id(b"not here")):
                shop.trainer_supervisor.judge(ScoreAudit(FIRST, cid))
                shop.trainer_supervisor.judge(ScoreAudit(FIRST + 9, cid))

    monkeypatch.setattr(shop, "trained", trained)
    await do_all(
        shop, monkeypatch, audit_effect(FIRST), *(train_effect(FIRST + n) for n in range(1, 4))
    )
    assert shop.did == [
        *(
            "trained 4",
            "audit 4: 7 of 3",
            "trained 5",
            f"judged 4: 30, 9, {AuditScore(20, 4)}",
            "trained 6",
            "trained 7",
        )
    ]


async def test_an_audit_that_fails_costs_the_audit_alone(
    shop: FakeSupervisor, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.audits_fail = True
    judge = ScoreAudit(FIRST, shop.store.put(b"an update"))
    await do_all(shop, monkeypatch, audit_effect(FIRST), train_effect(FIRST + 1), judge)
    assert shop.did == ["trained 4", "trained 5"]
    assert len(shop.specs) == 1
