"""The update: the coefficients that a member sends, and their bytes.

The encoding is unique: a valid body decodes to one update, and an update has one body; every other body
is refused. All bodies of a layout have the same length, and the cost of decoding one follows from the
layout, whatever the bytes.

Format 3, explained with its reasons in docs/codec.md. A block's set of positions is a number
(`subsets`); the last octets of the number are its tail, those before them its head (`BlockKind`).

    byte 0          3, the format
    tails           kind after kind, block after block: each tail, most significant octet first
    bits            kind after kind, group after group: the group's heads as one number
                    the signs, one bit each, 1 for minus
                    zero bits up to a whole byte

Kinds of blocks come in the order of their first tensors, the blocks of a kind in layout order (tensors
in order, blocks in raster order), signs in layout order with positions ascending. A group has
`BlockKind.group` heads; the last one has only the remaining heads. A group is the number
h_0 + h_1 · H + h_2 · H² + … with H = `BlockKind.heads` and the head h_0 of its first block. It takes as
many bits as the largest such number needs, most significant bit first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ..wire.errors import ProtocolError
from .layout import (
    HEAD_OCTETS,
    BlockKind,
    TensorLayout,
    UpdateLayout,
    manifest_layout,
    update_layout,
)
from .subsets import Octets, check_numbers, subset_numbers, subsets

__all__ = [
    "FORMAT",
    "DecodedUpdate",
    "TensorLayout",
    "UpdateLayout",
    "check_update",
    "decode_update",
    "encode_update",
    "manifest_layout",
    "update_layout",
]

FORMAT = 3

Positions = npt.NDArray[Any]
"""Integers of any type: a block has at most 64 · 64 positions. Decoded ones are int16."""

_Bits = npt.NDArray[np.uint8]
"""One bit per element."""


@dataclass(frozen=True)
class DecodedUpdate:
    """Content of an update, per tensor of its layout."""

    positions: list[Positions]
    """Each (blocks, k): positions in the block, ascending."""
    signs: list[npt.NDArray[np.int8]]
    """Each (blocks, k): +1 or -1."""


def encode_update(
    layout: UpdateLayout,
    positions: Sequence[Positions],
    signs: Sequence[npt.NDArray[np.int8]],
) -> bytes:
    """Return the body of an update with these `positions` and `signs`, as in `DecodedUpdate`.

    Raises `ValueError` if the arrays do not fit the layout.
    """
    _check_arrays(layout, positions, signs)
    tails, bits = [], []
    for kind in layout.kinds:
        sets = np.concatenate([positions[index] for index in kind.tensors]).T
        numbers = subset_numbers(sets, kind.elements, HEAD_OCTETS + kind.tail_octets)
        tails.append(numbers[:, HEAD_OCTETS:].tobytes())
        bits += _write_heads(kind, numbers[:, :HEAD_OCTETS])
    bits += [(sign.ravel() < 0).view(np.uint8) for sign in signs]
    return bytes([FORMAT]) + b"".join(tails) + np.packbits(np.concatenate(bits)).tobytes()


def decode_update(layout: UpdateLayout, body: bytes) -> DecodedUpdate:
    """Decode a body. Memory and time are bounded by the layout, whatever the bytes. The result takes
    three bytes per coefficient.

    Raises `ProtocolError`: `oversized` for more bytes than a body of this layout has, `malformed` if
    this is not a body of this layout.
    """
    tails, packed = _tails_and_bits(layout, body)
    bits = np.unpackbits(packed)
    positions: dict[int, npt.NDArray[np.int16]] = {}
    for kind in layout.kinds:
        tail, tails = np.split(tails, [kind.blocks * kind.tail_octets])
        heads, bits = _read_heads(kind, bits)
        numbers = np.concatenate([heads, tail.reshape(kind.blocks, kind.tail_octets)], axis=1)
        sets = np.ascontiguousarray(subsets(numbers, kind.elements, kind.top_k).T, np.int16)
        ends = accumulate(layout.tensors[index].blocks for index in kind.tensors)
        positions |= zip(kind.tensors, np.split(sets, list(ends)[:-1]), strict=True)
    if bits[layout.coefficients :].any():
        raise _malformed("padding is not zero")
    minus = 1 - 2 * bits[: layout.coefficients].astype(np.int8)
    ends = accumulate(tensor.coefficients for tensor in layout.tensors)
    signs = zip(layout.tensors, np.split(minus, list(ends)[:-1]), strict=True)
    return DecodedUpdate(
        [positions[index] for index in range(len(layout.tensors))],
        [sign.reshape(tensor.blocks, tensor.top_k) for tensor, sign in signs],
    )


def check_update(layout: UpdateLayout, body: bytes) -> None:
    """Raise `ProtocolError` for exactly the bodies that `decode_update` refuses, with the same reasons.

    It decodes no positions, because every number below C(elements, top_k) is valid, and checks the other
    fields directly. So it takes a twentieth of the time.
    """
    tails, packed = _tails_and_bits(layout, body)
    head_bits = sum(n * kind.group_bits(size) for kind in layout.kinds for n, size in kind.groups())
    bits = np.unpackbits(packed[: -(-head_bits // 8)])
    for kind in layout.kinds:
        tail, tails = np.split(tails, [kind.blocks * kind.tail_octets])
        heads, bits = _read_heads(kind, bits)
        numbers = np.concatenate([heads, tail.reshape(kind.blocks, kind.tail_octets)], axis=1)
        check_numbers(numbers, kind.elements, kind.top_k)
    padding = 8 * len(packed) - head_bits - layout.coefficients
    if packed[-1] & ((1 << padding) - 1):
        raise _malformed("padding is not zero")


def _tails_and_bits(
    layout: UpdateLayout, body: bytes
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Check the length and format of a body. Return the octets of all tails, and the octets that hold
    the bits after them."""
    if len(body) > layout.body_bytes:
        raise ProtocolError("oversized", f"{len(body)} bytes instead of {layout.body_bytes}")
    if len(body) < layout.body_bytes:
        raise _malformed(f"{len(body)} bytes instead of {layout.body_bytes}")
    if body[0] != FORMAT:
        raise _malformed(f"an update of format {body[0]}; this program knows {FORMAT}")
    octets = np.frombuffer(body, np.uint8, offset=1)
    tails, packed = np.split(octets, [sum(k.blocks * k.tail_octets for k in layout.kinds)])
    return tails, packed


def _write_heads(kind: BlockKind, heads: Octets) -> list[_Bits]:
    """Return the bits of the groups that these heads (blocks, HEAD_OCTETS) form."""
    digits = np.ascontiguousarray(heads).view(">u2").astype(np.uint64).ravel()
    bits = []
    for count, size in kind.groups():
        group, digits = np.split(digits, [count * size])
        powers = np.array([kind.heads**digit for digit in range(size)], dtype=np.uint64)
        numbers = (group.reshape(count, size) * powers).sum(axis=1).astype(">u8")
        wide = np.unpackbits(numbers.view(np.uint8).reshape(count, 8), axis=1)
        bits.append(wide[:, 64 - kind.group_bits(size) :].ravel())
    return bits


def _read_heads(kind: BlockKind, bits: _Bits) -> tuple[Octets, _Bits]:
    """Return the heads (blocks, HEAD_OCTETS) of the next groups, and the remaining bits.

    Raises `ProtocolError` (`malformed`) for a number too large for a group of heads.
    """
    heads = []
    for count, size in kind.groups():
        width = kind.group_bits(size)
        group, bits = np.split(bits, [count * width])
        wide = np.zeros((count, 64), dtype=np.uint8)
        wide[:, 64 - width :] = group.reshape(count, width)
        numbers = np.packbits(wide, axis=1).view(">u8").astype(np.uint64).ravel()
        digits = np.empty((count, size), dtype=">u2")
        for digit in range(size):
            numbers, digits[:, digit] = np.divmod(numbers, np.uint64(kind.heads))
        if numbers.any():
            raise _malformed("a number that encodes no heads")
        heads.append(digits.view(np.uint8).reshape(count * size, HEAD_OCTETS))
    return np.concatenate(heads), bits


def _check_arrays(
    layout: UpdateLayout,
    positions: Sequence[Positions],
    signs: Sequence[npt.NDArray[np.int8]],
) -> None:
    for tensor, within, sign in zip(layout.tensors, positions, signs, strict=True):
        shape = (tensor.blocks, tensor.top_k)
        if within.shape != shape or sign.shape != shape:
            raise ValueError(f"{tensor.name}: expected arrays of shape {shape}")
        ascending = (np.diff(within, axis=1) > 0).all()
        if not ascending or within[:, 0].min() < 0 or within[:, -1].max() >= tensor.elements:
            raise ValueError(f"{tensor.name}: positions must ascend within their block")
        if not (np.abs(sign) == 1).all():
            raise ValueError(f"{tensor.name}: signs must be +1 or -1")


def _malformed(problem: str) -> ProtocolError:
    return ProtocolError("malformed", problem)
