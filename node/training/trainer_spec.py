"""The settings with which a trainer process is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..settings import Compile, Split
from .local_policy import DEFAULT_POLICY, LocalPolicy

PATIENCE_SECONDS = 600.0
"""How long the processes of several devices wait for each other before they are restarted, including
for the one with the most work or with a slow disk."""


@dataclass(frozen=True)
class TrainerSpec:
    """The settings of a trainer's start."""

    manifest: bytes
    """Its canonical encoding, already checked against the swarm-id."""
    blobs: Path
    device: str = "auto"
    threads: int | None = None
    micro_batch: int | None = None
    """Sequences at once; by default as many as fit. Halved when memory runs out."""
    memory: int | None = None
    """Bytes that may be taken on the device; by default what is free."""
    writable: tuple[Path, ...] = ()
    """Folders that it writes to besides `blobs`; created if missing."""
    readable: tuple[Path, ...] = ()
    """Files and folders that it reads besides those."""
    caches: Path | None = None
    """Folder for files that compilers and drivers create and reuse at the next start; None: nothing
    is kept."""
    confined: bool = True
    """Whether it gives up the network and all other files, where the system supports that."""
    patience: float = PATIENCE_SECONDS
    """With several devices, how many seconds their processes wait for each other."""
    compile: Compile = Compile.AUTO
    """Whether the model is compiled on trial at the start."""
    split: Split = Split.AUTO
    launched: bool = False
    """Whether torch's launcher has started this process and others, each for one device (`launched`)."""
    nice: int = 0
    """Its scheduling priority, as a `nice` value."""
    ways: LocalPolicy = DEFAULT_POLICY
    """The member's local policy."""
