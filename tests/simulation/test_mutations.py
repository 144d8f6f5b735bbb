"""The simulator can fail: each deliberate fault in the protocol is found within its number of seeds."""

from __future__ import annotations

import pytest
from simulation.mutations import MUTATIONS, Mutation, find, run_mutated
from simulation.scenario import draw_scenario, run


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_is_found(mutation: Mutation) -> None:
    catch = find(mutation, mutation.shown_by)
    assert catch is not None, f"not found in {mutation.seeds} seeds"
    assert catch.failure.invariant == mutation.invariant


def test_nothing_is_left_of_a_mutation() -> None:
    # Failures meanwhile do not matter: those are tested above.
    scenario = draw_scenario(0, "crash", members=2, rounds=2)
    for mutation in MUTATIONS:
        places = [(owner, name) for owner, name, _ in mutation.patches()]
        before = [vars(owner)[name] for owner, name in places]
        run_mutated(scenario, mutation)
        for (owner, name), original in zip(places, before, strict=True):
            assert vars(owner)[name] is original, mutation.name
    assert run(scenario).failure is None
