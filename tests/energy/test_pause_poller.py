"""The command of `--pause-when`: it decides, lies, stalls or is not there; how long an answer lasts."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import psutil
import pytest
import trio
from distro_node.node.energy.commands import CommandFailed, ask_command
from distro_node.node.energy.idle_grace import IdleGrace
from distro_node.node.energy.pause_poller import KEEP_SECONDS, NoReply, PausePoller
from trio.testing import MockClock


@pytest.mark.parametrize(("code", "paused"), [(0, True), (1, False)])
async def test_its_exit_code_decides(code: int, paused: bool) -> None:
    assert await PausePoller(f"echo; exit {code}").poll() is paused


@pytest.mark.parametrize(
    ("command", "seconds", "why"),
    [
        ("sleep 600", 0.5, "longer than"),
        # The shell ends, and its child keeps the pipe open.
        ("sleep 600 & exit 0", 0.5, "longer than"),
        ("trap '' TERM INT HUP; while :; do :; done", 0.5, "longer than"),
        ("cat /dev/zero", 30.0, "more than"),
        ("exit 2", 30.0, "ended with exit code 2"),
        ("no-such-command-here", 30.0, "ended with exit code 127"),
        ("kill -9 $$", 30.0, "ended with"),
    ],
)
async def test_a_command_without_an_answer(command: str, seconds: float, why: str) -> None:
    with pytest.raises(NoReply, match=why):
        await PausePoller(command, reply_timeout_seconds=seconds).ask()


async def test_what_a_command_started_ends_with_it(tmp_path: Path) -> None:
    said = tmp_path / "pid"
    with pytest.raises(CommandFailed):
        await ask_command(f"sleep 600 & echo $! > {said}; wait", 2.0)
    with trio.fail_after(60):
        await trio.to_thread.run_sync(psutil.wait_procs, still_there(int(said.read_text())))


def still_there(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        # Its parent may not have reaped it yet.
        return [process] if process.status() != psutil.STATUS_ZOMBIE else []
    return []


async def test_a_command_that_is_not_there() -> None:
    with pytest.raises(CommandFailed):
        await ask_command(["/no/such/program"], 5.0)


# Consequences


class Said(PausePoller):
    """Poller with scripted answers."""

    word: bool | None = None

    async def ask(self) -> bool:
        if self.word is None:
            raise NoReply("the line is \x1b[31mdead")
        return self.word


async def test_silence_keeps_the_last_answer_for_a_while_and_is_reported_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = Said("x")
    # Never an answer: the node works.
    assert not await node.poll()
    node.word = True
    assert await node.poll()
    node.word = None
    paused = []
    for _ in range(20):
        await trio.sleep(300)
        paused.append(await node.poll())
    assert paused == [True] * int(KEEP_SECONDS / 300) + [False] * (20 - int(KEEP_SECONDS / 300))
    node.word = False
    assert not await node.poll()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 5
    assert ["it answers again" in line for line in said] == [False, True, False, False, True]
    assert "no answer for too long" in said[3]


def test_courtesy_lasts_until_there_was_quiet() -> None:
    grace = IdleGrace(quiet_seconds=300)
    assert not grace.note_use(None, 0)
    assert not grace.note_use(400, 0)
    assert grace.note_use(0, 10)
    # Unknown activity is neither idle time nor a disturbance.
    assert grace.note_use(None, 309)
    assert not grace.note_use(None, 310)
    assert grace.note_use(299, 320)
    # An observation is not replaced by an older one.
    assert grace.note_use(5, 400)
    assert grace.note_use(250, 600)
    assert not grace.note_use(306, 701)
