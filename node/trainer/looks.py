"""What a trainer keeps of its looks at others' samples: from its own share's gradient on until their
updates are there.

The looked-at sample is computed behind the own update, so nobody waits for it; until then the own
gradient is kept, against which it is held. What it changes is kept until it is judged, of the two latest
rounds: with `overlap` the next round is computed before this one's updates are in the parameters.

All of it lies in main memory in 16 bits, so it takes two bytes a parameter for the own gradient, and two
for each of the two rounds. Where main memory is short there are no looks (`memory_options.LOOK_ROOM`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from .checking import Coefficients

KEPT_ROUNDS = 2


class Looks:
    """Of one session. What is older than the two latest rounds, or judged, is dropped."""

    def __init__(self) -> None:
        self._own: tuple[int, list[torch.Tensor | None]] | None = None
        self._seen: dict[int, Coefficients] = {}

    def begin(self, round_number: int, gradients: Sequence[torch.Tensor | None]) -> None:
        """Keep what the own share's gradient is; the originals are about to be used up."""
        self._own = round_number, [None if each is None else _small(each) for each in gradients]

    def own(self, round_number: int, device: torch.device) -> Iterator[torch.Tensor | None] | None:
        """The own gradient of this round, tensor by tensor, once; None if there is none (any more)."""
        kept, self._own = self._own, None
        if kept is None or kept[0] != round_number:
            return None
        return (None if g is None else g.to(device, torch.float32) for g in kept[1])

    def moved_on(self) -> None:
        """The parameters have changed: the own gradient is of others."""
        self._own = None

    def keep(self, round_number: int, changed: Iterable[torch.Tensor]) -> None:
        """Keep what the sample changes (`checking.changes`), until it is judged."""
        self._seen[round_number] = [_small(table) for table in changed]
        for old in sorted(self._seen)[:-KEPT_ROUNDS]:
            del self._seen[old]

    def seen(self, round_number: int) -> Coefficients | None:
        """What was kept of this round, once; None if nothing."""
        return self._seen.pop(round_number, None)

    def forget(self) -> None:
        """Drop all of it."""
        self._own = None
        self._seen.clear()


def _small(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16).cpu()
