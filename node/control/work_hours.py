"""Schedule of a node's work: the hours that its owner has set, the owner's commands, and holds.

A command is in force until the hours next begin or end; without hours, until the next command. Times of
day are the computer's own, so summer time and a suspended laptop need no special care. A hold is a
reason to pause that comes and goes by itself (a command, another program, a person). An owner who
resumes waives the present holds, each until it is over; an owner's pause does not end with the holds.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import trio

from ..telemetry.status import Hold, HoldKind, ScheduleStatus
from ..util.schedule import Hours

_CHECK_INTERVAL_SECONDS = 1.0


class WorkSchedule:
    """Whether the node should be at work, kept current by `run`."""

    def __init__(self, hours: Hours | None, now: Callable[[], datetime] = datetime.now) -> None:
        self._hours = hours
        self._now = now
        self._scheduled = self._is_scheduled()
        # The owner's command in force: whether to work; None: the hours decide.
        self._command: bool | None = None
        self._holds: dict[HoldKind, str] = {}
        self._waived: set[HoldKind] = set()
        self._changed = trio.Event()

    @property
    def at_work(self) -> bool:
        """Whether the node should be at work now."""
        is_wanted = self._scheduled if self._command is None else self._command
        return is_wanted and self._holds.keys() <= self._waived

    def pause(self) -> None:
        """Pause: the owner wants the computer back."""
        self._command = False
        self._waived.clear()
        self._notify()

    def resume(self) -> None:
        """Resume: the owner lends the computer again."""
        self._command = True
        self._waived = {*self._holds}
        self._notify()

    def hold(self, kind: HoldKind, text: str) -> None:
        """Add or update a hold; `text` says why, for people."""
        self._holds[kind] = text
        self._notify()

    def release(self, kind: HoldKind) -> None:
        """Remove a hold."""
        if self._holds.pop(kind, None) is not None:
            self._waived.discard(kind)
            self._notify()

    def set_hours(self, hours: Hours | None) -> None:
        """Set other hours; earlier commands are void."""
        self._hours = hours
        self._scheduled, self._command = self._is_scheduled(), None
        self._notify()

    def status(self) -> ScheduleStatus:
        """Return the status for the owner."""
        change = self._hours.next_change(self._minute()) if self._hours is not None else None
        return ScheduleStatus(
            at_work=self.at_work,
            by_command=bool(self._waived)
            or (self._command is not None and self._command != self._scheduled),
            active=self._hours.text if self._hours is not None else None,
            until=None if change is None else f"{change // 60:02}:{change % 60:02}",
            holds=tuple(
                Hold(kind=kind, text=text, waived=kind in self._waived)
                for kind, text in self._holds.items()
            ),
        )

    async def run(self) -> None:
        """Follow the clock until cancelled."""
        checked = self._now()
        while True:
            await trio.sleep(_CHECK_INTERVAL_SECONDS)
            scheduled, before, checked = self._is_scheduled(), checked, self._now()
            if scheduled != self._scheduled or self._has_changed(before, checked):
                self._scheduled, self._command = scheduled, None
                self._notify()

    async def wait(self, at_work: bool) -> None:
        """Wait until the node should be at work, or should not."""
        while self.at_work != at_work:
            await self._changed.wait()

    def _is_scheduled(self) -> bool:
        return self._hours is None or self._hours.contain(self._minute())

    def _has_changed(self, before: datetime, now: datetime) -> bool:
        """Whether the hours began or ended between two times. A computer that was suspended meanwhile
        may have missed both."""
        if self._hours is None:
            return False
        minute = _minute_of(before)
        change = self._hours.next_change(minute)
        passed = (now - before.replace(second=0, microsecond=0)) // timedelta(minutes=1)
        return change is not None and passed >= (change - minute) % (24 * 60)

    def _minute(self) -> int:
        return _minute_of(self._now())

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _minute_of(time: datetime) -> int:
    return 60 * time.hour + time.minute
