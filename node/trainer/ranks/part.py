"""One rank's part of a model: the bands that it owns, and its exchanges with the other ranks.

A band is some block rows of one tensor, owned by one rank (`node.training.bands`).

Every rank has either a copy of a tensor to compute with or, if the tensor is sharded, only the band
that it owns. With copies, the owner of each band sums the ranks' gradients of it, keeps its optimizer
state, takes the shared step on it and broadcasts it. With shards, ranks exchange only gradients and,
for forward and backward passes, parameters. The sums of gradients may differ from a single process's in
their last bits. Everything that members must agree on is exact: it has the same bits with any number of
ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ....crypto.hashing import ContentId
from ....protocol.codec.layout import TensorLayout
from ....protocol.codec.update import DecodedUpdate
from ....protocol.committee.sign_vote import Signs
from ....protocol.wire.blobs import CHUNK_BYTES, BlobList
from ...storage.blob_store import BlobStore
from ...training.bands import Band
from ..error_report import describe
from ..models.probe_parameters import ParameterFill
from ..models.snapshot import check_count, read_values
from ..optimizer.exact_step import local_means
from ..optimizer.fingerprint import fingerprint_pieces
from ..optimizer.optimizer import Taken
from .momentum import RankPlace
from .ranks import AgreedFailure, RankLost, RankOutOfMemory, Ranks

T = TypeVar("T")

_ITEM = 4
_CHUNK_ITEMS = CHUNK_BYTES // _ITEM


class RankPart:
    """The `ModelShard` of one rank: methods without a docstring have theirs in `memory.model_shard`.
    `parameters` are the whole model's; `sharded` lists the indices of the tensors of which every rank
    has only its own band: in `parameters` these are `DTensor`s."""

    def __init__(
        self,
        ranks: Ranks,
        place: RankPlace,
        parameters: Sequence[torch.nn.Parameter],
        sharded: Collection[int] = (),
    ) -> None:
        self._ranks = ranks
        self._all = parameters
        self._sharded = frozenset(sharded)
        self.place = place
        self.plan = place.plan
        self.layout = self.plan.layout_of(ranks.rank)
        self._bands = self.plan.of(ranks.rank)
        self.parameters: Sequence[torch.Tensor] = [self._rows(band) for band in self._bands]

    def own_samples(self, samples: Sequence[int]) -> Sequence[int]:
        rank, size = self._ranks.rank, self._ranks.size
        return samples[len(samples) * rank // size : len(samples) * (rank + 1) // size]

    def passes(self, samples: Sequence[int]) -> int:
        longest = -(-len(samples) // self._ranks.size)
        return longest if self._sharded else len(self.own_samples(samples))

    def prepare_together(self, prepare: Callable[[], T]) -> T:
        return self._ranks.run_together(prepare) if self._sharded else prepare()

    def sum_losses(self, compute: Callable[[], tuple[float, int]]) -> tuple[float, int]:
        found = compute_together(compute) if self._sharded else self._ranks.run_together(compute)
        totals = self._ranks.exchange(found)
        return sum(loss for loss, _ in totals), sum(count for _, count in totals)

    def gradients(self) -> list[torch.Tensor | None]:
        """Return gradients as `ModelShard` does. A parameter that no rank's samples have reached has no
        gradient; if only some ranks' samples have reached it, the other ranks' count as zero."""
        reached = self._ranks.exchange([p.grad is not None for p in self._all])
        anywhere = [any(each) for each in zip(*reached, strict=True)]
        own: list[torch.Tensor | None] = []
        for band in self.plan.bands:
            mine = band.owner == self._ranks.rank
            gradient = None
            if anywhere[band.tensor]:
                if band.tensor in self._sharded:
                    # FSDP2 has averaged it over the ranks, and the sum is wanted.
                    local = self._local(self._all[band.tensor].grad) if mine else None
                    gradient = None if local is None else local.mul_(self._ranks.size)
                else:
                    gradient = self._rows(band, gradient=True)
                    self._ranks.reduce(gradient, band.owner)
            if mine:
                own.append(gradient)
        return own

    def everywhere(self, here: bool) -> bool:
        return all(self._ranks.exchange(here))

    def gather_taken(self, taken: Taken) -> Taken | None:
        positions = self._gather_arrays(
            [each.astype(np.int16) for each in taken.positions], np.int16
        )
        signs = self._gather_arrays(taken.signs, np.int8)
        if positions is None or signs is None:
            return None
        # Each rank keeps the values of its own bands.
        return Taken(
            positions=[each.astype(np.int32) for each in positions], values=[], signs=signs
        )

    def gather_signs(
        self, signs: Sequence[Signs], signs_per_block: Callable[[TensorLayout], int]
    ) -> Sequence[Signs] | None:
        return self._gather_arrays(signs, np.int8, signs_per_block)

    def gather_values(
        self, values: Sequence[npt.NDArray[np.float32]]
    ) -> Sequence[npt.NDArray[np.float32]] | None:
        return self._gather_arrays(values, np.float32)

    def own_part(self, update: DecodedUpdate) -> DecodedUpdate:
        return self.plan.part_of(self._ranks.rank, update)

    def means(self, sums: Sequence[int]) -> Sequence[Fraction]:
        """Convert sums into means over whole tensors, as `ModelShard` does. A tensor's bands are at
        several ranks, so their sums are added up first."""
        totals = [0] * len(self.plan.layout.tensors)
        here = [(band.tensor, total) for band, total in zip(self._bands, sums, strict=True)]
        for index, total in itertools.chain.from_iterable(self._ranks.exchange(here)):
            totals[index] += total
        whole = local_means(self.plan.layout.tensors, totals)
        return [whole[band.tensor] for band in self._bands]

    def broadcast(self) -> None:
        for band in self.plan.bands:
            if band.tensor not in self._sharded:
                self._ranks.broadcast(self._rows(band), band.owner)

    def fingerprint(self) -> int:
        pairs = zip(self._bands, self.parameters, strict=True)
        here = fingerprint_pieces((band.start, rows) for band, rows in pairs)
        return sum(self._ranks.exchange(here)) % (1 << 64)

    @torch.no_grad()
    def read(self, store: BlobStore, chunks: Sequence[ContentId]) -> None:
        """Replace the model by a snapshot. Every rank reads only the chunks that contain its bands."""
        self._ranks.run_together(lambda: self._check(store, chunks))
        self._ranks.run_together(lambda: self._fill(store, chunks))
        self.broadcast()

    def fill(self, fill: ParameterFill) -> None:
        for band, rows in zip(self._bands, self.parameters, strict=True):
            fill.fill_part(rows.view(-1), band.tensor, band.start)
        self.broadcast()

    def write(self, store: BlobStore) -> BlobList:
        """Store a snapshot's chunks. The ranks take turns in writing one, from the parts that the
        others send."""
        ours, failure = [], None
        for chunk in range(-(-self._elements // _CHUNK_ITEMS)):
            writer = chunk % self._ranks.size
            values = self._gather_chunk(chunk, writer)
            if values is not None and failure is None:
                try:
                    ours.append(store.put(values.astype("<f4", copy=False).tobytes()))
                # It is reported only below, because the others go on sending and receiving until then.
                except OSError as error:
                    failure = error

        def done() -> list[ContentId]:
            if failure is not None:
                raise failure
            return ours

        written = self._ranks.exchange(self._ranks.run_together(done))
        queues = [iter(each) for each in written]
        count = sum(len(each) for each in written)
        ids = tuple(ContentId(next(queues[chunk % self._ranks.size])) for chunk in range(count))
        return BlobList(kind="snapshot", size=_ITEM * self._elements, chunks=ids)

    @property
    def _elements(self) -> int:
        last = self.plan.bands[-1]
        return last.start + last.elements

    def _rows(self, band: Band, *, gradient: bool = False) -> torch.Tensor:
        """Return a band's rows of the local parameter, or of its gradient: a view."""
        parameter = self._all[band.tensor]
        tensor = self.plan.layout.tensors[band.tensor]
        if band.tensor in self._sharded:
            # This rank has no other rows of the tensor.
            return self._local(parameter)
        found = parameter.detach()
        if gradient:
            found = parameter.grad
            if found is None:
                found = parameter.grad = torch.zeros_like(parameter)
            elif not found.is_contiguous():
                # A convolution may leave its kernel's gradient in another memory order.
                found = parameter.grad = found.contiguous()
        if band.stop - band.first == tensor.rows:
            return found
        return found.view(tensor.rows, tensor.columns)[band.first : band.stop]

    @staticmethod
    def _local(tensor: torch.Tensor | None) -> torch.Tensor:
        from torch.distributed.tensor import DTensor

        assert isinstance(tensor, DTensor)
        return tensor.to_local().detach()

    def _gather_arrays(
        self,
        arrays: Sequence[np.ndarray],
        dtype: type[np.generic],
        width: Callable[[TensorLayout], int] = lambda tensor: tensor.top_k,
    ) -> list[np.ndarray] | None:
        """Gather the arrays of every rank's bands, (blocks, width) each, at rank 0; return None
        elsewhere."""
        parts = self._ranks.collect(b"".join(each.tobytes() for each in arrays))
        if parts is None:
            return None
        merged = []
        for rank, part in enumerate(parts):
            flat, done, cut = np.frombuffer(part, dtype), 0, []
            for tensor in self.plan.layout_of(rank).tensors:
                end = done + tensor.blocks * width(tensor)
                cut.append(flat[done:end].reshape(tensor.blocks, width(tensor)))
                done = end
            merged.append(cut)
        return self.plan.merge(merged)

    def _check(self, store: BlobStore, chunks: Sequence[ContentId]) -> None:
        check_count(chunks, self._elements)
        wanted = {chunk for band in self._bands for chunk, _, _ in self._overlaps(band)}
        for chunk in wanted:
            read_values(store, chunks, chunk, self._elements, finite=True)

    def _fill(self, store: BlobStore, chunks: Sequence[ContentId]) -> None:
        # The last chunk read is kept: it may contain many small bands, and bands are in chunk order.
        index, values = -1, np.empty(0, dtype=np.float32)
        for band, rows in zip(self._bands, self.parameters, strict=True):
            flat, filled = rows.view(-1), 0
            for chunk, first, stop in self._overlaps(band):
                if chunk != index:
                    index, values = chunk, read_values(store, chunks, chunk, self._elements)
                flat[filled : filled + stop - first].copy_(torch.from_numpy(values[first:stop]))
                filled += stop - first

    @torch.no_grad()
    def _gather_chunk(self, chunk: int, writer: int) -> np.ndarray | None:
        """Return a chunk's values at the rank that writes it; None elsewhere."""
        rank, begin = self._ranks.rank, chunk * _CHUNK_ITEMS
        end = min(begin + _CHUNK_ITEMS, self._elements)
        values = torch.empty(end - begin) if rank == writer else None
        for band in self.plan.bands:
            first, stop = max(begin, band.start), min(end, band.start + band.elements)
            sharded = band.tensor in self._sharded
            if first >= stop or rank not in ((writer, band.owner) if sharded else (writer,)):
                continue
            if band.owner == rank or not sharded:
                piece = self._rows(band).reshape(-1)[first - band.start : stop - band.start].cpu()
                if values is not None:
                    values[first - begin : stop - begin] = piece
                elif sharded:
                    self._ranks.send(piece.contiguous(), writer)
            elif values is not None:
                self._ranks.receive(values[first - begin : stop - begin], band.owner)
        return None if values is None else values.numpy()

    def _overlaps(self, band: Band) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of chunks that a band covers: (chunk, first element in it, the element
        after the last)."""
        end = band.start + band.elements
        for chunk in range(band.start // _CHUNK_ITEMS, -(-end // _CHUNK_ITEMS)):
            base = chunk * _CHUNK_ITEMS
            yield chunk, max(band.start, base) - base, min(end, base + _CHUNK_ITEMS) - base


def compute_together(compute: Callable[[], T]) -> T:
    """Compute together with all ranks. A failure at one leaves the others waiting for it, so the whole
    group must end.

    Raises `RankLost` (`RankOutOfMemory` if memory ran out), and `AgreedFailure` if all ranks raise it.
    """
    try:
        return compute()
    except (RankLost, AgreedFailure):
        raise
    except Exception as error:
        kind, problem = describe(error)
        raise (RankOutOfMemory if kind == "out_of_memory" else RankLost)(problem) from None
