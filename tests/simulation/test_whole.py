"""Seeds of every family of faults, with whole node processes, most of them in `make soak`; the same seed
gives the same run; and deliberate faults are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from distro_node.node.session.update_exchange import UpdateExchange
from distro_node.node.storage.atomic_write import write_atomically
from distro_node.node.storage.entry_file import EntryFile
from distro_node.node.storage.monotonic_counter import MonotonicCounter
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.protocol.chain import fork_choice, fork_search
from distro_node.protocol.chain.initial_sync import InitialSync
from simulation.faults import Action, Family, Schedule
from simulation.freeloaders import IDLE, UNTRUE
from simulation.liars import BOTH_SIDES, FALSE_AGGREGATE, LEADING, LEAVES, STRANGER
from simulation.whole import loop, scenario
from simulation.whole.disk import Disks
from simulation.whole.liars import LIES
from simulation.whole.scenario import Scenario, draw_scenario, run, shrink

SEEDS: dict[Family, int] = {
    # A newcomer that reached one liar and one honest member first followed the liar's chain.
    "all": 729,
    "crash": 101,
    "network": 180,
    "liars": 118,
    # Members cut off in pairs followed a decision by a liar that withheld its update, and could never
    # apply it.
    "cut": 440,
    "down": 101,
    "committees": 102,
    "audits": 116,
}


def test_every_lie_is_in_some_seed() -> None:
    # Of the seeds that a soak runs; drawing one takes no time.
    drawn = [draw_scenario(seed, family) for family in SEEDS for seed in range(200)]
    told = {lie for one in drawn for _, lies in one.liars for lie in lies}
    of_work = {*IDLE, *UNTRUE} - {"copycat"}
    assert told == {*LIES, *LEADING, BOTH_SIDES, LEAVES, STRANGER, FALSE_AGGREGATE, *of_work}


@pytest.mark.slow
# It takes many seconds while other tests use the CPU.
@pytest.mark.timeout(1800)
# Most differ from "all" in nothing but the faults that are drawn, and `test_scenarios.py` runs them
# without the nodes around the members; real nodes audit and form committees in `tests/e2e`.
@pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=[pytest.mark.soak] * (each not in ("all", "cut"))) for each in SEEDS],
)
def test_a_seed_of_each_family(checkout: Path, family: Family) -> None:
    """In a process of its own with a fixed hash seed, because its output must be repeatable."""
    script = checkout / "benchmarks" / "simulate_whole.py"
    words = [sys.executable, str(script), "--faults", family]
    words += ["--seeds", f"{SEEDS[family]}:{SEEDS[family] + 1}"]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_seed_is_a_run() -> None:
    """In other processes with the same hash seed, everything happens at the same times, and the same
    records are decided."""
    program = (
        "from simulation.whole.scenario import run_seed\n"
        "outcome = run_seed(4, 'crash')\n"
        "print(outcome.digest, outcome.decided)"
    )
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "1"}
    one, other = (
        subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for _ in range(2)
    )
    assert one == other
    assert len(one) == 2


def test_a_machine_runs_one_process_at_a_time() -> None:
    """A process that is told to leave may be ended by its full disk before that; then it is started
    again once."""
    outcome = run(draw_scenario(609, "crash"))
    assert outcome.failure is None


def test_a_failure_is_shrunk_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryFile, "sync", lambda self: None)
    schedule = Schedule((Action(9.0, "trainer dies", 0, 0.0, 1.0),), cut_off=False)
    failure = run(Scenario(1, "crash", 2, 6, "crash", (), schedule)).failure
    assert failure is not None
    assert failure.invariant == "durable"
    assert "simulate_whole.py --seeds 1:2 --faults crash" in failure.command
    assert shrink(failure).scenario.schedule.actions == ()


NOTHING = Schedule((), cut_off=False)


async def _at_once(self: object) -> None:
    await trio.lowlevel.checkpoint()


async def _fails(self: object, announcement: object) -> None:
    raise LookupError("a bug")


@pytest.mark.parametrize(
    ("owner", "name", "value", "found"),
    [
        pytest.param(SwarmStore, "written", _at_once, "durable", id="told-before-written"),
        pytest.param(EntryFile, "sync", lambda self: None, "durable", id="written-without-sync"),
        pytest.param(UpdateExchange, "offer", _fails, "exception", id="a-task-fails"),
    ],
)
def test_what_is_broken_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, value: object, found: str
) -> None:
    monkeypatch.setattr(owner, name, value)
    failure = run(Scenario(1, "none", 2, 6, "crash", (), NOTHING)).failure
    assert failure is not None
    assert failure.invariant == found


def test_a_clock_that_was_ahead_and_is_right_again_locks_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node's numbers continue from where they were, also after a power cut: before, others refused its
    records until the time that its clock had shown."""
    begun: list[int] = []
    begins = MonotonicCounter.__init__

    def noted(self: MonotonicCounter, path: Path | None = None, *, clock: float = 0.0) -> None:
        begins(self, path, clock=clock)
        if path is not None:
            begun.append(self.start_number)

    monkeypatch.setattr(MonotonicCounter, "__init__", noted)
    ahead = 30 * 86_400.0
    actions = (
        Action(0.0, "clock", 1, 0.0, ahead),
        Action(13.0, "clock", 1, 0.0, 0.0),
        Action(13.0, "crash", 1, 2.0, 1.0),
    )
    schedule = Schedule(actions, cut_off=True)
    outcome = run(Scenario(1, "crash", 3, 6, "byzantine", (), schedule))
    assert outcome.failure is None
    usual, wrong, _, again = begun
    assert wrong > usual + ahead / 2
    assert again > wrong


def _prefers_the_other(*chains: object, **options: object) -> bool:
    return not _prefers(*chains, **options)  # type: ignore[arg-type]  # as it was called


_prefers = fork_choice.prefers


def test_who_catches_up_without_end_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    # The very line that is broken on purpose.
    monkeypatch.setattr(InitialSync, "_take", lambda *_: None)
    monkeypatch.setattr(scenario, "RECOVERY_SECONDS", 30.0)
    late = Schedule((Action(14.0, "newcomer", 2),), cut_off=False)
    failure = run(Scenario(1, "none", 2, 6, "crash", (), late)).failure
    assert failure is not None
    assert failure.invariant == "progress"
    assert "somebody is still joining" in failure.text


def test_who_compares_the_wrong_way_round_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fork_choice, fork_search):
        monkeypatch.setattr(module, "prefers", _prefers_the_other)
    cut = Schedule((Action(10.0, "partition", -1, 25.0, 0.0, (2, 3)),), cut_off=True)
    failure = run(Scenario(1, "network", 4, 6, "crash", (), cut)).failure
    assert failure is not None
    assert failure.invariant == "fork choice"


def test_a_power_cut_leaves_what_was_synced(tmp_path: Path) -> None:
    disks = Disks(tmp_path, seed=1)
    kept, survived = 0, 0
    with disks.mounted():
        for number in range(30):
            disk = disks.add(number)
            file = EntryFile(disk.root / "entries", 100)
            file.append(b"one")
            file.sync()
            file.append(b"two" * 10)
            (disk.root / "loose").write_bytes(b"nobody waited for this")
            write_atomically(disk.root / "whole", b"old")
            disk.die(dark=True)
            # What the dead process does later changes nothing.
            write_atomically(disk.root.parent / f"{number}-1" / "whole", b"new")
            found = list(EntryFile(disk.root / "entries", 100).read(repair=True))
            assert found[0] == b"one"
            assert (disk.root / "whole").read_bytes() == b"old"
            kept += found[1:] == [b"two" * 10]
            loose = disk.root / "loose"
            survived += loose.exists() and loose.read_bytes() == b"nobody waited for this"
            file.close()
    assert 0 < kept < 30
    assert 0 < survived < 30


def test_a_killed_process_leaves_all_that_it_wrote(tmp_path: Path) -> None:
    disks = Disks(tmp_path, seed=1)
    with disks.mounted():
        disk = disks.add(0)
        (disk.root / "folder").mkdir()
        (disk.root / "folder" / "loose").write_bytes(b"text")
        disk.die(dark=False)
        assert (disk.root / "folder" / "loose").read_bytes() == b"text"


def test_a_full_disk_takes_a_part_or_nothing(tmp_path: Path) -> None:
    disks = Disks(tmp_path, seed=1)
    with disks.mounted():
        disk = disks.add(0)
        file = EntryFile(disk.root / "entries", 100)
        file.append(b"one")
        file.sync()
        disk.full = True
        for _ in range(10):
            with pytest.raises(OSError, match="No space left"):
                file.append(b"two")
        disk.full = False
        file.append(b"three")
        file.close()
        assert list(EntryFile(disk.root / "entries", 100).read(repair=False)) == [b"one", b"three"]


def test_threads_take_the_time_of_their_disk() -> None:
    async def main() -> list[float]:
        times = []
        for seconds in (0.0, 2.0):
            loop.use(loop.Machine(work=lambda seconds=seconds: seconds))
            began = trio.current_time()
            times.append(await trio.to_thread.run_sync(trio.current_time) - began)
            times.append(trio.current_time() - began)
        return times

    assert loop.run(1, main) == [0.0, 0.0, 1.0, 2.0]
