"""Layout of an update: how every parameter tensor is cut into blocks of coefficients.

A layout follows from the manifest alone, so the body of an update needs no names, shapes or counts, and
its length and the cost of decoding it are known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from ..wire.manifest import Manifest, ParameterSpec

_HEADER_BYTES = 1

HEAD_OCTETS = 2
"""Maximum length of a head in octets (`BlockKind`)."""

# Maximum number of bits of a group of heads, which must fit a numpy integer.
_GROUP_BITS = 63


@dataclass(frozen=True, kw_only=True)
class TensorLayout:
    """How one parameter tensor, seen as `rows` × `columns`, is cut into blocks in raster order."""

    name: str
    rows: int
    columns: int
    block_rows: int
    block_columns: int
    top_k: int
    """Coefficients sent per block."""

    @property
    def down(self) -> int:
        """Number of rows of blocks."""
        return self.rows // self.block_rows

    @property
    def across(self) -> int:
        """Number of columns of blocks."""
        return self.columns // self.block_columns

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.down * self.across

    @property
    def elements(self) -> int:
        """Elements of one block; a position in it is row · block_columns + column."""
        return self.block_rows * self.block_columns

    @property
    def coefficients(self) -> int:
        """Coefficients sent for the whole tensor."""
        return self.blocks * self.top_k

    @property
    def sides(self) -> int:
        """Number of transformed sides: those longer than 1."""
        return (self.block_rows > 1) + (self.block_columns > 1)


@dataclass(frozen=True, kw_only=True)
class BlockKind:
    """The blocks of a layout with the same size and number of coefficients, and their encoding in a
    body.

    There are C(elements, top_k) sets of positions, and each has a number (`subsets`). The last octets of
    a number are the *tail*, the part before them is the *head*. Tails are written unchanged. A *group*
    of several heads is written as one number, whose digits to the base `heads` they are, so that a
    fraction of a bit is lost per group and not per block. Tails and groups have the lengths that take
    the fewest bits per block; if several do, the shortest tail and then the smallest group.
    """

    elements: int
    top_k: int
    tensors: tuple[int, ...]
    """Indices of the layout's tensors that have such blocks."""
    blocks: int
    """Number of these blocks in all tensors."""

    @property
    def tail_octets(self) -> int:
        """Number of octets of a tail."""
        return self._cut[0]

    @property
    def group(self) -> int:
        """Number of heads in a group."""
        return self._cut[1]

    @cached_property
    def heads(self) -> int:
        """Number of different values of a head, at most 2^15."""
        return self._heads(self.tail_octets)

    def group_bits(self, heads: int) -> int:
        """Return the number of bits of a group of this many heads."""
        return (self.heads**heads - 1).bit_length()

    def groups(self) -> Iterator[tuple[int, int]]:
        """Yield (number of groups, heads in each): the whole groups, and one with the remaining
        heads."""
        whole, rest = divmod(self.blocks, self.group)
        if whole:
            yield whole, self.group
        if rest:
            yield 1, rest

    @property
    def bits(self) -> int:
        """Number of bits of all tails and groups of heads together."""
        heads = sum(count * self.group_bits(size) for count, size in self.groups())
        return 8 * self.blocks * self.tail_octets + heads

    @cached_property
    def _cut(self) -> tuple[int, int]:
        most = (self._sets - 1).bit_length() // 8
        cuts = []
        for tail in range(max(0, most + 1 - HEAD_OCTETS), most + 1):
            for group in range(1, _GROUP_BITS + 1):
                bits = (self._heads(tail) ** group - 1).bit_length()
                if bits <= _GROUP_BITS:
                    cuts.append((8 * tail + Fraction(bits, group), tail, group))
        return min(cuts)[1:]

    @cached_property
    def _sets(self) -> int:
        return math.comb(self.elements, self.top_k)

    def _heads(self, tail_octets: int) -> int:
        return (self._sets - 1 >> 8 * tail_octets) + 1


@dataclass(frozen=True, kw_only=True)
class UpdateLayout:
    """Layout of an update. Build it with `update_layout`."""

    tensors: tuple[TensorLayout, ...]

    @cached_property
    def coefficients(self) -> int:
        """Number of coefficients in every update of this layout."""
        return sum(tensor.coefficients for tensor in self.tensors)

    @cached_property
    def kinds(self) -> tuple[BlockKind, ...]:
        """The kinds of blocks, in the order of their first tensors."""
        members: dict[tuple[int, int], list[int]] = {}
        for index, tensor in enumerate(self.tensors):
            members.setdefault((tensor.elements, tensor.top_k), []).append(index)
        return tuple(
            BlockKind(
                elements=elements,
                top_k=top_k,
                tensors=tuple(indices),
                blocks=sum(self.tensors[index].blocks for index in indices),
            )
            for (elements, top_k), indices in members.items()
        )

    @cached_property
    def body_bytes(self) -> int:
        """Length in bytes of every body: the header, the numbers of position sets, and a sign for each
        coefficient."""
        bits = sum(kind.bits for kind in self.kinds) + self.coefficients
        return _HEADER_BYTES + -(-bits // 8)


def update_layout(parameters: Sequence[ParameterSpec], chunk: int, top_k: int) -> UpdateLayout:
    """Return the layout of a model's updates.

    A matrix is cut into blocks of chunk × chunk, where each side shrinks to the largest number that
    divides its dimension; a vector is cut into blocks of chunk elements in the same way. A tensor of
    more dimensions is treated as a matrix: (product of the leading dimensions, last dimension). For a
    full block of chunk × chunk, `top_k` coefficients are sent; for a smaller one, at most an eighth of
    its elements; for each block at least one.
    """
    return UpdateLayout(tensors=tuple(_tensor_layout(p, chunk, top_k) for p in parameters))


def manifest_layout(manifest: Manifest) -> UpdateLayout:
    """Return the layout of the updates of a swarm with this manifest."""
    optimizer = manifest.optimizer
    return update_layout(manifest.parameters, optimizer.chunk, optimizer.top_k)


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
