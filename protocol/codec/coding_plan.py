"""In which order the blocks of an update are coded: in waves, each learning from those before.

Blocks side by side share the rows of their tensor, blocks above each other its columns. Each such
row or column of blocks is a *strip*, so a block belongs to two. Waves take blocks along diagonals,
so that every strip of a tensor has its share of each wave and all learn alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .permutation_code import order_bits
from .rans import WORD_BITS

if TYPE_CHECKING:
    from .layout import TensorLayout

Lines = npt.NDArray[np.uint32]
"""Numbers of lines; see `Plan`."""

Sides = npt.NDArray[np.uint8]
"""Sides of blocks, at most 64."""

# In 64ths of a tensor's diagonals. A wave is half of what was before it. A third would save 0.02 bits
# a coefficient, all of it would cost 0.1 to 0.3, and each wave takes time.
_STARTS = (0, 2, 3, 5, 8, 12, 18, 27, 41)
_WHOLE = 64


@dataclass(frozen=True)
class Wave:
    """Blocks that are coded together."""

    classes: tuple[tuple[int, slice], ...]
    """Coefficients a block, descending, and which blocks of the plan have so many."""

    @cached_property
    def blocks(self) -> slice:
        """All blocks of the wave."""
        return slice(self.classes[0][1].start, self.classes[-1][1].stop)

    @cached_property
    def ranks(self) -> list[int]:
        """How many blocks have a first coefficient, a second, and so on."""
        counts = []
        for top_k, blocks in reversed(self.classes):
            counts += [blocks.stop - self.blocks.start] * (top_k - len(counts))
        return counts

    @cached_property
    def order_words(self) -> int:
        """Whole words that the orders in its blocks spell."""
        bits = sum(order_bits(k) * (blocks.stop - blocks.start) for k, blocks in self.classes)
        return bits // WORD_BITS


class Plan:
    """The waves of a layout, and for each block in the order of coding where it stands.

    A *line* is a frequency of a strip: row frequency r of a row of blocks, or column frequency c of
    a column of blocks. Lines are numbered through: tensors in layout order, in a tensor rows before
    columns, in a strip frequencies ascending.
    """

    def __init__(self, tensors: Sequence[TensorLayout]) -> None:
        self.most_seen = max(max(t.down, t.across) * t.top_k for t in tensors)
        """No strip has more coefficients."""
        self.strip_widths: Sides = np.concatenate([_strip_widths(tensor) for tensor in tensors])
        """How many lines each strip has."""
        ends = np.cumsum(self.strip_widths, dtype=np.int64)
        starts = np.repeat(ends - self.strip_widths, self.strip_widths)
        self.line_count = len(starts)
        self.frequencies: Sides = (np.arange(self.line_count) - starts).astype(np.uint8)
        """The frequency that each line stands for."""

        rows, columns, waves, first_line = [], [], [], 0
        for tensor in tensors:
            down, across = np.divmod(np.arange(tensor.blocks), tensor.across)
            rows.append(first_line + down * tensor.block_rows)
            columns.append(first_line + tensor.rows + across * tensor.block_columns)
            waves.append(_waves(tensor, down, across))
            first_line += tensor.rows + tensor.columns
        wave = np.concatenate(waves)
        counts = [tensor.blocks for tensor in tensors]
        top_k = np.repeat([tensor.top_k for tensor in tensors], counts)
        order = np.lexsort((-top_k, wave))

        self.row_lines: Lines = np.concatenate(rows)[order].astype(np.uint32)
        """For each block the first line of its row of blocks."""
        self.column_lines: Lines = np.concatenate(columns)[order].astype(np.uint32)
        """For each block the first line of its column of blocks."""
        rows_of, columns_of = [t.block_rows for t in tensors], [t.block_columns for t in tensors]
        self.block_rows: Sides = np.repeat(rows_of, counts)[order].astype(np.uint8)
        self.block_columns: Sides = np.repeat(columns_of, counts)[order].astype(np.uint8)
        kinds = sorted({tensor.top_k for tensor in tensors}, reverse=True)
        places = np.empty(len(order), dtype=np.int32)
        for kind in kinds:
            (alike,) = (top_k == kind).nonzero()
            places[alike] = np.arange(len(alike))
        self.places: npt.NDArray[np.int32] = places[order]
        """For each block its number among those with as many coefficients, in layout order."""

        self.waves: list[Wave] = []
        done = 0
        for number in range(len(_STARTS)):
            present, classes = top_k[wave == number], []
            for kind in kinds:
                if count := int((present == kind).sum()):
                    classes.append((kind, slice(done, done + count)))
                    done += count
            if classes:
                self.waves.append(Wave(tuple(classes)))


def _strip_widths(tensor: TensorLayout) -> Sides:
    rows = np.full(tensor.down, tensor.block_rows, dtype=np.uint8)
    return np.append(rows, np.full(tensor.across, tensor.block_columns, dtype=np.uint8))


def _waves(
    tensor: TensorLayout, down: npt.NDArray[np.int64], across: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The wave of each block: as many diagonals as the longer side has blocks, in even steps."""
    diagonals = max(tensor.down, tensor.across)
    # The steps spread the few blocks of the shorter side's strips over all diagonals.
    steps = down * (diagonals // tensor.down) + across * (diagonals // tensor.across)
    return np.searchsorted(_STARTS, steps % diagonals * _WHOLE // diagonals, side="right") - 1
