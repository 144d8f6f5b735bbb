"""The energy manager: meters in the status and the metrics, the power limit, and what pauses a node."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trio
from distro_node.node.control.work_hours import WorkSchedule
from distro_node.node.energy.arithmetic import MeterReading
from distro_node.node.energy.gpu import Gpu
from distro_node.node.energy.gpu_group import GpuGroup
from distro_node.node.energy.idle_grace import QUIET_SECONDS
from distro_node.node.energy.manager import METER_SECONDS, EnergyManager
from distro_node.node.energy.pause_poller import PausePoller
from distro_node.node.energy.user_activity import (
    UserActivity,
    hid_idle,
    sessions_idle,
    terminals_idle,
)
from distro_node.node.settings.components import EnergySettings, PauseSettings
from distro_node.node.telemetry.status import NO_ENERGY
from distro_node.node.telemetry.telemetry import Telemetry
from energy.test_meters import UUID, Driver
from scraping import UNBORN, sample, told_by
from trio.testing import MockClock

# Private here: `_in_thread`: a driver that hangs;
# `_totals`, `_decision`: tokens and values without a swarm and a server.

OURS = 10


class Watts:
    """Substitute for the processor's counters: a fixed power in W, None for unknown."""

    def __init__(self, watts: float | None) -> None:
        self.watts = watts

    def read(self) -> MeterReading | None:
        return None if self.watts is None else MeterReading(at=trio_time(), watts=self.watts)

    @property
    def why(self) -> str | None:
        return "only root may" if self.watts is None else None


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
        self.driver, self.user_activity, self.watts = Driver(), Idle(), Watts(50.0)
        self.driver.compute = [OURS]
        self.schedule = WorkSchedule(None)
        self.telemetry = Telemetry(b"p" * 32)  # type: ignore[arg-type]  # any 32 bytes
        self.telemetry.device = device
        self.telemetry.gpus = (UUID,) if device and device.startswith("cuda") else ()
        self.telemetry.enter("training")
        processor: Any = self.watts
        self.manager = EnergyManager(
            settings,
            self.schedule,
            self.telemetry,
            gpus=GpuGroup(lambda: Gpu(lambda: self.driver, clock=trio_time)),
            processor=processor,
            user_activity=self.user_activity,
        )

    def metric(self, name: str, **labels: str) -> float:
        status = replace(UNBORN, energy=self.manager.status())
        return sample(told_by(self.telemetry, status), name.removeprefix("distro_"), **labels)


@pytest.fixture(autouse=True)
def family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distro_node.node.energy.manager._own_processes", lambda: frozenset([OURS]))


async def test_watts_become_money(wound: MockClock, nursery: trio.Nursery) -> None:
    rig = Rig(EnergySettings(price=0.30, currency="EUR"))
    rig.driver.counts = False
    nursery.start_soon(rig.manager.run)
    await trio.sleep(3600 + METER_SECONDS + 1)
    rig.telemetry._totals.own_tokens = 9_000
    status = rig.manager.status()
    assert status.gpu is not None
    assert (status.gpu.watts, status.processor.watts, status.watts) == (200, 50, 250)
    assert status.kwh == pytest.approx(0.25, rel=0.01)
    assert status.cost == pytest.approx(0.075, rel=0.01)
    assert status.joules_per_token == pytest.approx(100, rel=0.01)
    assert (status.currency, status.power_limit, status.signal) == ("EUR", None, None)
    assert status.gpu.measured == pytest.approx(1.0, abs=0.01)
    assert rig.metric("distro_power_watts", part="gpu") == 200
    assert rig.metric("distro_energy_joules_total", part="processor") == pytest.approx(
        180e3, rel=0.01
    )
    # Energy during a pause is not the swarm's.
    rig.schedule.pause()
    await trio.sleep(METER_SECONDS + 1)
    before = rig.manager.status().kwh
    await trio.sleep(3600)
    assert rig.manager.status().kwh == before


async def test_nothing_known_is_shown_as_that(wound: MockClock, nursery: trio.Nursery) -> None:
    rig = Rig(EnergySettings(price=0.30), device="cpu")
    rig.watts.watts = None
    nursery.start_soon(rig.manager.run)
    await trio.sleep(60)
    status = rig.manager.status()
    processor = replace(NO_ENERGY.processor, measured=0.0, why="only root may")
    assert status == replace(NO_ENERGY, processor=processor, price=0.30)
    for name in ("distro_energy_cost", "distro_joules_per_token", "distro_pause_signal"):
        assert math.isnan(rig.metric(name))
    assert math.isnan(rig.metric("distro_power_watts", part="gpu"))


async def test_a_gpu_that_disappears_is_unknown_and_what_was_counted_stays(
    wound: MockClock, nursery: trio.Nursery
) -> None:
    rig = Rig(EnergySettings())
    rig.driver.counts, rig.watts.watts = False, None
    nursery.start_soon(rig.manager.run)
    await trio.sleep(101)
    rig.driver.gone = True
    await trio.sleep(100)
    status = rig.manager.status()
    assert status.gpu is not None
    assert (status.gpu.watts, status.watts) == (None, None)
    assert "lost" in (status.gpu.why or "")
    assert status.gpu.joules == pytest.approx(200 * 98, rel=0.05)
    assert status.gpu.measured == pytest.approx(0.5, abs=0.05)
    assert math.isnan(rig.metric("distro_power_watts", part="gpu"))


async def test_a_trainer_that_moves_to_the_processor_takes_nothing_back(
    wound: MockClock, nursery: trio.Nursery
) -> None:
    """Energy, cost and their counters never decrease; what the idle GPU draws is not added."""
    rig = Rig(EnergySettings(price=0.30))
    rig.driver.counts = False
    nursery.start_soon(rig.manager.run)
    await trio.sleep(101)
    before = rig.manager.status()
    joules = rig.metric("distro_energy_joules_total", part="gpu")
    assert joules > 0
    rig.telemetry.device, rig.telemetry.gpus = "cpu", ()
    await trio.sleep(10)
    moved = rig.manager.status()
    assert rig.metric("distro_energy_joules_total", part="gpu") == joules
    assert (moved.kwh or 0.0) > (before.kwh or 0.0)
    assert (moved.cost or 0.0) > (before.cost or 0.0)
    assert moved.gpu is not None
    assert (moved.gpu.watts, moved.watts) == (None, 50)
    assert "no GPU" in (moved.gpu.why or "")
    rig.telemetry.device, rig.telemetry.gpus = "cuda (a card)", (UUID,)
    # The first reading has nothing to be compared with.
    await trio.sleep(METER_SECONDS)
    assert rig.metric("distro_energy_joules_total", part="gpu") == joules


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


async def test_a_limit_holds_while_the_node_works(wound: MockClock) -> None:
    rig = Rig(EnergySettings(power_limit=220.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.manager.run)
        await trio.sleep(3 * METER_SECONDS)
        assert (rig.driver.limit, rig.manager.status().power_limit) == (220_000, 220)
        rig.schedule.pause()
        await trio.sleep(3 * METER_SECONDS)
        assert (rig.driver.limit, rig.manager.status().power_limit) == (300_000, None)
        rig.schedule.resume()
        await trio.sleep(3 * METER_SECONDS)
        assert rig.driver.limit == 220_000
        nursery.cancel_scope.cancel()
    assert rig.driver.limit == 300_000


async def test_a_limit_is_put_back_at_once_by_who_leaves(
    wound: MockClock, nursery: trio.Nursery
) -> None:
    rig = Rig(EnergySettings(power_limit=220.0))
    rig.manager.restore_limit()
    assert rig.driver.limit == 300_000
    nursery.start_soon(rig.manager.run)
    await trio.sleep(3 * METER_SECONDS)
    assert rig.driver.limit == 220_000
    rig.manager.restore_limit()
    assert rig.driver.limit == 300_000


async def test_a_limit_that_is_refused_is_reported_once(
    wound: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(EnergySettings(power_limit=220.0))
    rig.driver.root = False
    nursery.start_soon(rig.manager.run)
    await trio.sleep(10 * METER_SECONDS)
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warned == ["--power-limit 220: only root may set the limit; the GPU keeps its own limit"]
    assert (
        rig.telemetry.events[-1].text
        == "the GPU's power limit could not be set to 220 W: only root may set the limit"
    )
    assert rig.schedule.at_work


async def test_a_number_pauses_and_reports_why(
    wound: MockClock, nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True, True, False])

    async def poll(poller: Any) -> bool:
        poller._decision.take_value(
            40.0 if (paused := next(answers, False)) else 20.0, trio.current_time()
        )
        return paused

    monkeypatch.setattr(PausePoller, "poll", poll)
    rig = Rig(EnergySettings(pause_when=PauseSettings(source="x", above=30.0, resume_below=25.0)))
    nursery.start_soon(rig.manager.run)
    await trio.sleep(10)
    assert not rig.schedule.at_work
    (hold,) = rig.schedule.status().holds
    assert (hold.kind, hold.text, hold.waived) == ("signal", "40 is above 30", False)
    assert rig.manager.status().signal == 40
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


async def test_a_limit_follows_the_trainer_to_another_card(
    wound: MockClock, nursery: trio.Nursery
) -> None:
    rig = Rig(EnergySettings(power_limit=220.0))
    nursery.start_soon(rig.manager.run)
    await trio.sleep(3 * METER_SECONDS)
    assert rig.driver.limit == 220_000
    rig.telemetry.gpus = ()
    await trio.sleep(2 * METER_SECONDS)
    assert (rig.driver.limit, rig.manager.status().power_limit) == (300_000, None)
    rig.telemetry.gpus = (UUID,)
    await trio.sleep(2 * METER_SECONDS)
    assert (rig.driver.limit, rig.manager.status().power_limit) == (220_000, 220)
