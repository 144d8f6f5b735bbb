"""Fixtures: one swarm for the tests of a module, and its logs when one of them fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.support import Swarm


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    report = yield
    if report.when in ("setup", "call") and report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Swarm):
                value.print_logs()
    return report
