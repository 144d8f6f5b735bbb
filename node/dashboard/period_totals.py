"""Tokens that each member contributed in the last day and week, as far as this node knows the times.

The ledger has no times; the history file has one for each round that this node applied. So the tokens
of a round are counted in the hour of its line in the history. For rounds that are in the file already,
the first round of each hour is found by bisection, since the file may have gigabytes. Rounds that this
node did not see count in the hour of the last round before them that it saw.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DAY_HOURS = 24
WEEK_HOURS = 7 * DAY_HOURS
_HOUR_SECONDS = 3600
# Rounds whose line in the history is awaited: it follows the ledger's entry at once.
_AWAITED_ROUNDS = 64
# The beginning of a round's line, as telemetry writes it. Lines of other kinds have the time at which
# something was measured, for scores hours after the round.
_ROUND_LINE = re.compile(
    rb'\{"round": (\d{1,18}), "time": (\d{1,12}(?:\.\d*)?)(?:\}|, (?!"(?:heldout|sample|scores)"))'
)
_LINE_START_BYTES = 96
# Bytes that are read in search of the next line with a time. Lines have up to 60 kB.
_MAX_SEARCH_BYTES = 1 << 18


class PeriodTotals:
    """The totals by member. A member is given by its number in `RunHistory.members`."""

    def __init__(self, history: Path, clock: Callable[[], float] = time.time) -> None:
        """Read the hours of the rounds in `history`. `clock` returns the seconds since 1970."""
        self._clock = clock
        self._hour = int(clock() // _HOUR_SECONDS)
        self._buckets: dict[int, Counter[int]] = {}
        self._day: Counter[int] = Counter()
        self._week: Counter[int] = Counter()
        self._awaited: dict[int, dict[int, int]] = {}
        self._history = history
        self._history_bytes = -1
        self._first_rounds: list[int] = []
        self._hours: list[int] = []
        self._last_round = -1
        self._read_hours()

    def add(self, round_: int, tokens: Mapping[int, int]) -> None:
        """Count the tokens of a round by member; `timed` follows if the round is a new one."""
        if round_ > self._last_round and len(self._awaited) >= _AWAITED_ROUNDS:
            self._end_waiting()
        if round_ > self._last_round:
            self._awaited[round_] = dict(tokens)
        else:
            self._count_past(round_, tokens)

    def timed(self, round_: int, seconds: float) -> None:
        """Note when this node applied a round, in seconds since 1970."""
        tokens = self._awaited.pop(round_, None)
        if tokens is not None:
            self._count(int(seconds // _HOUR_SECONDS), tokens)

    def of_day(self, number: int) -> int:
        """Return a member's tokens of the current hour and the 23 before."""
        self._advance()
        return self._day[number]

    def of_week(self, number: int) -> int:
        """Return a member's tokens of the current hour and the 167 before."""
        self._advance()
        return self._week[number]

    def _end_waiting(self) -> None:
        """Count the awaited rounds that are in the history by now, or else the first of them. So many
        are awaited if nobody looked at the page for some time, or while the node catches up."""
        self._read_hours()
        past = [round_ for round_ in self._awaited if round_ <= self._last_round]
        for round_ in past or [min(self._awaited)]:
            self._count_past(round_, self._awaited.pop(round_))

    def _read_hours(self) -> None:
        """Read the hours of the rounds in the history, if it has grown."""
        size = _size(self._history)
        if size == self._history_bytes:
            return
        self._advance()
        self._history_bytes = size
        self._first_rounds, self._hours, self._last_round = _hours_of_rounds(
            self._history, self._hour
        )

    def _count_past(self, round_: int, tokens: Mapping[int, int]) -> None:
        index = bisect_right(self._first_rounds, round_) - 1
        if index >= 0:
            self._count(self._hours[index], tokens)

    def _count(self, hour: int, tokens: Mapping[int, int]) -> None:
        self._advance()
        # A clock that was ahead once must not keep tokens in the totals for ever.
        hour = min(hour, self._hour)
        if hour <= self._hour - WEEK_HOURS:
            return
        self._buckets.setdefault(hour, Counter()).update(tokens)
        self._week.update(tokens)
        if hour > self._hour - DAY_HOURS:
            self._day.update(tokens)

    def _advance(self) -> None:
        """Drop the hours that are too old now from the totals."""
        hour = int(self._clock() // _HOUR_SECONDS)
        if hour <= self._hour:
            return
        for each in [known for known in self._buckets if known <= hour - DAY_HOURS]:
            if each > self._hour - DAY_HOURS:
                self._day -= self._buckets[each]
            if each <= hour - WEEK_HOURS:
                self._week -= self._buckets.pop(each)
        self._hour = hour


def _size(history: Path) -> int:
    try:
        return history.stat().st_size
    except OSError:
        return 0


def _hours_of_rounds(history: Path, now: int) -> tuple[list[int], list[int], int]:
    """Return the first round of each of the last hours, these hours, and the last round in a history."""
    found: list[tuple[int, int]] = []
    last, start = -1, 0
    try:
        with history.open("rb") as file:
            size = file.seek(0, 2)
            for hour in range(now - WEEK_HOURS + 1, now + 1):
                start, line = _first_line_since(file, start, size, hour * _HOUR_SECONDS)
                if line is None:
                    break
                found.append((line[0], int(line[1] // _HOUR_SECONDS)))
            if found:
                last = _last_round(file, size)
    except OSError:
        return [], [], -1
    if not found:
        return [], [], last
    # After a change to another chain rounds are repeated: then the later hour counts.
    rounds: list[int] = []
    hours: list[int] = []
    for round_, hour in reversed(found):
        if not rounds or round_ < rounds[-1]:
            rounds.append(round_)
            hours.append(hour)
    return rounds[::-1], hours[::-1], last


def _first_line_since(
    file: Any, low: int, high: int, seconds: float
) -> tuple[int, tuple[int, float] | None]:
    """Return the place of the first timed line between two places whose time is at least `seconds`, and
    the line's round and time."""
    end = high
    while low < high:
        middle = (low + high) // 2
        line = _timed_line(file, middle, end)
        if line is not None and line[1] < seconds:
            low = middle + 1
        else:
            high = middle
    return low, _timed_line(file, low, end)


def _timed_line(file: Any, start: int, end: int) -> tuple[int, float] | None:
    """Return round and time of the first timed line that begins at or after `start`."""
    file.seek(max(0, start - 1))
    # From the byte before, so that a line that begins at `start` is whole.
    if start:
        file.readline(_MAX_SEARCH_BYTES)
    searched = 0
    while searched < _MAX_SEARCH_BYTES and file.tell() < end:
        line = file.readline(_MAX_SEARCH_BYTES)
        searched += max(1, len(line))
        match = _ROUND_LINE.match(line[:_LINE_START_BYTES])
        if match is not None:
            return int(match[1]), float(match[2])
    return None


def _last_round(file: Any, size: int) -> int:
    """Return the round of the last timed line; -1 if none is found."""
    start = file.seek(max(0, size - _MAX_SEARCH_BYTES))
    tail = file.read(_MAX_SEARCH_BYTES)
    lines = tail.splitlines(keepends=True)[1 if start else 0 :]
    for line in reversed(lines):
        match = _ROUND_LINE.match(line[:_LINE_START_BYTES])
        if match is not None and line.endswith(b"\n"):
            return int(match[1])
    return -1
