"""Supervisor of a node for its owner: commands, signals, the screen, and the hours of work.

It outlives the node's sessions in the swarm. A paused node has left the swarm, and its network and
trainer have ended: the bandwidth, the processor and the device are the owner's. Its data stay on disk,
and its next session fetches only what it missed.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio

from ..errors import ExitCode, UserError
from ..settings.values import parse_rate
from ..telemetry.status import (
    NO_ENERGY,
    NO_LINE,
    EnergyStatus,
    NodeStatus,
    ScheduleStatus,
    SessionStatus,
    Status,
    encode_status,
    seconds_left,
)
from ..telemetry.task_scores import read_scores
from ..telemetry.telemetry import Telemetry
from ..util.operating_system import ENDING_SIGNALS
from ..util.schedule import parse_hours
from .command_socket import Handler, serve_control
from .limits import BandwidthLimits
from .work_hours import WorkSchedule

_log = logging.getLogger(__name__)


class RunningSession(Protocol):
    """Session of a node in the swarm, from joining to leaving."""

    def status(self) -> SessionStatus:
        """Return the parts of the status that belong to this session."""
        ...

    def leave(self) -> None:
        """Leave the swarm and end."""
        ...

    def apply_limits(self, limits: BandwidthLimits) -> None:
        """Apply these bandwidth limits from now on."""
        ...


def merged_status(
    node: NodeStatus,
    schedule: ScheduleStatus,
    telemetry: Telemetry,
    session: SessionStatus,
    energy: EnergyStatus = NO_ENERGY,
) -> Status:
    """Return the node's whole status."""
    training = telemetry.status()
    return Status(
        node=node,
        state=telemetry.state,
        progress=telemetry.progress,
        schedule=schedule,
        training=training,
        swarm=session.swarm,
        seconds_left=seconds_left(training, session.swarm),
        scores=telemetry.scores,
        line=session.line,
        reach=session.reach,
        energy=energy,
        privacy=telemetry.privacy,
        events=telemetry.events,
    )


async def _ready_now() -> None:
    await trio.lowlevel.checkpoint()


async def _first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return once one of these functions has returned; the others are cancelled."""
    async with trio.open_nursery() as nursery:

        async def return_first(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(return_first, wait)


class Supervisor:
    """The node's interface to its owner. Ends the session when the owner, the work hours or a hold (a
    reason to pause that comes and goes by itself, see `work_hours`) ask."""

    def __init__(
        self,
        *,
        socket: Path,
        schedule: WorkSchedule,
        telemetry: Telemetry,
        node: NodeStatus,
        screen: bool,
        limits: BandwidthLimits | None = None,
        link: Callable[[], dict[str, Any]] = dict,
        energy: Callable[[], EnergyStatus] = lambda: NO_ENERGY,
    ) -> None:
        """`link` returns the dashboard's plain URL, and its URL with the access token, which only the
        owner may see. `energy` returns the energy used."""
        self._socket = socket
        self._schedule = schedule
        self._telemetry = telemetry
        self._limits = limits or BandwidthLimits()
        self._link = link
        self._energy = energy
        self._node = node
        self._screen = screen
        self._session: RunningSession | None = None
        # What stays valid of earlier sessions: the swarm's name, and the bytes sent and received.
        self._earlier_sessions = SessionStatus(swarm=None, line=NO_LINE, reach=None)
        self._leaving = trio.Event()
        self.commands: Mapping[str, Handler] = {
            "leave": lambda _: self._leave(),
            "pause": lambda _: self._pause(),
            "resume": lambda _: self._resume(),
            "hours": self._set_hours,
            "limits": self._set_limits,
        }
        """The commands that change the node's work: served on the socket and by the dashboard."""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve the owner while the context lasts. Once the context is entered, the socket
        answers."""
        handlers = {
            **self.commands,
            "status": lambda _: encode_status(self.status()),
            "scored": self._scored,
            "dashboard": lambda _: self._link(),
        }
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_signals)
            nursery.start_soon(self._schedule.run)
            nursery.start_soon(self._watch_schedule)
            await nursery.start(serve_control, self._socket, handlers)
            if self._screen:
                # Imported here: a screen needs modules that a node without one does not.
                from .screen import show_screen

                nursery.start_soon(show_screen, self.status)
            yield
            nursery.cancel_scope.cancel()

    async def next_session(self, ready: Callable[[], Awaitable[object]] = _ready_now) -> bool:
        """Wait until the node should be in the swarm and `ready` has returned, and return True; return
        False once the owner wants the program to end."""
        is_ready = False

        async def get_ready() -> None:
            nonlocal is_ready
            await ready()
            is_ready = True

        while not is_ready and not self._leaving.is_set():
            if not self._schedule.at_work:
                self._telemetry.enter("paused")
            await _first_of(self._leaving.wait, partial(self._schedule.wait, at_work=True))
            if not self._leaving.is_set():
                pausing = partial(self._schedule.wait, at_work=False)
                await _first_of(self._leaving.wait, pausing, get_ready)
        return not self._leaving.is_set()

    @contextlib.contextmanager
    def serving(self, session: RunningSession) -> Iterator[None]:
        """Connect this session with the owner's commands and status while it lasts."""
        self._session = session
        try:
            if self._leaving.is_set() or not self._schedule.at_work:
                session.leave()
            yield
        finally:
            last = self._session_status()
            self._session = None
            # The peers and the reachability of the ended session are no longer valid.
            self._earlier_sessions = SessionStatus(
                swarm=last.swarm
                and replace(
                    last.swarm,
                    round=None,
                    members=None,
                    awaited=(),
                    decided_seconds=None,
                    diverged=(),
                    served_round=None,
                ),
                line=replace(
                    NO_LINE,
                    sent_bytes=last.line.sent_bytes,
                    received_bytes=last.line.received_bytes,
                    relayed_bytes=last.line.relayed_bytes,
                ),
                reach=None,
            )

    def status(self) -> Status:
        """Return the node's status."""
        return merged_status(
            self._node,
            self._schedule.status(),
            self._telemetry,
            self._session_status(),
            self._energy(),
        )

    def _session_status(self) -> SessionStatus:
        """Return the session's part of the status, with the bytes of earlier sessions added.

        `relayed_bytes` already counts since the node's first start, so nothing is added to it.
        """
        if self._session is None:
            limits = self._limits
            line = replace(
                self._earlier_sessions.line, max_upload=limits.upload, max_download=limits.download
            )
            return replace(self._earlier_sessions, line=line)
        session, earlier = self._session.status(), self._earlier_sessions.line
        line = replace(
            session.line,
            sent_bytes=earlier.sent_bytes + session.line.sent_bytes,
            received_bytes=earlier.received_bytes + session.line.received_bytes,
        )
        return replace(session, swarm=session.swarm or self._earlier_sessions.swarm, line=line)

    def _leave(self) -> dict[str, Any]:
        self._leaving.set()
        if self._session is not None:
            self._session.leave()
        return {"ok": True}

    def _scored(self, request: dict[str, Any]) -> dict[str, Any]:
        scores = read_scores(request.get("scores"))
        if scores is None or scores.swarm != self._node.swarm:
            return {"error": "these are not scores of this swarm"}
        self._telemetry.scored(scores)
        return {"ok": True}

    def _pause(self) -> dict[str, Any]:
        self._schedule.pause()
        return {"ok": True} | asdict(self._schedule.status())

    def _resume(self) -> dict[str, Any]:
        self._schedule.resume()
        return {"ok": True} | asdict(self._schedule.status())

    def _set_hours(self, request: dict[str, Any]) -> dict[str, Any]:
        text = request.get("active")
        if text is not None and not isinstance(text, str):
            return {"error": "hours are a text such as 22:00-07:00, or null for always"}
        try:
            self._schedule.set_hours(parse_hours(text) if text else None)
        except UserError as error:
            return {"error": f"{error.problem}: {error.remedy}"}
        return {"ok": True} | asdict(self._schedule.status())

    def _set_limits(self, request: dict[str, Any]) -> dict[str, Any]:
        """Set limits: a direction that the request does not name keeps its limit; null removes it."""
        limits = replace(self._limits)
        try:
            for name in ("upload", "download"):
                text = request.get(name, ...)
                if text is ...:
                    continue
                if text is not None and not isinstance(text, str):
                    return {"error": "a limit is a text such as 10Mbit, or null for none"}
                setattr(limits, name, parse_rate(text) if text else None)
        except UserError as error:
            return {"error": f"{error.problem}: {error.remedy}"}
        self._limits.upload, self._limits.download = limits.upload, limits.download
        if self._session is not None:
            self._session.apply_limits(limits)
        return {"ok": True} | asdict(limits)

    async def _watch_schedule(self) -> None:
        while True:
            await self._schedule.wait(at_work=False)
            causes = "; ".join(
                each.text for each in self._schedule.status().holds if not each.waived
            )
            _log.info("pausing%s", f": {causes}" if causes else "")
            if self._session is not None:
                self._session.leave()
            await self._schedule.wait(at_work=True)
            _log.info("back at work")

    async def _watch_signals(self) -> None:
        # A closed terminal sends SIGHUP; the node leaves politely then, so that nobody waits for it.
        with trio.open_signal_receiver(*ENDING_SIGNALS) as signals:
            async for _ in signals:
                if self._leaving.is_set():
                    # The trainer ends because its pipe is closed. Nothing is lost: all state is on disk.
                    _log.warning("leaving at once")
                    os._exit(ExitCode.INTERRUPTED)
                _log.info("leaving the swarm; a second signal ends the node at once")
                self._leave()
