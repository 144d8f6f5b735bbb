"""Parsing a number from the answer of a web server or a command; `NotANumber` if there is none.

A path such as `data.0.intensity.actual` leads through JSON objects by name and through lists by index
(from 0; -1 is the last). The step `now` selects the element of a list that is valid now according to
the times in it, because a tariff is often a list of all of the day's prices.
"""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

MAX_BYTES = 1 << 18
"""Maximum size of an answer. Two days of quarter-hourly prices, with verbose fields around each, have 40
kB."""
MAX_STEPS = 16

_NUMBER = re.compile(r"[+-]?(\d{1,32}(\.\d{0,32})?|\.\d{1,32})([eE][+-]?\d{1,3})?", re.ASCII)
_INDEX = re.compile(r"-?\d{1,6}", re.ASCII)
# Names of the fields with the start and end of an element's validity, as used by common tariff services.
_SPANS = (
    ("from", "to"),
    ("start", "end"),
    ("valid_from", "valid_to"),
    ("start_timestamp", "end_timestamp"),
    ("time_start", "time_end"),
    ("startsAt", "endsAt"),
)
# Seconds since 1970 have ten digits until 2286, milliseconds thirteen.
_MILLISECONDS = 1e11
_MAX_ELEMENTS = 10_000


class NotANumber(Exception):
    """Error of an answer that is not a number; the text says why and may quote the answer."""


def check_path(path: str) -> tuple[str, ...]:
    """Return the steps of a path. Raises `ValueError` if one of them is empty, or the path is too
    long."""
    steps = tuple(path.split("."))
    if not all(steps) or len(steps) > MAX_STEPS or len(path) > 256:
        raise ValueError("a path is names and numbers separated by dots")
    return steps


def number_in_json(body: bytes, steps: tuple[str, ...], now: datetime) -> float:
    """Return the number at the path `steps` of a JSON text; `now` has a time zone. Raises `NotANumber`
    if there is none."""
    if len(body) > MAX_BYTES:
        raise NotANumber(f"it has more than {MAX_BYTES} bytes")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotANumber(f"it is not JSON: {error}") from None
    for taken, step in enumerate(steps):
        value = _step(value, step, ".".join(steps[:taken]) or "the whole", now)
    return as_number(value)


def number_in_text(text: str) -> float:
    """Return the number on the first line that is not blank. Raises `NotANumber` if there is none."""
    line = text.lstrip().partition("\n")[0].strip()
    return as_number(line)


def as_number(value: object) -> float:
    """Return a number, or the number that a text is. Raises `NotANumber` for anything else, infinity and
    NaN included."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        shown = f"{type(value).__name__}" if not isinstance(value, str) else repr(value[:64])
        raise NotANumber(f"{shown} is not a number")
    try:
        number = float(value)
    except OverflowError:
        raise NotANumber("the number is too large") from None
    if not math.isfinite(number):
        raise NotANumber(f"{number} is not a finite number")
    return number


def _step(value: Any, step: str, at: str, now: datetime) -> Any:
    if isinstance(value, dict):
        if step not in value:
            raise NotANumber(f"{at} has no {step!r}")
        return value[step]
    if not isinstance(value, list):
        raise NotANumber(f"{at} is neither a table nor a list, so it has no {step!r}")
    if step == "now":
        return _current(value, at, now)
    if not _INDEX.fullmatch(step):
        raise NotANumber(f"{at} is a list: name an element by its number, or `now`")
    try:
        return value[int(step)]
    except IndexError:
        raise NotANumber(f"{at} has only {len(value)} elements") from None


def _current(elements: list[Any], at: str, now: datetime) -> Any:
    """Return the element that is valid now; if several are, the one whose validity began last."""
    found: tuple[datetime, Any] | None = None
    for element in elements[:_MAX_ELEMENTS]:
        span = _span(element)
        if span is None:
            continue
        begin, end = span
        if begin <= now and (end is None or now < end) and (found is None or begin > found[0]):
            found = begin, element
    if found is None:
        raise NotANumber(f"{at} has no element for the current time")
    return found[1]


def _span(element: Any) -> tuple[datetime, datetime | None] | None:
    """Return the start and end of an element's validity; an end of None means until further notice. None
    if the element has no valid times."""
    if not isinstance(element, dict):
        return None
    for first, last in _SPANS:
        if first in element:
            begin = _time(element[first])
            if begin is None:
                return None
            end = element.get(last)
            until = None if end is None else _time(end)
            return None if end is not None and until is None else (begin, until)
    return None


def _time(value: object) -> datetime | None:
    """Parse a point in time: ISO 8601 (UTC without a zone), or seconds or ms since 1970."""
    try:
        if isinstance(value, str):
            read = datetime.fromisoformat(value)
            return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1000 if abs(value) >= _MILLISECONDS else value
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return None
    return None
