"""Manifest tables for audits, for aggregation by committees, and for the probe by which a member proves
that it computes the swarm's model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from .blobs import MAX_BLOB_BYTES
from .structure import Length, Range

# The remaining sixteenth is a margin: the coefficients of a block may not divide evenly among the steps.
_MAX_SIGN_VOTE_BYTES = MAX_BLOB_BYTES * 15 // 16


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """What a feature may have to be compatible with: the rest of its manifest."""

    audited: bool
    private: bool
    overlap: bool
    outlier_filter: bool
    preconditioner: str
    update_weight: str
    rounds: int
    """Length of the run in training rounds."""
    elements: int
    """Number of trained parameters."""


class FeatureSpec:
    """The table of a feature that not every swarm has, with what this changes in other parts of the
    protocol. Here nothing changes."""

    rounds_per_step: ClassVar[int] = 1
    """Number of rounds from an assignment of samples to the next."""
    draws_lots: ClassVar[bool] = False
    """Whether something is drawn by the randomness beacon (`chain/beacon`)."""
    lent_one_in: ClassVar[int] = 1
    """At most one in this many streams is lent to a member that takes several rounds for a sequence; of
    several numbers the largest holds."""

    def check(self, rest: FeatureSettings) -> None:
        """Raise `ValueError` if the feature cannot be combined with the rest of a manifest."""


def rounds_per_step(tables: Iterable[FeatureSpec]) -> int:
    """Return the number of rounds from an assignment of samples to the next, in a swarm with these
    tables."""
    return max((table.rounds_per_step for table in tables), default=1)


@dataclass(frozen=True, kw_only=True)
class AuditsSpec(FeatureSpec):
    """Audits: members audit each other's work, and earn votes by work that passes (docs/audits.md)."""

    interval: Annotated[int, Range(1, 10_000)] = 20
    """A member with votes audits another one once in this many rounds, on average."""
    deviation: Annotated[int, Range(1, 10_000)] = 250
    """The standard deviation of honest scores, in thousandths of the usual standard deviation."""

    draws_lots: ClassVar[bool] = True
    # Few: updates for lent streams cannot be audited and so have no weight. All they do is show whether
    # the member has become faster.
    lent_one_in: ClassVar[int] = 16

    def check(self, rest: FeatureSettings) -> None:
        if rest.private:
            raise ValueError(
                "[audits] does not work with private data: no other member can recompute on it"
            )
        if rest.preconditioner not in ("orthogonal", "muon"):
            # With the other preconditioners honest scores are too often low (docs/audits.md).
            raise ValueError("[audits] needs optimizer.preconditioner = 'orthogonal' or 'muon'")


@dataclass(frozen=True, kw_only=True)
class CommitteesSpec(FeatureSpec):
    """Committees of members aggregate sections of the model (docs/protocol.md). A step then takes two
    rounds, so `total_rounds`, which must be even, and the other numbers of rounds are twice as large
    for the same number of steps. By default `top_k` is 64 or, for a large model, the most that one
    committee can send. `outlier_filter` must be false, its default here, and `momentum` must not be set.
    Committees cannot be combined with `[audits]`, private data or `overlap`."""

    rotation_steps: Annotated[int, Range(1, 64)] = 8
    """In each step a member sends the sign of one of this many coefficients of a block."""
    min_members: Annotated[int, Range(2, 16)] = 3
    """Minimum number of members in a committee."""
    epoch_steps: Annotated[int, Range(1, 1000)] = 40
    """Steps for which a committee aggregates. Then new committees are drawn, which start without
    momentum."""

    rounds_per_step: ClassVar[int] = 2
    draws_lots: ClassVar[bool] = True

    def check(self, rest: FeatureSettings) -> None:
        for applies, what in (
            (rest.audited, "[audits]: audits compare whole updates"),
            (rest.private, "private data: a sign vote reveals more of it than an update"),
            (rest.overlap, "rounds.overlap: late sign votes are worth little"),
            (
                rest.outlier_filter,
                "optimizer.outlier_filter: there are no whole updates to compare",
            ),
        ):
            if applies:
                raise ValueError(f"[committees] does not work with {what}")
        if rest.rounds % 2:
            raise ValueError(
                f"schedule.total_rounds ({rest.rounds}) is odd: with [committees] a step takes two "
                "rounds"
            )
        # While there are few members, one committee aggregates everything, and a sign vote has one part.
        least = -(-rest.elements // (8 * _MAX_SIGN_VOTE_BYTES))
        if self.rotation_steps < least:
            raise ValueError(
                f"committees.rotation_steps ({self.rotation_steps}) is too small for "
                f"{rest.elements:,} parameters: a "
                f"sign vote would be too large to be sent as one blob; set it to {least} or more"
            )


@dataclass(frozen=True, kw_only=True)
class ProbeSpec:
    """Losses of the manifest's model in float32, by which every trainer proves that its library,
    attention and device compute the same function (docs/protocol.md).

    They are losses of known parameters on known samples, which any node can generate
    (`node/trainer/models/probe.py`), so that members of any round can repeat them.
    """

    lengths: Annotated[tuple[Annotated[int, Range(1, 1 << 20)], ...], Length(1, 32)]
    """Number of tokens of each sample that are given to the model. Tasks without tokens use whole
    samples."""
    losses: Annotated[tuple[Annotated[float, Range(-1e9, 1e9)], ...], Length(1, 32)]
    """The mean loss of each sample, in the task's unit."""
    tolerance: Annotated[float, Range(0.0, 1e9)] = 2e-4
    """The largest accepted difference of a loss computed in float32, in the task's unit."""
    narrow_tolerance: Annotated[float, Range(0.0, 1e9)] = 0.25
    """The largest accepted difference if matrices are multiplied in bfloat16."""
    library: Annotated[str, Length(1, 64)] = "transformers"
    """The library that the founder used, with its version: for messages only."""

    def __post_init__(self) -> None:
        if len(self.lengths) != len(self.losses):
            raise ValueError("a probe needs one loss for each length")
        if not all(map(math.isfinite, (*self.losses, self.tolerance, self.narrow_tolerance))):
            raise ValueError("a probe's numbers must be finite")
