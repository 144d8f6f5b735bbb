"""The settings of training that a founder's file does not give.

The settings of `[optimizer]` belong together, and the best ones depend on the rest of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...protocol.codec.update import update_layout
from ...protocol.wire.manifest import OptimizerSpec, ParameterSpec, ScheduleSpec
from .features import features_of
from .manifest_file import FoundersFile, OptimizerTable
from .rates import default_rate


def default_optimizer(
    file: FoundersFile, path: Path, parameters: Sequence[ParameterSpec]
) -> OptimizerSpec:
    """Return the manifest's optimizer for this file, which is at `path`; `parameters` are the trained
    ones.

    Raises `UserError` (`MANIFEST`) if the file gives settings that do not go with its features.
    """
    table, given, features = file.optimizer, file.given_keys, features_of(file)
    takes_steps = file.rounds.local_steps > 1
    own = [feature.preconditioner for feature in features if feature.preconditioner is not None]
    if "optimizer.preconditioner" not in given and takes_steps:
        # A step's direction is nearly orthogonal already; the momentum is then error feedback
        # (2026-11-29-local-steps.json in benchmarks/results).
        table = replace(table, preconditioner="none")
    elif "optimizer.preconditioner" not in given and own:
        table = replace(table, preconditioner=own[0])
    defaults = _preconditioner_defaults(table)
    if takes_steps and table.preconditioner == "none":
        defaults["step"] = "scaled"
    if not file.rounds.max_share:
        # All shares of a round are equal, so there is nothing to weight by.
        defaults["update_weight"] = "equal"
    for feature in features:
        defaults |= feature.optimizer_defaults(file, path, parameters)
    to_set = {name: each for name, each in defaults.items() if f"optimizer.{name}" not in given}
    table = replace(table, **to_set)
    coefficients = update_layout(parameters, table.chunk, table.top_k).coefficients
    for feature in features:
        table = feature.settle_optimizer(table, path, coefficients)
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
