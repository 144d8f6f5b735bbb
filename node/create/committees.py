"""Aggregation by committees in a founder's file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...protocol.chain.features import exchange_size
from ...protocol.codec.exchange_size import largest_top_k
from ...protocol.codec.layout import manifest_layout
from ...protocol.committee.aggregator_state import Aggregator
from ...protocol.committee.sections import sections
from ...protocol.committee.sign_vote import step_of
from ...protocol.wire.manifest import Manifest, ParameterSpec
from .file_feature import FileFeature
from .manifest_file import FoundersFile, ManifestFile, bad_manifest

COMMITTEE_TOP_K = 64
"""Number of coefficients per block that committees aggregate in a step. It is large because it costs
little: an aggregate crosses each member's connection once, and not once from every member
(2026-11-26-growth.json in benchmarks/results). A large model has fewer: as many as a single committee
can aggregate while members are few."""


class CommitteesInFile(FileFeature):
    """Aggregation by committees, as far as a founder's file is concerned."""

    strangers_notice = (
        "Anyone with the link may join, and no work is audited: [committees] is for members who know\n"
        "each other. For strangers use [audits] instead, or admit members by invitation ([admission])."
    )

    def is_in(self, file: ManifestFile) -> bool:
        return file.committees is not None

    def optimizer_defaults(
        self, file: FoundersFile, path: Path, parameters: Sequence[ParameterSpec]
    ) -> dict[str, Any]:
        if "optimizer.momentum" in file.given_keys:
            raise bad_manifest(
                path,
                "optimizer.momentum: with [committees] the committees keep the momentum, and it decays "
                "by 1/32 a step: leave it out",
            )
        size, chunk = exchange_size(file.features), file.optimizer.chunk
        top_k = largest_top_k(parameters, chunk, size, COMMITTEE_TOP_K)
        return {"top_k": top_k, "outlier_filter": False}

    def agreed_body(self, manifest: Manifest, round: int, body: bytes) -> bytes:
        """Return the aggregate of the member's sign vote."""
        assert manifest.committees is not None
        (section,) = sections(manifest_layout(manifest), 1)
        aggregator = Aggregator(section, 0, 1, manifest.committees.rotation_steps)
        return aggregator.aggregate(step_of(round), [(body, 1)])
