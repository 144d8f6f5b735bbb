"""Order in which the samples of a corpus are trained: well mixed, and yet local on disk.

The corpus is read in as many *streams* (`streams`) as a round has samples, each stream giving one sample
a round. A stream reads a *span* of neighbouring samples and then another one, elsewhere in the corpus.
So the samples of a round come from as many parts of the corpus as there are streams, while a member,
which keeps its streams for the length of a span, needs only its part of the corpus on disk.

All streams together read an endless sequence of ranks, epoch after epoch, in an order that is evaluated
rank by rank: it takes no memory, whatever the size of the corpus.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..codec.permutation import Numbers, mix, permutation_keys, permute
from ..wire.blobs import CHUNK_BYTES
from ..wire.manifest import Manifest

Streams = npt.NDArray[np.int64]
"""Array of stream numbers, counted from 0, or of one number for each stream."""

SPAN_CHUNKS = 8
"""Chunks in a span, if the corpus is large enough. A span that begins anywhere touches one chunk more
than its length, so a member fetches an eighth more than it trains on."""

_DOMAIN = b"distro-node sample order 2"


@dataclass(frozen=True)
class StreamOrder:
    """Sample order of one swarm. Raises `ValueError` for numbers out of range."""

    seed: int
    samples: int
    """Number of samples in the corpus, which is the length of an epoch."""
    streams: int
    """Number of streams, which is the number of samples in a round."""
    span: int
    """Samples that a stream reads in a row."""
    mixed: int
    """Length in samples of a stretch, about a chunk. A span consists of stretches, and each is shuffled
    within itself."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 64:
            raise ValueError("the seed must be an unsigned 64-bit number")
        if not 1 <= self.samples <= 1 << 62:
            raise ValueError(f"a corpus holds 1 to 2^62 samples, not {self.samples}")
        if min(self.streams, self.span, self.mixed) < 1 or self.span > self.samples:
            raise ValueError("a stream reads at least one sample, and at most the whole corpus")

    def samples_at(self, streams: Streams, rows: Streams) -> list[int]:
        """Return the `rows`-th sample (from 0) of each of these streams, each in [0, samples).

        Over all streams and rows, every sample occurs once an epoch.
        """
        # In a window of `span` rows each stream reads `span` ranks in a row, one stream after the
        # other.
        window, row = np.divmod(rows, self.span)
        ranks = (window * self.streams + streams) * self.span + row
        epochs, inside = np.divmod(ranks, self.samples)
        found = np.empty(len(ranks), np.uint64)
        for epoch in np.unique(epochs).tolist():
            (indices,) = np.nonzero(epochs == epoch)
            found[indices] = self._in_epoch(epoch, inside[indices].astype(np.uint64))
        return found.tolist()

    def _in_epoch(self, epoch: int, ranks: Numbers) -> Numbers:
        keys = _keys(self.seed, epoch)[:, np.newaxis]
        whole = self.samples // self.span
        spans, inside = np.divmod(ranks, np.uint64(self.span))
        # An incomplete span comes last; the others are permuted.
        full = spans < whole
        spans[full] = permute(spans[full], whole, keys)
        sizes = np.where(full, self.span, self.samples - whole * self.span).astype(np.uint64)
        first = inside - inside % np.uint64(self.mixed)
        start = spans * np.uint64(self.span) + first
        width = np.minimum(sizes - first, np.uint64(self.mixed))
        inside -= first
        # The key depends on the stretch's first sample, so each stretch has an order of its own.
        keys = keys + mix(start)
        for size in np.unique(width).tolist():
            (indices,) = np.nonzero(width == size)
            inside[indices] = permute(inside[indices], size, keys[:, indices])
        return start + inside


def order_of(manifest: Manifest) -> StreamOrder:
    """Return the order in which a swarm trains on its corpus."""
    data, streams = manifest.data, manifest.rounds.sequences
    chunk = max(1, CHUNK_BYTES // (data.sequence_length * data.token_bytes))
    # In a small corpus each stream reads one span an epoch, shorter than `SPAN_CHUNKS` chunks.
    span = max(1, min(data.samples // streams, SPAN_CHUNKS * chunk))
    return StreamOrder(manifest.seed, data.samples, streams, span, min(span, chunk))


def _keys(seed: int, epoch: int) -> Numbers:
    material = _DOMAIN + seed.to_bytes(8, "little") + epoch.to_bytes(16, "little")
    return permutation_keys(material)
