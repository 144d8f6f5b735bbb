"""What the checks themselves take for a fault."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.wire.membership import Votes
from distro_node.protocol.wire.messages import NO_BLOCK, RecordId
from simulation.invariants import Watch
from simulation.scenario import draw_scenario, run

# Private here: `_swarm`, `_cast`, `_exclude_each_other`: what a check has seen is made up.

PARENT = RecordId(b"p" * 32)
PEERS = [PeerId(bytes([number]) * 32) for number in range(3)]
ONE_EACH = Votes(dict.fromkeys(PEERS, 1), equal=True)


def watch_of(skipped: int) -> Watch:
    """One that saw so many skip slot 2, and nothing else."""
    watch = object.__new__(Watch)
    swarm: Any = SimpleNamespace(manifest=SimpleNamespace(fault_model="crash"))
    watch._swarm = swarm
    watch._cast = {(PARENT, 2, "skip"): {NO_BLOCK: {peer: {0} for peer in PEERS[:skipped]}}}
    return watch


@pytest.mark.parametrize(
    ("slots", "skipped", "excluded"),
    [
        # A full quorum of three skipped what another full quorum decided.
        ((2, 4), 2, True),
        ((4, 2), 3, True),
        # One alone did, by calling the others silent.
        ((2, 4), 1, False),
        ((1, 4), 3, False),
        # Two records in one slot, whoever skipped.
        ((2, 2), 0, True),
    ],
)
def test_two_decisions_of_full_quorums(
    slots: tuple[int, int], skipped: int, excluded: bool
) -> None:
    assert watch_of(skipped)._exclude_each_other(PARENT, *slots, votes=ONE_EACH) is excluded


def test_a_decision_that_rests_on_silence_is_told_from_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As in `test_scenarios.FOUND`: every update counted once then.
    scenario = replace(draw_scenario(8978, "network", 3, 8), say="equal")
    assert run(scenario).failure is None
    monkeypatch.setattr(Watch, "_exclude_each_other", lambda *_, **__: True)
    failure = run(scenario).failure
    assert failure is not None
    assert failure.invariant == "one chain"
