"""The energy options: which fit together, and one clear line for each that does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.settings.components import EnergySettings, PauseSettings
from distro_node.node.settings.setting import all_settings, build

URL = "https://prices.example/now"


def energy(**options: Any) -> EnergySettings:
    """Return the settings for these options of `join`."""
    usual = {each.parameter: each.default for each in all_settings(EnergySettings)}
    return build(EnergySettings, usual | options)


def test_without_options_nothing_is_asked() -> None:
    assert energy() == EnergySettings()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (
            {
                "pause_when": URL,
                "pause_field": "data.0.x",
                "pause_above": 200.0,
                "resume_below": 150.0,
            },
            PauseSettings(source=URL, json_path="data.0.x", above=200.0, resume_below=150.0),
        ),
        ({"pause_when": URL, "pause_above": 0.3}, PauseSettings(source=URL, above=0.3)),
        (
            {"pause_when": "roof", "pause_below": 500.0, "resume_above": 800.0},
            PauseSettings(source="roof", below=500.0, resume_above=800.0),
        ),
        ({"pause_when": "pgrep game"}, PauseSettings(source="pgrep game")),
    ],
)
def test_what_goes_together(options: dict[str, Any], settings: PauseSettings) -> None:
    assert energy(**options).pause_when == settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pause_above": 1.0}, "without --pause-when"),
        ({"pause_field": "a"}, "without --pause-when"),
        ({"pause_when": " "}, "empty or too long"),
        ({"pause_when": "a\0b"}, "empty or too long"),
        ({"pause_when": "x" * 5000}, "empty or too long"),
        ({"pause_when": URL}, "no bound says"),
        ({"pause_when": "x", "pause_field": "a"}, "no bound says"),
        (
            {"pause_when": "x", "pause_above": 1.0, "resume_below": 2.0},
            "at which it pauses",
        ),
        (
            {"pause_when": "x", "pause_below": 2.0, "resume_above": 1.0},
            "at which it pauses",
        ),
        ({"pause_when": "x", "pause_above": math.nan}, "finite number"),
        ({"pause_when": "x", "pause_above": math.inf, "resume_below": 1.0}, "finite number"),
        ({"pause_when": "x", "pause_above": 1.0, "pause_field": "a..b"}, "path"),
        ({"pause_when": "x", "pause_above": 1.0, "pause_below": 0.5}, "fit together"),
        ({"pause_when": "x", "pause_above": 1.0, "resume_above": 0.5}, "fit together"),
        ({"pause_when": "x", "resume_below": 1.0}, "fit together"),
        ({"pause_when": "x", "pause_below": 1.0, "resume_below": 0.5}, "fit together"),
        ({"currency": "EUR"}, "needs --price"),
        ({"price": 0.3, "currency": "a coin"}, "is not a currency"),
        ({"price": 0.3, "currency": "\x1b[2J"}, "is not a currency"),
        ({"price": math.nan}, "is not a finite number"),
        ({"power_limit": math.nan}, "is not a finite number"),
        ({"pause_every": math.nan}, "is not a finite number"),
    ],
)
def test_what_does_not_is_reported_in_a_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        energy(**options)
    assert caught.value.code is ExitCode.USAGE
    assert caught.value.remedy
