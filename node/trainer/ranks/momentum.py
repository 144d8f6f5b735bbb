"""The optimizer's state on disk, which can be read by another number of devices than wrote it.

Every rank writes the state of its own bands (`momentum`) to a folder of its own, so nothing is
gathered; a single process writes one file. After a start with another number of ranks, each assembles
the state of its bands from the pieces that were saved last.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ....protocol.codec.update import UpdateLayout
from ....protocol.wire.manifest import OptimizerSpec, ParameterSpec
from ...training.bands import Band, BandPlan, plan_bands, unshardable_tensors
from ..memory.optimizer_state import StateTensor
from ..optimizer.momentum import load_momentum, save_momentum
from ..optimizer.optimizer import LocalOptimizer

_FOLDER = re.compile(r"(copies|shards)-([1-9]\d{0,3})-of-([1-9]\d{0,3})")


@dataclass(frozen=True)
class MomentumDivision:
    """A division of a model's bands among `size` ranks, with copies or shards of the parameters."""

    size: int = 1
    shards: bool = False

    def plan(self, layout: UpdateLayout, table: Sequence[ParameterSpec]) -> BandPlan:
        """Return the bands of each rank."""
        unshardable = unshardable_tensors(layout, table, self.size) if self.shards else ()
        return plan_bands(layout, table, self.size, unshardable)

    def path(self, path: Path, rank: int) -> Path:
        """Return a rank's file, given the `path` that a single process would use."""
        if self.size == 1:
            return path
        kind = "shards" if self.shards else "copies"
        # Each rank has a folder, because saving removes all temporary files in the file's folder: a
        # killed process may have left some.
        return path.parent / f"{kind}-{rank + 1}-of-{self.size}" / path.name


@dataclass(frozen=True)
class RankPlace:
    """A rank's place in a division."""

    plan: BandPlan
    division: MomentumDivision = MomentumDivision()
    rank: int = 0


def save_part(optimizer: LocalOptimizer, place: RankPlace, path: Path) -> None:
    """Write one rank's state to its file (`MomentumDivision.path`). Raises as `save_momentum` does."""
    own_path = place.division.path(path, place.rank)
    own_path.parent.mkdir(parents=True, exist_ok=True)
    save_momentum(optimizer, place.plan.table_of(place.rank), own_path)


def remove_others(division: MomentumDivision, path: Path) -> None:
    """Remove what was saved with other divisions than `division`. All files of `division` must be
    written: then the others are outdated."""
    kept = {division.path(path, rank) for rank in range(division.size)}
    if path not in kept:
        path.unlink(missing_ok=True)
    for folder in _folders(path):
        if folder / path.name not in kept:
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)


def load_part(optimizer: LocalOptimizer, place: RankPlace, path: Path, spec: OptimizerSpec) -> bool:
    """Read one rank's state. Return False, with nothing changed, if there is none or it is invalid.

    If the state was saved with another division, the saved ranks' states are read one at a time, each
    in float32.
    """
    plan, division, rank = place.plan, place.division, place.rank
    saved = _newest(path)
    if saved is None:
        return False
    if saved == division:
        return load_momentum(optimizer, plan.table_of(rank), division.path(path, rank))
    theirs = saved.plan(plan.layout, plan.table)

    def read_rank(other: int) -> LocalOptimizer | None:
        names = theirs.table_of(other)
        shapes = [torch.empty(each.shape) for each in names]
        read = LocalOptimizer(theirs.layout_of(other), shapes, spec)
        return read if load_momentum(read, names, saved.path(path, other)) else None

    # All are read once before anything is changed: one may be invalid.
    if any(read_rank(other) is None for other in range(saved.size)):
        return False
    for other in range(saved.size):
        read = read_rank(other)
        if read is None:
            return False
        for their_index, their_band in enumerate(theirs.of(other)):
            for our_index, band in enumerate(plan.of(rank)):
                first, stop = max(band.first, their_band.first), min(band.stop, their_band.stop)
                if band.tensor == their_band.tensor and first < stop:
                    _copy(
                        (optimizer, our_index, _Rows(plan.layout, band, first, stop)),
                        (read, their_index, _Rows(plan.layout, their_band, first, stop)),
                    )
        optimizer.steps = read.steps
    optimizer.forget_all()
    return True


class _Rows:
    """The place of some rows of a tensor within a band, as a range of rows and as a range of blocks."""

    def __init__(self, layout: UpdateLayout, band: Band, first: int, stop: int) -> None:
        tensor = layout.tensors[band.tensor]
        self.columns = tensor.columns
        self.rows = slice(first - band.first, stop - band.first)
        per_row = tensor.across
        self.blocks = slice(
            self.rows.start // tensor.block_rows * per_row,
            self.rows.stop // tensor.block_rows * per_row,
        )


_RowsInState = tuple[LocalOptimizer, int, _Rows]


@torch.no_grad()
def _copy(to: _RowsInState, their_band: _RowsInState) -> None:
    ours, our_index, target = to
    theirs, their_index, source = their_band
    _copy_rows(
        (ours.coefficients[our_index], target.blocks),
        (theirs.coefficients[their_index], source.blocks),
    )
    for kind, states in ours.by_rows.items():
        origins = theirs.by_rows[kind]
        _copy_rows((states[our_index], target.rows), (origins[their_index], source.rows))


def _copy_rows(to: tuple[StateTensor, slice], their_band: tuple[StateTensor, slice]) -> None:
    (ours, target), (theirs, source) = to, their_band
    ours.write(target, theirs.read(source).to(ours.device))


def _folders(path: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [each for each in path.parent.iterdir() if _FOLDER.fullmatch(each.name)]
    return []


def _newest(path: Path) -> MomentumDivision | None:
    """Return the division whose files were written last, among those that are complete."""
    found: dict[MomentumDivision, list[float]] = {}
    files = [(MomentumDivision(), path)]
    for folder in _folders(path):
        match = _FOLDER.fullmatch(folder.name)
        assert match is not None
        kind, rank, size = match[1], int(match[2]), int(match[3])
        if size > 1 and rank <= size:
            files.append((MomentumDivision(size, kind == "shards"), folder / path.name))
    for division, file in files:
        with contextlib.suppress(OSError):
            found.setdefault(division, []).append(file.stat().st_mtime)
    complete = {
        division: min(times) for division, times in found.items() if len(times) == division.size
    }
    return max(complete, key=lambda division: complete[division], default=None)
