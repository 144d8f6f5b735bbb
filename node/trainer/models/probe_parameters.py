"""The parameters that the probe's losses are computed with (`probe`), the same bits on every machine."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ....protocol.wire.manifest import ParameterSpec
from ..tasks.seeded_random import draw_integers

# Length of the table of numbers. A prime, so that no row of a matrix repeats another one.
_TABLE = 1_000_003


@dataclass(frozen=True)
class ParameterFill:
    """The probe's parameters for the tensors of a table: a fixed table of numbers, repeated, and
    scaled so that every layer adds about as much as it receives."""

    table: Sequence[ParameterSpec]
    start: int = 0
    """Offset in the table of numbers at which the first element begins."""

    @torch.no_grad()
    def fill_part(self, flat: torch.Tensor, tensor: int, first: int) -> None:
        """Fill a flat part of tensor number `tensor` of the table; `first` is the number of the
        part's first element, counted through the whole table."""
        values, done = _values(flat.device), 0
        while done < flat.numel():
            place = (self.start + first + done) % _TABLE
            piece = values[place : place + flat.numel() - done]
            flat[done : done + len(piece)].copy_(piece)
            done += len(piece)
        spec = self.table[tensor]
        if len(spec.shape) > 1:
            # This makes the variance 1 / inputs. It is one multiplication per element, which every
            # device rounds alike.
            flat.mul_(math.sqrt(3 / spec.shape[-1]))
        elif spec.name.endswith("bias"):
            flat.mul_(0.5)
        else:
            flat.mul_(0.5).add_(1.0)

    def fill_all(self, parameters: Sequence[torch.Tensor]) -> None:
        """Fill all of the table's tensors, each of which is whole."""
        first = 0
        for index, parameter in enumerate(parameters):
            self.fill_part(parameter.detach().view(-1), index, first)
            first += parameter.numel()


@functools.cache
def _values(device: torch.device) -> torch.Tensor:
    """Return the table: uniform in [-1, 1), 24 bits each, float32."""
    numbers = torch.from_numpy(draw_integers("probe parameters 1", (0,), _TABLE)) >> 8
    return (numbers.to(torch.float32) / (1 << 23) - 1.0).to(device)
