"""Which part of a model a trainer process keeps the optimizer's state of, and takes the shared step on.

A process by itself has the whole model (`WholeModel`). Where one member has several devices, each of
their processes has some block rows of the tensors (`rank_part`): a step is local to its blocks, so
nothing else is needed to extract, to apply and to fingerprint them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ...crypto.hashing import ContentId
from ...protocol.codec.layout import TensorLayout
from ...protocol.codec.sheet import Signs
from ...protocol.codec.update import DecodedUpdate, UpdateLayout
from ...protocol.wire.blobs import BlobList
from ...protocol.wire.manifest import ParameterSpec
from ..storage.blob_store import BlobStore
from .exact import own_means
from .fingerprint import fingerprint
from .optimizer import Taken
from .probe_parameters import ParameterFill
from .rank_momentum import Cut, Seat
from .snapshot import read_snapshot, write_snapshot

T = TypeVar("T")


class Part(Protocol):
    """What a session asks of it. Where there are others, they ask theirs the same at the same time."""

    layout: UpdateLayout
    """How its own tensors are cut into blocks."""
    parameters: Sequence[torch.Tensor]
    """Its own, in that order; a step changes them in place."""
    seat: Seat
    """Which part of all it is."""

    def deal(self, samples: Sequence[int]) -> Sequence[int]:
        """Those of a share's samples that are computed here."""
        ...

    def passes(self, samples: Sequence[int]) -> int:
        """How many samples it goes through: those dealt to it, or, where a forward pass needs all
        processes at once, as many as the busiest has."""
        ...

    def agreed(self, prepare: Callable[[], T]) -> T:
        """Prepare what a forward pass takes. Where it needs all at once, it raises what any of them
        raises, at all of them."""
        ...

    def summed(self, compute: Callable[[], tuple[float, int]]) -> tuple[float, int]:
        """Compute a loss, and over how much it is; the sums of everybody's. Raises what any of them
        raises, at all of them."""
        ...

    def gradients(self) -> list[torch.Tensor | None]:
        """The gradients of its own parameters, summed over everybody's samples, to be used up."""
        ...

    def everywhere(self, here: bool) -> bool:
        """Whether it holds at all of them."""
        ...

    def merged(self, taken: Taken) -> Taken | None:
        """What was taken of the whole model; None: another process has that."""
        ...

    def told(
        self, signs: Sequence[Signs], heard: Callable[[TensorLayout], int]
    ) -> Sequence[Signs] | None:
        """What everybody tells of the whole model's tensors, `signs` here, so many of each block; None:
        another process has that."""
        ...

    def gathered(
        self, values: Sequence[npt.NDArray[np.float32]]
    ) -> Sequence[npt.NDArray[np.float32]] | None:
        """What everybody has found at the positions of an update, `values` here, for the whole model's
        tensors; None: another process has that."""
        ...

    def own(self, update: DecodedUpdate) -> DecodedUpdate:
        """What an update says of its own parameters."""
        ...

    def means(self, sums: Sequence[int]) -> Sequence[Fraction]:
        """Of sums over its own blocks, one for each of its tensors, the means over all blocks of the
        tensors of which these are parts."""
        ...

    def spread(self) -> None:
        """Its own parameters have changed: let all have them who compute with them."""
        ...

    def fingerprint(self) -> int:
        """Of the whole model (`fingerprint`)."""
        ...

    def read(self, store: BlobStore, chunks: Sequence[ContentId]) -> None:
        """Replace the whole model by a snapshot (`read_snapshot`)."""
        ...

    def fill(self, fill: ParameterFill) -> None:
        """Replace the whole model by the parameters of the probe."""
        ...

    def write(self, store: BlobStore) -> BlobList:
        """Store a snapshot's chunks (`write_snapshot`)."""
        ...


class WholeModel:
    """All of it, in one process."""

    def __init__(
        self,
        layout: UpdateLayout,
        parameters: Sequence[torch.Tensor],
        table: Sequence[ParameterSpec],
    ) -> None:
        self.layout = layout
        self.parameters = parameters
        self.seat = Seat(Cut().plan(layout, table))

    def deal(self, samples: Sequence[int]) -> Sequence[int]:
        return samples

    def passes(self, samples: Sequence[int]) -> int:
        return len(samples)

    def agreed(self, prepare: Callable[[], T]) -> T:
        return prepare()

    def summed(self, compute: Callable[[], tuple[float, int]]) -> tuple[float, int]:
        return compute()

    def gradients(self) -> list[torch.Tensor | None]:
        return [parameter.grad for parameter in self.parameters]

    def everywhere(self, here: bool) -> bool:
        return here

    def merged(self, taken: Taken) -> Taken | None:
        return taken

    def told(
        self, signs: Sequence[Signs], heard: Callable[[TensorLayout], int]
    ) -> Sequence[Signs] | None:
        return signs

    def gathered(
        self, values: Sequence[npt.NDArray[np.float32]]
    ) -> Sequence[npt.NDArray[np.float32]] | None:
        return values

    def own(self, update: DecodedUpdate) -> DecodedUpdate:
        return update

    def means(self, sums: Sequence[int]) -> Sequence[Fraction]:
        return own_means(self.layout, sums)

    def spread(self) -> None:
        pass

    def fingerprint(self) -> int:
        return fingerprint(self.parameters)

    def read(self, store: BlobStore, chunks: Sequence[ContentId]) -> None:
        read_snapshot(self.parameters, store, chunks)

    def fill(self, fill: ParameterFill) -> None:
        fill.whole(self.parameters)

    def write(self, store: BlobStore) -> BlobList:
        return write_snapshot(self.parameters, store)
