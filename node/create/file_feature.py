"""Hooks through which a feature that not every swarm has takes part in the creation of a swarm.

A feature subclasses `FileFeature` and overrides the hooks that it needs; `features.FEATURES` lists all
features. The other modules call each hook of all features of a founder's file, and do not know what they
do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...protocol.wire.manifest import Manifest, ParameterSpec, Preconditioner
from .manifest_file import FoundersFile, ManifestFile, OptimizerTable
from .summary import Forecast


class FileFeature:
    """A feature, as far as a founder's file is concerned. Here every hook leaves the swarm as it is."""

    refused_tasks: Mapping[str, str] = {}
    """The tasks with which it cannot be combined, each with the key in question and the reason."""
    preconditioner: Preconditioner | None = None
    """The default preconditioner, if it has one of its own."""
    strangers_notice: str | None = None
    """What the founder of a swarm with this feature should know if strangers may join."""

    def is_in(self, file: ManifestFile) -> bool:
        """Whether a file has this feature."""
        raise NotImplementedError

    def optimizer_defaults(
        self, file: FoundersFile, path: Path, parameters: Sequence[ParameterSpec]
    ) -> dict[str, Any]:
        """Return its own defaults of `[optimizer]`; `parameters` are the trained ones. Raises
        `UserError` (`MANIFEST`) if the file at `path` gives a key that the swarm would not use."""
        return {}

    def settle_optimizer(
        self, table: OptimizerTable, path: Path, coefficients: int
    ) -> OptimizerTable:
        """Return the settings as the swarm needs them; an update has this many coefficients. Raises
        `UserError` (`MANIFEST`) if the feature would not work with those of the file at `path`."""
        return table

    def settle_forecast(self, forecast: Forecast) -> Forecast:
        """Return the forecast as it is for a swarm with this feature."""
        return forecast

    def agreed_body(self, manifest: Manifest, round: int, body: bytes) -> bytes:
        """Return what a swarm of one member applies as the step of a round in which its trainer made
        `body`."""
        return body
