"""Which of its own sequences a member trains next: all of them, in an order that nobody else knows.

The order is drawn from a secret of the node's, and where it stands is on the disk before a round is
computed: a node that comes back goes on behind what it has trained. A member that keeps to differential
privacy draws instead, each sequence with one probability and apart from all others: that is what the
account of its privacy is about.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from ...protocol.sampling.sampler import Order
from ...protocol.wire.structure import Length, Range
from .kept import OwnData, read_state, write_state


@dataclass(frozen=True, kw_only=True)
class Place:
    """How far a walk through some data has come."""

    name: Annotated[str, Length(1, 64)]
    """Of the data (`OwnData`)."""
    seed: Annotated[int, Range(0, 2**63 - 1)]
    position: Annotated[int, Range(0, 2**60)]
    """Sequences that were given out, epoch after epoch."""


class Walk:
    """The sequences of a member's own data, one after another."""

    def __init__(self, path: Path, own: OwnData, samples: int) -> None:
        """`path`: where it is kept how far it is. `samples`: how many there are, at least one."""
        self._path = path
        self._samples = samples
        place = read_state(Place, path)
        if place is None or place.name != own.name:
            place = Place(name=own.name, seed=secrets.randbits(63), position=0)
        self._place = place

    def next(self, count: int) -> tuple[int, ...]:
        """The next so many, or all there are if they are fewer: none comes twice in a round unless an
        epoch ends in it. Raises `OSError`."""
        count = min(count, self._samples)
        start = self._place.position
        self._place = replace(self._place, position=start + count)
        write_state(self._path, self._place)
        order = Order(seed=self._place.seed, samples=self._samples, lanes=1, span=1, mixed=1)
        rows = np.arange(start, start + count)
        return tuple(order.samples_at(np.zeros_like(rows), rows))


def drawn(samples: int, rate: float) -> tuple[int, ...]:
    """Each of so many sequences with the probability `rate`, by the operating system's chance."""
    if rate >= 1.0:
        return tuple(range(samples))
    if rate <= 0.0:
        return ()
    chance, found = secrets.SystemRandom(), []
    # From one that is drawn to the next: a geometric distribution.
    scale = math.log1p(-rate)
    position = -1
    while True:
        position += 1 + math.floor(math.log(1.0 - chance.random()) / scale)
        if position >= samples:
            return tuple(found)
        found.append(position)
