"""Where the coefficients of an update belong: how every parameter tensor is cut into blocks.

A layout follows from the model's parameter table alone, so that the body of an update needs no
names, shapes or counts, and its length and the cost of decoding it are bounded beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..wire.manifest import ParameterSpec
from .coding_plan import Plan
from .rans import STATE_WORDS, WORD_BITS, lane_count, symbol_bits

HEADER_BYTES = 2


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
    def down(self) -> int:
        """How many blocks are in a column of blocks."""
        return self.rows // self.block_rows

    @property
    def across(self) -> int:
        """How many blocks are in a row of blocks."""
        return self.columns // self.block_columns

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return self.down * self.across

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
    def plan(self) -> Plan:
        """The order in which the blocks are coded; built when it is first needed, then kept."""
        return Plan(self.tensors)

    @cached_property
    def sign_words(self) -> int:
        """Words that the signs take."""
        return -(-self.coefficients // WORD_BITS)

    @cached_property
    def min_bytes(self) -> int:
        """No body is shorter: the header and the lanes' states."""
        return HEADER_BYTES + 2 * STATE_WORDS * lane_count(self.coefficients)

    @cached_property
    def max_bytes(self) -> int:
        """No body is longer: what evenly spread positions can take at most.

        Let the bits of a coder be 16 for each word on its stack and log2 of each state. A symbol
        adds what its interval costs, an order takes away what it spells, and moving words between
        stack and states changes nothing.
        """
        lanes = lane_count(self.coefficients)
        symbols = sum(
            tensor.coefficients
            * (symbol_bits(tensor.block_rows) + symbol_bits(tensor.block_columns))
            for tensor in self.tensors
        )
        # A state takes two words to begin below 2^33, and ends with 2^32 or more.
        stack = WORD_BITS * (self.sign_words - 2 * lanes - self.order_words) + symbols + lanes
        # What states and orders want at the beginning and the stack, which has the signs only, does
        # not hold are zeros from below; they are part of the body. Later waves find enough.
        wanted = STATE_WORDS * lanes + max(wave.order_words for wave in self.plan.waves)
        words = -(-stack // WORD_BITS) + max(0, wanted - self.sign_words) + 1
        return self.min_bytes + 2 * max(0, words)

    @cached_property
    def order_words(self) -> int:
        """Words that the orders of all blocks spell."""
        return sum(wave.order_words for wave in self.plan.waves)

    @cached_property
    def classes(self) -> dict[int, list[int]]:
        """Coefficients a block → indices of the tensors with so many, in layout order."""
        classes: dict[int, list[int]] = {}
        for index, tensor in enumerate(self.tensors):
            classes.setdefault(tensor.top_k, []).append(index)
        return classes


def update_layout(parameters: Sequence[ParameterSpec], chunk: int, top_k: int) -> UpdateLayout:
    """The layout of a model's updates.

    A matrix is cut into blocks of chunk × chunk, each side shrunk to the largest divisor of its
    dimension; a vector likewise, into blocks of chunk; a tensor of more dimensions is seen as
    (product of the leading ones, last). A full block of chunk × chunk sends `top_k` coefficients,
    a smaller one at most an eighth of its elements, and each at least one.
    """
    return UpdateLayout(tensors=tuple(_tensor_layout(p, chunk, top_k) for p in parameters))


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
