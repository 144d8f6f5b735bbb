"""Samples from the blob store, by number: their bytes, and the tokens and marks that these encode.

The corpus is never in memory: a sample is read from the one or two chunk files that contain it, and
the operating system's cache does the rest. (Files are read rather than mapped: truncating a mapped
file kills the process, whereas a short read is an error that can be reported.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ....crypto.hashing import ContentId
from ....protocol.wire.blobs import CHUNK_BYTES, BlobList, decode_blob_list
from ....protocol.wire.errors import ProtocolError
from ....protocol.wire.manifest import DataSpec, ShardSpec
from ...storage.blob_store import BlobStore
from ...training.errors import TrainerFailed


@dataclass(frozen=True)
class Tokens:
    """Decoded numbers, in arrays of one shape: of samples, (samples, sequence_length + 1)."""

    ids: np.ndarray
    """int64."""
    begins: np.ndarray | None
    """bool: a document begins here. None, like `learned`, if the data is not `marked`."""
    learned: np.ndarray | None
    """bool: this token is to be predicted."""


def read_tokens(spec: DataSpec, samples: Sequence[bytes]) -> Tokens:
    """Return the tokens and marks of samples. Raises `TrainerFailed` (`bad_data`) for a token id
    outside the vocabulary."""
    return decode_tokens(spec, read_token_rows(spec, samples))


def decode_tokens(spec: DataSpec, numbers: np.ndarray) -> Tokens:
    """Return the tokens and marks of stored numbers, int64 of any shape. Raises what `read_tokens`
    raises."""
    bits = 8 * spec.token_bytes
    ids = numbers & ((1 << bits - 2) - 1) if spec.marked else numbers
    if ids.size and int(ids.max()) >= spec.vocabulary:
        raise _bad(f"token {int(ids.max())} is outside the vocabulary of {spec.vocabulary}")
    if not spec.marked:
        return Tokens(ids, None, None)
    return Tokens(ids, (numbers >> bits - 1 & 1) == 1, (numbers >> bits - 2 & 1) == 1)


def read_token_rows(spec: DataSpec, samples: Sequence[bytes]) -> np.ndarray:
    """Return the stored numbers of samples: int64 (samples, sequence_length + 1)."""
    numbers = np.frombuffer(b"".join(samples), f"<u{spec.token_bytes}").astype(np.int64)
    return numbers.reshape(len(samples), spec.sequence_length + 1)


class Corpus:
    """The training shards of a manifest, or a member's own in their place, and the held-out shard.

    Every method may raise `TrainerFailed`: `missing_data` if bytes are missing on disk or damaged,
    `bad_data` if a sample does not exist or the data does not fit its lists.
    """

    def __init__(
        self,
        spec: DataSpec,
        store: BlobStore,
        own: tuple[BlobStore, Sequence[ShardSpec]] | None = None,
    ) -> None:
        """`own`: the member's own training data, as a store of its own and the shards in it."""
        self._spec = spec
        self._store = store
        self._training, self._shards = own or (store, spec.shards)
        # ends[s] is the first sample after shard s.
        self._ends = list(accumulate(spec.samples_in(shard) for shard in self._shards))
        self._lists: dict[bytes, BlobList] = {}
        # The chunks whose hash was checked.
        self._checked: set[ContentId] = set()

    @property
    def heldout_samples(self) -> int:
        """Number of held-out samples."""
        return self._spec.samples_in(self._spec.heldout)

    def training(self, samples: Sequence[int]) -> list[bytes]:
        """Return the bytes of training samples: (sequence_length + 1) × token_bytes each."""
        return [self._read(self._training, *self._locate(sample)) for sample in samples]

    def heldout(self, samples: Sequence[int]) -> list[bytes]:
        """Return the bytes of held-out samples, of the same length."""
        return [self._read(self._store, self._spec.heldout, sample) for sample in samples]

    def _locate(self, sample: int) -> tuple[ShardSpec, int]:
        count = self._ends[-1] if self._ends else 0
        if not 0 <= sample < count:
            raise _bad(f"sample {sample} of {count}")
        index = bisect_right(self._ends, sample)
        before = self._ends[index - 1] if index else 0
        return self._shards[index], sample - before

    def _read(self, store: BlobStore, shard: ShardSpec, sample: int) -> bytes:
        """Return sample number `sample` of a shard: one token more than a sequence is long."""
        length, width = self._spec.sequence_length, self._spec.token_bytes
        return self._bytes(store, shard, sample * length * width, (length + 1) * width)

    def _bytes(self, store: BlobStore, shard: ShardSpec, start: int, size: int) -> bytes:
        chunks = self._list(store, shard).chunks
        parts = []
        while size:
            chunk, offset = divmod(start, CHUNK_BYTES)
            wanted = min(size, CHUNK_BYTES - offset)
            parts.append(self._part(store, chunks[chunk], offset, wanted))
            start += wanted
            size -= wanted
        return b"".join(parts)

    def _part(self, store: BlobStore, chunk: ContentId, offset: int, wanted: int) -> bytes:
        """Return some bytes of a chunk, which is read whole and checked at its first use."""
        if chunk not in self._checked:
            # The store removes a damaged chunk, and the node fetches it again.
            data = store.get(chunk)
            if data is None:
                raise _missing(f"a chunk, {chunk.hex()[:12]}, is missing or damaged")
            self._checked.add(chunk)
            part = data[offset : offset + wanted]
        else:
            try:
                with store.path(chunk).open("rb", buffering=0) as file:
                    file.seek(offset)
                    part = file.read(wanted)
            except FileNotFoundError:
                self._checked.discard(chunk)
                raise _missing(f"a chunk, {chunk.hex()[:12]}, was removed") from None
        if len(part) != wanted:
            raise _bad(f"a chunk, {chunk.hex()[:12]}, is shorter than its list says")
        return part

    def _list(self, store: BlobStore, shard: ShardSpec) -> BlobList:
        if shard.blob not in self._lists:
            data = store.get(shard.blob)
            if data is None:
                raise _missing(f"the list of shard {shard.blob.hex()[:12]} is missing")
            try:
                blobs = decode_blob_list(data, "shard", shard.tokens * self._spec.token_bytes)
            except ProtocolError as error:
                raise _bad(str(error)) from None
            self._lists[shard.blob] = blobs
        return self._lists[shard.blob]


def _missing(problem: str) -> TrainerFailed:
    return TrainerFailed("missing_data", f"training data has to be downloaded again: {problem}")


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_data", f"the training data cannot be read: {problem}")
