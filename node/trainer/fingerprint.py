"""A 64-bit checksum of the parameters' bits, the same on any device and in any order of summation.

It is for finding accidents (a flipped bit, a wrong kernel, a missed update), cheap enough for every
round. It is no cryptographic hash: somebody who tries can build two sets of parameters with one
fingerprint. Snapshots are checked by their content ids instead.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

# 2^64 divided by the golden ratio, made odd: consecutive multiples are spread over all 64 bits.
_MULTIPLIER = 0x9E3779B97F4A7C15

# Elements at a time, with 8 bytes of temporaries and 8 of weights each: what stays in a CPU's cache,
# and what keeps a GPU busy.
_CPU_PIECE = 1 << 16
_GPU_PIECE = 1 << 22


@torch.no_grad()
def fingerprint(parameters: Sequence[torch.Tensor]) -> int:
    """The sum over all elements i of bits_i · ((i · C) | 1), modulo 2^64; 0 ≤ result < 2^64.

    `bits_i` is the float32's bit pattern as an unsigned number, i counts through the tensors in
    order. Every weight is odd, so a single flipped bit b changes the sum by ±2^b times an odd
    number, which is never 0 modulo 2^64. Wrapping addition is associative: no order matters.
    """
    starts = accumulate((parameter.numel() for parameter in parameters), initial=0)
    return fingerprint_pieces(zip(starts, parameters, strict=False))


@torch.no_grad()
def fingerprint_pieces(pieces: Iterable[tuple[int, torch.Tensor]]) -> int:
    """The part of the sum that some elements make: each tensor with the number of its first element.

    The sums of pieces that make up a model add up, modulo 2^64, to its fingerprint.
    """
    # One sum a device, read once: a GPU is not waited for in between.
    totals: dict[torch.device, torch.Tensor] = {}
    for offset, parameter in pieces:
        bits = parameter.detach().reshape(-1).view(torch.int32)
        if bits.device not in totals:
            totals[bits.device] = torch.zeros((), dtype=torch.int64, device=bits.device)
        size = _CPU_PIECE if bits.device.type == "cpu" else _GPU_PIECE
        for start in range(0, bits.numel(), size):
            totals[bits.device] += _weighted_sum(bits[start : start + size], offset + start, size)
    return sum(int(total) for total in totals.values()) % (1 << 64)


def _weighted_sum(bits: torch.Tensor, first: int, size: int) -> torch.Tensor:
    """The part of a piece that begins at element `first`.

    For an even e, ((e + j) · C) | 1 is e·C + ((j · C) | 1), as e·C is even, too. So the weights of
    every piece are one table of at most `size` + 1 numbers, and a constant beside it.
    """
    odd = first % 2
    unsigned = bits.to(torch.int64).bitwise_and_(0xFFFFFFFF)
    plain = unsigned.sum()
    weights = _weights(size + 1, bits.device)[odd : odd + bits.numel()]
    return unsigned.mul_(weights).sum() + plain * _signed((first - odd) * _MULTIPLIER % (1 << 64))


@functools.cache
def _weights(count: int, device: torch.device) -> torch.Tensor:
    """(j · C) | 1 for each j below `count`."""
    return torch.arange(count, device=device).mul_(_signed(_MULTIPLIER)).bitwise_or_(1)


def _signed(value: int) -> int:
    """The int64 with the same 64 bits: torch has no unsigned arithmetic on every device."""
    return value - (1 << 64) if value >> 63 else value
