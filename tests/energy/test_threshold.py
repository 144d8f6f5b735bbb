"""Thresholds, hysteresis and expiry; numbers in answers; how long an idle grace lasts."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from distro_node.node.energy.idle_grace import IdleGrace
from distro_node.node.energy.numbers import (
    MAX_BYTES,
    NotANumber,
    check_path,
    number_in_json,
    number_in_text,
)
from distro_node.node.energy.threshold import PauseDecision, Threshold
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.floats(-1e6, 1e6)
NOW = datetime(2026, 3, 2, 17, 40, tzinfo=UTC)


def test_a_number_that_wavers_moves_nobody() -> None:
    decision = PauseDecision(Threshold(pause=200, resume=150))
    said = [
        decision.take_value(value, 0)
        for value in (150, 200, 201, 199, 151, 150, 149, 160, 200, 201)
    ]
    assert said == [False, False, True, True, True, True, False, False, False, True]
    low = PauseDecision(Threshold(pause=500, resume=800, high=False))
    said = [low.take_value(value, 0) for value in (600, 500, 499, 600, 800, 801, 600)]
    assert said == [False, False, True, True, True, False, False]


@given(st.tuples(NUMBERS, NUMBERS).map(sorted), st.lists(NUMBERS), st.booleans())
def test_it_pauses_beyond_one_bound_and_goes_on_beyond_the_other(
    bounds: list[float], values: list[float], high: bool
) -> None:
    threshold = (
        Threshold(pause=bounds[1], resume=bounds[0])
        if high
        else Threshold(pause=bounds[0], resume=bounds[1], high=False)
    )
    decision, before = PauseDecision(threshold), False
    for value in values:
        after = decision.take_value(value, 0.0)
        if after != before:
            beyond = threshold.pause if after else threshold.resume
            assert value > beyond if after == high else value < beyond
        before = after


@pytest.mark.parametrize(
    ("pause", "resume", "high"),
    [(1, 2, True), (2, 1, False), (math.nan, 1, True), (1, math.nan, True), (math.inf, 1, True)],
)
def test_bounds_that_make_no_sense(pause: float, resume: float, high: bool) -> None:
    with pytest.raises(ValueError, match=r"number|resume"):
        Threshold(pause=pause, resume=resume, high=high)


def test_an_old_answer_holds_for_a_while() -> None:
    decision = PauseDecision(Threshold(pause=1, resume=1), keep_seconds=100)
    assert not decision.take_no_value(0)
    assert decision.take_value(2, 0)
    assert decision.take_no_value(100)
    assert decision.value == 2
    assert not decision.take_no_value(101)
    assert (decision.value, decision.sentence) == (None, "no value is known")
    assert decision.take_value(2, 200)


def test_what_it_says() -> None:
    decision = PauseDecision(Threshold(pause=0.3, resume=0.25))
    decision.take_value(0.1, 0)
    assert decision.sentence == "0.1; it pauses above 0.3"
    decision.take_value(0.41, 0)
    assert decision.sentence == "0.41 is above 0.3"
    decision.take_value(0.28, 0)
    assert decision.sentence == "0.28 is not yet below 0.25"


def read(value: object, path: str) -> float:
    return number_in_json(json.dumps(value).encode(), check_path(path), NOW)


# Real answers of these services, shortened, with invented values.
CARBON = {
    "data": [
        {
            "from": "2026-03-02T17:30Z",
            "to": "2026-03-02T18:00Z",
            "intensity": {"forecast": 266, "actual": 263, "index": "moderate"},
        }
    ]
}
HALF_HOURS = {
    "count": 3,
    "next": None,
    "results": [
        {
            "value_exc_vat": price / 1.05,
            "value_inc_vat": price,
            "valid_from": f"2026-03-02T{begin}:00Z",
            "valid_to": f"2026-03-02T{end}:00Z",
        }
        for price, begin, end in (
            (19.5, "18:00", "18:30"),
            (31.4, "17:30", "18:00"),
            (35.1, "17:00", "17:30"),
        )
    ],
}
MARKET = {
    "object": "list",
    "data": [
        {
            "start_timestamp": 1_772_470_800_000 + hour * 3_600_000,
            "end_timestamp": 1_772_474_400_000 + hour * 3_600_000,
            "marketprice": price,
            "unit": "Eur/MWh",
        }
        for hour, price in enumerate((98.1, -4.2))
    ],
}


@pytest.mark.parametrize(
    ("value", "path", "number"),
    [
        (CARBON, "data.0.intensity.actual", 263),
        (CARBON, "data.now.intensity.forecast", 266),
        (HALF_HOURS, "results.now.value_inc_vat", 31.4),
        (HALF_HOURS, "results.-1.value_inc_vat", 35.1),
        (MARKET, "data.now.marketprice", 98.1),
        ({"price": "0.2345"}, "price", 0.2345),
        ({"a": [{"from": 0, "to": None, "x": 1}, {"from": 10, "x": 2}]}, "a.now.x", 2),
        ([-1e-3], "0", -0.001),
    ],
)
def test_numbers_where_services_have_them(value: object, path: str, number: float) -> None:
    assert read(value, path) == number


def test_the_element_of_now_changes_with_the_clock() -> None:
    body = json.dumps(MARKET).encode()
    later = datetime.fromtimestamp(1_772_474_400, UTC)
    assert number_in_json(body, ("data", "now", "marketprice"), later) == -4.2
    with pytest.raises(NotANumber, match="current time"):
        number_in_json(body, ("data", "now", "marketprice"), NOW.replace(year=2030))


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"a": NaN}', "a"),
        (b'{"a": Infinity}', "a"),
        (b'{"a": 1e999}', "a"),
        (b'{"a": 1' + 400 * b"0" + b"}", "a"),
        (b'{"a": 1' + 9000 * b"0" + b"}", "a"),
        (b'{"a": "nan"}', "a"),
        (b'{"a": "1e999"}', "a"),
        (b'{"a": true}', "a"),
        (b'{"a": null}', "a"),
        (b'{"a": {}}', "a"),
        (b'{"a": "\\u001b[2J"}', "a"),
        (b'{"a": 1}', "b"),
        (b'{"a": 1}', "a.b"),
        (b'{"a": [1]}', "a.1"),
        (b'{"a": [1]}', "a.b"),
        (b'{"a": [1]}', "a.999999999"),
        (b'{"a": [{"from": "now", "to": 1e400, "x": 1}, 5]}', "a.now.x"),
        (b'{"a": [{"from": 1e300, "x": 1}, {"from": {}, "x": 1}, {"from": true}]}', "a.now.x"),
        (b"[" * 100_000, "0"),
        (b"[" * 100_000 + b"]" * 100_000, "0"),
        (b" " * MAX_BYTES + b"1", "0"),
        (b"\xff\xfe", "0"),
        (b"<html>", "0"),
        (b"", "0"),
    ],
)
def test_what_is_no_number_is_an_error_and_nothing_else(body: bytes, path: str) -> None:
    with pytest.raises(NotANumber):
        number_in_json(body, check_path(path), NOW)


@given(st.recursive(st.none() | st.floats() | st.text(), st.lists), st.text())
def test_nothing_else_is_ever_raised(value: Any, path: str) -> None:
    try:
        number = number_in_json(json.dumps(value).encode(), tuple(path.split(".")), NOW)
    except NotANumber:
        return
    assert math.isfinite(number)


@pytest.mark.parametrize("path", ["", ".", "a..b", ".a", "a.", ".".join("a" * 17), "x" * 300])
def test_paths_that_are_none(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        check_path(path)


def test_numbers_in_text() -> None:
    assert number_in_text("  0.31\nand more\n") == 0.31
    assert number_in_text("-5") == -5
    for text in ("", "nan", "inf", "0x10", "1_000", "1,5", "\x1b[31m5", "5 ct", "1" * 400, "٣"):
        with pytest.raises(NotANumber):
            number_in_text(text)


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
