"""The queue in front of a model: turns, limits, newer states, and the end of the model's process."""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.serve.api_error import ApiError
from distro_node.node.serve.completion_response import Choice
from distro_node.node.serve.model_source import ModelName
from distro_node.node.serve.text_service import ServiceLimits, TextService
from distro_node.node.training.client import TrainerDied, TrainerFailed
from distro_node.node.training.text_request import TextRequest, TextStart

REQUEST = TextRequest(prompt="a", max_tokens=3)


@dataclass
class FakeModel:
    """A model whose texts are letters, and whose process can be told to fail or to wait."""

    name: ModelName
    failure: Exception | None = None
    newer: int | None = None
    go_on: trio.Event = field(default_factory=trio.Event)
    begun: list[TextRequest] = field(default_factory=list)
    ended: int = 0
    letters: str = "xyz"

    def __post_init__(self) -> None:
        self.go_on.set()
        self.trainer: Any = self

    async def begin_text(self, request: TextRequest) -> TextStart:
        self.begun.append(request)
        self._left = list(self.letters)
        if self.failure is not None:
            raise self.failure
        return TextStart(prompt_tokens=1, max_tokens=request.max_tokens)

    async def next_text(self) -> str | None:
        await self.go_on.wait()
        if self.failure is not None:
            raise self.failure
        return self._left.pop(0) if self._left else None

    async def end_text(self) -> None:
        self.ended += 1

    async def has_newer(self) -> bool:
        return self.newer is not None

    async def take_newer(self) -> None:
        self.name = ModelName(name=self.name.name, round=self.newer)
        self.newer = None


@dataclass
class FakeSource:
    """A source of such models; each has the next number as its round."""

    models: list[FakeModel] = field(default_factory=list)
    failure: UserError | OSError | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[FakeModel]:
        if self.failure is not None:
            raise self.failure
        self.models.append(FakeModel(ModelName(name="m", round=len(self.models))))
        yield self.models[-1]


@asynccontextmanager
async def running(
    source: FakeSource | None = None, **limits: Any
) -> AsyncIterator[tuple[TextService, FakeModel]]:
    source = source or FakeSource()
    service = TextService(ServiceLimits(**limits))
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run, source)
        yield service, source.models[-1]
        nursery.cancel_scope.cancel()


async def written(
    service: TextService, request: TextRequest = REQUEST, stops: tuple[str, ...] = ()
) -> Choice:
    pieces: list[str] = []

    async def show(piece: str) -> None:
        pieces.append(piece)

    with closing(await service.take_turn()) as turn:
        start = await service.begin(turn, request)
        choice, usage = await service.write(turn, start, stops, show)
    assert choice.text == "".join(pieces)
    assert usage.prompt == 1
    return choice


async def test_a_text_ends_by_itself_at_its_length_or_at_a_stop() -> None:
    async with running(memory=5) as (service, model):
        long = TextRequest(max_tokens=9)
        assert await written(service, long) == Choice(text="xyz", reason="stop")
        assert await written(service, TextRequest(max_tokens=2)) == Choice(
            text="xy", reason="length"
        )
        assert await written(service, long, ("yz",)) == Choice(text="x", reason="stop")
        # What was held back as a possible stop belongs to the text after all.
        assert await written(service, long, ("yzz",)) == Choice(text="xyz", reason="stop")
        assert model.ended == 4
        assert {each.memory for each in model.begun} == {5}


async def test_a_full_queue_refuses_and_states_when_to_retry() -> None:
    async with running(queue=1) as (service, model), trio.open_nursery() as nursery:
        model.go_on = trio.Event()
        nursery.start_soon(written, service)
        nursery.start_soon(written, service)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ApiError) as refused:
            await written(service)
        assert refused.value.status == 429
        assert refused.value.retry_after
        model.go_on.set()


async def test_who_gives_up_frees_the_model_and_its_place() -> None:
    async with running(queue=1) as (service, model):
        model.go_on = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(written, service)
            nursery.start_soon(written, service)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert model.ended == 1
        model.go_on.set()
        assert (await written(service)).text == "xyz"


async def test_a_text_has_a_time_limit(autojump_clock: trio.testing.MockClock) -> None:
    async with running(seconds=5) as (service, model):
        model.go_on = trio.Event()
        began = trio.current_time()
        assert await written(service) == Choice(text="", reason="length")
        assert trio.current_time() - began == pytest.approx(5)
        assert model.ended == 1


async def test_a_newer_state_is_loaded_between_two_texts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(look_seconds=10) as (service, model):
        with closing(await service.take_turn()) as turn:
            start = await service.begin(turn, REQUEST)
            model.newer = 8
            await trio.sleep(30)
            # Not in the middle of a text.
            assert service.name == turn.name == ModelName(name="m", round=0)
            await service.write(turn, start, (), _ignore)
        await trio.sleep(30)
        assert service.name == ModelName(name="m", round=8)


async def test_a_process_that_dies_is_started_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    async with running(source, look_seconds=math.inf) as (service, model):
        with closing(await service.take_turn()) as turn:
            start = await service.begin(turn, REQUEST)
            model.failure = TrainerDied("killed by a test")
            with pytest.raises(ApiError) as failed:
                await service.write(turn, start, (), _ignore)
        assert failed.value.status == 500
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ApiError) as refused:
            await written(service)
        assert refused.value.status == 503
        await trio.sleep(10)
        assert (await written(service)).text == "xyz"
        assert len(source.models) == 2


async def test_what_cannot_be_opened_again_is_tried_less_and_less_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    async with running(source, look_seconds=math.inf) as (service, model):
        source.failure = UserError(ExitCode.NOTHING_TO_EXPORT, "its files are gone", "join again")
        model.failure = TrainerDied("killed by a test")
        with pytest.raises(ApiError):
            await written(service)
        await trio.sleep(1000)
        with pytest.raises(ApiError, match="its files are gone"):
            await written(service)
        source.failure = None
        await trio.sleep(61)
        assert (await written(service)).text == "xyz"


async def test_a_shortage_of_the_system_ends_one_attempt_to_open_a_model(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    async with running(source, look_seconds=math.inf) as (service, model):
        source.failure = OSError(errno.EMFILE, "Too many open files")
        model.failure = TrainerDied("killed by a test")
        with pytest.raises(ApiError):
            await written(service)
        await trio.sleep(10)
        with pytest.raises(ApiError, match="too few resources") as refused:
            await written(service)
        assert refused.value.status == 503
        source.failure = None
        await trio.sleep(61)
        assert (await written(service)).text == "xyz"


@asynccontextmanager
async def on_request(source: FakeSource, **limits: Any) -> AsyncIterator[TextService]:
    """Run a service that opens its model when it is used, and closes it after a minute."""
    service = TextService(ServiceLimits(idle_seconds=60, look_seconds=5, **limits))
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run, source)
        yield service
        nursery.cancel_scope.cancel()


async def test_a_model_is_open_only_while_it_is_used(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    async with on_request(source) as service:
        await trio.sleep(1000)
        assert source.models == []
        assert (await written(service)).text == "xyz"
        await trio.sleep(40)
        # Each request keeps it open.
        assert (await written(service)).text == "xyz"
        await trio.sleep(40)
        assert service.name == ModelName(name="m", round=0)
        await trio.sleep(40)
        assert service.name is None
        assert (await written(service)).text == "xyz"
        assert len(source.models) == 2


async def test_a_request_waits_while_an_idle_model_is_closed_and_opened_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    async with on_request(source) as service:
        assert (await written(service)).text == "xyz"
        while service.name is not None:  # noqa: ASYNC110 - closing has no event
            await trio.sleep(0.1)
        assert (await written(service)).text == "xyz"
        assert len(source.models) == 2


async def test_a_long_text_keeps_the_model_open(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    async with on_request(source) as service, trio.open_nursery() as nursery:
        await service.ensure_open()
        source.models[0].go_on = trio.Event()
        nursery.start_soon(written, service)
        await trio.sleep(200)
        assert service.name == ModelName(name="m", round=0)
        source.models[0].go_on.set()


async def test_why_a_model_cannot_be_opened_is_told_to_whoever_asks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource(failure=UserError(ExitCode.MODEL_TOO_LARGE, "it is too large", "no"))
    async with on_request(source) as service:
        with pytest.raises(ApiError, match="it is too large") as refused:
            await written(service)
        assert (refused.value.status, refused.value.code) == (503, "no_model")
        source.failure = None
        await trio.sleep(5)
        assert (await written(service)).text == "xyz"


async def test_what_cannot_be_opened_the_first_time_ends_the_command() -> None:
    source = FakeSource(failure=UserError(ExitCode.USAGE, "it generates images", "no"))
    with pytest.raises(ExceptionGroup) as failed:
        async with running(source):
            pass
    assert failed.group_contains(UserError, match="it generates images")


@pytest.mark.parametrize(
    ("kind", "status"), [("bad_data", 400), ("out_of_memory", 400), ("internal", 500)]
)
async def test_failures_of_the_model_are_errors_of_the_interface(kind: Any, status: int) -> None:
    async with running() as (service, model):
        model.failure = TrainerFailed(kind, "the reason")
        with pytest.raises(ApiError) as refused:
            await written(service)
        assert refused.value.status == status
        model.failure = None
        assert (await written(service)).text == "xyz"


async def _ignore(_: str) -> None:
    pass
