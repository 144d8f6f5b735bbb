"""Progress of a long operation, as reported by the component that performs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

ProgressKind = Literal["working", "downloading", "waiting", "starting_trainer"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a long operation."""

    what: str
    """What is in progress, for display."""
    done: int = 0
    """Rounds or entries done so far; with `downloading` bytes, with `starting_trainer` seconds."""
    total: int | None = None
    """As many in all; None: unknown."""
    kind: ProgressKind = "working"
    """`waiting`: no connected peer has what this node needs; `starting_trainer`: the trainer process
    loads its libraries."""

    @property
    def waits(self) -> bool:
        """Whether no connected peer has what this node needs."""
        return self.kind == "waiting"


ReportProgress = Callable[[Progress], None]

ShowProgress = Callable[[str, int, int], None]
"""Called with the name of the current stage and its progress: done and total in one unit; 0 and 1 where
a stage does not know how far it is."""


def show_nothing(what: str, done: int, total: int) -> None:
    """Show no progress."""
