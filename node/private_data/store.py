"""Store of a member's own data on disk: below the swarm's folder, separate from the shared stores.

The node serves the blobs in `blobs/` to any peer. A member's own data is in none of the stores that the
node serves from, so that no peer's request can be answered with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from ...protocol.wire.encoding import decode, encode
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import DataSpec, ShardSpec
from ...protocol.wire.structure import Length, Range
from ..storage.atomic_write import write_atomically
from ..storage.blob_store import BlobStore
from .exclusions import Exclusion

T = TypeVar("T")

# The index of a terabyte of tokens has 16,000 shards, with 50 bytes for each.
_MAX_INDEX_BYTES = 4 << 20
_MAX_STATE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PrivateIndex:
    """Description of a member's own data after it was tokenized."""

    name: Annotated[str, Length(1, 64)]
    """A name that is different for other files, changed files, or another way of reading them."""
    shards: Annotated[tuple[ShardSpec, ...], Length(0, 65_536)]
    documents: Annotated[int, Range(0, 2**62)]
    """Number of documents to train on."""
    bad: Annotated[int, Range(0, 2**62)]
    """Number of unusable rows."""
    skipped: Annotated[tuple[Exclusion, ...], Length(0, 64)] = ()
    """Files that were not read, by reason."""
    left_out: Annotated[tuple[Exclusion, ...], Length(0, 64)] = ()
    """Documents and rows that were left out of the files that were read, by reason."""

    def summary(self, *, names: bool) -> str:
        """Return one line on what is trained on and what is left out; with `names` it names files."""
        several = "" if self.documents == 1 else "s"
        parts = ", ".join(each.text(names=names) for each in (*self.skipped, *self.left_out))
        end = f"; left out: {parts}" if parts else ""
        return f"your own data: {self.documents:,} document{several}{end}"

    def samples(self, spec: DataSpec) -> int:
        """Return the number of sequences to train on."""
        return sum(spec.samples_in(shard) for shard in self.shards)


class PrivateFolder:
    """Paths of a member's own data, below `root`. The constructor creates nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.index = root / "index"
        """The file of the `PrivateIndex`."""
        self.stores = root / "data"
        """The folder of the blob stores."""
        self.order = root / "walk"
        """The file of the position in the order of the sequences (`order.OrderPosition`)."""
        self.budget = root / "budget"
        """The file of the `PrivacyAccount`."""
        self.reader_log = root / "reader.log"
        """The file of the reader process's standard error."""

    def blobs(self, name: str) -> BlobStore:
        """Return the blob store of the `PrivateIndex` with this name."""
        return BlobStore(self.stores / name)


def read_index(folder: PrivateFolder, name: str | None = None) -> PrivateIndex | None:
    """Return the index of the member's own data; None if there is none, if `name` is given and the
    index has another, or if a shard is missing."""
    index = read_state(PrivateIndex, folder.index, _MAX_INDEX_BYTES)
    if index is None or name not in (None, index.name):
        return None
    store = folder.blobs(index.name)
    return index if all(store.has(shard.blob) for shard in index.shards) else None


def read_state(kind: type[T], path: Path, max_bytes: int = _MAX_STATE_BYTES) -> T | None:
    """Return the value in a small file; None if there is no such file, or its content is invalid."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        return decode(kind, data, max_bytes=max_bytes, named=True)
    except (OSError, ProtocolError):
        return None


def write_state(path: Path, value: object) -> None:
    """Write the value to a file, durably. Raises `OSError` if it cannot be written."""
    write_atomically(path, encode(value, named=True))
