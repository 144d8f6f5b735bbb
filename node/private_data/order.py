"""Order in which a member trains on its own sequences: all of them, in a secret order.

The order follows from a secret seed of the node. The position in it is written to disk before a round is
computed, so that a restarted node continues with the sequences it has not trained on. A member with
differential privacy draws each sequence independently with the same probability instead, because its
privacy accounting assumes that.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from ...protocol.sampling.sampler import StreamOrder
from ...protocol.wire.structure import Length, Range
from .store import PrivateIndex, read_state, write_state


@dataclass(frozen=True, kw_only=True)
class OrderPosition:
    """A member's order of its data, and its position in this order."""

    name: Annotated[str, Length(1, 64)]
    """Name of the data (`PrivateIndex`)."""
    seed: Annotated[int, Range(0, 2**63 - 1)]
    """The secret seed of the order."""
    position: Annotated[int, Range(0, 2**60)]
    """Number of sequences returned, over all epochs."""


class SampleOrder:
    """The samples of a member's own data in its secret order, epoch after epoch without end."""

    def __init__(self, path: Path, index: PrivateIndex, samples: int) -> None:
        """`path`: the file of the `OrderPosition`. `samples`: the number of samples, at least one."""
        self._path = path
        self._samples = samples
        position = read_state(OrderPosition, path)
        if position is None or position.name != index.name:
            position = OrderPosition(name=index.name, seed=secrets.randbits(63), position=0)
        self._position = position

    def next(self, count: int) -> tuple[int, ...]:
        """Return the next `count` samples, or all samples if there are fewer. A sample occurs twice in
        the result only if an epoch ends in it. Raises `OSError` if the position cannot be written."""
        count = min(count, self._samples)
        start = self._position.position
        self._position = replace(self._position, position=start + count)
        write_state(self._path, self._position)
        order = StreamOrder(
            seed=self._position.seed, samples=self._samples, streams=1, span=1, mixed=1
        )
        rows = np.arange(start, start + count)
        return tuple(order.samples_at(np.zeros_like(rows), rows))


def draw_samples(samples: int, rate: float) -> tuple[int, ...]:
    """Draw each of `samples` sequences with the probability `rate`, using the operating system's
    randomness."""
    if rate >= 1.0:
        return tuple(range(samples))
    if rate <= 0.0:
        return ()
    chance, found = secrets.SystemRandom(), []
    # The gaps between drawn sequences have a geometric distribution.
    scale = math.log1p(-rate)
    position = -1
    while True:
        position += 1 + math.floor(math.log(1.0 - chance.random()) / scale)
        if position >= samples:
            return tuple(found)
        found.append(position)
