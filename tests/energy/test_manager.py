"""The energy manager: the energy in the status and the metrics, and what pauses a node."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
import trio
from distro_node.node.control.work_hours import WorkSchedule
from distro_node.node.energy.gpu import Gpu
from distro_node.node.energy.gpu_group import GpuGroup
from distro_node.node.energy.idle_grace import QUIET_SECONDS
from distro_node.node.energy.manager import METER_SECONDS, EnergyManager
from distro_node.node.energy.pause_poller import SENTENCE, PausePoller
from distro_node.node.energy.user_activity import (
    UserActivity,
    hid_idle,
    sessions_idle,
    terminals_idle,
)
from distro_node.node.settings.components import EnergySettings
from distro_node.node.telemetry.status import NO_ENERGY
from distro_node.node.telemetry.telemetry import Telemetry
from energy.test_meters import UUID, Driver
from scraping import UNBORN, sample, told_by
from trio.testing import MockClock

# Private here: `_in_thread`: a driver that hangs;
# `_totals`: tokens without a swarm.

OURS = 10


class Idle(UserActivity):
    """People whose last activity the test sets."""

    seconds: float | None = None

    async def idle_seconds(self) -> float | None:
        return self.seconds


_clock: MockClock | None = None


def trio_time() -> float:
    """Return trio's time, in any thread."""
    assert _clock is not None
    return _clock.current_time()


@pytest.fixture
def wound(autojump_clock: MockClock) -> Iterator[MockClock]:
    global _clock
    _clock = autojump_clock
    yield autojump_clock
    _clock = None


class Rig:
    """Energy manager with all its dependencies."""

    def __init__(self, settings: EnergySettings, *, device: str | None = "cuda (a card)") -> None:
        self.driver, self.user_activity = Driver(), Idle()
        self.driver.compute = [OURS]
        self.schedule = WorkSchedule(None)
        self.telemetry = Telemetry(b"p" * 32)  # type: ignore[arg-type]  # any 32 bytes
        self.telemetry.device = device
        self.telemetry.gpus = (UUID,) if device and device.startswith("cuda") else ()
        self.telemetry.enter("training")
        self.manager = EnergyManager(
            settings,
            self.schedule,
            self.telemetry,
            gpus=GpuGroup(lambda: Gpu(lambda: self.driver, clock=trio_time)),
            user_activity=self.user_activity,
        )

    def metric(self, name: str, **labels: str) -> float:
        status = replace(UNBORN, energy=self.manager.status())
        return sample(told_by(self.telemetry, status), name.removeprefix("distro_"), **labels)


@pytest.fixture(autouse=True)
def family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distro_node.node.energy.manager._own_processes", lambda: frozenset([OURS]))


async def test_watts_become_kwh(wound: MockClock, nursery: trio.Nursery) -> None:
    rig = Rig(EnergySettings())
    rig.driver.counts = False
    nursery.start_soon(rig.manager.run)
    await trio.sleep(3600 + METER_SECONDS + 1)
    rig.telemetry._totals.own_tokens = 7_200
    status = rig.manager.status()
    assert (status.watts, status.why) == (200, None)
    assert status.kwh == pytest.approx(0.2, rel=0.01)
    assert status.joules_per_token == pytest.approx(100, rel=0.01)
    assert status.measured == pytest.approx(1.0, abs=0.01)
    assert rig.metric("distro_power_watts") == 200
    assert rig.metric("distro_energy_joules_total") == pytest.approx(720e3, rel=0.01)
    # Energy during a pause is not the swarm's.
    rig.schedule.pause()
    await trio.sleep(METER_SECONDS + 1)
    before = rig.manager.status().kwh
    await trio.sleep(3600)
    assert rig.manager.status().kwh == before


async def test_what_a_gpu_draws_after_the_run_is_not_the_swarm_s(
    wound: MockClock, nursery: trio.Nursery
) -> None:
    """With `--serve-result` a node stays, and its owner's other programs have the GPU."""
    rig = Rig(EnergySettings())
    rig.driver.counts = False
    nursery.start_soon(rig.manager.run)
    await trio.sleep(101)
    rig.telemetry.enter("finished")
    await trio.sleep(METER_SECONDS + 1)
    before = rig.manager.status()
    await trio.sleep(3600)
    after = rig.manager.status()
    assert before.kwh is not None
    assert (after.kwh, after.measured) == (before.kwh, before.measured)
    assert after.watts == 200


async def test_nothing_known_is_shown_as_that(wound: MockClock, nursery: trio.Nursery) -> None:
    rig = Rig(EnergySettings(), device="cpu")
    nursery.start_soon(rig.manager.run)
    await trio.sleep(60)
    assert rig.manager.status() == replace(NO_ENERGY, why="the trainer computes on no GPU now")
    for name in ("distro_joules_per_token", "distro_power_watts"):
        assert math.isnan(rig.metric(name))


async def test_a_gpu_that_disappears_is_unknown_and_what_was_counted_stays(
    wound: MockClock, nursery: trio.Nursery
) -> None:
    rig = Rig(EnergySettings())
    rig.driver.counts = False
    nursery.start_soon(rig.manager.run)
    await trio.sleep(101)
    rig.driver.gone = True
    await trio.sleep(100)
    status = rig.manager.status()
    assert status.watts is None
    assert "lost" in (status.why or "")
    assert status.kwh == pytest.approx(200 * 98 / 3.6e6, rel=0.05)
    assert status.measured == pytest.approx(0.5, abs=0.05)
    assert math.isnan(rig.metric("distro_power_watts"))


async def test_a_trainer_that_moves_to_the_processor_takes_nothing_back(
    wound: MockClock, nursery: trio.Nursery
) -> None:
    """Energy and its counter never decrease; what the idle GPU draws is not added."""
    rig = Rig(EnergySettings())
    rig.driver.counts = False
    nursery.start_soon(rig.manager.run)
    await trio.sleep(101)
    joules = rig.metric("distro_energy_joules_total")
    assert joules > 0
    rig.telemetry.device, rig.telemetry.gpus = "cpu", ()
    await trio.sleep(10)
    moved = rig.manager.status()
    assert rig.metric("distro_energy_joules_total") == joules
    assert moved.watts is None
    assert "no GPU" in (moved.why or "")
    rig.telemetry.device, rig.telemetry.gpus = "cuda (a card)", (UUID,)
    # The first reading has nothing to be compared with.
    await trio.sleep(METER_SECONDS)
    assert rig.metric("distro_energy_joules_total") == joules


async def test_a_driver_that_hangs_costs_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, asked, over = Rig(EnergySettings()), [], Event()
    monkeypatch.setattr("distro_node.node.energy.manager._READ_SECONDS", 0.2)

    def hang() -> None:
        asked.append(1)
        over.wait()

    try:
        for _ in range(3):
            assert await rig.manager._in_thread(hang) is None
        assert len(asked) <= 1
    finally:
        over.set()
    with trio.fail_after(60):
        while await rig.manager._in_thread(lambda: 5) is None:
            pass


async def test_a_command_pauses_and_reports_why(
    wound: MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True, True, False])

    async def poll(poller: PausePoller) -> bool:
        return next(answers, False)

    monkeypatch.setattr(PausePoller, "poll", poll)
    rig = Rig(EnergySettings(pause_when="x"))
    nursery.start_soon(rig.manager.run)
    await trio.sleep(10)
    assert not rig.schedule.at_work
    (hold,) = rig.schedule.status().holds
    assert (hold.kind, hold.text, hold.waived) == ("command", SENTENCE, False)
    await trio.sleep(580)
    assert not rig.schedule.at_work
    await trio.sleep(25)
    assert rig.schedule.at_work
    assert rig.schedule.status().holds == ()


async def test_a_polite_node_makes_way_for_a_program(
    wound: MockClock, nursery: trio.Nursery
) -> None:
    rig = Rig(EnergySettings(polite=True))
    nursery.start_soon(rig.manager.run)
    await trio.sleep(60)
    assert rig.schedule.at_work
    rig.driver.compute, rig.driver.samples = [OURS, 30], [(OURS, 50), (30, 45)]
    before = trio.current_time()
    await rig.schedule.wait(at_work=False)
    assert trio.current_time() - before <= 3
    (hold,) = rig.schedule.status().holds
    assert (
        hold.text
        == "another program (game\x1b[31m) uses the GPU; this node resumes after 5 min without use"
    )
    # The trainer is gone; the game goes on for an hour.
    rig.telemetry.enter("paused")
    rig.driver.compute, rig.driver.percent = [30], 90
    await trio.sleep(3600)
    assert not rig.schedule.at_work
    rig.driver.compute, rig.driver.percent = [], 0
    before = trio.current_time()
    await rig.schedule.wait(at_work=True)
    assert QUIET_SECONDS - 3 <= trio.current_time() - before <= QUIET_SECONDS + 3


async def test_a_program_does_not_hold_back_a_node_that_leaves_the_gpu(
    wound: MockClock, nursery: trio.Nursery
) -> None:
    rig = Rig(EnergySettings(polite=True))
    nursery.start_soon(rig.manager.run)
    rig.driver.compute, rig.driver.samples = [OURS, 30], [(OURS, 50), (30, 45)]
    await rig.schedule.wait(at_work=False)
    # The owner resumes; the card is full, so the new trainer computes on the processor.
    rig.schedule.resume()
    rig.telemetry.device, rig.telemetry.gpus = "cpu", ()
    await trio.sleep(10)
    assert rig.schedule.status().holds == ()
    rig.schedule.pause()
    rig.schedule.set_hours(None)
    assert rig.schedule.at_work


async def test_a_polite_node_makes_way_for_a_person(
    wound: MockClock, nursery: trio.Nursery
) -> None:
    rig = Rig(EnergySettings(polite=True), device="cpu")
    rig.user_activity.seconds = 5000.0
    nursery.start_soon(rig.manager.run)
    await trio.sleep(60)
    assert rig.schedule.at_work
    rig.user_activity.seconds = 1.0
    before = trio.current_time()
    await rig.schedule.wait(at_work=False)
    assert trio.current_time() - before <= 3
    assert (
        rig.schedule.status().holds[0].text
        == "the computer is in use; this node resumes after 5 min without use"
    )
    # The owner is at the computer, and wants the node to work anyway.
    rig.schedule.resume()
    await trio.sleep(60)
    assert rig.schedule.at_work
    assert rig.schedule.status().holds[0].waived
    # Idle for long; at the next activity it pauses again.
    rig.user_activity.seconds = 5000.0
    await trio.sleep(QUIET_SECONDS + 10)
    rig.user_activity.seconds = 1.0
    await rig.schedule.wait(at_work=False)


async def test_what_cannot_be_seen_is_reported_once(
    wound: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(EnergySettings(polite=True))
    rig.driver.samples = None
    nursery.start_soon(rig.manager.run)
    await trio.sleep(600)
    assert rig.schedule.at_work
    warned = sorted(r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert warned == [
        "--polite cannot detect whether this computer is in use",
        "--polite cannot see other programs on the GPU: the driver does not report which programs "
        "use the GPU",
    ]


# People


def test_terminals_show_when_they_were_typed_into(tmp_path: Path) -> None:
    # A terminal is a device; a file with such a name is not.
    (tmp_path / "tty1").touch()
    (tmp_path / "pts").mkdir()
    (tmp_path / "pts" / "0").touch()
    assert terminals_idle(tmp_path, time.time()) is None
    assert terminals_idle(tmp_path / "nowhere", time.time()) is None


@pytest.mark.skipif(not os.path.exists("/dev/ptmx"), reason="no terminals here")
def test_a_real_terminal_is_seen(tmp_path: Path) -> None:
    master, slave = os.openpty()
    try:
        name = os.ttyname(slave)
        if not name.startswith("/dev/pts/"):
            pytest.skip("terminals are elsewhere here")
        os.utime(slave, (1_000_000.0, 1_000_000.0))
        now = 1_000_100.0
        # All others here were used later than that: they count as set by a clock that went back.
        assert terminals_idle(Path("/dev"), now) == pytest.approx(100.0, abs=1.0)
    finally:
        os.close(master)
        os.close(slave)


SESSIONS = """\
Class=user
Type=wayland
State=active
IdleHint={hint}
IdleSinceHint={since}

Class=greeter
Type=wayland
State=online
IdleHint=no
IdleSinceHint=5

Class=user
Type=tty
State=active
IdleHint=no
IdleSinceHint=5
"""


@pytest.mark.parametrize(
    ("hint", "since", "idle"),
    [
        ("no", "900000000", 0.0),
        ("yes", "900000000", 100.0),
        # A desktop that has never reported to logind.
        ("no", "0", None),
        ("no", "", None),
        ("yes", "9" * 40, None),
        ("yes", "-5", None),
        ("yes", "2000000000", 0.0),
    ],
)
def test_desktops_report_whether_they_are_idle(hint: str, since: str, idle: float | None) -> None:
    assert sessions_idle(SESSIONS.format(hint=hint, since=since), 1000.0) == idle


def test_other_output_means_nothing() -> None:
    for text in (
        "",
        "\x1b[2J",
        "Class=user",
        "Class=user\nType=x11\nState=closing\nIdleSinceHint=5",
    ):
        assert sessions_idle(text, 1000.0) is None


def test_a_mac_reports_it_in_nanoseconds() -> None:
    assert hid_idle('  |   "HIDIdleTime" = 2500000000\n') == 2.5
    assert hid_idle("") is hid_idle('"HIDIdleTime" = x') is None


async def test_logind_is_asked_through_its_program(tmp_path: Path) -> None:
    program = tmp_path / "loginctl"
    since = int((time.time() - 500) * 1e6)
    shown = SESSIONS.format(hint="yes", since=since)
    program.write_text(
        "#!/bin/sh\ncase $1 in\nlist-sessions) echo '  c2 1000 me seat0'; echo '$(reboot) x';;\n"
        f"show-session) [ $2 = c2 ] && cat <<'EOT'\n{shown}EOT\n;;\nesac\n"
    )
    program.chmod(0o755)
    idle = await UserActivity(tmp_path, str(program)).idle_seconds()
    assert idle == pytest.approx(500, abs=30)
    assert await UserActivity(tmp_path, str(tmp_path / "none")).idle_seconds() is None
