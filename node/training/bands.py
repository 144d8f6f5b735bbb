"""Ownership of a model among a member's devices: bands of whole block rows of each tensor.

The shared step, the extraction and the fingerprint are local to blocks. So a tensor can be cut
between any two block rows, and the owner of a band needs nothing from the others for it. A tensor
with a single block row (a vector) has one owner. The plan follows from the layout and the number of
ranks, so every rank computes the same plan without communication.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...protocol.codec.update import DecodedUpdate, TensorLayout, UpdateLayout
from ...protocol.wire.manifest import ParameterSpec


@dataclass(frozen=True, kw_only=True)
class Band:
    """Some block rows of one tensor, and the rank that owns them."""

    tensor: int
    """Index of the tensor in the layout."""
    owner: int
    first: int
    """First row in the tensor, a multiple of the block's rows."""
    stop: int
    """Row after the last one, also a multiple of the block's rows."""
    start: int
    """Offset of its first element among all elements of the model."""
    elements: int
    """Number of its elements."""


@dataclass(frozen=True)
class BandPlan:
    """The bands of a model, tensors in order, rows ascending."""

    layout: UpdateLayout
    table: tuple[ParameterSpec, ...]
    """The parameters in the layout's order."""
    bands: tuple[Band, ...]

    def of(self, rank: int) -> list[Band]:
        """Return the bands that a rank owns."""
        return [band for band in self.bands if band.owner == rank]

    def layout_of(self, rank: int) -> UpdateLayout:
        """Return a rank's bands as a layout of their own: the blocks are the same, the tensors are
        shorter."""
        return UpdateLayout(tensors=tuple(self._layout_of_band(band) for band in self.of(rank)))

    def table_of(self, rank: int) -> tuple[ParameterSpec, ...]:
        """Return a rank's bands as a parameter table; if a band is not a whole tensor, its name includes
        its first row."""
        table = []
        for band in self.of(rank):
            tensor, spec = self.layout.tensors[band.tensor], self.table[band.tensor]
            if (rows := band.stop - band.first) < tensor.rows:
                name = f"{spec.name}@{band.first}"
                spec = ParameterSpec(name=name, shape=(rows, tensor.columns))
            table.append(spec)
        return tuple(table)

    def part_of(self, rank: int, update: DecodedUpdate) -> DecodedUpdate:
        """Return the part of a whole model's update that concerns a rank's bands; arrays are views."""
        blocks = [(band.tensor, self.blocks(band)) for band in self.of(rank)]
        return DecodedUpdate(
            [update.positions[index][rows] for index, rows in blocks],
            [update.signs[index][rows] for index, rows in blocks],
        )

    def blocks(self, band: Band) -> slice:
        """Return a band's blocks among its tensor's, in raster order."""
        tensor = self.layout.tensors[band.tensor]
        first, stop = band.first // tensor.block_rows, band.stop // tensor.block_rows
        return slice(first * tensor.across, stop * tensor.across)

    def merge(self, parts: list[list[np.ndarray]]) -> list[np.ndarray]:
        """Merge arrays of every rank's bands (rank → band → (blocks, k)) into arrays of whole
        tensors."""
        queues = [iter(part) for part in parts]
        pieces: list[list[np.ndarray]] = [[] for _ in self.layout.tensors]
        for band in self.bands:
            pieces[band.tensor].append(next(queues[band.owner]))
        return [np.concatenate(each) for each in pieces]

    def _layout_of_band(self, band: Band) -> TensorLayout:
        return replace(self.layout.tensors[band.tensor], rows=band.stop - band.first)


def plan_bands(
    layout: UpdateLayout,
    table: Sequence[ParameterSpec],
    ranks: int,
    keep_whole: Collection[int] = (),
) -> BandPlan:
    """Cut every tensor of a table with this layout into at most as many bands as there are ranks.

    Rank r has the r-th band, as `torch.chunk` cuts: all bands have ceil(block rows / ranks) block
    rows, the last one the remainder. Tensors in `keep_whole`, and those with one block row, go to the
    rank with the fewest elements so far, the largest first.
    """
    loads = [0] * ranks
    cuts: dict[int, list[tuple[int, int, int]]] = {}
    uncut = []
    for index, tensor in enumerate(layout.tensors):
        if index in keep_whole or tensor.down == 1 or ranks == 1:
            uncut.append(index)
            continue
        step = -(-tensor.down // ranks) * tensor.block_rows
        cuts[index] = []
        for rank, first in enumerate(range(0, tensor.rows, step)):
            stop = min(first + step, tensor.rows)
            cuts[index].append((rank, first, stop))
            loads[rank] += (stop - first) * tensor.columns
    for index in sorted(uncut, key=lambda each: -_elements(layout.tensors[each])):
        rank = loads.index(min(loads))
        loads[rank] += _elements(layout.tensors[index])
        cuts[index] = [(rank, 0, layout.tensors[index].rows)]
    bands, start = [], 0
    for index, tensor in enumerate(layout.tensors):
        for rank, first, stop in cuts[index]:
            size = (stop - first) * tensor.columns
            at = start + first * tensor.columns
            bands.append(
                Band(tensor=index, owner=rank, first=first, stop=stop, start=at, elements=size)
            )
        start += _elements(tensor)
    return BandPlan(layout, tuple(table), tuple(bands))


def cut_by_rows(tensor: TensorLayout, ranks: int) -> bool:
    """Whether cutting the tensor's rows into equal parts, as FSDP does, cuts between block rows, at
    the same places as `plan_bands`."""
    step = -(-tensor.down // ranks) * tensor.block_rows
    return tensor.down > 1 and -(-tensor.rows // ranks) == step


def unshardable_tensors(
    layout: UpdateLayout, table: Sequence[ParameterSpec], ranks: int
) -> frozenset[int]:
    """Return the tensors that FSDP would cut through blocks, or along another dimension than their
    rows."""
    return frozenset(
        index
        for index, (tensor, spec) in enumerate(zip(layout.tensors, table, strict=True))
        if len(spec.shape) != 2 or not cut_by_rows(tensor, ranks)
    )


def _elements(tensor: TensorLayout) -> int:
    return tensor.rows * tensor.columns
