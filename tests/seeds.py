"""Seeds of randomised tests: few in every run, many in `make soak`."""

from __future__ import annotations

import pytest


def seeds(count: int, usual: int = 1) -> list[object]:
    """Return `count` seeds for `parametrize`, of which all but the first `usual` run in `make soak`
    alone."""
    later = (pytest.param(seed, marks=pytest.mark.soak) for seed in range(usual, count))
    return [*range(usual), *later]
