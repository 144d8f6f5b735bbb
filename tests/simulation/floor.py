"""The minimum time for three quorum steps on a network, as a reference for what `scale` measures.

A proposal is sent, each member votes when it receives it, finalizes when it has a quorum of votes, and
decides when it has a quorum of finalizes. Nothing else takes time here, and every member holds all data:
the rest is the network's time. A step waits for a quorum's slowest message, and not for the median one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from simulation.network import Links, Network
from simulation.oracle import least_quorum

# As in the good case: a ballot in its envelope, and a proposal, which names every update.
_BALLOT_BYTES = 300
_ENTRY_BYTES = 190
# Leaders to average over: one in a corner takes half as long again as one in the middle.
_LEADERS = 24


@dataclass(frozen=True)
class Floor:
    """Times in seconds, medians over members and leaders."""

    members: int
    one_way: float
    """Latency of a ballot to a member."""
    to_quorum: float
    """Time until a quorum has received a ballot."""
    decide: float
    """Time from the proposal to a decision."""


def find_floor(count: int, links: Links) -> Floor:
    """Compute the floor for `count` members of the fault model `byzantine`."""
    network = Network(links, random.Random("network 1"))
    for node in range(count):
        network.join(node)
    seconds, per_byte = np.zeros((count, count)), np.zeros((count, count))
    for sender in range(count):
        for route in network.routes(sender):
            seconds[sender, route.target] = route.seconds
            per_byte[sender, route.target] = route.per_byte
    chance = np.random.default_rng(1)

    def ways(size: int) -> np.ndarray:
        jitter = 1 + links.jitter * chance.random((count, count))
        return seconds * jitter + per_byte * size

    last = least_quorum("byzantine", count) - 1
    ballot = ways(_BALLOT_BYTES)
    decided = []
    for leader in chance.choice(count, min(count, _LEADERS), replace=False):
        heard = ways(_BALLOT_BYTES + _ENTRY_BYTES * count)[leader]
        certified = np.sort(heard[:, None] + ways(_BALLOT_BYTES), axis=0)[last]
        decided.append(np.sort(certified[:, None] + ways(_BALLOT_BYTES), axis=0)[last])
    return Floor(
        count,
        float(np.median(ballot[~np.eye(count, dtype=bool)])),
        float(np.median(np.sort(ballot, axis=1)[:, last])),
        float(np.median(decided)),
    )


def floor_table(counts: list[int], links: Links) -> list[Floor]:
    """Compute the floors for several sizes. Print and return them."""
    print(f"{'n':>5} {'one-way':>8} {'to a quorum':>12} {'to decide':>10}  in one-ways, in quorums")
    floors = [find_floor(count, links) for count in counts]
    for floor in floors:
        print(
            f"{floor.members:5} {1e3 * floor.one_way:8.1f} {1e3 * floor.to_quorum:12.1f} "
            f"{1e3 * floor.decide:10.1f}  {floor.decide / floor.one_way:11.2f} "
            f"{floor.decide / floor.to_quorum:11.2f}"
        )
    return floors
