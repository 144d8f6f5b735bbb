"""The choice of the next dispute to audit, by a swarm's reputation: all choose alike, so even slow
members settle some."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.node.training.reaudit_order import next_reaudit
from distro_node.protocol.audit.disputes import LAG, OPEN, REAUDIT_ROUNDS, Jury
from distro_node.protocol.audit.reputation import Audit, Reaudit


@pytest.fixture
def benchmark(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("slow_looks")


@pytest.fixture
def swarm(benchmark: Any) -> Any:
    """Return six members with votes, the last of them byzantine."""
    return benchmark.CheckedSwarm(6)


def dispute(swarm: Any, *checkers: PeerId) -> list[Audit]:
    """Close a round in which these auditors score the byzantine member's work low, and those until
    others are called."""
    looks = [swarm.look(auditor, swarm.cheat, 500) for auditor in checkers]
    swarm.close(looks)
    for _ in range(LAG):
        swarm.close()
    return looks


def chosen(swarm: Any, waiting: Iterable[Audit], me: PeerId, takes: int = 0) -> Any:
    return next_reaudit(waiting, swarm.accounts, me, swarm.round, takes)


def test_all_choose_the_same_in_whatever_order_they_hear_of_it(swarm: Any) -> None:
    founder, *checkers, other, _ = swarm.peers
    looks = [first for _ in range(4) for first in dispute(swarm, *checkers)]
    first = chosen(swarm, looks, other)
    assert first is not None
    assert chosen(swarm, looks[::-1], other) == first
    assert chosen(swarm, looks, founder) == first


def test_scores_have_no_say_in_it(benchmark: Any) -> None:
    # Otherwise a liar would make its own audits come first.
    def preferred(*scores: int) -> PeerId:
        swarm = benchmark.CheckedSwarm(6)
        founder, *checkers = swarm.peers[:3]
        pairs = zip(checkers, scores, strict=True)
        looks = [swarm.look(auditor, swarm.cheat, score) for auditor, score in pairs]
        swarm.close(looks)
        for _ in range(LAG):
            swarm.close()
        auditor: PeerId = chosen(swarm, looks, founder).auditor
        return auditor

    assert len({preferred(500 + a, 500 + b) for a in range(4) for b in range(4)}) == 1


def test_what_somebody_has_looked_at_comes_first(swarm: Any) -> None:
    founder, *checkers, other, _ = swarm.peers
    looks = dispute(swarm, *checkers)
    best = chosen(swarm, looks, founder)
    advanced = next(look for look in looks if look != best)
    swarm.close(again=[Reaudit(other, advanced, low=True)])
    assert chosen(swarm, looks, founder) == advanced


def test_what_would_be_over_before_comes_last(swarm: Any) -> None:
    founder, ann, ben, carl, *_ = swarm.peers
    (old,) = dispute(swarm, ann)
    swarm.close(again=[Reaudit(carl, old, low=True)])
    for _ in range(REAUDIT_ROUNDS - LAG - 5):
        swarm.close()
    (new,) = dispute(swarm, ben)
    # The last record that may hold a re-audit comes this many rounds later.
    left = swarm.accounts.disputes[old].since + OPEN - 1 - swarm.round
    assert left > 0
    assert chosen(swarm, [new, old], founder, takes=left) == old
    assert chosen(swarm, [new, old], founder, takes=left + 1) == new
    # If there is nothing else, it may still be faster this time.
    assert chosen(swarm, [old], founder, takes=left + 1) == old


def test_what_cannot_be_settled_any_more_is_not_looked_at(swarm: Any) -> None:
    founder, ann, ben, carl, _, cheat = swarm.peers
    (first,) = dispute(swarm, ann)
    seats = dict.fromkeys((founder, ann, ben, carl, cheat), 1)
    swarm.accounts.disputes[first].jury = Jury(seats, drawn=True)
    swarm.close(again=[Reaudit(peer, first, low=True) for peer in (ann, carl)])
    assert chosen(swarm, [first], founder) == first
    # It takes four of five, and one is left.
    swarm.close(again=[Reaudit(ben, first, low=False)])
    assert first in swarm.accounts.disputes
    assert chosen(swarm, [first], founder) is None


def test_only_who_may_look_again_does(swarm: Any) -> None:
    founder, ann, ben, *_ = swarm.peers
    (first,) = dispute(swarm, ann)
    assert chosen(swarm, [first], ann) == first
    assert chosen(swarm, [first], swarm.cheat) is None
    swarm.close(again=[Reaudit(founder, first, low=True)])
    assert chosen(swarm, [first], founder) is None
    for _ in range(OPEN):
        swarm.close()
    assert chosen(swarm, [first], ben) is None


@pytest.mark.parametrize("takes", [1, 4, 7])
def test_slow_members_who_choose_alike_find_a_cheat(benchmark: Any, takes: int) -> None:
    assert benchmark.rounds_until_left_out(next_reaudit, takes, most=6 * REAUDIT_ROUNDS) is not None


def test_those_who_choose_what_is_the_newest_to_them_do_not(benchmark: Any) -> None:
    """Or far later: by chance several of them audit the same one now and then."""
    found = benchmark.rounds_until_left_out(benchmark.newest, 7)
    alike = benchmark.rounds_until_left_out(next_reaudit, 7, most=6 * REAUDIT_ROUNDS)
    assert found is None or found > alike


def test_what_the_benchmark_writes(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark, "SIZES", (6,))
    monkeypatch.setattr(benchmark, "TAKES", (2, 14))
    written = tmp_path / "looks.json"
    benchmark.main(["--swarms", "2", "--rounds", "60", "--json", str(written)])
    found = json.loads(written.read_text(encoding="utf-8"))
    quick, slow = found["cases"]
    assert (quick["members"], quick["takes"]) == (6, 2)
    assert 3 <= quick["the same"]["median"] <= quick["the newest"]["median"]
    assert slow["the newest"] == {"median": None, "never": 2}
