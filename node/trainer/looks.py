"""What a trainer keeps of its looks at others' samples: from its own share's gradient on until their
updates are there.

The looked-at sample is computed behind the own update, so nobody waits for it; until then the own
gradient is kept, against which it is held. What it changes, and what its beginning alone changes, is
kept until it is judged, of the two latest rounds: with `overlap` the next round is computed before this
one's updates are in the parameters.

All of it lies in main memory in 16 bits, so it takes two bytes a parameter for the own gradient, and
four for each of the two rounds. Where main memory is short there are no looks
(`memory_options.LOOK_ROOM`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from .checking import Coefficients

KEPT_ROUNDS = 2


class KeptGradient:
    """A gradient in 16 bits in main memory, tensor by tensor on its device again when asked for."""

    def __init__(self, gradients: Sequence[torch.Tensor | None], device: torch.device) -> None:
        self._kept = [None if each is None else _small(each) for each in gradients]
        self._device = device

    def __iter__(self) -> Iterator[torch.Tensor | None]:
        return (None if g is None else g.to(self._device, torch.float32) for g in self._kept)


@dataclass(frozen=True)
class Changed:
    """What a sample changes (`checking.changes`)."""

    whole: Coefficients
    beginning: Coefficients | None
    """What its first half does; None where it has none."""


def changed(tables: Iterable[Sequence[torch.Tensor]]) -> Changed:
    """What `checking.changes` gives of a sample, and of its beginning if that is there, to be kept."""
    whole, *beginning = zip(*(map(_small, each) for each in tables), strict=True)
    return Changed(list(whole), list(*beginning) if beginning else None)


class Looks:
    """Of one session. What is older than the two latest rounds, or judged, is dropped."""

    def __init__(self) -> None:
        self._own: tuple[int, KeptGradient] | None = None
        self._seen: dict[int, Changed] = {}

    def begin(self, round_number: int, own: KeptGradient) -> None:
        """Keep what the own share's gradient is; the original is about to be used up."""
        self._own = round_number, own

    def own(self, round_number: int) -> KeptGradient | None:
        """The own gradient of this round, said once; None if there is none (any more). What was seen
        before the latest round makes room."""
        for old in sorted(self._seen)[: -(KEPT_ROUNDS - 1)]:
            del self._seen[old]
        kept, self._own = self._own, None
        return None if kept is None or kept[0] != round_number else kept[1]

    def moved_on(self) -> None:
        """The parameters have changed: the own gradient is of others."""
        self._own = None

    def keep(self, round_number: int, changed: Changed) -> None:
        """Keep what the sample changes, until it is judged."""
        self._seen[round_number] = changed

    def seen(self, round_number: int) -> Changed | None:
        """What was kept of this round, once; None if nothing."""
        return self._seen.pop(round_number, None)

    def forget(self) -> None:
        """Drop all of it."""
        self._own = None
        self._seen.clear()


def _small(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16).cpu()
