"""Hours of the day in which a node may work: the value of `join --active`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ExitCode, UserError

_MINUTES_A_DAY = 24 * 60
_WINDOW = re.compile(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)")


@dataclass(frozen=True)
class Hours:
    """Windows of the day in which a node may work."""

    windows: tuple[tuple[int, int], ...]
    """The start and the end (exclusive) of each, in minutes since midnight; a window may cross
    midnight."""
    text: str
    """The text that the owner wrote."""

    def contain(self, minute: int) -> bool:
        """Whether this minute of the day is in one of the windows."""
        return any(
            begin <= minute < end if begin < end else minute >= begin or minute < end
            for begin, end in self.windows
        )

    def next_change(self, minute: int) -> int | None:
        """Return the next minute of the day at which `contain` changes; None if the windows cover the
        whole day."""
        now = self.contain(minute)
        for later in range(minute + 1, minute + _MINUTES_A_DAY):
            if self.contain(later % _MINUTES_A_DAY) != now:
                return later % _MINUTES_A_DAY
        return None


def parse_hours(text: str) -> Hours:
    """Parse `22:00-07:00`, or several such windows separated by commas. Raises `UserError` with
    `ExitCode.USAGE` for anything else."""
    windows = []
    for part in text.split(","):
        found = _WINDOW.fullmatch(part.strip())
        times = [int(number) for number in found.groups()] if found else []
        if not times or times[0] > 23 or times[2] > 24 or max(times[1], times[3]) > 59:
            raise _bad(text)
        begin, end = 60 * times[0] + times[1], 60 * times[2] + times[3]
        if begin == end % _MINUTES_A_DAY or end > _MINUTES_A_DAY:
            raise _bad(text)
        windows.append((begin, end))
    return Hours(tuple(windows), ", ".join(part.strip() for part in text.split(",")))


def _bad(text: str) -> UserError:
    return UserError(
        ExitCode.USAGE,
        f"{text!r} is not a list of times of day",
        "give the times between which the node may work, such as 22:00-07:00 or "
        "12:00-13:30,20:00-24:00",
    )
