"""Energy manager: measures what the node's work costs, and pauses the node when it costs too much or
disturbs.

It runs as long as the program. The meters are also read while the node is paused, but the energy used
then is not counted, because it is not for the swarm.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from threading import Thread
from typing import Protocol, TypeVar

import psutil
import trio

from ..settings.components import EnergySettings
from ..telemetry.status import EnergyPart, EnergyStatus, HoldKind
from ..telemetry.telemetry import Telemetry
from .arithmetic import JOULES_PER_KWH, Meter, cost, per_token, total
from .gpu import GpuUse, LimitRefused
from .gpu_group import GpuGroup
from .idle_grace import QUIET_SECONDS, IdleGrace
from .pause_poller import PausePoller
from .processor import Processor
from .user_activity import UserActivity

_log = logging.getLogger(__name__)

T = TypeVar("T")

METER_SECONDS = 2.0
"""Interval at which meters are read. A 32-bit counter wraps at most twice a minute; a meter without a
counter needs frequent readings of its power."""
_POLITE_SECONDS = 2.0
# If the card is gone, the driver may never answer; after this time the calling thread is abandoned.
_READ_SECONDS = 10.0
_RESTORE_SECONDS = 2.0
_NO_GPU_IN_USE = "the trainer computes on no GPU now"
_RESUMES_AFTER = f"this node resumes after {QUIET_SECONDS / 60:g} min without use"


class PauseControl(Protocol):
    """Interface for pausing the node's work (`WorkSchedule`)."""

    @property
    def at_work(self) -> bool:
        """Whether the node is at work."""
        ...

    def hold(self, kind: HoldKind, text: str) -> None:
        """Add a reason to pause."""
        ...

    def release(self, kind: HoldKind) -> None:
        """Remove a reason to pause."""
        ...


class EnergyManager:
    """Meters, power limit and politeness of one node, served by `run`."""

    def __init__(
        self,
        settings: EnergySettings,
        pause_control: PauseControl,
        telemetry: Telemetry,
        *,
        observes: bool = False,
        gpus: GpuGroup | None = None,
        processor: Processor | None = None,
        user_activity: UserActivity | None = None,
    ) -> None:
        self._settings = settings
        self._pause_control = pause_control
        self._telemetry = telemetry
        self._observes = observes
        self._gpus = gpus or GpuGroup()
        self._processor = processor or Processor()
        self._user_activity = user_activity or UserActivity()
        self._gpu_meter, self._processor_meter = Meter(), Meter()
        self._poller = (
            PausePoller(settings.pause_when) if settings.pause_when.source is not None else None
        )
        self._limited: float | None = None
        self._limit_tried = False
        self._uuids: tuple[str, ...] = ()
        # The meters are read in one thread at a time, so that a hanging driver blocks only one thread.
        self._meters = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Run until cancelled, then restore the GPU's own limit."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._measure)
                if self._poller is not None:
                    nursery.start_soon(self._poll, self._poller)
                if self._settings.polite:
                    nursery.start_soon(self._pause_for_programs)
                    nursery.start_soon(self._pause_for_user)
        finally:
            if self._gpus.limited:
                with trio.move_on_after(_RESTORE_SECONDS) as scope:
                    scope.shield = True
                    await self._in_thread(self._restore_limit)

    def restore_limit(self) -> None:
        """Restore the GPU's own limit; called before the program ends at once."""
        if self._gpus.limited:
            # In a thread, so that a hanging driver does not keep the program from ending.
            thread = Thread(target=self._restore_limit, daemon=True)
            thread.start()
            thread.join(_RESTORE_SECONDS)

    def status(self) -> EnergyStatus:
        """Return the node's energy status."""
        gpu = self._gpu_part()
        processor = _part(self._processor_meter, self._processor.why)
        parts = [processor, *([] if gpu is None else [gpu])]
        joules = total([part.joules for part in parts])
        settings, own = self._settings, self._telemetry.status().own
        return EnergyStatus(
            gpu=gpu,
            processor=processor,
            watts=total([part.watts for part in parts]),
            kwh=None if joules is None else joules / JOULES_PER_KWH,
            price=settings.price,
            currency=settings.currency,
            cost=cost(joules, settings.price),
            joules_per_token=per_token(joules, own.tokens),
            power_limit=self._limited,
            signal=None if self._poller is None else self._poller.value,
        )

    # The meters

    async def _measure(self) -> None:
        last = trio.current_time()
        while True:
            await trio.sleep(METER_SECONDS)
            now = trio.current_time()
            seconds, last = now - last, now
            at_work = self._pause_control.at_work
            reading = await self._in_thread(self._processor.read)
            self._processor_meter.take(reading, seconds, at_work)
            if self._computes_on_a_gpu():
                await self._select_gpus()
                reading = await self._in_thread(self._gpus.read)
                self._gpu_meter.take(reading, seconds, at_work)
                await self._limit(at_work)
            else:
                # What a GPU uses while the trainer computes elsewhere is not the swarm's.
                self._gpu_meter.take(None, seconds, at_work=False)

    def _computes_on_a_gpu(self) -> bool:
        device = self._telemetry.device
        return device is not None and not self._observes and not device.startswith("cpu")

    async def _select_gpus(self) -> None:
        if self._telemetry.gpus != self._uuids:
            self._uuids = self._telemetry.gpus
            # The cards selected now are not those whose limit was set.
            self._limited, self._limit_tried = None, False
            await self._in_thread(functools.partial(self._gpus.select, self._uuids))

    async def _limit(self, at_work: bool) -> None:
        """Set the card's `--power-limit` while the node works, and only then."""
        watts = self._settings.power_limit
        if watts is None:
            return
        if not at_work:
            if self._gpus.limited:
                await self._in_thread(self._restore_limit)
            self._limit_tried = False
            return
        if self._limited is not None or self._limit_tried:
            return
        self._limit_tried = True
        try:
            with trio.fail_after(_READ_SECONDS) as scope:
                # Cancelling this task does not interrupt the call, so that it is known whether there is
                # a limit to restore.
                scope.shield = True
                await _thread(functools.partial(self._gpus.set_limit, watts), self._meters)
        except (LimitRefused, trio.TooSlowError) as error:
            problem = str(error) or "the driver does not answer"
            _log.warning("--power-limit %g: %s; the GPU keeps its own limit", watts, problem)
            text = f"the GPU's power limit could not be set to {watts:g} W: {problem}"
            self._telemetry.event("power_limit", self._telemetry.round or 0, text=text)
        else:
            self._limited = watts
            _log.info("the GPU's power is limited to %g W while this node works", watts)

    def _restore_limit(self) -> None:
        self._limited = None
        if self._gpus.restore_limit():
            _log.info("the GPU's own power limit is restored")
        else:
            _log.warning("the GPU's own power limit could not be restored")

    def _gpu_part(self) -> EnergyPart | None:
        if self._computes_on_a_gpu():
            return _part(self._gpu_meter, self._gpus.why)
        if self._gpu_meter.joules is None:
            return None
        # A trainer that moved to the processor leaves what the GPU used before in all sums, which must
        # never decrease.
        return replace(_part(self._gpu_meter, None), watts=None, why=_NO_GPU_IN_USE)

    # Reasons to pause

    async def _poll(self, poller: PausePoller) -> None:
        while True:
            if await poller.poll():
                self._pause_control.hold("signal", poller.sentence)
            else:
                self._pause_control.release("signal")
            await trio.sleep(self._settings.pause_when.interval_seconds)

    async def _pause_for_programs(self) -> None:
        grace, warned = IdleGrace(), False
        while True:
            await trio.sleep(_POLITE_SECONDS)
            if not self._computes_on_a_gpu():
                continue
            await self._select_gpus()
            use = await self._in_thread(self._use_by_others) or GpuUse(None)
            if use.others is None and not warned and self._telemetry.state == "training":
                warned = True
                why = self._gpus.why or "the driver does not report which programs use the GPU"
                _log.warning("--polite cannot see other programs on the GPU: %s", why)
            self._pause_for(
                grace.note_use(0.0 if use.others else None, trio.current_time()),
                "program",
                f"another program{f' ({use.program})' if use.program else ''} uses the GPU",
                renew=use.others is True,
            )

    def _use_by_others(self) -> GpuUse:
        """Return the use of the GPUs by others. Called in a thread, since scanning all processes takes
        long."""
        ours = _own_processes() if self._telemetry.state != "paused" else frozenset()
        return self._gpus.use_by_others(ours)

    async def _pause_for_user(self) -> None:
        grace, warned = IdleGrace(), False
        while True:
            idle = await self._user_activity.idle_seconds()
            if idle is None and not warned:
                warned = True
                _log.warning("--polite cannot detect whether this computer is in use")
            self._pause_for(
                grace.note_use(idle, trio.current_time()), "person", "the computer is in use"
            )
            await trio.sleep(_POLITE_SECONDS)

    def _pause_for(self, pause: bool, kind: HoldKind, reason: str, renew: bool = True) -> None:
        if not pause:
            self._pause_control.release(kind)
        elif renew:
            self._pause_control.hold(kind, f"{reason}; {_RESUMES_AFTER}")

    async def _in_thread(self, function: Callable[[], T]) -> T | None:
        """Return the result of a function that runs in a thread; if it takes too long, abandon the
        thread and return None."""
        with trio.move_on_after(_READ_SECONDS):
            return await _thread(function, self._meters)
        return None


async def _thread(function: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
    return await trio.to_thread.run_sync(
        function,
        # The stubs of trio that libp2p depends on are older than this parameter's name.
        abandon_on_cancel=True,  # pyright: ignore[reportCallIssue]
        limiter=limiter,
    )


def _part(meter: Meter, why: str | None) -> EnergyPart:
    known = meter.watts is not None
    return EnergyPart(
        watts=meter.watts,
        joules=meter.joules,
        measured=meter.measured,
        why=None if known else why,
    )


def _own_processes() -> frozenset[int]:
    """Return the ids of this process and all its descendants, the trainer included."""
    me = psutil.Process()
    return frozenset([me.pid, *(child.pid for child in me.children(recursive=True))])
