"""DeMo implemented from its paper's equations, slowly and in float64: the oracle for our optimizer.

Peng, Quesnelle, Kingma: "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870, algorithm 1. It
shares no line with the program: chunks are cut by loops and cosines written out. Two points that the
paper leaves open are settled as in our protocol: a chunk's side is the largest divisor of its
dimension up to 64, and a chunk smaller than 64 × 64 sends at most an eighth of its coefficients, but
at least one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

MOST = 64

Chunk = tuple[int, slice, slice]
"""Tensor, rows, columns."""


@dataclass
class Member:
    """One accelerator: its decoupled momentum, and the fast components that it shares."""

    momentum: list[torch.Tensor]
    fast: list[torch.Tensor] = field(default_factory=list)
    """q of the last extraction, in the space of the parameters."""
    sent: dict[tuple[int, int, int], list[tuple[int, int, float]]] = field(default_factory=dict)
    """Tensor, first row and first column of a chunk → (row frequency, column frequency, value)."""


class DemoReference:
    """All accelerators and the parameters they share."""

    def __init__(
        self, parameters: Sequence[torch.Tensor], members: int, *, decay: float, top_k: int
    ) -> None:
        self.parameters = [_matrix(p).double().clone() for p in parameters]
        self.members = [
            Member([torch.zeros_like(p) for p in self.parameters]) for _ in range(members)
        ]
        self.closest_call = math.inf
        """The smallest distance seen between the weakest coefficient sent and the strongest kept."""
        self._decay = decay
        self._top_k = top_k

    def share(self, gradients: Sequence[Sequence[torch.Tensor]], *, signs: bool = False) -> None:
        """Compute every member's m ← β·m + g; q ← fast components of m; m ← m - q. One gradient per
        member.

        With `signs` members subtract the same q, but share only the sign of each coefficient.
        """
        for member, gradient in zip(self.members, gradients, strict=True):
            member.fast = [torch.zeros_like(p) for p in self.parameters]
            member.sent = {}
            for momentum, g in zip(member.momentum, gradient, strict=True):
                momentum.mul_(self._decay).add_(_matrix(g).double())
            for index, rows, columns in self._chunks():
                left = member.momentum[index][rows, columns]
                coefficients = transform(left)
                strongest = self._strongest(coefficients)
                q, shared = torch.zeros_like(left), torch.zeros_like(left)
                for f, g in strongest:
                    value = float(coefficients[f, g])
                    q += value * wave(f, g, left.shape)
                    shared += (math.copysign(1, value) if signs else value) * wave(f, g, left.shape)
                left -= q
                member.fast[index][rows, columns] = shared
                member.sent[index, rows.start, columns.start] = [
                    (f, g, float(coefficients[f, g])) for f, g in strongest
                ]

    def synchronized(self) -> list[torch.Tensor]:
        """Return Q: the mean of q over the members."""
        return [
            sum(member.fast[index] for member in self.members) / len(self.members)
            for index in range(len(self.parameters))
        ]  # type: ignore[return-value]  # `sum` of tensors is a tensor

    def step(self, rate: float) -> None:
        """θ ← θ - η·Q."""
        for parameter, q in zip(self.parameters, self.synchronized(), strict=True):
            parameter -= rate * q

    def _chunks(self) -> Iterator[Chunk]:
        for index, parameter in enumerate(self.parameters):
            rows, columns = (side(length) for length in parameter.shape)
            for row in range(0, parameter.shape[0], rows):
                for column in range(0, parameter.shape[1], columns):
                    yield index, slice(row, row + rows), slice(column, column + columns)

    def _strongest(self, coefficients: torch.Tensor) -> list[tuple[int, int]]:
        elements = coefficients.numel()
        count = min(self._top_k, elements if elements == MOST * MOST else max(1, elements // 8))
        rows, columns = coefficients.shape
        places = [(f, g) for f in range(rows) for g in range(columns)]
        places.sort(key=lambda place: -abs(float(coefficients[place])))
        if count < elements:
            gap = abs(float(coefficients[places[count - 1]])) - abs(
                float(coefficients[places[count]])
            )
            self.closest_call = min(self.closest_call, gap)
        return sorted(places[:count])


def side(length: int) -> int:
    """Return the largest divisor of a length that is at most 64."""
    return max(each for each in range(1, MOST + 1) if length % each == 0)


@functools.cache
def cosines(length: int) -> torch.Tensor:
    """Return the orthonormal DCT-II, a row for each frequency: s_f · cos(π (2x + 1) f / 2n) with s_0 =
    √(1/n), otherwise s_f = √(2/n)."""
    rows = [
        [
            math.sqrt((2 if f else 1) / length) * math.cos(math.pi * (2 * x + 1) * f / (2 * length))
            for x in range(length)
        ]
        for f in range(length)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def wave(f: int, g: int, shape: torch.Size) -> torch.Tensor:
    """Return the chunk whose only coefficient other than 0 is a 1 at (f, g)."""
    rows, columns = shape
    return torch.outer(cosines(rows)[f], cosines(columns)[g])


def transform(chunk: torch.Tensor) -> torch.Tensor:
    """Return C(f, g) = Σ_x Σ_y chunk(x, y) · cos_f(x) · cos_g(y)."""
    rows, columns = chunk.shape
    return torch.einsum("fx,xy,gy->fg", cosines(rows), chunk, cosines(columns))


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Return a vector or scalar as one row, and a tensor of more dimensions as rows of its last one."""
    return tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
