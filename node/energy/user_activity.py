"""User activity: the time since a person last used this computer, where it can be known.

On Linux, users that may list terminals see when each was last typed into (as in `w`), and logind reports
on graphical sessions if the desktop reports to logind. A desktop that never does (its session's idle
hint has never changed) counts as unknown, not as always in use. On macOS the system reports the idle
time of keyboard and mouse.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import trio

from ..util.operating_system import IS_MACOS
from .commands import CommandFailed, ask_command

_SECONDS = 5.0
# How long logind's answer is reused: asking logind starts two programs. Looking at terminals is cheap.
_DESKTOP_SECONDS = 10.0
_MAX_SESSIONS = 64
_MAX_TERMINALS = 1024
# Times further in the future than this are ignored: the clock was set back since.
_FUTURE_SECONDS = 60.0
_GRAPHICAL = ("x11", "wayland", "mir")
_TERMINAL = re.compile(r"tty\d{1,3}|\d{1,6}")
_SESSION = re.compile(r"[A-Za-z0-9]{1,32}")
_PROPERTIES = ("Class", "Type", "State", "IdleHint", "IdleSinceHint")


class UserActivity:
    """Queries of this system for user activity."""

    def __init__(self, devices: Path = Path("/dev"), loginctl: str = "loginctl") -> None:
        self._devices = devices
        self._loginctl = loginctl
        self._desktop: tuple[float, float | None] | None = None

    async def idle_seconds(self) -> float | None:
        """Return the seconds since the computer was last used; None if unknown."""
        if IS_MACOS:
            return await _idle_of_mac()
        now = time.time()
        known = [
            await trio.to_thread.run_sync(terminals_idle, self._devices, now),
            await self._desktops_idle(now),
        ]
        return min((idle for idle in known if idle is not None), default=None)

    async def _desktops_idle(self, now: float) -> float | None:
        """Return the idle time from logind's recent answer, plus the time since that answer."""
        if self._desktop is None or not 0 <= now - self._desktop[0] < _DESKTOP_SECONDS:
            self._desktop = now, await self._ask_logind(now)
        at, idle = self._desktop
        return None if idle is None else idle + now - at

    async def _ask_logind(self, now: float) -> float | None:
        listed = await _output_of(self._loginctl, "list-sessions", "--no-legend")
        sessions = [
            columns[0]
            for line in listed.splitlines()
            if (columns := line.split())
            if _is_id(columns[0])
        ]
        if not sessions:
            return None
        options = [f"--property={name}" for name in _PROPERTIES]
        shown = await _output_of(
            self._loginctl, "show-session", *sessions[:_MAX_SESSIONS], *options
        )
        return sessions_idle(shown, now)


def terminals_idle(devices: Path, now: float) -> float | None:
    """Return the seconds since any terminal was last typed into; None if no terminal can be seen."""
    idle = [max(0.0, now - when) for when in _last_typed(devices) if when <= now + _FUTURE_SECONDS]
    return min(idle, default=None)


def sessions_idle(shown: str, now: float) -> float | None:
    """Return the seconds since any graphical session was last used; None if no session reports it.

    `shown` is the output of `loginctl show-session` for several sessions, separated by empty lines.
    """
    idle = []
    for block in shown.split("\n\n"):
        properties = {
            name: value for name, _, value in (x.partition("=") for x in block.splitlines())
        }
        if (
            properties.get("Class") != "user"
            or properties.get("Type") not in _GRAPHICAL
            or properties.get("State") == "closing"
        ):
            continue
        text = properties.get("IdleSinceHint", "")
        since = int(text) / 1e6 if text.isascii() and text.isdigit() and len(text) < 18 else 0.0
        if since:
            idle.append(0.0 if properties.get("IdleHint") != "yes" else max(0.0, now - since))
    return min(idle, default=None)


def hid_idle(shown: str) -> float | None:
    """Return the idle time of keyboard and mouse from the output of `ioreg`, in seconds; None: it is not
    in there."""
    found = re.search(r'"HIDIdleTime" = (\d{1,20})\b', shown)
    return int(found[1]) / 1e9 if found else None


def _last_typed(devices: Path) -> Iterator[float]:
    """Yield the time at which each terminal was last read from: the program in it reads what a person
    types."""
    for folder in (devices, devices / "pts"):
        try:
            with os.scandir(folder) as entries:
                for number, entry in enumerate(entries):
                    if number >= _MAX_TERMINALS:
                        break
                    if not _TERMINAL.fullmatch(entry.name):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISCHR(status.st_mode):
                        yield status.st_atime
        except OSError:
            continue


def _is_id(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


async def _output_of(*command: str) -> str:
    try:
        answer = await ask_command(command, _SECONDS)
    except CommandFailed:
        return ""
    return answer.text if answer.code == 0 else ""


async def _idle_of_mac() -> float | None:
    return hid_idle(await _output_of("ioreg", "-c", "IOHIDSystem", "-d", "4"))
