"""A model in a process of its own, which writes one text after the other.

Requests wait in a bounded queue. Between two texts the newer state of a swarm is loaded. If the process
dies it is started again; until then requests are refused. With `idle_seconds` the model is open only
while it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import trio

from ..errors import UserError
from ..training.client import TrainerDied, TrainerFailed
from ..training.text_request import TextRequest, TextStart
from ..util.system_errors import is_shortage
from .api_error import ApiError
from .completion_response import Choice, Usage
from .model_source import ModelName, ModelSource, OpenModel
from .stop_sequences import StopFilter

if TYPE_CHECKING:
    from trio_typing import TaskStatus

_log = logging.getLogger(__name__)

Show = Callable[[str], Awaitable[None]]
"""Takes the next piece of a text."""

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
# How long a request waits for a model that was closed.
_OPENING_SECONDS = 60.0
# How long a text that is given up may compute its current token; the next request waits for that anyway.
_ENDING_SECONDS = 5.0
# A guess of when a place in a full queue is free again.
_RETRY_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """The limits of what requests may take."""

    queue: int = 8
    """Requests that wait while another one is answered."""
    seconds: float = 300.0
    """Time for the texts of one request, without waiting; then they end as at their greatest length."""
    memory: int = 2 << 30
    """Main memory in bytes that a text may take beyond the model's."""
    look_seconds: float = 15.0
    """How often to look for a newer state."""
    idle_seconds: float | None = None
    """Time without a request after which the model is closed; the next request opens it again. None: the
    model stays open."""


@dataclass(kw_only=True)
class Turn:
    """A request's turn: until it is closed, the model writes for this request alone. The task that has
    taken it closes it."""

    model: OpenModel
    name: ModelName
    deadline: float
    close: Callable[[], None]


class TextService:
    """The queue in front of a model. `run` keeps the model open."""

    def __init__(self, limits: ServiceLimits) -> None:
        self._limits = limits
        self._model: OpenModel | None = None
        self._problem: str | None = None
        """Why the model could not be opened, the last time."""
        self._writing = trio.Lock()
        self._waiting = 0
        self._broken = trio.Event()
        self._requested = trio.Event()
        self._opened_or_failed = trio.Event()
        self._last_request = float("-inf")

    @property
    def name(self) -> ModelName | None:
        """The name of the model; None while there is none."""
        return None if self._model is None else self._model.name

    async def run(
        self, source: ModelSource, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the model of this source open until cancelled. The task has started once it is open, with
        `idle_seconds` at once. Raises `UserError` if it cannot be opened the first time, except with
        `idle_seconds`: then requests are told."""
        on_request = self._limits.idle_seconds is not None
        started, pause = on_request, _FIRST_PAUSE_SECONDS
        if on_request:
            task_status.started()
        while True:
            if on_request:
                self._problem = None
                if self._opened_or_failed.is_set():
                    # After a failure; after a model a request may be waiting already.
                    self._opened_or_failed = trio.Event()
                await self._requested.wait()
            began = trio.current_time()
            try:
                async with source.opened() as model:
                    self._model, self._broken, self._problem = model, trio.Event(), None
                    self._opened_or_failed.set()
                    if not started:
                        started = True
                        task_status.started()
                    try:
                        await self._keep(model)
                    finally:
                        # From here on its process is being closed.
                        self._model, self._requested = None, trio.Event()
                        self._opened_or_failed = trio.Event()
            except (UserError, OSError) as error:
                if not started or not (isinstance(error, UserError) or is_shortage(error)):
                    raise
                problem = f"the system has too few resources: {error}"
                if isinstance(error, UserError):
                    problem = error.problem
                self._problem, self._requested = problem, trio.Event()
                self._opened_or_failed.set()
                _log.warning("the model cannot be opened: %s", problem)
            if trio.current_time() - began > _LONGEST_PAUSE_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            await trio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _keep(self, model: OpenModel) -> None:
        """Load newer states until the model's process has died, or the model has been idle for long."""
        while not self._broken.is_set():
            with trio.move_on_after(self._limits.look_seconds):
                await self._broken.wait()
            if self._broken.is_set() or self._is_idle():
                return
            try:
                if not await model.has_newer():
                    continue
            except UserError as error:
                # The node may be changing its files at this moment.
                _log.info("no newer state was found: %s", error.problem)
                continue
            async with self._writing:
                await model.take_newer()
            _log.info("serving %s", model.name.full)

    def _is_idle(self) -> bool:
        limit = self._limits.idle_seconds
        if limit is None or self._waiting or self._writing.locked():
            return False
        return trio.current_time() - self._last_request >= limit

    async def ensure_open(self) -> None:
        """Open the model if it was closed while idle, and wait for that some time."""
        self._last_request = trio.current_time()
        if self._limits.idle_seconds is None or self._model is not None:
            return
        self._requested.set()
        with trio.move_on_after(_OPENING_SECONDS):
            await self._opened_or_failed.wait()

    def unavailable(self) -> ApiError:
        """Return the error for a request while there is no model."""
        if self._problem is None:
            return ApiError(
                503, "the model is being loaded", code="model_loading", retry_after=_RETRY_SECONDS
            )
        return ApiError(503, self._problem, code="no_model", retry_after=_RETRY_SECONDS)

    async def take_turn(self) -> Turn:
        """Wait for the model. Raises `ApiError`: 429 if the queue is full, 503 if there is no model."""
        await self.ensure_open()
        await self._acquire()
        model = self._model
        if model is None:
            self._writing.release()
            raise self.unavailable()
        return Turn(
            model=model,
            name=model.name,
            deadline=trio.current_time() + self._limits.seconds,
            close=self._writing.release,
        )

    async def _acquire(self) -> None:
        with suppress(trio.WouldBlock):
            self._writing.acquire_nowait()
            return
        if self._waiting >= self._limits.queue:
            raise ApiError(
                429,
                f"{self._waiting} requests are waiting for this model already: try again later",
                code="queue_full",
                retry_after=_RETRY_SECONDS,
            )
        self._waiting += 1
        try:
            await self._writing.acquire()
        finally:
            self._waiting -= 1

    async def begin(self, turn: Turn, request: TextRequest) -> TextStart:
        """Begin a text in a turn. Raises `ApiError`: 400 for a prompt that the model cannot take."""
        with self._reported():
            return await turn.model.trainer.begin_text(replace(request, memory=self._limits.memory))

    async def write(
        self, turn: Turn, start: TextStart, stops: Sequence[str], show: Show
    ) -> tuple[Choice, Usage]:
        """Write the text that was begun, up to a stop sequence. Raises `ApiError`."""
        trainer, stop = turn.model.trainer, StopFilter(stops)
        shown: list[str] = []

        async def pass_on(text: str) -> None:
            if text:
                shown.append(text)
                await show(text)

        count, ended = 0, False
        try:
            while count < start.max_tokens and not stop.stopped:
                piece: str | None = None
                with self._reported(), trio.move_on_at(turn.deadline) as patience:
                    piece = await trainer.next_text()
                if patience.cancelled_caught:
                    break
                if piece is None:
                    ended = True
                    break
                count += 1
                await pass_on(stop.feed(piece))
        finally:
            await self._end(turn)
        await pass_on(stop.rest())
        choice = Choice(text="".join(shown), reason="stop" if ended or stop.stopped else "length")
        return choice, Usage(prompt=start.prompt_tokens, completion=count)

    async def _end(self, turn: Turn) -> None:
        """Free the memory of the text, however it ended."""
        with trio.move_on_after(_ENDING_SECONDS) as patience:
            patience.shield = True
            try:
                await turn.model.trainer.end_text()
            except (TrainerDied, TrainerFailed):
                self._broken.set()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn the failures of the model's process into errors for the client."""
        try:
            yield
        except TrainerDied as error:
            self._broken.set()
            _log.warning("the model's process has died: %s", error)
            raise ApiError(
                500, "the process of the model has ended and is started again", code="model_ended"
            ) from None
        except TrainerFailed as error:
            if error.kind == "bad_data":
                raise ApiError(400, str(error), code="bad_prompt") from None
            if error.kind == "out_of_memory":
                raise ApiError(
                    400, "the text takes more memory than is allowed here", code="out_of_memory"
                ) from None
            _log.error("the model's process has failed: %s", error)
            raise ApiError(500, f"the model cannot write: {error}", code="model_failed") from None
