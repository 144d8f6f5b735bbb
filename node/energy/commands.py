"""Commands of the owner or the system that are run for their output, bounded in time and in output.

A command that takes too long or prints too much is killed with every process of its group.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from ..util.operating_system import OWN_GROUP, kill_group

MAX_BYTES = 1 << 16
_END_SECONDS = 2.0


class CommandFailed(Exception):
    """Error of a command that did not start, took too long or printed too much; the text says which."""


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    text: str


async def ask_command(command: str | Sequence[str], seconds: float) -> CommandResult:
    """Run a command for at most `seconds` and return its result; a string is run by the shell.

    Raises `CommandFailed` if it cannot be started, takes longer, or prints more than `MAX_BYTES`.
    """
    try:
        process = await trio.lowlevel.open_process(
            command,
            shell=isinstance(command, str),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # In a process group of its own, so that the whole group can be killed.
            **OWN_GROUP,
        )
    except (OSError, ValueError) as error:
        raise CommandFailed(str(error)) from None
    output = bytearray()
    stdout = process.stdout
    assert stdout is not None
    try:
        with trio.move_on_after(seconds):
            async for piece in stdout:
                output += piece
                if len(output) > MAX_BYTES:
                    raise CommandFailed(f"it printed more than {MAX_BYTES} bytes")
            code = await process.wait()
            return CommandResult(code, output.decode("utf-8", "replace"))
        raise CommandFailed(f"it took longer than {seconds:g} s")
    except BaseException:
        await _end(process, stdout)
        raise


async def _end(process: trio.Process, stdout: trio.abc.ReceiveStream) -> None:
    with contextlib.suppress(OSError):
        kill_group(process.pid)
    with trio.move_on_after(_END_SECONDS) as scope:
        scope.shield = True
        await stdout.aclose()
        await process.wait()
