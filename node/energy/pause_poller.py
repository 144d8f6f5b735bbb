"""Poller of the `--pause-when` command, whose exit code decides whether the node pauses.

The command may be slow, silent or faulty: each run is bounded in time and in output, any other exit code
than yes or no counts as no answer, and the last answer expires (`KEEP_SECONDS`).
"""

from __future__ import annotations

import logging

import trio

from .commands import CommandFailed, ask_command

_log = logging.getLogger(__name__)

REPLY_TIMEOUT_SECONDS = 20.0
KEEP_SECONDS = 3600.0
"""How long the last answer is valid while there is no other: two steps of a tariff, which are usually
half an hour each, and much longer than a router takes to restart. After that the node works, because its
owner has lent the computer."""
SENTENCE = "the command of --pause-when requests a pause"
# Exit codes of the command.
_PAUSE, _WORK = 0, 1


class NoReply(Exception):
    """Error of a command without a usable answer; the text says why."""


class PausePoller:
    """Poller that keeps the last decision. Times are trio's."""

    def __init__(
        self, command: str, *, reply_timeout_seconds: float = REPLY_TIMEOUT_SECONDS
    ) -> None:
        self._command = command
        self._seconds = reply_timeout_seconds
        self._paused = False
        self._answered_at: float | None = None
        self._failing = False

    async def poll(self) -> bool:
        """Run the command once; return whether the node should pause."""
        try:
            self._paused = await self.ask()
        except NoReply as problem:
            self._note_no_reply(problem)
            return self._paused
        self._answered_at = trio.current_time()
        if self._failing:
            _log.info("--pause-when: it answers again")
            self._failing = False
        return self._paused

    async def ask(self) -> bool:
        """Return whether the command asks for a pause. Raises `NoReply` if it gives no usable answer."""
        try:
            code = (await ask_command(self._command, self._seconds)).code
        except CommandFailed as error:
            raise NoReply(str(error)) from None
        if code not in (_PAUSE, _WORK):
            raise NoReply(f"the command ended with exit code {code}, not 0 (pause) or 1 (work)")
        return code == _PAUSE

    def _note_no_reply(self, problem: NoReply) -> None:
        if not self._failing:
            _log.warning(
                "--pause-when: %s; the last answer is used for %.0f min, then this node works",
                problem,
                KEEP_SECONDS / 60,
            )
            self._failing = True
        answered = self._answered_at
        if answered is not None and trio.current_time() - answered > KEEP_SECONDS:
            _log.warning("--pause-when: there was no answer for too long, so this node works")
            self._paused, self._answered_at = False, None
