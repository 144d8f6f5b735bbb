"""Checkpoints of benchmark runs that take hours, so that an interrupted run resumes.

The file is written every five minutes of CPU time and removed when the run is over. It contains what
the run changes, the tensors of its parts, and in addition the number of completed rounds, the losses
so far and the position in the order of the sequences. A resumed run ends bit-identical to an
uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from distro_node.node.storage.atomic_write import write_atomically
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

EVERY_SECONDS = 300.0
"""CPU time between two writes."""


class Part(Protocol):
    """A part of a run that changes."""

    def held(self) -> list[torch.Tensor]:
        """Return all its tensors, with the same number and sizes in every round; writing to them
        changes the part."""
        ...

    def stands_after(self, number: int) -> None:
        """Note that its tensors were restored from a run with `number` completed rounds."""
        ...


@dataclass
class Stand:
    """A run's position between two rounds."""

    number: int = 0
    """Number of completed rounds."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    tally: dict[str, Any] = field(default_factory=dict)
    """Sums accumulated so far."""


class Going:
    """A run in progress, and its file."""

    def __init__(self, folder: Path | None, run: Mapping[str, Any]) -> None:
        """`run`: everything that the run depends on, by which its file in `folder` is found again.
        Without a folder nothing is stored."""
        self._run = _in_order(run)
        self._file = None if folder is None else folder / f"going-{name_of(run)}.safetensors"
        self._before = 0.0
        self._begun = self._kept = time.process_time()

    @property
    def seconds(self) -> float:
        """CPU time so far, including that before an interruption."""
        return self._before + time.process_time() - self._begun

    def take_up(self, parts: Sequence[Part], order: np.random.Generator) -> Stand | None:
        """Restore the parts and the order of the sequences from an interrupted run; return None,
        with nothing changed, if there is none."""
        if self._file is None or not self._file.exists():
            return None
        try:
            stand = self._read(self._file, parts, order)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            print(f"{self._file} is of no use, so its run begins anew: {error}", file=sys.stderr)
            return None
        for part in parts:
            part.stands_after(stand.number)
        print(f"  goes on after round {stand.number:,d}", flush=True)
        return stand

    def keep(self, stand: Stand, parts: Sequence[Part], order: np.random.Generator) -> None:
        """Store the run's position, and print it, if it is time to."""
        now = time.process_time()
        if self._file is None or now - self._kept < EVERY_SECONDS:
            return
        self._kept = now
        told = {
            "run": self._run,
            "stand": json.dumps(asdict(stand)),
            "order": json.dumps(order.bit_generator.state),
            "seconds": str(self.seconds),
        }
        tensors = {str(n): tensor.contiguous() for n, tensor in enumerate(_tensors(parts))}
        try:
            write_atomically(self._file, save(tensors, told))
        except OSError as error:
            # The run itself is unaffected.
            print(f"where the run stands cannot be kept: {error}", file=sys.stderr)
        loss, minutes = stand.curve[-1][1], self.seconds / 60
        print(f"  round {stand.number:,d}, {minutes:,.0f} min: {loss:.4f}", flush=True)

    def end(self) -> None:
        """Remove the file, because the run is over."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _read(self, file: Path, parts: Sequence[Part], order: np.random.Generator) -> Stand:
        with safe_open(file, "pt") as there:
            told = there.metadata() or {}
            if told["run"] != self._run:
                raise ValueError("it is of another run")
            stand, state = Stand(**json.loads(told["stand"])), json.loads(told["order"])
            seconds = float(told["seconds"])
            known = _tensors(parts)
            found = [there.get_tensor(str(number)) for number in range(len(known))]
        if [_kind(each) for each in found] != [_kind(each) for each in known]:
            raise ValueError("its tensors have other shapes")
        stand.curve = [(number, loss) for number, loss in stand.curve]
        order.bit_generator.state = state
        for own, other in zip(known, found, strict=True):
            own.copy_(other)
        self._before = seconds
        return stand


def name_of(settings: Mapping[str, Any]) -> str:
    """Return the name for files that belong to these settings alone."""
    return hashlib.sha256(_in_order(settings).encode()).hexdigest()[:12]


def _in_order(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _tensors(parts: Sequence[Part]) -> list[torch.Tensor]:
    return [tensor.detach() for part in parts for tensor in part.held()]


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
