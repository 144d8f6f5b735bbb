"""The events of a run, to be compared byte for byte and read by people."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

# Of a long run only the end is kept, for a person to read; the digest covers everything.
_KEPT = 200_000


class Event(NamedTuple):
    """One line: when, at which node (-1: none), what, and details."""

    time: float
    node: int
    what: str
    details: tuple[object, ...]

    def __str__(self) -> str:
        who = f"node {self.node}" if self.node >= 0 else "world"
        return f"{self.time:9.3f}  {who:8} {self.what:10} {' '.join(map(_show, self.details))}"


class Trace:
    """The events of a run in their order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._hashed = 0
        self._muted = False

    def mute(self) -> None:
        """Keep nothing from now on: a thousand members fill the memory."""
        self._muted = True

    def note(self, time: float, node: int, what: str, *details: object) -> None:
        """Record an event."""
        if self._muted:
            return
        self.events.append(Event(time, node, what, details))
        if len(self.events) > _KEPT:
            self._absorb()
            del self.events[: _KEPT // 2]
            self._hashed = len(self.events)

    @property
    def digest(self) -> str:
        """Return a hash of all events so far."""
        self._absorb()
        return self._hash.hexdigest()

    def shortened(self, concerned: Iterable[object], last: int = 25) -> list[str]:
        """Return the events that name one of `concerned`, the faults of nodes, and the last few."""
        wanted = set(concerned)
        tail = len(self.events) - last
        return [
            str(event)
            for i, event in enumerate(self.events)
            if i >= tail
            or event.node < 0
            or (wanted.intersection(event.details) and event.what not in ("hears", "holds"))
        ]

    def _absorb(self) -> None:
        for event in self.events[self._hashed :]:
            self._hash.update(repr(tuple(event)).encode())
        self._hashed = len(self.events)


def _show(detail: object) -> str:
    if isinstance(detail, bytes):
        return detail.hex()[:8]
    return f"{detail:g}" if isinstance(detail, float) else str(detail)
