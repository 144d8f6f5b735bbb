"""What a trainer process is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..settings import Compile, Split
from .own_ways import USUAL_WAYS, OwnWays

PATIENCE_SECONDS = 600.0
"""How long the processes of several devices wait for each other before they are started anew: also for
the one that computes the most, or whose disk is slow."""


@dataclass(frozen=True)
class TrainerSpec:
    """What a trainer is started with."""

    manifest: bytes
    """Its canonical encoding, already held against the swarm-id."""
    blobs: Path
    device: str = "auto"
    threads: int | None = None
    micro_batch: int | None = None
    """Sequences at once; by default as many as fit. Halved when memory runs out."""
    memory: int | None = None
    """Bytes that may be taken on the device; by default what is free."""
    writable: tuple[Path, ...] = ()
    """Folders that it writes to beside `blobs`; made if they are not there."""
    readable: tuple[Path, ...] = ()
    """Files and folders that it reads beside those."""
    caches: Path | None = None
    """Folder for what compilers and drivers make and use again at the next start; None: none is kept."""
    confined: bool = True
    """Whether it gives up the network and all other files, where the system can do that."""
    patience: float = PATIENCE_SECONDS
    """With several devices, the seconds for which their processes wait for each other."""
    compile: Compile = Compile.AUTO
    """Whether a trial is made of compiling the model, before anything else is done."""
    split: Split = Split.AUTO
    launched: bool = False
    """Whether torch's launcher has started this process and others, each for one device (`launched`)."""
    nice: int = 0
    """How far it steps back behind other processes, as `nice` counts."""
    ways: OwnWays = USUAL_WAYS
    """What is the member's own affair."""
