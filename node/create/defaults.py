"""The settings of training that a founder's file does not give.

The settings of `[optimizer]` belong together, and the best ones depend on the rest of the file. If
work is audited, some of them make audits of a small model uninformative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...protocol.chain.features import exchange_size
from ...protocol.codec.exchange_size import largest_top_k
from ...protocol.codec.update import update_layout
from ...protocol.wire.manifest import OptimizerSpec, ParameterSpec, ScheduleSpec
from .manifest_file import FoundersFile, ManifestFile, OptimizerTable, bad_manifest
from .rates import default_rate

MUON_MINIMUM = 1_936
"""The least number of coefficients of an update with which audits recognise honest work with `muon`
or a smoothed gradient: that of the smallest model in which they did (2026-11-26-checks.json in
benchmarks/results). Audit scores grow with the square root of this number. With 312 coefficients, `muon`
and smoothing, two of three audits of honest work failed."""


COMMITTEE_TOP_K = 64
"""Number of coefficients per block that committees aggregate in a step. It is large because it costs
little: an aggregate crosses each member's connection once, and not once from every member
(2026-11-26-growth.json in benchmarks/results). A large model has fewer: as many as a single committee
can aggregate while members are few."""

_COMMITTEE_MOMENTUM_PROBLEM = (
    "with [committees] the committees keep the momentum, and it decays by 1/32 a step: leave it out"
)


def default_optimizer(
    file: FoundersFile, path: Path, parameters: Sequence[ParameterSpec]
) -> OptimizerSpec:
    """Return the manifest's optimizer for this file, which is at `path`; `parameters` are the trained
    ones.

    Raises `UserError` (`MANIFEST`) if work is audited and audits could not recognise honest work, or if
    the swarm has committees and the file sets `momentum`, which they do not use.
    """
    table, given = file.optimizer, file.given_keys
    takes_steps = file.rounds.local_steps > 1
    if "optimizer.preconditioner" not in given and takes_steps:
        # A step's direction is nearly orthogonal already; the momentum is then error feedback
        # (2026-11-29-local-steps.json in benchmarks/results).
        table = replace(table, preconditioner="none")
    elif "optimizer.preconditioner" not in given and (
        file.audits is not None or file.data.policy == "private"
    ):
        # With audits: byzantine members harm its sign steps less than the scaled steps of `muon`. With
        # private data: the effect of privacy's noise was measured with it.
        table = replace(table, preconditioner="orthogonal")
    defaults = _preconditioner_defaults(table)
    if takes_steps and table.preconditioner == "none":
        defaults["step"] = "scaled"
    if not _may_weight_by_share(file):
        defaults["update_weight"] = "equal"
    if file.committees is not None:
        if "optimizer.momentum" in given:
            raise bad_manifest(path, f"optimizer.momentum: {_COMMITTEE_MOMENTUM_PROBLEM}")
        top_k = largest_top_k(
            parameters, table.chunk, exchange_size(file.features), COMMITTEE_TOP_K
        )
        defaults |= {"top_k": top_k, "outlier_filter": False}
    to_set = {name: each for name, each in defaults.items() if f"optimizer.{name}" not in given}
    table = replace(table, **to_set)
    coefficients = update_layout(parameters, table.chunk, table.top_k).coefficients
    too_few_coefficients = file.audits is not None and coefficients < MUON_MINIMUM
    if too_few_coefficients and (table.preconditioner == "muon" or table.smoothing):
        raise bad_manifest(
            path,
            f"optimizer: an update of this model has {coefficients:,} coefficients; with fewer "
            f"than {MUON_MINIMUM:,}, audits need preconditioner 'orthogonal' and smoothing 0: "
            "leave both keys out, or leave out the table [audits]",
        )
    if file.data.policy == "private":
        # Honest members whose texts differ contradict each other.
        table = replace(table, outlier_filter=False)
    return table.spec()


def default_schedule(file: FoundersFile, optimizer: OptimizerSpec, parameters: int) -> ScheduleSpec:
    """Return the schedule of a swarm that trains a new language model with that many parameters.

    Its peak rate is the one that learned best, unless the file gives one, or has an optimizer for
    which no best rate was measured.
    """
    steps = file.rounds.local_steps
    measured = optimizer.preconditioner in ("orthogonal", "muon") or steps > 1
    if "schedule.peak" in file.given_keys or not measured:
        return file.schedule
    return replace(file.schedule, peak=default_rate(parameters, optimizer.step, steps))


def _preconditioner_defaults(table: OptimizerTable) -> dict[str, Any]:
    """Return the default settings that belong to the preconditioner."""
    # The defaults of the founder's file belong to `muon`; the manifest's own, to the others.
    defaults = OptimizerTable() if table.preconditioner == "muon" else OptimizerSpec()
    return {name: getattr(defaults, name) for name in ("momentum", "smoothing", "step")}


def _may_weight_by_share(file: ManifestFile) -> bool:
    """Whether the weight of an update may follow from its author's share of a round: not if all shares
    are equal, nor with private data, for which the manifest does not allow it."""
    return file.data.policy == "shared" and file.rounds.max_share > 0
