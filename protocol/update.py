"""The update: which coefficients a member sends, and its bytes.

An `UpdateLayout` follows from the model's parameter table and says where every coefficient belongs;
the body then needs no names, shapes or counts. A body decodes to one update and an update has one
body: whatever is spelled differently is refused.

Format 1. A block's positions are a set; it is coded as gaps (the first position, then the distance
to the one before, minus one), each gap as a Rice code: its low `r` bits, and the rest in unary.
Blocks of equal size and count form a class, and each class has the `r` that makes it shortest.

    byte 0          1, the format
    1 byte a class  its r, the smallest of those that give the fewest bits
    remainders      r bits a gap, most significant first; classes in order of first appearance,
                    in a class tensors in layout order, in a tensor blocks in raster order
    signs           a bit each in the same order, 1 for minus
    quotients       in the same order: gap >> r zeros and a one

Each section is padded with zero bits to a whole byte. Three sections rather than one stream,
because each can then be packed and unpacked as an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .errors import ProtocolError
from .manifest import ParameterSpec

FORMAT = 1

# A gap is below 4096 (64 × 64), and with r = 11 a quotient is at most 1; a larger r never pays.
_RICE_LIMIT = 12


@dataclass(frozen=True, kw_only=True)
class TensorLayout:
    """How one parameter tensor, seen as `rows` × `columns`, is cut into blocks in raster order."""

    name: str
    rows: int
    columns: int
    block_rows: int
    block_columns: int
    top_k: int
    """Coefficients sent of each block."""

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return (self.rows // self.block_rows) * (self.columns // self.block_columns)

    @property
    def elements(self) -> int:
        """Elements of one block; a position in it is row · block_columns + column."""
        return self.block_rows * self.block_columns

    @property
    def coefficients(self) -> int:
        """Coefficients sent of the whole tensor."""
        return self.blocks * self.top_k

    @property
    def sides(self) -> int:
        """How many sides are transformed: those longer than 1."""
        return (self.block_rows > 1) + (self.block_columns > 1)


@dataclass(frozen=True, kw_only=True)
class UpdateLayout:
    """Where the coefficients of an update belong. Build it with `update_layout`."""

    tensors: tuple[TensorLayout, ...]

    @cached_property
    def coefficients(self) -> int:
        """How many coefficients every update of this layout has."""
        return sum(tensor.coefficients for tensor in self.tensors)

    @cached_property
    def min_bytes(self) -> int:
        """No body is shorter: all gaps zero."""
        return 1 + len(self.classes) + 2 * _bytes_of(self.coefficients)

    @cached_property
    def max_bytes(self) -> int:
        """No body is longer.

        The gaps of a block add up to at most elements - k, so with any r a block takes at most
        k·r + k + (elements - k) >> r bits beside its signs; the encoder's r is the best for the
        class, so the least of these over r bounds what it makes.
        """
        bits = 0
        for (elements, top_k), members in self.classes.items():
            blocks = sum(self.tensors[index].blocks for index in members)
            bits += blocks * min(
                top_k * rice + top_k + ((elements - top_k) >> rice) for rice in range(_RICE_LIMIT)
            )
        # Remainders and quotients are padded apart: one byte more than their sum.
        return 1 + len(self.classes) + _bytes_of(self.coefficients) + _bytes_of(bits) + 1

    @cached_property
    def classes(self) -> dict[tuple[int, int], list[int]]:
        """(elements of a block, k) → indices of the tensors cut so; in order of appearance."""
        classes: dict[tuple[int, int], list[int]] = {}
        for index, tensor in enumerate(self.tensors):
            classes.setdefault((tensor.elements, tensor.top_k), []).append(index)
        return classes


@dataclass(frozen=True)
class DecodedUpdate:
    """What an update says, per tensor of its layout."""

    positions: list[npt.NDArray[np.int32]]
    """Each (blocks, k): positions in the block, ascending."""
    signs: list[npt.NDArray[np.int8]]
    """Each (blocks, k): +1 or -1."""


def update_layout(parameters: Sequence[ParameterSpec], chunk: int, top_k: int) -> UpdateLayout:
    """The layout of a model's updates.

    A matrix is cut into blocks of chunk × chunk, each side shrunk to the largest divisor of its
    dimension; a vector likewise, into blocks of chunk; a tensor of more dimensions is seen as
    (product of the leading ones, last). A full block of chunk × chunk sends `top_k` coefficients,
    a smaller one at most an eighth of its elements, and each at least one.
    """
    return UpdateLayout(tensors=tuple(_tensor_layout(p, chunk, top_k) for p in parameters))


def encode_update(
    layout: UpdateLayout,
    positions: Sequence[npt.NDArray[np.int32]],
    signs: Sequence[npt.NDArray[np.int8]],
) -> bytes:
    """The body of an update, given as in `DecodedUpdate`.

    Raises `ValueError` if the arrays do not fit the layout.
    """
    _check_arrays(layout, positions, signs)
    header, remainders, quotients, minus = bytearray([FORMAT]), [], [], []
    for members in layout.classes.values():
        gaps = np.concatenate([_gaps(positions[index]) for index in members])
        rice = _best_rice(gaps)
        header.append(rice)
        remainders.append(_low_bits(gaps, rice))
        quotients.append(gaps >> rice)
        minus += [signs[index].ravel() < 0 for index in members]
    ends = np.cumsum(np.concatenate(quotients) + 1)
    unary = np.zeros(ends[-1], dtype=np.uint8)
    unary[ends - 1] = 1
    sections = (np.concatenate(remainders), np.concatenate(minus), unary)
    return bytes(header) + b"".join(np.packbits(section).tobytes() for section in sections)


def decode_update(layout: UpdateLayout, body: bytes) -> DecodedUpdate:
    """Decode a body; memory and time are bounded by `layout.max_bytes`, whatever the bytes.

    Raises `ProtocolError`: `oversized` above the layout's bound, `malformed` if this is no body of
    this layout or not the one spelling of its update, `invalid` for a position outside its block.
    """
    if len(body) > layout.max_bytes:
        raise ProtocolError("oversized", f"{len(body)} bytes, at most {layout.max_bytes} possible")
    if len(body) < layout.min_bytes:
        raise _malformed(f"{len(body)} bytes, at least {layout.min_bytes} needed")
    if body[0] != FORMAT:
        raise _malformed(f"update format {body[0]}, this program knows {FORMAT}")
    counts = [sum(layout.tensors[i].coefficients for i in m) for m in layout.classes.values()]
    start = 1 + len(counts)
    rices = list(body[1:start])
    if max(rices) >= _RICE_LIMIT:
        raise _malformed("a Rice parameter is out of range")

    bits = sum(rice * count for rice, count in zip(rices, counts, strict=True))
    remainders, start = _section(body, start, bits)
    minus, start = _section(body, start, layout.coefficients)
    quotients = _unary(body, start, layout.coefficients)

    positions: dict[int, npt.NDArray[np.int32]] = {}
    signs: dict[int, npt.NDArray[np.int8]] = {}
    done = bit = 0
    for rice, count, members in zip(rices, counts, layout.classes.values(), strict=True):
        gaps = quotients[done : done + count]
        for column in remainders[bit : bit + rice * count].reshape(count, rice).T:
            gaps = (gaps << 1) | column
        bit += rice * count
        if _best_rice(gaps) != rice:
            raise _malformed("a Rice parameter is not the best one")
        for index in members:
            tensor = layout.tensors[index]
            shape, size = (tensor.blocks, tensor.top_k), tensor.coefficients
            places = np.cumsum(gaps[:size].reshape(shape) + 1, axis=1) - 1
            if places[:, -1].max() >= tensor.elements:
                raise ProtocolError(
                    "invalid", f"a position lies outside its block in {tensor.name}"
                )
            positions[index] = places.astype(np.int32)
            flags = minus[done : done + size].reshape(shape)
            signs[index] = 1 - 2 * flags.astype(np.int8)
            gaps = gaps[size:]
            done += size
    order = range(len(layout.tensors))
    return DecodedUpdate([positions[index] for index in order], [signs[index] for index in order])


def _tensor_layout(parameter: ParameterSpec, chunk: int, top_k: int) -> TensorLayout:
    shape = parameter.shape
    columns = shape[-1] if shape else 1
    rows = parameter.elements // columns
    block_rows, block_columns = _divisor(rows, chunk), _divisor(columns, chunk)
    elements = block_rows * block_columns
    most = elements if elements == chunk * chunk else max(1, elements // 8)
    return TensorLayout(
        name=parameter.name,
        rows=rows,
        columns=columns,
        block_rows=block_rows,
        block_columns=block_columns,
        top_k=min(top_k, most),
    )


def _divisor(dimension: int, chunk: int) -> int:
    return next(side for side in range(min(chunk, dimension), 0, -1) if dimension % side == 0)


def _check_arrays(
    layout: UpdateLayout,
    positions: Sequence[npt.NDArray[np.int32]],
    signs: Sequence[npt.NDArray[np.int8]],
) -> None:
    for tensor, places, sign in zip(layout.tensors, positions, signs, strict=True):
        shape = (tensor.blocks, tensor.top_k)
        if places.shape != shape or sign.shape != shape:
            raise ValueError(f"{tensor.name}: expected arrays of shape {shape}")
        ascending = (np.diff(places, axis=1) > 0).all()
        if not ascending or places[:, 0].min() < 0 or places[:, -1].max() >= tensor.elements:
            raise ValueError(f"{tensor.name}: positions must ascend within their block")
        if not (np.abs(sign) == 1).all():
            raise ValueError(f"{tensor.name}: signs must be +1 or -1")


def _gaps(positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    return (np.diff(positions.astype(np.int64), axis=1, prepend=-1) - 1).ravel()


def _low_bits(gaps: npt.NDArray[np.int64], rice: int) -> npt.NDArray[np.uint8]:
    """The low `rice` bits of each gap, most significant first, one bit an element."""
    # 16 bits hold a gap (below 4096) and make the table of bits four times smaller.
    low = gaps.astype(np.uint16)[:, None] >> np.arange(rice - 1, -1, -1, dtype=np.uint16)
    return (low & 1).astype(np.uint8).ravel()


def _best_rice(gaps: npt.NDArray[np.int64]) -> int:
    costs = [gaps.size * rice + int((gaps >> rice).sum()) for rice in range(_RICE_LIMIT)]
    return costs.index(min(costs))


def _bytes_of(bits: int) -> int:
    return (bits + 7) // 8


def _section(body: bytes, start: int, bits: int) -> tuple[npt.NDArray[np.uint8], int]:
    """Unpack a section of known length; return its bits and where the next one begins."""
    end = start + _bytes_of(bits)
    if end > len(body):
        raise _malformed("the body ends too early")
    unpacked = np.unpackbits(np.frombuffer(body[start:end], np.uint8))
    if unpacked[bits:].any():
        raise _malformed("padding is not zero")
    return unpacked[:bits], end


def _unary(body: bytes, start: int, count: int) -> npt.NDArray[np.int64]:
    """Unpack the last section: `count` numbers that end exactly in its last byte."""
    unpacked = np.unpackbits(np.frombuffer(body[start:], np.uint8))
    ends = np.flatnonzero(unpacked)
    if len(ends) != count or unpacked.size - ends[-1] > 8:
        raise _malformed("the quotients do not fill the body")
    return np.diff(ends, prepend=-1) - 1


def _malformed(problem: str) -> ProtocolError:
    return ProtocolError("malformed", problem)
