"""The energy options: which fit together, and one clear line for each that does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from distro_node.node.cli.energy import energy_settings
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.settings import EnergySettings, PauseWhen

NOTHING: dict[str, Any] = {
    "price": None,
    "currency": None,
    "power_limit": None,
    "pause_when": None,
    "pause_field": None,
    "above": (None, None),
    "below": (None, None),
    "every": 300.0,
    "polite": False,
}
URL = "https://prices.example/now"


def test_without_options_nothing_is_asked() -> None:
    assert energy_settings(**NOTHING) == EnergySettings()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (
            {"pause_when": URL, "pause_field": "data.0.x", "above": (200.0, 150.0)},
            PauseWhen(ask=URL, field="data.0.x", pause=200.0, resume=150.0),
        ),
        ({"pause_when": URL, "above": (0.3, None)}, PauseWhen(ask=URL, pause=0.3)),
        (
            {"pause_when": "roof", "below": (500.0, 800.0)},
            PauseWhen(ask="roof", pause=500.0, resume=800.0, high=False),
        ),
        ({"pause_when": "pgrep game"}, PauseWhen(ask="pgrep game")),
    ],
)
def test_what_goes_together(options: dict[str, Any], settings: PauseWhen) -> None:
    assert energy_settings(**NOTHING | options).pause_when == settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"above": (1.0, None)}, "need --pause-when"),
        ({"pause_field": "a"}, "need --pause-when"),
        ({"pause_when": " "}, "empty or too long"),
        ({"pause_when": "a\0b"}, "empty or too long"),
        ({"pause_when": "x" * 5000}, "empty or too long"),
        ({"pause_when": URL}, "no bound for it"),
        ({"pause_when": "x", "pause_field": "a"}, "no bound for it"),
        ({"pause_when": "x", "above": (1.0, 2.0)}, "resume at a value at which it pauses"),
        ({"pause_when": "x", "below": (2.0, 1.0)}, "resume at a value at which it pauses"),
        ({"pause_when": "x", "above": (math.nan, None)}, "finite number"),
        ({"pause_when": "x", "above": (math.inf, 1.0)}, "finite number"),
        ({"pause_when": "x", "above": (1.0, None), "pause_field": "a..b"}, "path"),
        ({"pause_when": "x", "above": (1.0, None), "below": (0.5, None)}, "go together"),
        ({"pause_when": "x", "above": (1.0, None), "below": (None, 0.5)}, "go together"),
        ({"pause_when": "x", "above": (None, 1.0)}, "go together"),
        ({"pause_when": "x", "below": (1.0, None), "above": (None, 0.5)}, "go together"),
        ({"currency": "EUR"}, "needs --price"),
        ({"price": 0.3, "currency": "a coin"}, "is not a currency"),
        ({"price": 0.3, "currency": "\x1b[2J"}, "is not a currency"),
        ({"price": math.nan}, "is not a number"),
        ({"power_limit": math.nan}, "is not a number"),
        ({"every": math.nan}, "is not a number"),
    ],
)
def test_what_does_not_is_said_in_a_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        energy_settings(**NOTHING | options)
    assert caught.value.code is ExitCode.USAGE
    assert caught.value.remedy
