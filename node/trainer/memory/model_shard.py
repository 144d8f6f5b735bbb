"""The part of a model for which a trainer process keeps optimizer state and takes the exact step.

A single process has the whole model (`WholeModelShard`). If a member has several devices, each of their
processes, a rank, has some block rows of the tensors (`ranks/part`). A step changes each block by
itself, so extracting, applying and fingerprinting these blocks needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ....crypto.hashing import ContentId
from ....protocol.codec.layout import TensorLayout
from ....protocol.codec.update import DecodedUpdate, UpdateLayout
from ....protocol.committee.sign_vote import Signs
from ....protocol.wire.blobs import BlobList
from ....protocol.wire.manifest import ParameterSpec
from ...storage.blob_store import BlobStore
from ..models.probe_parameters import ParameterFill
from ..models.snapshot import read_snapshot, write_snapshot
from ..optimizer.exact_step import Means
from ..optimizer.fingerprint import fingerprint
from ..optimizer.optimizer import Taken
from ..ranks.momentum import MomentumDivision, RankPlace

T = TypeVar("T")


class ModelShard(Protocol):
    """A model shard as a session uses it. With several ranks, all of them must call the same methods in
    the same order."""

    layout: UpdateLayout
    """How the tensors that the shard holds ("its own") are cut into blocks."""
    parameters: Sequence[torch.Tensor]
    """Its own parameters, in the layout's order; a step changes them in place."""
    place: RankPlace
    """Its rank and the division of the model among ranks."""

    def own_samples(self, samples: Sequence[int]) -> Sequence[int]:
        """Return the samples of a share that this process computes."""
        ...

    def passes(self, samples: Sequence[int]) -> int:
        """Return for how many samples this process does forward passes: those that it computes or, if a
        forward pass needs all processes at once, as many as the process with the most samples has."""
        ...

    def prepare_together(self, prepare: Callable[[], T]) -> T:
        """Prepare the inputs of a forward pass. If a pass needs all processes at once, an error in one
        of them is raised in all."""
        ...

    def sum_losses(self, compute: Callable[[], tuple[float, int]]) -> tuple[float, int]:
        """Compute a loss and its number of terms; return the sums over all processes. An error in
        one of them is raised in all."""
        ...

    def gradients(self) -> list[torch.Tensor | None]:
        """Return the gradients of its own parameters, summed over the samples of all processes; they
        may be overwritten."""
        ...

    def everywhere(self, here: bool) -> bool:
        """Whether a condition holds in all processes (all-reduce)."""
        ...

    def gather_taken(self, taken: Taken) -> Taken | None:
        """Gather the coefficients taken from the whole model's momentum; `taken` are those of this
        process. Return None in all processes but one."""
        ...

    def gather_signs(
        self, signs: Sequence[Signs], signs_per_block: Callable[[TensorLayout], int]
    ) -> Sequence[Signs] | None:
        """Gather the signs to send for the whole model's tensors. `signs` are those of this process;
        `signs_per_block(tensor)` is the number of signs in each block of a tensor. Return None in
        all processes but one."""
        ...

    def gather_values(
        self, values: Sequence[npt.NDArray[np.float32]]
    ) -> Sequence[npt.NDArray[np.float32]] | None:
        """Gather the values at the positions of an update for the whole model's tensors; `values` are
        those of this process. Return None in all processes but one."""
        ...

    def own_part(self, update: DecodedUpdate) -> DecodedUpdate:
        """Return the part of an update that concerns its own parameters."""
        ...

    @property
    def means(self) -> Means | None:
        """The function that converts sums over its own blocks, one for each of its tensors, into the
        means over all blocks of the whole tensors; None if its tensors are whole."""
        ...

    def broadcast(self) -> None:
        """Send its changed parameters to all processes that compute with them."""
        ...

    def fingerprint(self) -> int:
        """Return the whole model's fingerprint (`fingerprint`)."""
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


class WholeModelShard:
    """The whole model, in one process."""

    means: Means | None = None

    def __init__(
        self,
        layout: UpdateLayout,
        parameters: Sequence[torch.Tensor],
        table: Sequence[ParameterSpec],
    ) -> None:
        self.layout = layout
        self.parameters = parameters
        self.place = RankPlace(MomentumDivision().plan(layout, table))

    def own_samples(self, samples: Sequence[int]) -> Sequence[int]:
        return samples

    def passes(self, samples: Sequence[int]) -> int:
        return len(samples)

    def prepare_together(self, prepare: Callable[[], T]) -> T:
        return prepare()

    def sum_losses(self, compute: Callable[[], tuple[float, int]]) -> tuple[float, int]:
        return compute()

    def gradients(self) -> list[torch.Tensor | None]:
        return [parameter.grad for parameter in self.parameters]

    def everywhere(self, here: bool) -> bool:
        return here

    def gather_taken(self, taken: Taken) -> Taken | None:
        return taken

    def gather_signs(
        self, signs: Sequence[Signs], signs_per_block: Callable[[TensorLayout], int]
    ) -> Sequence[Signs] | None:
        return signs

    def gather_values(
        self, values: Sequence[npt.NDArray[np.float32]]
    ) -> Sequence[npt.NDArray[np.float32]] | None:
        return values

    def own_part(self, update: DecodedUpdate) -> DecodedUpdate:
        return update

    def broadcast(self) -> None:
        pass

    def fingerprint(self) -> int:
        return fingerprint(self.parameters)

    def read(self, store: BlobStore, chunks: Sequence[ContentId]) -> None:
        read_snapshot(self.parameters, store, chunks)

    def fill(self, fill: ParameterFill) -> None:
        fill.fill_all(self.parameters)

    def write(self, store: BlobStore) -> BlobList:
        return write_snapshot(self.parameters, store)
