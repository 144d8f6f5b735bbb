"""The settings with which a trainer process is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..settings.components import TrainerSettings
from .local_policy import DEFAULT_POLICY, LocalPolicy

PATIENCE_SECONDS = 600.0
"""How long the processes of several devices wait for each other before they are restarted: long enough
for the one with the most work or with a slow disk."""


@dataclass(frozen=True)
class TrainerSpec:
    """The settings of a trainer's start."""

    manifest: bytes
    """The manifest's canonical encoding, already checked against the swarm-id."""
    blobs: Path
    """The folder of the blob store."""
    settings: TrainerSettings = field(default_factory=TrainerSettings)
    """The owner's settings, which go over the pipe as they are. `micro_batch` is halved when memory runs
    out."""
    writable: tuple[Path, ...] = ()
    """Folders that it writes to besides `blobs`; created if missing."""
    readable: tuple[Path, ...] = ()
    """Files and folders that it reads besides `blobs` and `writable`."""
    caches: Path | None = None
    """Folder for files that compilers and drivers create and reuse at the next start; None: nothing
    is kept."""
    patience: float = PATIENCE_SECONDS
    """With several devices, how many seconds their processes wait for each other."""
    nice: int = 0
    """Its scheduling priority, as a `nice` value."""
    yields: bool = False
    """Whether it leaves the processor to all other programs (niceness 19) once its model is loaded."""
    policy: LocalPolicy = DEFAULT_POLICY
    """The member's local policy."""
