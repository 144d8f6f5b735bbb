"""Poller of the `--pause-when` source, which decides whether the node pauses.

The source is a URL or a command. It may be slow, silent or faulty: each request is bounded in time and
in bytes, anything but a number (or a command's yes or no) counts as no answer, and the last value
expires (`threshold.KEEP_SECONDS`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit

import trio

from ..network.web import AddressScope, Web, WebError
from ..settings.components import PauseSettings
from .commands import CommandFailed, CommandResult, ask_command
from .numbers import MAX_BYTES, NotANumber, number_in_json, number_in_text
from .threshold import KEEP_SECONDS, PauseDecision, Threshold

_log = logging.getLogger(__name__)

REPLY_TIMEOUT_SECONDS = 20.0
# Exit codes of a command that decides by itself.
_PAUSE, _WORK = 0, 1
_HALF = Threshold(pause=0.5, resume=0.5)


class NoReply(Exception):
    """Error of a request without a usable answer; the text says why and may quote the source."""


class PausePoller:
    """Poller that keeps the last decision. Times are trio's."""

    def __init__(
        self,
        settings: PauseSettings,
        *,
        reply_timeout_seconds: float = REPLY_TIMEOUT_SECONDS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
        self._source = settings.source or ""
        self._seconds = reply_timeout_seconds
        self._now = now
        self._json_keys = settings.json_keys
        self._web = Web(AddressScope.AS_NAMED) if settings.is_url else None
        self._decision = PauseDecision(settings.threshold or _HALF)
        self._failing = False

    @property
    def value(self) -> float | None:
        """The last number, while it is valid; None if there is none."""
        return self._decision.value if self._settings.threshold is not None else None

    @property
    def sentence(self) -> str:
        """The decision, for people."""
        if self._settings.threshold is None:
            return "the command of --pause-when requests a pause"
        # A URL may hold a key, and a command a password: show only the host.
        host = urlsplit(self._source).hostname if self._settings.is_url else None
        return self._decision.sentence + (f" ({host})" if host else "")

    async def poll(self) -> bool:
        """Query the source once; return whether the node should pause."""
        try:
            value = await self.ask()
        except NoReply as problem:
            if not self._failing:
                _log.warning(
                    "--pause-when: %s; the last answer is used for %.0f min, then this node works",
                    problem,
                    KEEP_SECONDS / 60,
                )
                self._failing = True
            known = self._decision.value is not None
            paused = self._decision.take_no_value(trio.current_time())
            if known and self._decision.value is None:
                _log.warning("--pause-when: there was no answer for too long, so this node works")
            return paused
        if self._failing:
            _log.info("--pause-when: it answers again")
            self._failing = False
        return self._decision.take_value(value, trio.current_time())

    async def ask(self) -> float:
        """Return the source's number, or 1 if the command asks for a pause and 0 if not. Raises
        `NoReply` if there is no usable answer."""
        try:
            with trio.move_on_after(self._seconds):
                if self._web is not None:
                    body = await self._web.get(self._source, MAX_BYTES)
                    return self._number(body)
                return self._number_of_command(await ask_command(self._source, self._seconds))
        except (WebError, CommandFailed, NotANumber) as error:
            raise NoReply(str(error)[:512]) from None
        raise NoReply(f"it took longer than {self._seconds:g} s")

    def _number_of_command(self, answer: CommandResult) -> float:
        if self._settings.threshold is None:
            if answer.code not in (_PAUSE, _WORK):
                raise NotANumber(f"the command ended with exit code {answer.code}, not 0 or 1")
            return 1.0 if answer.code == _PAUSE else 0.0
        if answer.code != 0:
            raise NotANumber(f"the command ended with exit code {answer.code}")
        return self._number(answer.text.encode())

    def _number(self, body: bytes) -> float:
        if self._json_keys:
            return number_in_json(body, self._json_keys, self._now())
        return number_in_text(body[:MAX_BYTES].decode("utf-8", "replace"))
