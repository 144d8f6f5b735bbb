"""Checkpoints of runs that take hours: an interrupted run resumes and ends bit-identical.

The file is written every five minutes of CPU time and removed when the run is over.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from distro_node.node.storage.atomic_write import write_atomically
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

EVERY_SECONDS = 300.0
"""CPU time between two checkpoints."""


@dataclass
class Progress:
    """A run between two rounds."""

    number: int = 0
    """Completed rounds."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Of a round's figures: the sum, and the number of rounds that had one."""

    def add(self, figures: Mapping[str, float]) -> None:
        """Add one round's figures."""
        for name, value in figures.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = total + value, count + 1

    def means(self) -> dict[str, float]:
        """Return the mean of each figure."""
        return {name: total / count for name, (total, count) in self.sums.items()}


class Checkpoint:
    """The file of a run in progress."""

    def __init__(self, folder: Path | None, run: Mapping[str, Any]) -> None:
        """`run`: everything that the run depends on, by which its file in `folder` is found again.
        Without a folder nothing is stored."""
        self._run = json.dumps(run, sort_keys=True)
        self.name = hashlib.sha256(self._run.encode()).hexdigest()[:12]
        """For files that belong to this run alone."""
        self._file = None if folder is None else folder / f"checkpoint-{self.name}.safetensors"
        self._before = 0.0
        self._begun = self._kept = time.process_time()

    @property
    def seconds(self) -> float:
        """CPU time so far, including that before an interruption."""
        return self._before + time.process_time() - self._begun

    def restore(self, tensors: Sequence[torch.Tensor]) -> Progress | None:
        """Restore the tensors of an interrupted run; return None, with nothing changed, if there is
        no usable file."""
        if self._file is None or not self._file.exists():
            return None
        try:
            progress = self._read(self._file, tensors)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            print(f"{self._file} cannot be used, so its run restarts: {error}", file=sys.stderr)
            return None
        print(f"  resumes after round {progress.number:,d}", flush=True)
        return progress

    def keep(self, progress: Progress, tensors: Sequence[torch.Tensor]) -> None:
        """Write the file, and print the progress, if it is time to."""
        now = time.process_time()
        if self._file is None or now - self._kept < EVERY_SECONDS:
            return
        self._kept = now
        about = {
            "run": self._run,
            "progress": json.dumps(asdict(progress)),
            "seconds": str(self.seconds),
        }
        named = {str(n): tensor.detach().contiguous() for n, tensor in enumerate(tensors)}
        try:
            write_atomically(self._file, save(named, about))
        except OSError as error:
            # The run itself is unaffected.
            print(f"the checkpoint cannot be written: {error}", file=sys.stderr)
        loss, minutes = progress.curve[-1][1], self.seconds / 60
        print(f"  round {progress.number:,d}, {minutes:,.0f} min: {loss:.4f}", flush=True)

    def remove(self) -> None:
        """Remove the file, because the run is over."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _read(self, file: Path, tensors: Sequence[torch.Tensor]) -> Progress:
        with safe_open(file, "pt") as there:
            about = there.metadata() or {}
            if about["run"] != self._run:
                raise ValueError("it belongs to another run")
            known = json.loads(about["progress"])
            found = [there.get_tensor(str(number)) for number in range(len(tensors))]
            seconds = float(about["seconds"])
        if [(t.shape, t.dtype) for t in found] != [(t.shape, t.dtype) for t in tensors]:
            raise ValueError("its tensors have other shapes")
        progress = Progress(
            known["number"],
            [(number, loss) for number, loss in known["curve"]],
            {name: (total, count) for name, (total, count) in known["sums"].items()},
        )
        with torch.no_grad():
            for own, other in zip(tensors, found, strict=True):
                own.copy_(other)
        self._before = seconds
        return progress
