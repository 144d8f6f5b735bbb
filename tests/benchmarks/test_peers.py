"""The programme that every system runs through beside its peers, with systems that only pretend."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

# Only for this import: `network.py` and `chain.py` there would hide folders of tests.
with pytest.MonkeyPatch.context() as _path:
    _path.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
    peers: Any = importlib.import_module("peers")


class Pretended(peers.Contestant):
    """Members that take a step every 20 ms."""

    name = "pretended"

    def __init__(self, *, all_end: bool = False, pause: float = 0.0, differ: bool = False) -> None:
        super().__init__(Path())
        self._all_end, self._pause, self._differ = all_end, pause, differ
        self._started: dict[int, float] = {}
        self._killed: tuple[int, float] | None = None

    def start(self) -> None:
        self._started = dict.fromkeys(range(peers.MEMBERS), time.monotonic())

    def start_newcomer(self) -> None:
        self._started[peers.MEMBERS] = time.monotonic()

    def kill(self, member: int) -> None:
        self._killed = member, time.monotonic()

    def runs(self, member: int) -> bool:
        return self._killed is None or not (self._all_end or member == self._killed[0])

    def steps(self, member: int) -> list[dict[str, Any]]:
        now = time.monotonic()
        spent = now - self._started[member]
        if self._killed is not None and member < peers.MEMBERS:
            since = now - self._killed[1]
            spent -= min(since, self._pause)
        digests = [member if self._differ else 7]
        return [
            {"step": number, "loss": 2.0, "tokens": 100, "digest": (number, *digests)}
            for number in range(1, int(spent / 0.02))
        ]

    def roots(self) -> list[psutil.Process]:
        return []

    def stop(self) -> None:
        self._started = {}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_MINUTE", 2.0)
    monkeypatch.setattr(peers, "_POLL_SECONDS", 0.01)


def test_a_system_that_goes_on() -> None:
    found = peers.measure(Pretended(pause=1.0), 20)
    assert found.steps >= 20
    assert found.loss == 2.0
    assert not found.ended_after_kill
    assert found.longest_step_after_kill_seconds is not None
    assert found.longest_step_after_kill_seconds >= 1.0
    assert found.usual_step_seconds < found.longest_step_after_kill_seconds
    assert found.equal_replicas
    assert found.newcomer_seconds is not None


def test_a_system_that_ends_with_its_member() -> None:
    found = peers.measure(Pretended(all_end=True), 20)
    assert found.ended_after_kill
    assert found.longest_step_after_kill_seconds is None
    assert found.equal_replicas is None
    assert found.newcomer_seconds is None


def test_replicas_that_differ() -> None:
    assert peers.measure(Pretended(differ=True), 20).equal_replicas is False


def test_a_system_that_does_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_START_SECONDS", 0.0)
    monkeypatch.setattr(peers, "_WARMUP_STEPS", 0)
    system = Pretended()
    monkeypatch.setattr(system, "steps", lambda member: [])
    monkeypatch.setattr(system, "runs", lambda member: False)
    with pytest.raises(RuntimeError, match="pretended stopped"):
        peers.measure(system, 20)
