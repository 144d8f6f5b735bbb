"""Privacy budget for a member's own data: on disk first, and never beyond its limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.private_data.dp_budget import (
    Budget,
    PrivacyAccount,
    SpentRounds,
    read_account,
    spent_error,
)


def account() -> PrivacyAccount:
    facts: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "clip": 1.0,
        "noise": 0.8,
        "sequences": 4,
        "samples": 100,
        "rounds": 10,
    }
    return PrivacyAccount(**facts)


async def simple(spent: Sequence[tuple[float, float, int]], delta: float) -> float:
    """Return an ε of a quarter for each round."""
    return sum(rounds for _, _, rounds in spent) / 4


async def test_a_round_is_on_the_disk_before_it_is_computed(tmp_path: Path) -> None:
    budget = Budget(tmp_path / "budget", account(), 0.0)
    assert await budget.charge(0.04, simple)
    kept = read_account(tmp_path / "budget")
    assert kept is not None
    assert kept == budget.account
    assert kept.spent == (SpentRounds(rate=0.04, noise=0.8, rounds=1),)
    assert budget.status().epsilon == 0.25


async def test_nothing_goes_beyond_the_limit_whoever_restarts(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    budget = Budget(path, account(), 0.0)
    for _ in range(2):
        assert await budget.charge(0.04, simple)
    kept = read_account(path)
    assert kept is not None
    again = Budget(path, kept, await simple(kept.table, kept.delta))
    assert await again.charge(0.04, simple)
    assert await again.charge(0.02, simple)
    assert again.epsilon == again.account.epsilon == 1.0
    assert not again.is_spent
    assert not await again.charge(0.04, simple)
    assert again.is_spent
    assert again.status().spent
    assert (again.epsilon, read_account(path)) == (1.0, again.account)
    assert {each.rate: each.rounds for each in again.account.spent} == {0.04: 3, 0.02: 1}
    error = spent_error(again)
    assert error.code == ExitCode.PRIVACY
    assert "1.000 of 1" in error.problem


async def test_where_nothing_can_be_written_nothing_is_computed(tmp_path: Path) -> None:
    budget = Budget(tmp_path / "gone" / "budget", account(), 0.0)
    with pytest.raises(OSError, match="gone"):
        await budget.charge(0.04, simple)
    assert budget.epsilon == 0.0


async def test_an_account_that_is_no_number_is_full(tmp_path: Path) -> None:
    async def lost(spent: Sequence[tuple[float, float, int]], delta: float) -> float:
        return float("nan")

    budget = Budget(tmp_path / "budget", account(), 0.0)
    assert not await budget.charge(0.04, lost)


def test_an_account_that_is_damaged_is_not_forgotten(tmp_path: Path) -> None:
    assert read_account(tmp_path / "budget") is None
    (tmp_path / "budget").write_bytes(b"half an account")
    with pytest.raises(UserError) as caught:
        read_account(tmp_path / "budget")
    assert caught.value.code == ExitCode.PRIVACY
