"""What a node remembers of a swarm between two starts.

Two append-only files of length-prefixed entries (the ledger, and what this node has signed), and two
small files that say which record is the last final one and which snapshots are on disk. A write that
was cut off by a crash is found when the file is next read, and dropped; all before it stands.

A thread writes what is handed over, in that order, while the event loop goes on; many entries share one
fsync. Before the world is told of something, `written` is waited for, so a crash at any moment looks to
all others like one before.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from io import FileIO
from pathlib import Path

import trio

from ...crypto.envelope import MAX_ENVELOPE_BYTES, Envelope, EnvelopeError, open_envelope
from ...crypto.hashing import ContentId, content_id
from ...protocol.chain.entries import MAX_DECIDED_BYTES, decode_decided
from ...protocol.chain.ledger import Ledger
from ...protocol.wire.checkpoint import Checkpoint
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest
from .atomic_write import aside_of, replacing, sync, write_atomically
from .data_dir import SwarmDir
from .final_file import read_final, write_final
from .spill_file import SpillFile

_log = logging.getLogger(__name__)

_LENGTH_BYTES = 4


class EntryFile:
    """An append-only file of byte strings, each behind its 4-byte big-endian length.

    Raises `OSError` as files do; an append that fails leaves the entries before it whole.
    """

    def __init__(self, path: Path, max_entry: int) -> None:
        self.path = path
        self._max_entry = max_entry
        self._file: FileIO | None = None
        self._durable = 0

    def read(self, *, mend: bool) -> Iterator[bytes]:
        """All whole entries in order.

        `mend`: cut a torn end off, so that appending can go on. Not for a reader beside the process
        that writes, to which an entry that is just being written looks torn.
        """
        if not self.path.exists():
            return
        good = 0
        with self.path.open("rb") as file:
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
        size = self.path.stat().st_size
        if mend and good < size:
            _log.warning(
                "the last %d bytes of %s are of an entry that was not whole: dropped",
                size - good,
                self.path,
            )
            os.truncate(self.path, good)

    def append(self, entry: bytes) -> None:
        """Add an entry, which is on the disk after the next `sync`."""
        file = self._open()
        try:
            rest = memoryview(len(entry).to_bytes(_LENGTH_BYTES, "big") + entry)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            self._take_back()
            raise

    def sync(self) -> None:
        """Wait until all entries are on the disk."""
        if self._file is None:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError:
            self._take_back()
            raise
        self._durable = self._file.tell()

    def replace(self, entries: Iterable[bytes]) -> None:
        """Put these entries in the place of all there were, whole or not at all, on the disk."""
        self.close()
        with replacing(self.path) as aside, aside.open("wb") as file:
            for entry in entries:
                file.write(len(entry).to_bytes(_LENGTH_BYTES, "big") + entry)

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        if self._file is None:
            # Unbuffered: a failed write leaves nothing behind that a later close would retry.
            self._file = self.path.open("ab", buffering=0)
            self._durable = self._file.tell()
            # It may be new.
            sync(self.path.parent)
        return self._file

    def _take_back(self) -> None:
        """After a full disk: remove what is torn or not certain, as far as that still works."""
        self.close()
        os.truncate(self.path, self._durable)


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
    """The remembered state of one swarm.

    `keep`, `keep_instead`, `sign`, `forget_signed` and `keep_snapshots` hand something over; it is on
    the disk once `written` returns. That raises `OSError`, and does so from then on: what follows a gap
    would be worth nothing.
    """

    def __init__(self, directory: SwarmDir, manifest: Manifest) -> None:
        directory.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        sync(directory.root.parent)
        self._manifest = manifest
        self._root = directory.root
        self._ledger = EntryFile(directory.ledger, MAX_DECIDED_BYTES)
        self._votes = EntryFile(directory.votes, MAX_ENVELOPE_BYTES)
        self._final = directory.final
        self._unwritten_final: Checkpoint | None = None
        self._snapshots = directory.root / "snapshots.json"
        self.momentum = directory.momentum
        self.history = directory.history
        self.sheets = directory.sheets
        self._jobs: deque[Callable[[], None]] = deque()
        self._writing = trio.Lock()
        self._handed_over = self._done = 0
        self._listed: list[LocalSnapshot] | None = None
        self._broken: OSError | None = None

    async def written(self) -> None:
        """Wait until everything that was handed over before is on the disk."""
        wanted = self._handed_over
        async with self._writing:
            # The task that had the lock before may have written ours with its own.
            if self._done < wanted:
                await trio.to_thread.run_sync(self.write)

    def write(self) -> None:
        """Write all that was handed over; by one thread at a time."""
        if self._broken is not None:
            raise self._broken
        done = self._done
        try:
            while self._jobs:
                self._jobs.popleft()()
                done += 1
            # The ledger first: what others signed in a round lies there, and is not signed again.
            self._ledger.sync()
            self._votes.sync()
            # And last what is final: else a node that trains alone could wait for entries that it lost.
            final, self._unwritten_final = self._unwritten_final, None
            if final is not None:
                write_final(self._final, final)
        except OSError as error:
            self._broken = error
            raise
        self._done = done

    def _hand_over(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        self._handed_over += 1

    def load_ledger(self, *, mend: bool = True, checkpoint: Checkpoint | None = None) -> Ledger:
        """The ledger on disk, checked again up to the first bad entry, or the first in a version of the
        protocol that this program does not speak.

        `mend`: drop what follows it. Not beside a running node. Raises `ProtocolError` (`checkpoint`) if
        it is a chain without the record of the `checkpoint`.
        """
        if mend:
            for path in (self._ledger.path, self._votes.path, self._snapshots):
                # Left from a file that was to be replaced when the process was killed.
                aside_of(path).unlink(missing_ok=True)
        # A process that only looks may not be allowed to write here.
        spill = SpillFile(self._root) if mend else None
        ledger = Ledger(self._manifest, spill=spill, checkpoint=checkpoint)
        entries: list[bytes] = []
        damaged = False
        for entry in self._ledger.read(mend=mend):
            if ledger.versions.outdated:
                # A newer program was here. What it wrote is good, and not for this one to read.
                break
            try:
                ledger.append(decode_decided(entry))
            except ProtocolError as error:
                if error.reason == "checkpoint":
                    raise
                damaged = True
                break
            entries.append(entry)
        if damaged and mend:
            lost = "all of it" if not entries else f"what follows round {len(entries) - 1}"
            _log.warning("the ledger on this disk is damaged: %s is fetched again", lost)
            self._ledger.replace(entries)
        return ledger

    def drop_ledger(self) -> None:
        """Forget a chain that is not the swarm's, and what belongs to it."""
        self._ledger.replace([])
        write_atomically(self._snapshots, _listing([]))
        self._listed = None

    def final(self) -> Checkpoint | None:
        """The last record that this node knew to be final. Raises `UserError` (`FINAL`) if the file that
        says so is damaged."""
        return read_final(self._final)

    def keep_final(self, checkpoint: Checkpoint) -> None:
        """Remember that a record is final; of several at a time the last."""
        self._hand_over(partial(setattr, self, "_unwritten_final", checkpoint))

    def keep(self, entry: bytes) -> None:
        """Append a ledger entry."""
        self._hand_over(partial(self._ledger.append, entry))

    def keep_instead(self, ledger: Ledger) -> None:
        """Change to another chain."""
        # A copy: the ledger grows while this is being written.
        chain = ledger.truncated(len(ledger))
        self._hand_over(lambda: self._ledger.replace(map(chain.raw, range(len(chain)))))
        self.keep_snapshots([])

    def signed(self) -> list[Envelope]:
        """What this node has signed and a restart must not contradict."""
        envelopes, lost = [], 0
        for entry in self._votes.read(mend=True):
            try:
                envelopes.append(open_envelope(entry, swarm=self._manifest.swarm))
            except EnvelopeError:
                lost += 1
        if lost:
            _log.warning(
                "%d of the things that this node has signed cannot be read any more: the other "
                "members are asked for them before it votes",
                lost,
            )
        return envelopes

    def sign(self, envelope: bytes) -> None:
        """Remember something signed."""
        self._hand_over(partial(self._votes.append, envelope))

    def forget_signed(self, envelopes: Sequence[bytes]) -> None:
        """Drop what was signed in rounds that are decided, but for `envelopes`."""
        # Not before it is certain that they are decided.
        self._hand_over(self._ledger.sync)
        self._hand_over(partial(self._votes.replace, envelopes))

    def snapshots(self) -> list[LocalSnapshot]:
        """The snapshots on disk, oldest first; one that is not whole comes last."""
        if self._listed is None:
            self._listed = self._read_snapshots()
        return self._listed

    def keep_snapshots(self, snapshots: list[LocalSnapshot]) -> None:
        """Replace the list of snapshots on disk."""
        self._listed = list(snapshots)
        self._hand_over(partial(write_atomically, self._snapshots, _listing(snapshots)))

    def _read_snapshots(self) -> list[LocalSnapshot]:
        try:
            content = json.loads(self._snapshots.read_bytes()[: 1 << 16])
            rows = content["snapshots"]
            if content["check"] != _check(rows):
                raise ValueError("a byte of it has changed")
            found = [
                LocalSnapshot(
                    int(row["round"]),
                    str(row["blob"]),
                    int(row["size"]),
                    row.get("whole", True) is True,
                )
                for row in rows
            ]
            if not all(len(blob_of(each)) == 32 and each.round >= 0 for each in found):
                raise ValueError("a snapshot in it has no name")
        except FileNotFoundError:
            return []
        except (
            *(OSError, ValueError, KeyError, TypeError),
            *(AttributeError, OverflowError, RecursionError),
        ) as error:
            _log.warning(
                "the list of snapshots on this disk is damaged (%s): the node begins with one that the "
                "swarm has certified",
                error,
            )
            return []
        return found


def _listing(snapshots: Sequence[LocalSnapshot]) -> bytes:
    rows = [asdict(snapshot) for snapshot in snapshots]
    return json.dumps({"snapshots": rows, "check": _check(rows)}).encode()


def _check(rows: object) -> str:
    """A hash, so that a byte that has changed is not taken for another round or another snapshot."""
    return content_id(json.dumps(rows).encode()).hex()


def blob_of(snapshot: LocalSnapshot) -> ContentId:
    """The content id of a snapshot's blob list."""
    return ContentId(bytes.fromhex(snapshot.blob))
