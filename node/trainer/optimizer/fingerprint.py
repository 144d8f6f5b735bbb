"""A 64-bit checksum of the parameters' bits, the same on any device and in any order of summation.

It detects accidents (a flipped bit, a wrong kernel, a missed update), and is cheap enough for every
round. It is not a cryptographic hash: an attacker can construct two sets of parameters with one
fingerprint. Snapshots are checked by their content ids instead.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

# C in the formulas: 2^64 divided by the golden ratio, made odd. Its consecutive multiples are spread
# over all 64 bits.
_MULTIPLIER = 0x9E3779B97F4A7C15

# Elements per chunk (`_Sums`), each with 8 bytes of temporaries: small enough for a CPU's cache, large
# enough to keep a GPU busy.
_CPU_PIECE = 1 << 16
_GPU_PIECE = 1 << 24
# Elements in a row of a chunk (`_Sums`); even, so that all rows of a chunk share their columns' weights.
_ROW = 1 << 12


@torch.no_grad()
def fingerprint(parameters: Sequence[torch.Tensor]) -> int:
    """Return the sum over all elements i of bits_i · ((i · C) | 1), modulo 2^64; 0 ≤ result < 2^64.

    `bits_i` is the bit pattern of float32 number i as a signed integer; i counts through the tensors
    in order; C is `_MULTIPLIER`. Every weight is odd, so a single flipped bit b changes the sum by
    ±2^b times an odd number, which is never 0 modulo 2^64. Wrapping addition is associative and
    commutative, so the order of summation does not matter.
    """
    starts = accumulate((parameter.numel() for parameter in parameters), initial=0)
    return fingerprint_pieces(zip(starts, parameters, strict=False))


@torch.no_grad()
def fingerprint_pieces(pieces: Iterable[tuple[int, torch.Tensor]]) -> int:
    """Return the contribution of some elements to the fingerprint. Each tensor comes with the number of
    its first element, counted through the whole model.

    The contributions of pieces that make up a model add up, modulo 2^64, to its fingerprint.
    """
    sums: dict[torch.device, _Sums] = {}
    for offset, parameter in pieces:
        bits = parameter.detach().reshape(-1).view(torch.int32)
        if bits.device not in sums:
            sums[bits.device] = _Sums(bits.device)
        sums[bits.device].add(bits, offset)
    return sum(each.total() for each in sums.values()) % (1 << 64)


class _Sums:
    """The sums of one device, over columns and over rows of chunks: slices of a fixed size of the pieces
    that callers add.

    For an even e, ((e + j) · C) | 1 is e·C + ((j · C) | 1), because e·C is even, too. So a chunk is cut
    into rows, the sum of each column j is multiplied by the column's weight (j · C) | 1, and the sum
    of each row, which begins at element e, by e·C. Only two reductions touch the elements; the rest is
    done once for all chunks, so that a GPU has few kernels to launch and the host waits for it once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        piece = _CPU_PIECE if device.type == "cpu" else _GPU_PIECE
        self._piece = max(1, piece // _ROW) * _ROW
        # Index 1: for chunks that begin at an odd element, whose columns are shifted by one.
        self._columns = torch.zeros(2, _ROW, dtype=torch.int64, device=device)
        self._row_sums: list[torch.Tensor] = []
        self._row_weights: list[torch.Tensor] = []

    def add(self, bits: torch.Tensor, offset: int) -> None:
        """Add a piece: a flat tensor whose first element has the number `offset`."""
        size = bits.numel()
        whole = size - size % _ROW
        for start in range(0, whole, self._piece):
            stop = min(start + self._piece, whole)
            self._add_rows(bits[start:stop].view(-1, _ROW), offset + start)
        if whole < size:
            self._add_rows(bits[whole:].view(1, -1), offset + whole)

    def total(self) -> int:
        """Return the sum of all added elements, as an unsigned number below 2^64."""
        total = (self._columns * _column_weights(_ROW, self._device)).sum()
        if self._row_sums:
            weights = torch.cat(self._row_weights).to(self._device)
            total += (torch.cat(self._row_sums) * weights).sum()
        return int(total) % (1 << 64)

    def _add_rows(self, rows: torch.Tensor, first: int) -> None:
        odd = first % 2
        wide = rows.to(torch.int64)
        self._columns[odd, : rows.shape[1]] += wide.sum(0)
        self._row_sums.append(wide.sum(1))
        weights = torch.arange(rows.shape[0]).mul_(_signed(_ROW * _MULTIPLIER))
        self._row_weights.append(weights.add_(_signed((first - odd) * _MULTIPLIER)))


@functools.cache
def _column_weights(count: int, device: torch.device) -> torch.Tensor:
    """Return (j · C) | 1 of each column j below `count`, and of each j + 1: (2, count)."""
    columns = torch.arange(count + 1).mul_(_signed(_MULTIPLIER)).bitwise_or_(1)
    return torch.stack([columns[:-1], columns[1:]]).to(device)


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits: torch has no unsigned arithmetic on every device."""
    value %= 1 << 64
    return value - (1 << 64) if value >> 63 else value
