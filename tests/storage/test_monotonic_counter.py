"""Numbers grow from start to start, whatever clock and disk do."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from distro_node.node.storage.monotonic_counter import MonotonicCounter
from distro_node.protocol.wire.messages import Heartbeat

NOW = 1_800_000_000.0
HOUR, MONTH = 3600.0, 30 * 86_400.0


@pytest.mark.parametrize("ahead", [HOUR, MONTH])
def test_a_clock_that_was_once_ahead_makes_no_smaller_numbers(tmp_path: Path, ahead: float) -> None:
    """Before: seconds of the wall clock, so that the node's records were refused until that time
    came."""
    path = tmp_path / "starts"
    said: list[int] = []
    for clock in (NOW + ahead, NOW + 60, NOW + 120):
        message_numbers = MonotonicCounter(path, clock=clock)
        # The numbers of its records, and the one from which a member counts its heartbeats.
        said += [message_numbers.start_number << 20, *(message_numbers.next() for _ in range(60))]
    assert said == sorted(set(said))


@pytest.mark.parametrize("clock", [-1.0, 0.0, 1e30, float("inf"), float("nan")])
def test_any_clock_gives_numbers_that_fit(tmp_path: Path, clock: float) -> None:
    for expected in (1, 2, 3):
        message_numbers = MonotonicCounter(tmp_path / "starts", clock=clock)
        assert message_numbers.start_number == expected
        Heartbeat(0, message_numbers.next())


def test_without_a_disk_the_clock_is_the_guess_and_others_know_better() -> None:
    message_numbers = MonotonicCounter(clock=NOW)
    first = message_numbers.next()
    known = MonotonicCounter(clock=NOW + MONTH).next()
    assert known > first
    assert not message_numbers.beyond(first - 1)
    assert message_numbers.beyond(known)
    assert message_numbers.next() > known
    assert not message_numbers.beyond(known)


def test_what_others_knew_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "starts"
    message_numbers = MonotonicCounter(path, clock=NOW)
    known = MonotonicCounter(clock=NOW + MONTH).next()
    message_numbers.beyond(known)
    message_numbers.keep()
    assert MonotonicCounter(path, clock=NOW).next() > known


def test_the_largest_number_of_all_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "starts"
    message_numbers = MonotonicCounter(path, clock=NOW)
    assert message_numbers.beyond(2**63 - 1)
    assert message_numbers.next() < 2**63
    message_numbers.keep()
    assert MonotonicCounter(path, clock=NOW).next() < 2**63


@pytest.mark.parametrize("content", [b"", b"x", b"-5", b"\xff\xfe", b"9" * 1000, b"1" * 20])
def test_a_damaged_number_is_reported_and_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "starts"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert MonotonicCounter(path, clock=NOW).start_number == int(NOW)
    assert str(path) in caplog.text
    assert MonotonicCounter(path, clock=NOW).start_number == int(NOW) + 1


def test_a_disk_that_cannot_be_written_is_reported_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert MonotonicCounter(tmp_path / "gone" / "starts", clock=NOW).start_number == int(NOW)
    assert "cannot be written" in caplog.text
