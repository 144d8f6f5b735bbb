"""What a node stores of a swarm, to continue from it after a restart.

There are two append-only files of entries (the ledger, and the messages that this node has signed), and
two small files with the last final record and the list of snapshots on disk. The state of the ledger's
indexes is stored as well (`saved_indexes`), which only saves time.

A thread writes the queued changes in order while the event loop goes on; many entries share one fsync.
Before anything is sent to peers, `written` is awaited, so a crash at any moment looks to all others like
a crash before the message.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import trio

from ...crypto.envelope import MAX_ENVELOPE_BYTES, Envelope, EnvelopeError, open_envelope
from ...crypto.hashing import ContentId, content_id
from ...crypto.identity import Identity, PeerId
from ...crypto.signature_cache import SignatureCache
from ...protocol.chain.entry_store import MAX_DECIDED_BYTES, EntryStore, decode_decided
from ...protocol.chain.ledger import Ledger
from ...protocol.chain.saved_chain import StateTooLong, encode_state, restored_ledger
from ...protocol.wire.checkpoint import Checkpoint
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest
from .atomic_write import sync, temporary_path, write_atomically
from .data_dir import SwarmDir
from .entry_file import EntryFile, framed
from .final_file import read_final, write_final
from .saved_indexes import SavedIndexes, SavedIndexesFile
from .spill_file import LedgerSpill, MemorySpill, SpillFile
from .verified_prefix import FilePrefix, IntactPrefixes, VerifiedPrefix

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalSnapshot:
    """A snapshot that this node has on disk: the state after `round` (-1: the initial one)."""

    round: int
    blob: str
    """Content id of the blob list, in hex."""
    size: int
    """Bytes of the parameters, without the blob list."""
    whole: bool = True
    """Whether it is complete and of the present chain; if not, its download is or was under way, or its
    chain was abandoned."""


class SwarmStore:
    """The stored state of one swarm.

    `keep`, `replace_chain`, `keep_final`, `sign`, `forget_signed` and `keep_snapshots` queue a change,
    which is on the disk once `written` returns. Once `written` has raised an `OSError`, it always does:
    entries after a gap would be worthless.
    """

    def __init__(
        self, directory: SwarmDir, manifest: Manifest, node: Identity | PeerId | None = None
    ) -> None:
        """`node`: whose statements about verified entries are trusted (`VerifiedPrefix`), and, with its
        identity, written. Without it every entry is checked whenever the ledger is loaded."""
        directory.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        sync(directory.root.parent)
        self._manifest = manifest
        self.directory = directory
        self._ledger = EntryFile(directory.ledger, MAX_DECIDED_BYTES)
        self._verified = VerifiedPrefix(directory.verified, manifest.swarm, node)
        self._saved_indexes = SavedIndexesFile(directory.indexes, manifest.swarm, node)
        self._signed = EntryFile(directory.signed, MAX_ENVELOPE_BYTES)
        self._final = directory.final
        self._unwritten_final: Checkpoint | None = None
        self._snapshots = directory.snapshots
        self.momentum = directory.momentum
        self.history = directory.history
        self.sign_votes = directory.sign_votes
        self._jobs: deque[Callable[[], None]] = deque()
        self._writing = trio.Lock()
        self._queued = self._done = 0
        self._snapshot_list: list[LocalSnapshot] | None = None
        self._broken: OSError | None = None
        self.chains_left = 0
        """How often the chain was replaced by another one since the start."""

    async def written(self) -> None:
        """Wait until every change queued before is on the disk."""
        wanted = self._queued
        async with self._writing:
            # The task that held the lock before may have written our changes with its own.
            if self._done < wanted:
                await trio.to_thread.run_sync(self.write)

    def write(self) -> None:
        """Write all queued changes; call it from one thread at a time."""
        if self._broken is not None:
            raise self._broken
        done = self._done
        try:
            while self._jobs:
                self._jobs.popleft()()
                done += 1
            # The ledger first: our own signed messages of a round are dropped only because it contains
            # the round's record with the other members' signatures.
            self._ledger.sync()
            self._signed.sync()
            self._verified.save()
            # The final record last: otherwise a node that trains alone could, after a crash, wait for
            # entries that it has lost.
            final, self._unwritten_final = self._unwritten_final, None
            if final is not None:
                write_final(self._final, final)
        except OSError as error:
            self._broken = error
            raise
        self._done = done

    def _queue(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        self._queued += 1

    def load_ledger(self, *, repair: bool = True, checkpoint: Checkpoint | None = None) -> Ledger:
        """Load the ledger from disk and verify it, up to the first bad entry or the first of a protocol
        version that this program lacks.

        `repair`: drop the entries from the first bad one on; do not use it while another process runs
        the node. Raises `ProtocolError` (`checkpoint`) if the chain has another record than the
        `checkpoint` in its round.
        """
        if repair:
            indexes = self._saved_indexes.path
            for path in (self._ledger.path, self._signed.path, self._snapshots, indexes):
                # Left by a process that was killed while replacing a file.
                temporary_path(path).unlink(missing_ok=True)
        # A process that only reads may lack write permission here.
        spill = SpillFile(self.directory.root) if repair else None
        stated, saved = self._verified.stated(), self._saved_indexes.read()
        known = [stated, None if saved is None else saved.prefix]
        intact = self._intact_prefixes(prefix for prefix in known if prefix is not None)
        verified = 0
        if stated is not None and stated in intact:
            verified = stated.entries
            self._verified.note_intact(stated)
        self._verified.clear()
        ledger = self._restored_ledger(saved, intact, spill, checkpoint)
        size = 0
        if ledger is None:
            # The one cache of this node: copies of the ledger share it, and received messages go through
            # it (`Ledger.verify`).
            verify = SignatureCache().verify
            ledger = Ledger(self._manifest, verify=verify, spill=spill, checkpoint=checkpoint)
        elif saved is not None:
            size = saved.prefix.bytes
        damaged = False
        for entry in self._ledger.read(repair=repair, start=size):
            if ledger.versions.outdated:
                # A newer program has run here. Its entries are valid, but this version cannot read them.
                break
            try:
                ledger.append(decode_decided(entry), encoded=entry, verified=len(ledger) < verified)
            except ProtocolError as error:
                if error.reason == "checkpoint":
                    raise
                damaged = True
                break
            size += self._count(entry)
        if damaged and repair:
            lost = (
                "the whole ledger"
                if len(ledger) == 0
                else f"everything after round {len(ledger) - 1}"
            )
            _log.warning("the ledger on this disk is damaged: %s is fetched again", lost)
            self._ledger.truncate(size)
        self._verified.save()
        if self._saved_indexes.is_due(len(ledger)):
            self._write_indexes(ledger)
        return ledger

    def _intact_prefixes(self, known: Iterable[FilePrefix]) -> IntactPrefixes:
        try:
            return IntactPrefixes(self._ledger, known)
        except OSError:
            return IntactPrefixes(self._ledger, ())

    def _restored_ledger(
        self,
        saved: SavedIndexes | None,
        intact: IntactPrefixes,
        spill: SpillFile | None,
        checkpoint: Checkpoint | None,
    ) -> Ledger | None:
        """Return the ledger up to the saved state of its indexes; None if all records have to be
        followed. Raises `ProtocolError` (`checkpoint`) as `load_ledger` does."""
        if saved is None:
            return None
        try:
            if saved.prefix not in intact:
                raise ProtocolError("malformed", "the ledger is another one, or damaged")
            later = MemorySpill() if spill is None else spill
            stored = LedgerSpill(self._ledger.path, saved.prefix.bytes, later)
            ledger = restored_ledger(
                self._manifest,
                saved.state,
                EntryStore.stored(stored, intact.offsets[: saved.prefix.entries]),
                verify=SignatureCache().verify,
                checkpoint=checkpoint,
            )
        except ProtocolError as error:
            if error.reason == "checkpoint":
                raise
            self._saved_indexes.note_unusable(error)
            return None
        self._verified.begin(saved.prefix, intact.hash(saved.prefix))
        return ledger

    def drop_ledger(self) -> None:
        """Drop a chain that is not the swarm's. Its snapshots are listed as incomplete."""
        self._replace_ledger([])
        write_atomically(self._snapshots, _encode_snapshots(self._abandoned_snapshots()))
        self._snapshot_list = None

    def final(self) -> Checkpoint | None:
        """Return the last record that this node knew to be final, or None. Raises `UserError` (`FINAL`)
        if its file is damaged or unreadable."""
        return read_final(self._final)

    def keep_final(self, checkpoint: Checkpoint) -> None:
        """Queue a final record for storage; of several, the last is stored."""
        self._queue(partial(setattr, self, "_unwritten_final", checkpoint))

    def keep(self, entry: bytes) -> None:
        """Append a ledger entry."""
        self._queue(partial(self._append, entry))

    def keep_indexes(self, ledger: Ledger) -> None:
        """Queue the state of the ledger's indexes, if the stored one is old. All of its entries are
        queued or stored."""
        if self._saved_indexes.is_due(len(ledger)):
            self._saved_indexes.note_queued(len(ledger))
            # A copy, because the ledger grows while this is being written.
            self._queue(partial(self._write_indexes, ledger.truncated(len(ledger))))

    def _write_indexes(self, ledger: Ledger) -> None:
        self._saved_indexes.note_queued(len(ledger))
        try:
            state = encode_state(ledger)
        except StateTooLong as error:
            _log.info("the state of the chain is not saved for a restart: %s", error)
            return
        # A statement about entries that a power cut takes away would be worth nothing.
        self._ledger.sync()
        prefix = self._verified.prefix
        if prefix.entries == len(ledger):
            self._saved_indexes.write(prefix, state)

    def replace_chain(self, ledger: Ledger) -> None:
        """Replace the chain by another one. The snapshots so far are listed as incomplete."""
        self.chains_left += 1
        # A copy, because the ledger grows while this is being written.
        chain = ledger.truncated(len(ledger))
        self._queue(lambda: self._replace_ledger(map(chain.raw, range(len(chain)))))
        self.keep_snapshots(self._abandoned_snapshots())

    def _abandoned_snapshots(self) -> list[LocalSnapshot]:
        """Return the listed snapshots as those of an abandoned chain: none of them is a state to start
        from, but as long as they are listed their blobs can be found and removed."""
        # The download comes first, as `Snapshots` expects it.
        listed = sorted(self.snapshots(), key=lambda each: each.whole)
        return [replace(each, whole=False) for each in listed]

    def _append(self, entry: bytes) -> None:
        self._ledger.append(entry)
        self._count(entry)

    def _replace_ledger(self, entries: Iterable[bytes]) -> None:
        self._verified.clear()
        self._saved_indexes.clear()

        def counted() -> Iterator[bytes]:
            for entry in entries:
                self._count(entry)
                yield entry

        self._ledger.replace(counted())

    def _count(self, entry: bytes) -> int:
        """Add the file's next entry to the verified ones; return the number of its bytes in the file."""
        written = framed(entry)
        self._verified.add(written)
        return len(written)

    def signed(self) -> list[Envelope]:
        """Return the signed messages that this node must not contradict after a restart."""
        envelopes, lost = [], 0
        for entry in self._signed.read(repair=True):
            try:
                envelopes.append(open_envelope(entry, swarm=self._manifest.swarm))
            except EnvelopeError:
                lost += 1
        if lost:
            _log.warning(
                "%d messages that this node has signed can no longer be read: it asks the other "
                "members for them before it votes",
                lost,
            )
        return envelopes

    def sign(self, envelope: bytes) -> None:
        """Append a signed message."""
        self._queue(partial(self._signed.append, envelope))

    def forget_signed(self, envelopes: Sequence[bytes]) -> None:
        """Drop the signed messages of decided rounds, keeping `envelopes`."""
        # Only after the records that decide them are durable.
        self._queue(self._ledger.sync)
        self._queue(partial(self._signed.replace, envelopes))

    def snapshots(self) -> list[LocalSnapshot]:
        """Return the snapshots on disk, oldest first; incomplete ones come last."""
        if self._snapshot_list is None:
            self._snapshot_list = read_snapshots(self._snapshots)
        return self._snapshot_list

    def keep_snapshots(self, snapshots: list[LocalSnapshot]) -> None:
        """Replace the list of snapshots on disk."""
        self._snapshot_list = list(snapshots)
        self._queue(partial(write_atomically, self._snapshots, _encode_snapshots(snapshots)))


def read_snapshots(path: Path) -> list[LocalSnapshot]:
    """Return the snapshots that a file lists; none if it is missing or damaged."""
    try:
        content = json.loads(path.read_bytes()[: 1 << 16])
        rows = content["snapshots"]
        if content["check"] != _checksum(rows):
            raise ValueError("its checksum does not match")
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
            raise ValueError("a snapshot in it has no valid content id")
    except FileNotFoundError:
        return []
    except (
        *(OSError, ValueError, KeyError, TypeError),
        *(AttributeError, OverflowError, RecursionError),
    ) as error:
        _log.warning(
            "the list of snapshots on this disk is damaged (%s): the node starts from a "
            "snapshot that the swarm has certified",
            error,
        )
        return []
    return found


def _encode_snapshots(snapshots: Sequence[LocalSnapshot]) -> bytes:
    rows = [asdict(snapshot) for snapshot in snapshots]
    return json.dumps({"snapshots": rows, "check": _checksum(rows)}).encode()


def _checksum(rows: object) -> str:
    """Return a checksum, so that a changed byte is not read as another round or another snapshot."""
    return content_id(json.dumps(rows).encode()).hex()


def blob_of(snapshot: LocalSnapshot) -> ContentId:
    """Return the content id of a snapshot's blob list."""
    return ContentId(bytes.fromhex(snapshot.blob))
