"""Trainers of the long hunts are as a user has them: their memory is measured over hours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from preloaded.copies import cold


@pytest.fixture(scope="module", autouse=True)
def _cold_trainers() -> Iterator[None]:
    with cold():
        yield
