"""What a manifest may say of how members' work is checked, of who speaks for the others, and of how a
member proves that it computes the swarm's model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from .blobs import MAX_BLOB_BYTES
from .structure import Length, Range

# Blocks are not cut into turns without a rest.
_MOST_SHEET_BYTES = MAX_BLOB_BYTES * 15 // 16


@dataclass(frozen=True, kw_only=True)
class ChecksSpec:
    """Members look at each other's work, and votes have to be earned by it (docs/checks.md)."""

    every: Annotated[int, Range(1, 10_000)] = 20
    """A member with votes looks at somebody once in so many rounds, on average."""
    deviation: Annotated[int, Range(1, 10_000)] = 250
    """The standard deviation of honest scores, in thousandths of the usual one."""


@dataclass(frozen=True, kw_only=True)
class SpeakersSpec:
    """Panels of members speak for sections of the model (docs/protocol.md). A step then takes two
    rounds. In the first, an odd one, members train and tell the speakers signs; in the second these tell
    everybody what comes of it, and all take the step. So `total_rounds` and the other numbers of rounds
    are twice as large for as many steps. Unless `[optimizer]` says otherwise, `top_k` is 64, or what one
    panel can say of a large model. `audit` must be false, as it is without the key, and `momentum` must
    not be said: panels have one of their own. Panels do not go with `[checks]`, private data or
    `overlap`, and `total_rounds` must be even."""

    one_of: Annotated[int, Range(1, 64)] = 8
    """Of so many coefficients of a block a member tells the sign of one in a step."""
    panel: Annotated[int, Range(2, 16)] = 3
    """The members of a panel, at least."""
    term: Annotated[int, Range(1, 1000)] = 40
    """For how many steps a panel speaks, before others are drawn and begin with nothing heard."""

    def check(
        self,
        *,
        checked: bool,
        private: bool,
        overlap: bool,
        audit: bool,
        rounds: int,
        elements: int,
    ) -> None:
        """Raise `ValueError` for a manifest that says this and what does not go with it; `rounds` is the
        length of the run, and so many `elements` are trained."""
        for there, what in (
            (checked, "checks: looks compare updates"),
            (private, "private data: a sheet tells more of it than an update"),
            (overlap, "rounds.overlap: what is told late is worth little"),
            (audit, "optimizer.audit: there is nothing to compare"),
        ):
            if there:
                raise ValueError(f"speakers do not go with {what}")
        if rounds % 2:
            raise ValueError(
                f"schedule.total_rounds ({rounds}) is odd: with speakers a step takes two rounds"
            )
        # As long as members are few, one panel speaks for everything, and a sheet has one part.
        least = -(-elements // (8 * _MOST_SHEET_BYTES))
        if self.one_of < least:
            raise ValueError(
                f"speakers.one_of ({self.one_of}) is too small for {elements:,} parameters: a sheet "
                f"would be too large to be sent as one; say {least} or more"
            )


@dataclass(frozen=True, kw_only=True)
class ProbeSpec:
    """Losses of the manifest's model in float32, by which every trainer proves that its library,
    attention and device compute the same function (docs/protocol.md).

    They are losses of known parameters on known samples, both of which anybody can generate
    (`node/trainer/probe.py`), so that a member of any round can repeat them.
    """

    lengths: Annotated[tuple[Annotated[int, Range(1, 1 << 20)], ...], Length(1, 32)]
    """How many tokens the model sees of each sample; tasks without tokens take whole samples."""
    losses: Annotated[tuple[Annotated[float, Range(-1e9, 1e9)], ...], Length(1, 32)]
    """The mean loss of each sample, in the task's unit."""
    tolerance: Annotated[float, Range(0.0, 1e9)] = 2e-4
    """The largest difference of a loss that is computed in float32."""
    narrow_tolerance: Annotated[float, Range(0.0, 1e9)] = 0.25
    """The largest difference where matrices are multiplied in bfloat16."""
    library: Annotated[str, Length(1, 64)] = "transformers"
    """The library that the founder used, with its version: for messages alone."""

    def __post_init__(self) -> None:
        if len(self.lengths) != len(self.losses):
            raise ValueError("a probe has a loss for each length")
        if not all(map(math.isfinite, (*self.losses, self.tolerance, self.narrow_tolerance))):
            raise ValueError("a probe holds finite numbers")
