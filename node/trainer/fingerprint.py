"""A 64-bit checksum of the parameters' bits, the same on any device and in any order of summation.

It is for finding accidents (a flipped bit, a wrong kernel, a missed update), cheap enough for every
round. It is no cryptographic hash: who wants to build two sets of parameters with one fingerprint
can. Snapshots are checked by their content ids instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# 2^64 divided by the golden ratio, made odd: consecutive multiples are spread over all 64 bits.
_MULTIPLIER = 0x9E3779B97F4A7C15

# Elements at a time: two 8-byte temporaries for each.
_PIECE = 1 << 22


@torch.no_grad()
def fingerprint(parameters: Sequence[torch.Tensor]) -> int:
    """The sum over all elements i of bits_i · ((i · C) | 1), modulo 2^64; 0 ≤ result < 2^64.

    `bits_i` is the float32's bit pattern as an unsigned number, i counts through the tensors in
    order. Every weight is odd, so a single flipped bit b changes the sum by ±2^b times an odd
    number, which is never 0 modulo 2^64. Wrapping addition is associative: no order matters.
    """
    total = 0
    offset = 0
    for parameter in parameters:
        bits = parameter.detach().reshape(-1).view(torch.int32)
        for start in range(0, bits.numel(), _PIECE):
            piece = bits[start : start + _PIECE].to(torch.int64) & 0xFFFFFFFF
            first = offset + start
            weights = torch.arange(first, first + piece.numel(), device=piece.device)
            weights.mul_(_signed(_MULTIPLIER)).bitwise_or_(1)
            total += int(piece.mul_(weights).sum())
        offset += bits.numel()
    return total % (1 << 64)


def _signed(value: int) -> int:
    """The int64 with the same 64 bits: torch has no unsigned arithmetic on every device."""
    return value - (1 << 64) if value >> 63 else value
