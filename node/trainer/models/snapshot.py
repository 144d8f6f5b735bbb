"""Conversion of parameters to the blobs of a snapshot and back.

A snapshot is every tensor in the manifest's order, float32, little-endian, in C order, with nothing
between them, cut into chunks. It is streamed both ways: in addition to the model itself only a few
chunks are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ....crypto.hashing import ContentId
from ....protocol.wire.blobs import CHUNK_BYTES, BlobList
from ...storage.blob_store import BlobStore
from ...training.errors import TrainerFailed

_ITEM = 4
_CHUNK_ITEMS = CHUNK_BYTES // _ITEM


def write_snapshot(parameters: Sequence[torch.Tensor], store: BlobStore) -> BlobList:
    """Store the parameters' chunks and return the list of them (which is not stored itself)."""
    size = _ITEM * sum(parameter.numel() for parameter in parameters)
    chunks = tuple(store.put(chunk) for chunk in snapshot_chunks(parameters))
    return BlobList(kind="snapshot", size=size, chunks=chunks)


@torch.no_grad()
def read_snapshot(
    parameters: Sequence[torch.Tensor], store: BlobStore, chunks: Sequence[ContentId]
) -> None:
    """Replace the parameters by a snapshot's.

    All chunks are checked before the first parameter changes, so a bad snapshot leaves the
    parameters unchanged.

    Raises `TrainerFailed` with the kind `bad_snapshot` for a missing chunk, a wrong size, or a
    number that is not finite.
    """
    elements = sum(parameter.numel() for parameter in parameters)
    check_count(chunks, elements)
    for index in range(len(chunks)):
        read_values(store, chunks, index, elements, finite=True)

    values = np.empty(0, dtype=np.float32)
    ahead = iter(range(len(chunks)))
    for parameter in parameters:
        flat = parameter.detach().view(-1)
        filled = 0
        while filled < flat.numel():
            if not len(values):
                values = read_values(store, chunks, next(ahead), elements)
            piece, values = np.split(values, [flat.numel() - filled])
            flat[filled : filled + len(piece)].copy_(torch.from_numpy(piece))
            filled += len(piece)


def snapshot_chunks(parameters: Sequence[torch.Tensor]) -> Iterator[bytes]:
    """Yield the bytes of a snapshot's chunks."""
    buffer = bytearray()
    for parameter in parameters:
        flat = parameter.detach().reshape(-1)
        start = 0
        while start < flat.numel():
            piece = flat[start : start + _CHUNK_ITEMS - len(buffer) // _ITEM]
            buffer += piece.cpu().numpy().astype("<f4", copy=False).tobytes()
            start += piece.numel()
            if len(buffer) == CHUNK_BYTES:
                yield bytes(buffer)
                buffer.clear()
    if buffer:
        yield bytes(buffer)


def check_count(chunks: Sequence[ContentId], elements: int) -> None:
    """Raise `TrainerFailed` (`bad_snapshot`) unless the number of chunks fits the number of elements."""
    if len(chunks) != -(-elements // _CHUNK_ITEMS):
        raise _bad(f"{len(chunks)} chunks do not hold {elements} parameters")


def read_values(
    store: BlobStore,
    chunks: Sequence[ContentId],
    index: int,
    elements: int,
    *,
    finite: bool = False,
) -> np.ndarray:
    """Return one chunk's numbers, from a snapshot of `elements` numbers; with `finite`, check that
    all are finite.

    Raises `TrainerFailed` (`bad_snapshot`).
    """
    chunk, size = chunks[index], min(_CHUNK_ITEMS, elements - index * _CHUNK_ITEMS)
    data = store.get(chunk)
    if data is None:
        raise _bad(f"chunk {chunk.hex()[:12]} is missing")
    if len(data) != size * _ITEM:
        raise _bad(f"chunk {chunk.hex()[:12]} has {len(data)} bytes, not {size * _ITEM}")
    # A copy, because torch requires writable memory.
    values = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if finite and not np.isfinite(values).all():
        raise _bad(f"chunk {index} holds a number that is not finite")
    return values


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_snapshot", f"the snapshot does not match the model: {problem}")
