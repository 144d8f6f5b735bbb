"""What a trainer keeps for audits of other members' samples until the audited updates arrive.

The audited sample is computed after the trainer's own update, so that nobody waits for it. Until then
the gradient of the own share is kept, because the sample's gradient is compared with it. The changes
made by the sample, and by its beginning alone, are kept until they are judged, for the two latest
rounds, because with `overlap` the next round is computed before this one's updates are applied.

All of it is in bfloat16 in main memory: two bytes per parameter for the own gradient, and four for
each of the two rounds. If main memory is short there are no audits (`memory_options.AUDIT_BYTES`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from .audit_score import Coefficients

KEPT_ROUNDS = 2


class SavedGradient:
    """A gradient in bfloat16 in main memory; iteration yields each tensor in float32 on `device`."""

    def __init__(self, gradients: Sequence[torch.Tensor | None], device: torch.device) -> None:
        self._kept = [None if each is None else _to_bfloat16(each) for each in gradients]
        self._device = device

    def __iter__(self) -> Iterator[torch.Tensor | None]:
        return (None if g is None else g.to(self._device, torch.float32) for g in self._kept)


@dataclass(frozen=True)
class GradientChange:
    """The changes that a sample makes (`audit_score.coefficient_changes`)."""

    full_sample: Coefficients
    first_half: Coefficients | None
    """The changes that the sample's first half makes; None if the sample cannot be cut in half."""


def gradient_change(tables: Iterable[Sequence[torch.Tensor]]) -> GradientChange:
    """Convert the output of `audit_score.coefficient_changes` for a sample, and for its first half if
    present, into the form that is kept."""
    full_sample, *first_half = zip(*(map(_to_bfloat16, each) for each in tables), strict=True)
    return GradientChange(list(full_sample), list(*first_half) if first_half else None)


class AuditCache:
    """The kept audits of one session, of the two latest rounds; a round that was judged is dropped."""

    def __init__(self) -> None:
        self._own: tuple[int, SavedGradient] | None = None
        self._changes: dict[int, GradientChange] = {}

    def keep_own(self, round_number: int, own: SavedGradient) -> None:
        """Keep `own`, a copy of the own share's gradient; the original is about to be overwritten."""
        self._own = round_number, own

    def take_own(self, round_number: int) -> SavedGradient | None:
        """Return the own gradient of this round and drop it; None if none is kept. Also drop all kept
        changes except those of the latest round, so that there is room for this round's."""
        for old in sorted(self._changes)[: -(KEPT_ROUNDS - 1)]:
            del self._changes[old]
        kept, self._own = self._own, None
        return None if kept is None or kept[0] != round_number else kept[1]

    def drop_own(self) -> None:
        """Drop the own gradient, because the parameters have changed."""
        self._own = None

    def keep(self, round_number: int, change: GradientChange) -> None:
        """Keep the changes of a sample until they are judged."""
        self._changes[round_number] = change

    def take_changes(self, round_number: int) -> GradientChange | None:
        """Return the kept changes of this round and drop them; None if there are none."""
        return self._changes.pop(round_number, None)

    def clear(self) -> None:
        """Drop everything."""
        self._own = None
        self._changes.clear()


def _to_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16).cpu()
