"""Some hundreds of seeds of every family of faults, and that a seed is a run, byte for byte.

A seed that once showed a fault in the protocol stays here, in the family that it was found with.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from simulation.faults import Family
from simulation.keys import RealKeys
from simulation.scenario import Failure, draw_scenario, run, run_seed, shrink

FOUND: tuple[tuple[Family, int, int], ...] = (
    # A vote that everybody is silent certified what nobody held.
    ("liars", 5, 7),
    # A decision that a liar signed alone was believed by members that had heard everybody.
    ("liars", 234, 5),
    # A member that changed chains forgot what it had said on the one that it came back to.
    ("crash", 696, 3),
    # Most were killed together, came back, and doubted who had gone on alone.
    ("all", 208, 4),
    # Late updates were held for ever.
    ("network", 1060, 4),
    ("crash", 1080, 8),
    # Who was called silent doubted it for ever.
    ("all", 1108, 6),
    # Neither of two chains was given up.
    ("network", 268, 3),
    ("network", 667, 3),
    # Two copycats copied each other's copies for ever.
    ("all", 22479009, 16),
    # A liar proposed before anybody honest had decided what it built on.
    ("cut", 71, 7),
)


@pytest.mark.parametrize(("family", "seed", "members"), FOUND)
def test_what_was_found(family: Family, seed: int, members: int) -> None:
    assert_sound(family, seed, members)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 10))
@pytest.mark.parametrize("family", ["all", "liars", "network", "crash", "cut"])
def test_seeds(family: Family, first: int) -> None:
    for seed in range(first, first + 10):
        assert_sound(family, seed)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_goes_wrong_where_nothing_is_wrong(seed: int) -> None:
    assert_sound("none", seed)


@pytest.mark.parametrize("family", ["all", "liars", "network", "crash", "cut"])
def test_a_seed_is_a_run(family: Family) -> None:
    """Byte for byte: the digests are over everything that happened, with its time."""
    first = run_seed(3, family)
    assert run_seed(4, family).digest != first.digest
    assert run_seed(3, family) == first


def test_nothing_but_the_seed_decides_a_run() -> None:
    """Not what the process ran before, nor how its strings and sets are hashed."""
    families: tuple[Family, ...] = ("all", "liars", "network", "crash", "cut")
    seeds = 5, 6
    here = [run_seed(seed, family).digest for family in families for seed in seeds]
    program = (
        "from simulation.scenario import run_seed\n"
        f"for family in {tuple(reversed(families))}:\n"
        f"    for seed in {tuple(reversed(seeds))}: print(run_seed(seed, family).digest)"
    )
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        printed = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        assert printed[::-1] == here


@pytest.mark.parametrize("family", ["all", "liars", "network", "crash", "cut"])
def test_a_printed_command_repeats_the_run(family: Family) -> None:
    """It names the size and the rounds, which the seed had drawn before."""
    for seed in range(200):
        drawn = draw_scenario(seed, family)
        words = Failure(drawn, "", "").command.split()
        named = dict(zip(words[2::2], words[3::2], strict=True))
        assert named["--seeds"] == f"{seed}:{seed + 1}"
        again = draw_scenario(
            seed, family, members=int(named["--members"]), rounds=int(named["--rounds"])
        )
        assert again == drawn


def test_real_signatures_change_nothing_but_the_time() -> None:
    outcome = run_seed(2, "liars", members=4, rounds=4, keys=RealKeys())
    assert outcome.failure is None
    assert outcome.rounds >= 4


def test_a_failure_is_shrunk_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """With majorities of one too few, something fails whatever the faults are."""
    from simulation.mutations import MUTATIONS

    for owner, name, value in MUTATIONS[0].patches():
        monkeypatch.setattr(owner, name, value)
    scenario = draw_scenario(5, "crash", members=5)
    failure = run(scenario).failure
    assert failure is not None
    assert failure.invariant == "certificate"
    assert "--seeds 5:6 --faults crash --members 5" in failure.command
    smallest = shrink(failure)
    assert smallest.invariant == failure.invariant
    assert smallest.scenario.schedule.actions == ()
    assert any("decides" in line or "finalize" in line for line in smallest.trace)


def assert_sound(family: Family, seed: int, members: int | None = None) -> None:
    failure = run_seed(seed, family, members=members).failure
    if failure is not None:
        smallest = shrink(failure)
        lines = [smallest.text, smallest.command, *map(str, smallest.scenario.schedule.actions)]
        pytest.fail("\n".join([*lines, *smallest.trace]))
