"""A schedule of faults that follows from a seed alone.

A node has one fault at a time. After the first quarter of a schedule one half of the nodes, the
*steady* ones, keep their processes, so that their memory can be watched.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "forget", "wipe", "leave", "freeze", "trainer", "cut", "one_way", "visit"]

# The relative frequency of each.
_SHARES: dict[Kind, int] = {
    "kill": 5,
    "freeze": 4,
    "trainer": 2,
    "leave": 2,
    "forget": 2,
    "wipe": 2,
    "visit": 2,
    "cut": 3,
    "one_way": 1,
}
_LINKS: frozenset[Kind] = frozenset({"cut", "one_way"})
_ENDS_PROCESS: frozenset[Kind] = frozenset({"kill", "forget", "wipe", "leave", "trainer"})

# After a fault its nodes are left alone for this long: many times what a node needs to recover, and
# short enough that others are hit meanwhile.
_REST_SECONDS = 25.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of some nodes for some time.

    - `kill`: kill -9, then a restart with the disk unchanged;
    - `forget`: kill -9, then a restart with nothing but the key;
    - `wipe`: kill -9, then a restart with an empty disk;
    - `leave`: a polite end, then a restart;
    - `freeze`: SIGSTOP, then SIGCONT;
    - `trainer`: kill -9 for the trainer process alone;
    - `cut`: no traffic between these nodes and all others;
    - `one_way`: no traffic from these nodes to the others;
    - `visit`: a newcomer joins with the link, and leaves.
    """

    start: float
    """Seconds since the start of the schedule."""
    seconds: float
    """Its duration."""
    kind: Kind
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.start:5.0f} s  {self.kind} {', '.join(self.nodes)} for {self.seconds:.0f} s"


def draw_schedule(
    seed: int, nodes: Sequence[str], seconds: float, *, links: bool, lease: float
) -> list[Fault]:
    """Return the faults of a seed, in order; `links` states whether links can be cut.

    Freezes and cuts last up to three leases, so that some members are recorded as silent and some
    partitions make two chains. The last fault ends before `seconds` are over.
    """
    draw = random.Random(seed)
    kinds: list[Kind] = [kind for kind in _SHARES if links or kind not in _LINKS]
    steady = set(draw.sample(list(nodes), len(nodes) // 2))
    free_at = dict.fromkeys(nodes, 0.0)
    links_free_at, visits = 0.0, 0
    faults: list[Fault] = []
    now = 5.0
    while True:
        lasts = draw.uniform(0.3, 3.0) * lease
        if now + lasts + 1.0 > seconds:
            return faults
        kind = draw.choices(kinds, [_SHARES[kind] for kind in kinds])[0]
        free = [node for node in nodes if free_at[node] <= now]
        if kind in _ENDS_PROCESS and now + lasts > seconds / 4:
            free = [node for node in free if node not in steady]
        hit: list[str] = []
        if kind == "visit":
            visits += 1
            hit, lasts = [f"visitor-{visits}"], max(lasts, 4 * lease)
        elif kind in _LINKS and links_free_at <= now and free:
            hit = draw.sample(free, draw.randint(1, min(len(free), len(nodes) // 2)))
            links_free_at = now + lasts + _REST_SECONDS
        elif kind not in _LINKS and free:
            hit = [draw.choice(free)]
        if hit:
            faults.append(Fault(start=now, seconds=lasts, kind=kind, nodes=tuple(sorted(hit))))
            free_at |= {node: now + lasts + _REST_SECONDS for node in hit if node in free_at}
        now += draw.uniform(0.3, 1.5) * lease
