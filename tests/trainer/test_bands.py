"""Bands: every block has one owner, and cutting and merging give the original."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from distro_node.node.trainer.optimizer.fingerprint import fingerprint, fingerprint_pieces
from distro_node.node.training.bands import cut_by_rows, plan_bands
from distro_node.protocol.wire.manifest import ParameterSpec
from trainer.exactness import SHAPES, layout_of, random_parameters, random_updates


def table_of(shapes: Sequence[tuple[int, ...]]) -> list[ParameterSpec]:
    return [ParameterSpec(name=str(index), shape=each) for index, each in enumerate(shapes)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 40])
def test_every_row_has_one_owner_and_bands_make_the_whole_again(ranks: int) -> None:
    layout = layout_of(SHAPES)
    plan = plan_bands(layout, table_of(SHAPES), ranks)
    assert {band.owner for band in plan.bands} <= set(range(ranks))
    ends = 0
    for band in plan.bands:
        tensor = layout.tensors[band.tensor]
        assert (band.start, band.first % tensor.block_rows) == (ends, 0)
        assert band.elements == (band.stop - band.first) * tensor.columns > 0
        ends += band.elements
    assert ends == sum(tensor.rows * tensor.columns for tensor in layout.tensors)
    names = [spec.name for rank in range(ranks) for spec in plan.table_of(rank)]
    assert len(set(names)) == len(names) == len(plan.bands)

    (update,) = random_updates(layout, 1)
    parts = [plan.part_of(rank, update) for rank in range(ranks)]
    for rank, part in enumerate(parts):
        counts = [tensor.blocks for tensor in plan.layout_of(rank).tensors]
        assert [len(each) for each in part.positions] == counts
    for whole, cut in (
        (update.positions, [part.positions for part in parts]),
        (update.signs, [part.signs for part in parts]),
    ):
        assert all(map(np.array_equal, whole, plan.merge(cut)))

    parameters = random_parameters(SHAPES)
    flat = torch.cat([parameter.reshape(-1) for parameter in parameters])
    sums = (
        fingerprint_pieces((b.start, flat[b.start : b.start + b.elements]) for b in plan.of(rank))
        for rank in range(ranks)
    )
    assert sum(sums) % (1 << 64) == fingerprint(parameters)


def test_work_is_shared_evenly() -> None:
    """Including tensors that cannot be cut."""
    shapes = [(512, 256), (4096,), (4096,), (256, 512)]
    plan = plan_bands(layout_of(shapes), table_of(shapes), 4)
    loads = [sum(band.elements for band in plan.of(rank)) for rank in range(4)]
    assert max(loads) - min(loads) <= 4096


def test_whole_tensors_have_one_owner() -> None:
    shapes = [(256, 64), (256, 64)]
    plan = plan_bands(layout_of(shapes), table_of(shapes), 2, keep_whole={1})
    assert [(band.tensor, band.owner) for band in plan.bands] == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("rows", "ranks", "expected"), [(256, 2, True), (192, 3, True), (192, 2, False)]
)
def test_which_tensors_are_cut_as_equal_parts_of_rows(
    rows: int, ranks: int, expected: bool
) -> None:
    """Where they are, torch's own cut is the same to the row."""
    layout = layout_of([(rows, 64)])
    assert cut_by_rows(layout.tensors[0], ranks) == expected
    theirs = [len(part) for part in torch.empty(rows, 1).chunk(ranks)]
    bands = plan_bands(layout, table_of([(rows, 64)]), ranks).bands
    assert ([band.stop - band.first for band in bands] == theirs) == expected
    assert not cut_by_rows(layout_of([(64, 64)]).tensors[0], ranks)
