"""Sections: the parts of a model that different committees aggregate.

The sequence of a layout's blocks is cut into a given number of sections with about the same number of
elements; no section is empty. A section may begin and end within a tensor, but never within a block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from ..codec.layout import TensorLayout, UpdateLayout


@dataclass(frozen=True)
class BlockRun:
    """Consecutive blocks of one tensor, in raster order."""

    tensor: int
    """Index of the tensor in the layout."""
    first: int
    """Index of the first block."""
    blocks: int


@dataclass(frozen=True)
class Section:
    """One part of a layout."""

    whole: UpdateLayout
    runs: tuple[BlockRun, ...]

    @cached_property
    def layout(self) -> UpdateLayout:
        """A layout of the section's blocks alone, each run as a tensor that is one block wide."""
        return UpdateLayout(tensors=tuple(self._cut(run) for run in self.runs))

    def _cut(self, run: BlockRun) -> TensorLayout:
        tensor = self.whole.tensors[run.tensor]
        rows = run.blocks * tensor.block_rows
        return replace(tensor, rows=rows, columns=tensor.block_columns)


def most_sections(layout: UpdateLayout) -> int:
    """Return the largest number of sections of a layout: its number of blocks."""
    return sum(tensor.blocks for tensor in layout.tensors)


def committee_count(members: int, size: int, most: int) -> int:
    """Return the number of committees that `members` members form, each with at least `size` members if
    there are so many, and at most `most` committees."""
    return max(1, min(members // size, most))


def sections(layout: UpdateLayout, count: int) -> tuple[Section, ...]:
    """Return the layout cut into `count` sections. Raises `ValueError` if there are fewer blocks, or if
    `count` is below 1."""
    blocks = most_sections(layout)
    if not 1 <= count <= blocks:
        raise ValueError(f"{blocks} blocks cannot be cut into {count} sections")
    cuts = [0]
    for number, cut in enumerate(_even_cuts(layout, count), start=1):
        # Each section has at least one block, and leaves one for each later section.
        cuts.append(min(max(cut, cuts[-1] + 1), blocks - (count - number)))
    cuts.append(blocks)
    return tuple(Section(layout, tuple(_runs(layout, *ends))) for ends in pairwise(cuts))


def _even_cuts(layout: UpdateLayout, count: int) -> Iterator[int]:
    """Yield the indices of the blocks before which to cut for equal numbers of elements, rounded to
    whole blocks."""
    sizes = [tensor.blocks * tensor.elements for tensor in layout.tensors]
    begins = [0, *accumulate(sizes)]
    firsts = [0, *accumulate(tensor.blocks for tensor in layout.tensors)]
    for number in range(1, count):
        element = begins[-1] * number // count
        index = bisect_right(begins, element) - 1
        size = layout.tensors[index].elements
        yield firsts[index] + (2 * (element - begins[index]) + size) // (2 * size)


def _runs(layout: UpdateLayout, begin: int, end: int) -> Iterator[BlockRun]:
    """Yield the blocks from `begin` to before `end`, counted over the whole layout, as one run for each
    tensor."""
    first = 0
    for index, tensor in enumerate(layout.tensors):
        low, high = max(begin, first), min(end, first + tensor.blocks)
        if low < high:
            yield BlockRun(index, low - first, high - low)
        first += tensor.blocks
