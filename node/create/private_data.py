"""Private data in a founder's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...protocol.wire.manifest import ParameterSpec, PrivateSpec
from ..training.task_names import DPO, GRPO, ON_IMAGES, TEXT_CLASSIFICATION
from .corpus import Sides
from .file_feature import FileFeature
from .manifest_file import DataTable, FoundersFile, ManifestFile, OptimizerTable
from .summary import Forecast
from .tokens import ByteTokenizer, Tokenizer


class PrivateDataInFile(FileFeature):
    """Private data, as far as a founder's file is concerned."""

    refused_tasks: Mapping[str, str] = {
        GRPO: "data.policy: the task 'grpo' needs prompts that all members share",
        DPO: "data.policy: the task 'dpo' needs what the initial model makes of every pair, which the "
        "founder computes: it cannot be combined with private data",
        TEXT_CLASSIFICATION: "data.policy: private data has no classes, which the task "
        f"{TEXT_CLASSIFICATION!r} learns",
        **{
            task: f"data.policy: private data must be text, and the task {task!r} trains on images"
            for task in ON_IMAGES
        },
    }
    # The effect of privacy's noise was measured with it.
    preconditioner = "orthogonal"

    def is_in(self, file: ManifestFile) -> bool:
        return _is_private(file.data)

    def optimizer_defaults(
        self, file: FoundersFile, path: Path, parameters: Sequence[ParameterSpec]
    ) -> dict[str, Any]:
        # The manifest allows no other: a share of a round says nothing about a member's own data.
        return {"update_weight": "equal"}

    def settle_optimizer(
        self, table: OptimizerTable, path: Path, coefficients: int
    ) -> OptimizerTable:
        # Honest members whose texts differ contradict each other.
        return replace(table, outlier_filter=False)

    def settle_forecast(self, forecast: Forecast) -> Forecast:
        """Return a forecast without what depends on the members' own data: whether it suffices, and how
        much of it is fetched."""
        fetched = dict.fromkeys(forecast.data_bytes_a_round, 0)
        return replace(forecast, verdict=None, data_bytes_a_round=fetched)


def founder_sides(table: DataTable) -> Sides:
    """Return the sides of the corpus that the founder's texts make: all are held out if members train
    on their own."""
    return "heldout" if _is_private(table) else "both"


def private_spec(
    file: ManifestFile, tokenizer: Tokenizer, end: tuple[int, ...], filler: int
) -> PrivateSpec | None:
    """Return the manifest's settings for members' own data; None if the data is shared."""
    table = file.data
    if not _is_private(table):
        return None
    # By default all sequences of the run are one epoch; 2^40 is the most that a manifest may state.
    run = file.schedule.total_rounds * file.rounds.sequences
    return PrivateSpec(
        epoch=table.epoch or min(run, 1 << 40),
        raw_bytes=isinstance(tokenizer, ByteTokenizer),
        end=end,
        filler=filler,
        format=table.format,
        text=table.text,
        template=table.template,
        messages=table.messages,
        prompt=table.prompt,
        completion=table.completion,
        token_type=table.token_type,
        deduplicate=table.deduplicate,
        max_bad=table.max_bad,
        max_epsilon=table.max_epsilon,
        max_delta=table.max_delta,
    )


def _is_private(table: DataTable) -> bool:
    return table.policy == "private"
