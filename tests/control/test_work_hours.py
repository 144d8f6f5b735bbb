"""Hours and pauses, on a clock that is set by hand."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import trio
from distro_node.node.control.limits import BandwidthLimits
from distro_node.node.control.supervisor import Supervisor
from distro_node.node.control.work_hours import WorkSchedule
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.telemetry.status import NO_LINE, ScheduleStatus, SessionStatus
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.node.util.schedule import parse_hours
from hypothesis import given
from hypothesis import strategies as st
from statuses import SWARM, TRAINING, UNREACHABLE
from trio.testing import MockClock, wait_all_tasks_blocked

# Private here: `_leave`: what a command does, without a socket.

MIDNIGHT = datetime(2026, 3, 1)


def at(text: str) -> int:
    hours, minutes = text.split(":")
    return 60 * int(hours) + int(minutes)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22:00-07:00", ["22:00", "23:59", "0:00", "6:59"], ["7:00", "12:00", "21:59"]),
        ("9:30-17:00", ["9:30", "16:59"], ["9:29", "17:00", "0:00"]),
        ("20:00-24:00", ["20:00", "23:59"], ["19:59", "0:00"]),
        ("12:00-13:00, 20:00-02:00", ["12:30", "20:00", "1:59"], ["13:00", "2:00", "11:59"]),
    ],
)
def test_windows_hold_what_they_state(text: str, inside: list[str], outside: list[str]) -> None:
    hours = parse_hours(text)
    assert all(hours.contain(at(time)) for time in inside)
    assert not any(hours.contain(at(time)) for time in outside)
    assert hours.text == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "22-7", "22:00", "22:00-", "25:00-07:00", "22:60-07:00", "7:00-7:00"),
        *("20:00-24:01", "00:00-24:00", "20:00-22:00,x", "night"),
    ],
)
def test_what_are_no_hours_is_refused(text: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_hours(text)
    assert raised.value.code == ExitCode.USAGE


@given(st.lists(st.tuples(st.integers(0, 1439), st.integers(0, 1439)), min_size=1, max_size=4))
def test_the_next_change_is_one_and_none_comes_before(windows: list[tuple[int, int]]) -> None:
    windows = [(a, b) for a, b in windows if a != b] or [(0, 1)]
    hours = parse_hours(
        ",".join(f"{a // 60}:{a % 60:02}-{b // 60}:{b % 60:02}" for a, b in windows)
    )
    change = hours.next_change(720)
    now = hours.contain(720)
    if change is None:
        assert all(hours.contain(minute) == now for minute in range(1440))
    else:
        assert hours.contain(change) != now
        steps = (change - 720) % 1440
        assert all(hours.contain((720 + step) % 1440) == now for step in range(steps))


class Wound:
    """Wall clock that follows trio's."""

    def __init__(self, start: str) -> None:
        self._start = MIDNIGHT + timedelta(minutes=at(start))

    def __call__(self) -> datetime:
        return self._start + timedelta(seconds=trio.current_time())


async def test_a_node_works_at_its_hours(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    schedule = WorkSchedule(parse_hours("22:00-07:00"), Wound("21:00"))
    nursery.start_soon(schedule.run)
    assert not schedule.at_work
    assert schedule.status().until == "22:00"
    await schedule.wait(at_work=True)
    assert 3600 <= trio.current_time() <= 3602
    assert schedule.status().until == "07:00"
    await schedule.wait(at_work=False)
    assert 10 * 3600 <= trio.current_time() <= 10 * 3600 + 2


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day of checks every second would be slow for no benefit."""
    monkeypatch.setattr("distro_node.node.control.work_hours._CHECK_INTERVAL_SECONDS", 60.0)


@pytest.mark.usefixtures("seldom")
async def test_a_command_holds_until_the_hours_change(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    schedule = WorkSchedule(parse_hours("22:00-07:00"), Wound("23:00"))
    nursery.start_soon(schedule.run)
    schedule.pause()
    assert not schedule.at_work
    assert schedule.status().by_command
    # The end of the window changes nothing, its beginning does.
    await trio.sleep(10 * 3600)
    assert not schedule.at_work
    assert not schedule.status().by_command
    await trio.sleep(14 * 3600)
    assert schedule.at_work


async def test_a_command_ends_with_hours_that_passed_in_suspension(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """A laptop that is paused at night and opened again the next night has missed a whole day."""
    now = MIDNIGHT + timedelta(hours=23)
    schedule = WorkSchedule(parse_hours("22:00-07:00"), lambda: now)
    nursery.start_soon(schedule.run)
    schedule.pause()
    for asleep, works in ((timedelta(hours=7, minutes=59), False), (timedelta(hours=16), True)):
        await trio.sleep(5)
        now += asleep
        await trio.sleep(5)
        assert schedule.at_work == works
    # A clock that is set back has passed nothing.
    schedule.pause()
    now -= timedelta(days=2)
    await trio.sleep(5)
    assert not schedule.at_work


@pytest.mark.usefixtures("seldom")
async def test_without_hours_a_command_holds_until_the_next(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    schedule = WorkSchedule(None, Wound("12:00"))
    nursery.start_soon(schedule.run)
    assert schedule.at_work
    schedule.pause()
    await trio.sleep(25 * 3600)
    assert not schedule.at_work
    schedule.resume()
    assert schedule.at_work
    nothing = ScheduleStatus(at_work=True, by_command=False, active=None, until=None, holds=())
    assert schedule.status() == nothing


class FakeSession:
    """Session in a swarm that ends when it is told to."""

    def __init__(self) -> None:
        self.left = trio.Event()

    def status(self) -> SessionStatus:
        line = replace(TRAINING.line, sent_bytes=10, received_bytes=20)
        return SessionStatus(swarm=SWARM, line=line, reach=UNREACHABLE)

    def leave(self) -> None:
        self.left.set()

    def apply_limits(self, limits: BandwidthLimits) -> None:
        self.limits = limits


async def test_sessions_follow_the_schedule(tmp_path: Path, nursery: trio.Nursery) -> None:
    telemetry = Telemetry(b"p" * 32)  # type: ignore[arg-type]  # any 32 bytes
    schedule = WorkSchedule(None)
    supervisor = Supervisor(
        socket=tmp_path / "socket",
        schedule=schedule,
        telemetry=telemetry,
        node=TRAINING.node,
        screen=False,
    )
    sessions: list[FakeSession] = []

    async def live() -> None:
        while await supervisor.next_session():
            sessions.append(FakeSession())
            with supervisor.serving(sessions[-1]):
                await sessions[-1].left.wait()

    async with supervisor.open():
        nursery.start_soon(live)
        await wait_all_tasks_blocked()
        assert supervisor.status().line.sent_bytes == 10
        schedule.pause()
        await wait_all_tasks_blocked()
        assert sessions[0].left.is_set()
        resting = supervisor.status()
        assert resting.state == "paused"
        assert resting.swarm == replace(SWARM, round=None, members=None, decided_seconds=None)
        carried = TRAINING.line.relayed_bytes
        assert resting.line == replace(
            NO_LINE, sent_bytes=10, received_bytes=20, relayed_bytes=carried
        )
        assert resting.reach is None
        schedule.resume()
        await wait_all_tasks_blocked()
        assert len(sessions) == 2
        # The traffic of all sessions counts.
        assert supervisor.status().line.received_bytes == 40
        assert supervisor._leave() == {"ok": True}
        await wait_all_tasks_blocked()
        assert sessions[1].left.is_set()
        assert not await supervisor.next_session()


async def test_a_session_begins_once_everything_is_ready(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    schedule = WorkSchedule(None)
    supervisor = Supervisor(
        socket=tmp_path / "socket",
        schedule=schedule,
        telemetry=Telemetry(b"p" * 32),  # type: ignore[arg-type]  # any 32 bytes
        node=TRAINING.node,
        screen=False,
    )
    there, asked = trio.Event(), 0
    begun: list[bool] = []

    async def ready() -> None:
        nonlocal asked
        asked += 1
        await there.wait()

    async def begin() -> None:
        begun.append(await supervisor.next_session(ready))

    async with supervisor.open():
        nursery.start_soon(begin)
        await wait_all_tasks_blocked()
        assert (begun, asked) == ([], 1)
        # A pause ends the waiting, and it begins again after it.
        schedule.pause()
        await wait_all_tasks_blocked()
        schedule.resume()
        await wait_all_tasks_blocked()
        assert (begun, asked) == ([], 2)
        there.set()
        await wait_all_tasks_blocked()
        assert begun == [True]
        there = trio.Event()
        nursery.start_soon(begin)
        await wait_all_tasks_blocked()
        supervisor._leave()
        await wait_all_tasks_blocked()
        assert begun == [True, False]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("early", [True, False])
async def test_a_signal_is_a_goodbye_whenever_it_comes(
    tmp_path: Path, number: signal.Signals, early: bool
) -> None:
    """Before the node is in the swarm, too; otherwise the others would wait for a new member."""
    telemetry = Telemetry(b"p" * 32)  # type: ignore[arg-type]  # any 32 bytes
    supervisor = Supervisor(
        socket=tmp_path / "socket",
        schedule=WorkSchedule(None),
        telemetry=telemetry,
        node=TRAINING.node,
        screen=False,
    )
    session = FakeSession()
    async with supervisor.open():
        if early:
            os.kill(os.getpid(), number)
            await wait_all_tasks_blocked()
        with supervisor.serving(session):
            if not early:
                os.kill(os.getpid(), number)
            with trio.fail_after(60.0):
                await session.left.wait()
        assert not await supervisor.next_session()


async def test_other_hours_and_limits_hold_at_once_and_for_the_sessions_after(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    telemetry = Telemetry(b"p" * 32)  # type: ignore[arg-type]  # any 32 bytes
    schedule = WorkSchedule(None, lambda: MIDNIGHT)
    limits = BandwidthLimits(upload=1e6)
    supervisor = Supervisor(
        socket=tmp_path / "socket",
        schedule=schedule,
        limits=limits,
        telemetry=telemetry,
        node=TRAINING.node,
        screen=False,
    )
    act, session = supervisor.commands, FakeSession()
    with supervisor.serving(session):
        assert act["limits"]({"download": "8Mbit"}) == {"ok": True, "upload": 1e6, "download": 1e6}
        assert session.limits == limits == BandwidthLimits(1e6, 1e6)
        assert act["limits"]({"upload": None})["upload"] is None
        # All changes or none.
        for wrong in ({"download": None, "upload": "much"}, {"upload": "1bit"}, {"upload": 5}):
            assert "error" in act["limits"](wrong)
        assert session.limits == limits == BandwidthLimits(None, 1e6)
    assert supervisor.status().line.max_download == 1e6

    schedule.pause()
    said = act["hours"]({"active": "22:00-07:00"})
    assert (said["active"], said["until"], said["at_work"]) == ("22:00-07:00", "07:00", True)
    assert act["hours"]({"active": "12:00-13:00"})["at_work"] is False
    for wrong in ("noon", "25:00-26:00", 12):
        assert "error" in act["hours"]({"active": wrong})
    assert supervisor.status().schedule.active == "12:00-13:00"
    assert act["hours"]({"active": None})["active"] is None
    assert schedule.at_work


async def test_what_holds_a_node_back_comes_and_goes_by_itself() -> None:
    schedule = WorkSchedule(None)
    schedule.hold("command", "too dear")
    assert not schedule.at_work
    assert not schedule.status().by_command
    schedule.hold("person", "somebody is there")
    schedule.release("command")
    assert not schedule.at_work
    schedule.release("person")
    schedule.release("person")
    assert schedule.at_work


async def test_the_owner_waives_what_holds_now_and_no_more() -> None:
    schedule = WorkSchedule(None)
    schedule.hold("command", "too dear")
    schedule.resume()
    assert schedule.at_work
    assert schedule.status().by_command
    # The same cause with another text is waived until it is over; another cause is not.
    schedule.hold("command", "dearer still")
    assert schedule.at_work
    schedule.hold("program", "a game")
    assert not schedule.at_work
    schedule.release("program")
    schedule.release("command")
    schedule.hold("command", "too dear again")
    assert not schedule.at_work


async def test_a_pause_outlasts_what_holds_the_node_back() -> None:
    schedule = WorkSchedule(None)
    schedule.hold("command", "too dear")
    schedule.resume()
    schedule.pause()
    schedule.release("command")
    assert not schedule.at_work
    schedule.hold("command", "too dear")
    schedule.resume()
    assert schedule.at_work


async def test_hours_and_holds_both_have_to_agree() -> None:
    schedule = WorkSchedule(parse_hours("22:00-07:00"), lambda: MIDNIGHT + timedelta(hours=12))
    schedule.hold("command", "too dear")
    schedule.release("command")
    assert not schedule.at_work
