"""Sections: the parts of a model that different members speak for.

The blocks of a layout, in its order, are cut into as many sections as are asked for, each about as long
as the others in elements, none of them empty. A section may begin and end within a tensor, but never
within a block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from .layout import TensorLayout, UpdateLayout


@dataclass(frozen=True)
class Run:
    """Neighbouring blocks of one tensor, in raster order."""

    tensor: int
    """Which tensor of the layout it is."""
    first: int
    """Its first block."""
    blocks: int


@dataclass(frozen=True)
class Section:
    """One part of a layout."""

    whole: UpdateLayout
    runs: tuple[Run, ...]

    @cached_property
    def layout(self) -> UpdateLayout:
        """Its blocks alone, each run as a tensor that is one block wide."""
        return UpdateLayout(tensors=tuple(self._cut(run) for run in self.runs))

    def _cut(self, run: Run) -> TensorLayout:
        tensor = self.whole.tensors[run.tensor]
        rows = run.blocks * tensor.block_rows
        return replace(tensor, rows=rows, columns=tensor.block_columns)


def most_sections(layout: UpdateLayout) -> int:
    """Into how many sections a layout can be cut: as many as it has blocks."""
    return sum(tensor.blocks for tensor in layout.tensors)


def panel_count(members: int, size: int, most: int) -> int:
    """How many panels so many members make."""
    return max(1, min(members // size, most))


def sections(layout: UpdateLayout, count: int) -> tuple[Section, ...]:
    """The layout in so many sections. Raises `ValueError` for more than there are blocks, or none."""
    blocks = most_sections(layout)
    if not 1 <= count <= blocks:
        raise ValueError(f"{blocks} blocks do not make {count} sections")
    cuts = [0]
    for number, cut in enumerate(_even_cuts(layout, count), start=1):
        # Each section has a block of its own, and leaves one to each of those behind it.
        cuts.append(min(max(cut, cuts[-1] + 1), blocks - (count - number)))
    cuts.append(blocks)
    return tuple(Section(layout, tuple(_runs(layout, *ends))) for ends in pairwise(cuts))


def _even_cuts(layout: UpdateLayout, count: int) -> Iterator[int]:
    """The blocks before which cuts make parts with as many elements, rounded to whole blocks."""
    sizes = [tensor.blocks * tensor.elements for tensor in layout.tensors]
    begins = [0, *accumulate(sizes)]
    firsts = [0, *accumulate(tensor.blocks for tensor in layout.tensors)]
    for number in range(1, count):
        element = begins[-1] * number // count
        index = bisect_right(begins, element) - 1
        size = layout.tensors[index].elements
        yield firsts[index] + (2 * (element - begins[index]) + size) // (2 * size)


def _runs(layout: UpdateLayout, begin: int, end: int) -> Iterator[Run]:
    """The blocks from `begin` to before `end`, counted through the layout, by tensor."""
    first = 0
    for index, tensor in enumerate(layout.tensors):
        low, high = max(begin, first), min(end, first + tensor.blocks)
        if low < high:
            yield Run(index, low - first, high - low)
        first += tensor.blocks
