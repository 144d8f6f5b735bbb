"""The default settings of training, where a founder's file does not give them.

The settings of `[optimizer]` belong together, and the best ones depend on the rest of the file.
Where work is checked, some of them make audits of a small model uninformative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...protocol.codec.exchange_size import largest_top_k
from ...protocol.codec.update import update_layout
from ...protocol.wire.manifest import OptimizerSpec, ParameterSpec, ScheduleSpec
from .manifest_file import FoundersFile, ManifestFile, OptimizerTable, bad_manifest
from .rates import default_rate

MUON_MINIMUM = 1_936
"""The least number of coefficients of an update with which audits recognise honest work with `muon`
or a smoothed gradient: that of the smallest model in which they did (2026-11-26-checks.json in
benchmarks/results). Scores grow with the root of the number. With 312 and both, two audits of three
of honest work failed."""


SPOKEN = 64
"""Number of coefficients per block that committees aggregate in a step: an aggregate crosses each
line once, and not once from every member, so that a large number costs little
(2026-11-26-growth.json in benchmarks/results). A large model has as many as one committee can
aggregate while members are few."""

_COMMITTEE_MOMENTUM = (
    "with [committees] the committees keep the momentum, and it decays by 1/32 a step: leave it out"
)


def default_optimizer(
    file: FoundersFile, path: Path, parameters: Sequence[ParameterSpec]
) -> OptimizerSpec:
    """Return the optimizer of this file's manifest; the file is at `path`, `parameters` are the
    trained ones.

    Raises `UserError` (`MANIFEST`) where work is checked and honest work could not be recognised, or
    where the swarm has committees and the file sets what they do not use.
    """
    table, said = file.optimizer, file.said
    if "optimizer.preconditioner" not in said and (
        file.audits is not None or file.data.policy == "private"
    ):
        # Noise was measured with this one, and byzantine members harm it less.
        table = replace(table, preconditioner="orthogonal")
    usual = _beside(table)
    if not _shares_are_known(file):
        usual["update_weight"] = "equal"
    if file.committees is not None:
        if "optimizer.momentum" in said:
            raise bad_manifest(path, f"optimizer.momentum: {_COMMITTEE_MOMENTUM}")
        spoken = largest_top_k(parameters, table.chunk, file.committees, SPOKEN)
        usual |= {"top_k": spoken, "outlier_filter": False}
    unsaid = {name: each for name, each in usual.items() if f"optimizer.{name}" not in said}
    table = replace(table, **unsaid)
    coefficients = update_layout(parameters, table.chunk, table.top_k).coefficients
    untold = file.audits is not None and coefficients < MUON_MINIMUM
    if untold and (table.preconditioner == "muon" or table.smoothing):
        raise bad_manifest(
            path,
            f"optimizer: an update of this model has {coefficients:,} coefficients; with fewer "
            f"than {MUON_MINIMUM:,} audits cannot tell honest work from none unless "
            "preconditioner is 'orthogonal' and smoothing is 0: leave both out, or the table "
            "[audits]",
        )
    if file.data.policy == "private":
        # Members whose texts differ contradict each other honestly.
        table = replace(table, outlier_filter=False)
    return table.spec()


def default_schedule(file: FoundersFile, optimizer: OptimizerSpec, parameters: int) -> ScheduleSpec:
    """Return the schedule of a swarm that trains a new language model with that many parameters.

    Its peak rate is the one that learned best, unless the file gives one, or has an optimizer for
    which no best rate was measured.
    """
    if "schedule.peak" in file.said or optimizer.preconditioner not in ("orthogonal", "muon"):
        return file.schedule
    return replace(file.schedule, peak=default_rate(parameters, optimizer.step))


def _beside(table: OptimizerTable) -> dict[str, Any]:
    """Return the settings that go with the preconditioner."""
    usual = OptimizerTable() if table.preconditioner == "muon" else OptimizerSpec()
    return {name: getattr(usual, name) for name in ("momentum", "smoothing", "step")}


def _shares_are_known(file: ManifestFile) -> bool:
    """Whether members have different shares of work that others could recompute."""
    return file.data.policy == "shared" and file.rounds.max_share > 0
