"""Audits in a founder's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..training.task_names import GRPO
from .file_feature import FileFeature
from .manifest_file import ManifestFile, OptimizerTable, bad_manifest

MUON_MINIMUM = 1_936
"""The least number of coefficients of an update with which audits recognise honest work with `muon`
or a smoothed gradient: that of the smallest model in which they did (2026-11-26-checks.json in
benchmarks/results). Audit scores grow with the square root of this number. With 312 coefficients, `muon`
and smoothing, two of three audits of honest work failed."""


class AuditsInFile(FileFeature):
    """Audits, as far as a founder's file is concerned."""

    refused_tasks: Mapping[str, str] = {
        GRPO: "audits: cannot be combined with the task 'grpo': a completion that an auditor samples "
        "again differs from the member's on another device, and so does its gradient"
    }
    # Byzantine members harm its sign steps less than the scaled steps of `muon`.
    preconditioner = "orthogonal"

    def is_in(self, file: ManifestFile) -> bool:
        return file.audits is not None

    def settle_optimizer(
        self, table: OptimizerTable, path: Path, coefficients: int
    ) -> OptimizerTable:
        """Refuse settings with which audits could not recognise honest work."""
        if coefficients < MUON_MINIMUM and (table.preconditioner == "muon" or table.smoothing):
            raise bad_manifest(
                path,
                f"optimizer: an update of this model has {coefficients:,} coefficients; with fewer "
                f"than {MUON_MINIMUM:,}, audits need preconditioner 'orthogonal' and smoothing 0: "
                "leave both keys out, or leave out the table [audits]",
            )
        return table
