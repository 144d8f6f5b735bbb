"""In which order the blocks of an update are coded: in waves, each learning from those before.

Blocks side by side share the rows of their tensor, blocks above each other its columns. Each such
row or column of blocks is a *strip*, so a block belongs to two. Waves take blocks along diagonals:
in every wave all strips of a tensor have equally many, and so learn alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .lanes import WORD_BITS
from .orders import order_bits

if TYPE_CHECKING:
    from .layout import TensorLayout

Indices = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Wave:
    """Blocks that are coded together."""

    classes: tuple[tuple[int, slice], ...]
    """Coefficients a block, descending, and which blocks of the plan have so many."""
    lines: int
    """This wave and all later ones need the first so many lines only."""

    @property
    def blocks(self) -> slice:
        """All blocks of the wave."""
        return slice(self.classes[0][1].start, self.classes[-1][1].stop)

    @property
    def ranks(self) -> list[int]:
        """How many blocks have a first coefficient, a second, and so on."""
        counts = []
        for top_k, blocks in reversed(self.classes):
            counts += [blocks.stop - self.blocks.start] * (top_k - len(counts))
        return counts

    @property
    def order_words(self) -> int:
        """Whole words that the orders in its blocks spell."""
        bits = sum(order_bits(k) * (blocks.stop - blocks.start) for k, blocks in self.classes)
        return bits // WORD_BITS


class Plan:
    """The waves of a layout. Blocks are numbered in the order of coding.

    A *line* is a frequency of a strip: row frequency r of a row of blocks, or column frequency c of
    a column of blocks. The lines of a strip are neighbours, its frequencies ascending.
    """

    def __init__(self, tensors: Sequence[TensorLayout]) -> None:
        # Tensors with many diagonals come first, so that late waves need only the first lines.
        ranking = sorted(range(len(tensors)), key=lambda index: -_diagonals(tensors[index]))
        first_row, first_column, self.line_count = {}, {}, 0
        widths = []
        for index in ranking:
            tensor = tensors[index]
            first_row[index] = self.line_count
            first_column[index] = self.line_count + tensor.rows
            self.line_count += tensor.rows + tensor.columns
            widths += [np.full(tensor.down, tensor.block_rows, np.uint8)]
            widths += [np.full(tensor.across, tensor.block_columns, np.uint8)]
        self.strip_widths: npt.NDArray[np.uint8] = np.concatenate(widths)
        """Lines of each strip, in the order of their lines."""
        ends = np.cumsum(self.strip_widths, dtype=np.int64)
        starts = ends - self.strip_widths
        self.frequencies: npt.NDArray[np.uint8] = (
            np.arange(self.line_count) - np.repeat(starts, self.strip_widths)
        ).astype(np.uint8)
        """The frequency that each line stands for."""
        self.most_seen = max(max(t.down, t.across) * t.top_k for t in tensors)
        """No strip has more coefficients."""

        bounds = _bounds(_diagonals(tensors[ranking[0]]))
        rows, columns, waves = [], [], []
        for index, tensor in enumerate(tensors):
            down, across = np.divmod(np.arange(tensor.blocks), tensor.across)
            rows.append(first_row[index] + down * tensor.block_rows)
            columns.append(first_column[index] + across * tensor.block_columns)
            diagonal = (down + across) % _diagonals(tensor)
            waves.append(np.searchsorted(bounds, diagonal, side="right") - 1)
        counts = [tensor.blocks for tensor in tensors]
        top_k = np.repeat([tensor.top_k for tensor in tensors], counts)
        wave = np.concatenate(waves)
        order = np.lexsort((-top_k, wave))
        kinds = sorted({tensor.top_k for tensor in tensors}, reverse=True)
        places = np.empty(len(order), dtype=np.int32)
        for kind in kinds:
            (alike,) = (top_k == kind).nonzero()
            places[alike] = np.arange(len(alike))
        self.places: Indices = places[order]
        """For each block its number among those with as many coefficients, in layout order."""
        self.row_lines: Indices = np.concatenate(rows)[order].astype(np.int32)
        """For each block the first line of its strip of rows."""
        self.column_lines: Indices = np.concatenate(columns)[order].astype(np.int32)
        sides = np.repeat([(t.block_rows, t.block_columns) for t in tensors], counts, axis=0)
        self.sides: npt.NDArray[np.uint8] = sides[order].astype(np.uint8)
        """(blocks, 2): how many rows and columns each block has."""

        self.waves: list[Wave] = []
        done = 0
        for number, bound in enumerate(bounds[:-1]):
            classes = []
            present = top_k[wave == number]
            for kind in kinds:
                count = int((present == kind).sum())
                if count:
                    classes.append((kind, slice(done, done + count)))
                    done += count
            lines = sum(t.rows + t.columns for t in tensors if _diagonals(t) > bound)
            self.waves.append(Wave(tuple(classes), lines))


def _diagonals(tensor: TensorLayout) -> int:
    """How many diagonals cover a tensor; each has at most one block of a strip's shorter kind."""
    return max(tensor.down, tensor.across)


def _bounds(diagonals: int) -> list[int]:
    """The first diagonal of each wave, and where the last one ends.

    Each wave is a third of what was before: less would learn no better, more would be slower.
    """
    bounds = [0]
    while bounds[-1] < diagonals:
        bounds.append(min(diagonals, bounds[-1] + max(1, bounds[-1] // 3)))
    return bounds
