"""The energy options: one clear line for each that cannot be used."""

from __future__ import annotations

import math
from typing import Any

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.settings.components import EnergySettings
from distro_node.node.settings.setting import all_settings, build


def energy(**options: Any) -> EnergySettings:
    """Return the settings for these options of `join`."""
    usual = {each.parameter: each.default for each in all_settings(EnergySettings)}
    return build(EnergySettings, usual | options)


def test_without_options_nothing_is_asked() -> None:
    assert energy() == EnergySettings()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pause_when": " "}, "empty or too long"),
        ({"pause_when": "a\0b"}, "empty or too long"),
        ({"pause_when": "x" * 5000}, "empty or too long"),
        ({"pause_when": "https://prices.example/now"}, "not a command"),
        ({"pause_when": "x", "pause_every": math.nan}, "is not a finite number"),
    ],
)
def test_what_does_not_is_reported_in_a_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        energy(**options)
    assert caught.value.code is ExitCode.USAGE
    assert caught.value.remedy
