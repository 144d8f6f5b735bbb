"""Prediction, while the files are read, of whether the disk has room for the tokens made from them.

The size of a packed or columnar file tells little: a kilobyte of Parquet may contain a hundred
gigabytes of text. For each kind of file, the ratio of tokens to bytes read so far predicts the rest,
long before the disk is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..errors import ExitCode, UserError
from ..storage.data_dir import DataDir, size_text
from .files import File
from .formats import unpacked_bytes
from .token_cache import TokenCache

# With fewer bytes of tokens than this the ratio of a kind of file is unreliable.
_MIN_BYTES = 1 << 20
# Until this share of a kind has been read, its prediction is halved, but not below the estimate that
# does without it.
_RELIABLE_SHARE = 0.1


class DiskRoom:
    """The disk space that parts, and the shards made of them, will take in the data directory."""

    def __init__(
        self,
        data: DataDir,
        sources: Sequence[tuple[Sequence[File], TokenCache]],
        token_bytes_per_byte: int,
    ) -> None:
        """`token_bytes_per_byte`: the most bytes of tokens that one byte of text becomes."""
        self._data = data
        self._caches = [cache for _, cache in sources]
        self._token_bytes_per_byte = token_bytes_per_byte
        self._unread_bytes: Counter[str] = Counter()
        """Bytes not yet read, by kind of file."""
        self._unread_text_bytes: Counter[str] = Counter()
        """Estimated bytes of text in the files not yet read to their end, by kind of file."""
        self._read_bytes: Counter[str] = Counter()
        """Bytes read in this run, by kind of file."""
        self._token_bytes: Counter[str] = Counter()
        """Bytes of tokens made from the bytes read."""
        for files, cache in sources:
            for file in files[cache.position.file :]:
                self._unread_bytes[_kind(file)] += file.size
                self._unread_text_bytes[_kind(file)] += unpacked_bytes(file.path, file.size)

    def add(self, file: File, read: int, made: int) -> None:
        """Count `read` more bytes of a file, and the `made` bytes of tokens made from them."""
        kind = _kind(file)
        self._read_bytes[kind] += read
        self._unread_bytes[kind] -= read
        self._token_bytes[kind] += made

    def check(self, file: File, pending: int) -> None:
        """Raise `UserError` (`DISK_FULL`), and remove what was made so far, if the space will not
        suffice; `pending`: bytes of tokens, of `file` and others, that are in no part yet."""
        existing = sum(
            cache.dtype.itemsize * tokens for cache in self._caches for _, tokens in cache.counts
        )
        to_come = pending + sum(map(self._to_come, self._unread_bytes))
        # Shards are made while the parts still exist.
        needed, free = to_come + existing + to_come, self._data.free()
        if needed <= free:
            return
        for cache in self._caches:
            cache.remove()
        raise UserError(
            ExitCode.DISK_FULL,
            f"the training data will take about {size_text(needed + existing)} in {self._data.root}, "
            f"and {size_text(free + existing)} are free (estimated from the files read so far, up to "
            f"{file.name})",
            "leave files out with `exclude` in [data], free some space, or give a directory on a "
            "larger disk with --data-dir; what was made so far is removed",
        )

    def _to_come(self, kind: str) -> int:
        left, read, made = self._unread_bytes[kind], self._read_bytes[kind], self._token_bytes[kind]
        estimate = self._unread_text_bytes[kind] * self._token_bytes_per_byte
        if made < _MIN_BYTES or read <= 0:
            return estimate
        predicted = max(0, left) * made // read
        reliable = read >= _RELIABLE_SHARE * (read + left)
        return predicted if reliable else min(predicted, max(estimate, predicted // 2))


def _kind(file: File) -> str:
    """Return the kind of a file, its format and ending: files of one kind have about the same ratio."""
    return f"{file.format} {file.name.suffix.lower()}"
