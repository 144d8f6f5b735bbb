"""The schedule of faults: it follows from its seed and never contains an impossible fault."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from chaos.schedule import Fault, Kind, draw_schedule
from seeds import seeds

NODES = [f"node-{number}" for number in range(1, 9)]


def draw(seed: int, *, links: bool = True) -> list[Fault]:
    return draw_schedule(seed, NODES, 600.0, links=links, lease=6.0)


def test_a_seed_is_a_schedule() -> None:
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


@pytest.mark.parametrize("seed", seeds(20, 2))
def test_a_node_has_one_fault_at_a_time(seed: int) -> None:
    faults = draw(seed)
    assert len(faults) > 30
    for node in NODES:
        spans = [
            (fault.start, fault.start + fault.seconds) for fault in faults if node in fault.nodes
        ]
        for (_, end), (start, _) in pairwise(spans):
            assert start > end
    cuts = [fault for fault in faults if fault.kind in ("cut", "one_way")]
    for first, second in pairwise(cuts):
        assert second.start > first.start + first.seconds
    assert max(fault.start + fault.seconds for fault in faults if fault.kind != "visit") < 600


@pytest.mark.parametrize("seed", seeds(20, 2))
def test_half_of_the_nodes_keep_their_processes(seed: int) -> None:
    ended = {
        node
        for fault in draw(seed)
        if fault.kind in ("kill", "forget", "wipe", "leave", "trainer")
        and fault.start + fault.seconds > 150
        for node in fault.nodes
    }
    assert 0 < len(ended) <= len(NODES) / 2


def test_every_kind_of_fault_comes() -> None:
    kinds = {fault.kind for seed in range(20) for fault in draw(seed)}
    assert kinds == set(get_args(Kind))
    assert not {"cut", "one_way"} & {f.kind for s in range(20) for f in draw(s, links=False)}
