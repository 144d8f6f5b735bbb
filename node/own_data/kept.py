"""What of a member's own data lies on the disk, and where: below the swarm's folder, in a store apart.

The node serves the blobs of `blobs/` to whoever asks for them. What is here is in none of its stores, so
there is no request that could be answered with it.
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

T = TypeVar("T")

# A terabyte has 16,000 shards of 50 bytes.
_MAX_INDEX_BYTES = 4 << 20
_MAX_STATE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """A member's own files as tokens: what of them is where."""

    name: Annotated[str, Length(1, 64)]
    """It would be another one with other files, with files that have changed, or read in another way."""
    shards: Annotated[tuple[ShardSpec, ...], Length(0, 65_536)]
    documents: Annotated[int, Range(0, 2**62)]
    bad: Annotated[int, Range(0, 2**62)]
    """Rows that could not be used."""

    def samples(self, spec: DataSpec) -> int:
        """How many sequences there are to train on."""
        return sum(spec.samples_in(shard) for shard in self.shards)


class OwnFolder:
    """The files of a member's own data, below `root`. Nothing is created by naming it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.index = root / "index"
        self.stores = root / "data"
        self.walk = root / "walk"
        self.budget = root / "budget"
        self.words = root / "reader.log"

    def blobs(self, name: str) -> BlobStore:
        """The store of what `OwnData` of this name has."""
        return BlobStore(self.stores / name)


def read_index(folder: OwnFolder, name: str | None = None) -> OwnData | None:
    """What is known of the member's own data; None if nothing is, it is of another `name`, or something
    of it is missing."""
    own = read_state(OwnData, folder.index, _MAX_INDEX_BYTES)
    if own is None or name not in (None, own.name):
        return None
    store = folder.blobs(own.name)
    return own if all(store.has(shard.blob) for shard in own.shards) else None


def read_state(kind: type[T], path: Path, max_bytes: int = _MAX_STATE_BYTES) -> T | None:
    """A value out of a small file; None if there is no such file, or something else is in it."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        return decode(kind, data, max_bytes=max_bytes, named=True)
    except (OSError, ProtocolError):
        return None


def write_state(path: Path, value: object) -> None:
    """Make the value a file's content, durably. Raises `OSError`."""
    write_atomically(path, encode(value, named=True))
