"""Energy manager: measures the energy of the node's work, and pauses the node when a command asks for it
or the work disturbs.

It runs as long as the program. The GPUs are also read while the node is paused, but the energy used
then is not counted, because it is not for the swarm.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

import psutil
import trio

from ..settings.components import EnergySettings
from ..telemetry.status import EnergyStatus, HoldKind
from ..telemetry.telemetry import Telemetry
from .arithmetic import JOULES_PER_KWH, Meter
from .gpu import GpuUse
from .gpu_group import GpuGroup
from .idle_grace import QUIET_SECONDS, IdleGrace
from .pause_poller import SENTENCE, PausePoller
from .user_activity import UserActivity

_log = logging.getLogger(__name__)

T = TypeVar("T")

METER_SECONDS = 2.0
"""Interval between two readings of the GPUs. Of one without an energy counter, power is integrated."""
_POLITE_SECONDS = 2.0
# If the card is gone, the driver may never answer; after this time the calling thread is abandoned.
_READ_SECONDS = 10.0
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
    """Meter, pauses by command and politeness of one node, served by `run`."""

    def __init__(
        self,
        settings: EnergySettings,
        pause_control: PauseControl,
        telemetry: Telemetry,
        *,
        observes: bool = False,
        gpus: GpuGroup | None = None,
        user_activity: UserActivity | None = None,
    ) -> None:
        self._settings = settings
        self._pause_control = pause_control
        self._telemetry = telemetry
        self._observes = observes
        self._gpus = gpus or GpuGroup()
        self._user_activity = user_activity or UserActivity()
        self._meter = Meter()
        self._uuids: tuple[str, ...] = ()
        # The GPUs are read in one thread at a time, so that a hanging driver blocks only one thread.
        self._readers = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._measure)
            if self._settings.pause_when is not None:
                nursery.start_soon(self._poll, PausePoller(self._settings.pause_when))
            if self._settings.polite:
                nursery.start_soon(self._pause_for_programs)
                nursery.start_soon(self._pause_for_user)

    def status(self) -> EnergyStatus:
        """Return the node's energy status."""
        meter, tokens = self._meter, self._telemetry.status().own.tokens
        joules = meter.joules
        why = self._gpus.why if self._computes_on_a_gpu() else _NO_GPU_IN_USE
        return EnergyStatus(
            watts=meter.watts,
            kwh=None if joules is None else joules / JOULES_PER_KWH,
            measured=meter.measured,
            joules_per_token=joules / tokens if joules is not None and tokens > 0 else None,
            why=why if meter.watts is None else None,
        )

    # The meter

    async def _measure(self) -> None:
        last = trio.current_time()
        while True:
            await trio.sleep(METER_SECONDS)
            now = trio.current_time()
            seconds, last = now - last, now
            if self._computes_on_a_gpu():
                # After the end of the run a node may serve its result for weeks, without computing.
                at_work = self._pause_control.at_work and self._telemetry.state != "finished"
                await self._select_gpus()
                reading = await self._in_thread(self._gpus.read)
                self._meter.take(reading, seconds, at_work)
            else:
                # What a GPU uses while the trainer computes elsewhere is not the swarm's.
                self._meter.take(None, seconds, at_work=False)

    def _computes_on_a_gpu(self) -> bool:
        device = self._telemetry.device
        return device is not None and not self._observes and not device.startswith("cpu")

    async def _select_gpus(self) -> None:
        if self._telemetry.gpus != self._uuids:
            self._uuids = self._telemetry.gpus
            await self._in_thread(functools.partial(self._gpus.select, self._uuids))

    # Reasons to pause

    async def _poll(self, poller: PausePoller) -> None:
        while True:
            if await poller.poll():
                self._pause_control.hold("command", SENTENCE)
            else:
                self._pause_control.release("command")
            await trio.sleep(self._settings.pause_every_seconds)

    async def _pause_for_programs(self) -> None:
        grace, warned = IdleGrace(), False
        while True:
            await trio.sleep(_POLITE_SECONDS)
            if not self._computes_on_a_gpu():
                # Whoever uses the GPU is not disturbed, also if the trainer computed there before.
                self._pause_control.release("program")
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
            return await trio.to_thread.run_sync(
                function,
                # The stubs of trio that libp2p depends on are older than this parameter's name.
                abandon_on_cancel=True,  # pyright: ignore[reportCallIssue]
                limiter=self._readers,
            )
        return None


def _own_processes() -> frozenset[int]:
    """Return the ids of this process and all its descendants, the trainer included."""
    me = psutil.Process()
    return frozenset([me.pid, *(child.pid for child in me.children(recursive=True))])
