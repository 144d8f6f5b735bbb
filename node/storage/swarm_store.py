"""What a node remembers of a swarm between two starts.

Two append-only files of length-prefixed entries (the ledger, and what this node has signed), and a small
file that says which snapshot is the newest on disk. A write that was cut off by a crash is found when
the file is next read, and dropped; everything before it stands.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path

from ...crypto.envelope import MAX_ENVELOPE_BYTES, Envelope, EnvelopeError, open_envelope
from ...crypto.hashing import ContentId
from ...protocol.chain.entries import MAX_DECIDED_BYTES, decode_decided
from ...protocol.chain.ledger import Ledger
from ...protocol.wire.encoding import encode
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.messages import Decided
from .data_dir import SwarmDir
from .spill_file import SpillFile

_LENGTH_BYTES = 4


class EntryFile:
    """An append-only file of byte strings, each behind its 4-byte big-endian length.

    Raises `OSError` as files do; an append that fails leaves the entries before it whole.
    """

    def __init__(self, path: Path, max_entry: int) -> None:
        self._path = path
        self._max_entry = max_entry
        self._file: FileIO | None = None

    def read(self, *, mend: bool) -> Iterator[bytes]:
        """All whole entries in order.

        `mend`: cut a torn end off, so that appending can go on. Not for a reader beside the process
        that writes, to which an entry that is just being written looks torn.
        """
        if not self._path.exists():
            return
        good = 0
        with self._path.open("rb") as file:
            while True:
                prefix = file.read(_LENGTH_BYTES)
                length = int.from_bytes(prefix, "big")
                if len(prefix) < _LENGTH_BYTES or length > self._max_entry:
                    break
                entry = file.read(length)
                if len(entry) < length:
                    break
                good += _LENGTH_BYTES + length
                yield entry
        if mend and good < self._path.stat().st_size:
            os.truncate(self._path, good)

    def append(self, *entries: bytes) -> None:
        """Add entries; they are on disk when this returns, all or none of them."""
        file = self._open()
        before = file.tell()
        try:
            framed = (len(entry).to_bytes(_LENGTH_BYTES, "big") + entry for entry in entries)
            rest = memoryview(b"".join(framed))
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            # A full disk: take the torn entry back, as far as that still works.
            os.truncate(self._path, before)
            self.close()
            raise

    def replace(self, entries: Iterable[bytes]) -> None:
        """Put these entries in the place of all there were, whole or not at all."""
        self.close()
        temporary = self._path.with_suffix(".new")
        with temporary.open("wb") as file:
            for entry in entries:
                file.write(len(entry).to_bytes(_LENGTH_BYTES, "big") + entry)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        if self._file is None:
            # Unbuffered: a failed write leaves nothing behind that a later close would retry.
            self._file = FileIO(self._path, "ab")
        return self._file


@dataclass(frozen=True)
class LocalSnapshot:
    """A snapshot that this node has on disk: the state after `round` (-1: the initial one)."""

    round: int
    blob: str
    """Content id of the blob list, in hex."""
    size: int
    whole: bool = True
    """Whether all of it is there; else it was being fetched."""


class SwarmStore:
    """The remembered state of one swarm."""

    def __init__(self, directory: SwarmDir, manifest: Manifest) -> None:
        directory.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._manifest = manifest
        self._root = directory.root
        self._ledger = EntryFile(directory.ledger, MAX_DECIDED_BYTES)
        self._votes = EntryFile(directory.votes, MAX_ENVELOPE_BYTES)
        self._snapshots = directory.root / "snapshots.json"
        self.momentum = directory.momentum
        self.history = directory.history

    def load_ledger(self, *, mend: bool = True) -> Ledger:
        """The ledger on disk, checked again up to the first bad entry.

        `mend`: drop what follows it. Not beside a running node.
        """
        # Who only looks may not be allowed to write here.
        ledger = Ledger(self._manifest, spill=SpillFile(self._root) if mend else None)
        entries: list[bytes] = []
        damaged = False
        for entry in self._ledger.read(mend=mend):
            try:
                ledger.append(decode_decided(entry))
            except ProtocolError:
                damaged = True
                break
            entries.append(entry)
        if damaged and mend:
            self._ledger.replace(entries)
        return ledger

    def keep(self, *decided: Decided) -> None:
        """Append ledger entries; it takes one wait for the disk, however many they are."""
        self._ledger.append(*map(encode, decided))

    def keep_instead(self, ledger: Ledger) -> None:
        """Change to another chain."""
        self._ledger.replace(encode(ledger[round_]) for round_ in range(len(ledger)))
        self._snapshots.unlink(missing_ok=True)

    def signed(self) -> list[Envelope]:
        """What this node has signed and a restart must not contradict."""
        envelopes = []
        for entry in self._votes.read(mend=True):
            try:
                envelopes.append(open_envelope(entry, swarm=self._manifest.swarm))
            except EnvelopeError:
                continue
        return envelopes

    def sign(self, envelope: bytes) -> None:
        """Remember something signed, before anybody else sees it."""
        self._votes.append(envelope)

    def forget_signed(self, envelopes: Iterable[bytes]) -> None:
        """Drop what was signed in rounds that are decided, but for `envelopes`."""
        self._votes.replace(envelopes)

    def snapshots(self) -> list[LocalSnapshot]:
        """The snapshots on disk, oldest first; one that is not whole comes last."""
        try:
            rows = json.loads(self._snapshots.read_bytes()[: 1 << 16])
            found = [
                LocalSnapshot(
                    int(row["round"]),
                    str(row["blob"]),
                    int(row["size"]),
                    row.get("whole", True) is True,
                )
                for row in rows
            ]
            usable = all(len(blob_of(each)) == 32 and each.round >= 0 for each in found)
        except (
            *(OSError, ValueError, KeyError, TypeError),
            *(AttributeError, OverflowError, RecursionError),
        ):
            usable, found = False, []
        # Missing or damaged: the node starts from a certified snapshot instead.
        return found if usable else []

    def keep_snapshots(self, snapshots: list[LocalSnapshot]) -> None:
        """Replace the list of snapshots on disk."""
        temporary = self._snapshots.with_suffix(".new")
        with temporary.open("w") as file:
            json.dump([asdict(snapshot) for snapshot in snapshots], file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._snapshots)


def blob_of(snapshot: LocalSnapshot) -> ContentId:
    """The content id of a snapshot's blob list."""
    return ContentId(bytes.fromhex(snapshot.blob))
