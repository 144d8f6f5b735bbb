"""The part of a node's own ledger file that the node has verified before.

Checking the signatures of a long chain takes minutes, and a restarted node would check again what it has
checked itself. So the node signs a statement, with its own key, of how many entries at the start of the
file it has verified and of their SHA-256. A damaged file has another hash and a file of another node has
another signer; in both cases all entries are checked as if there were no statement. A statement by
another release is ignored too, because that release may have checked less.

The state of the chain's indexes (`saved_indexes`) rests on statements of the same form.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ... import __version__
from ...crypto.envelope import EnvelopeError, open_envelope, sign
from ...crypto.identity import Identity, PeerId
from ...protocol.wire.manifest import SwarmId
from .atomic_write import write_atomically
from .entry_file import EntryFile, framed

_log = logging.getLogger(__name__)

STATEMENT_INTERVAL = 200
"""Entries after which the statement is written again: at about 10 ms each to verify, two seconds' work
that a crash may repeat."""

_KIND = "verified-prefix"
MAX_STATEMENT_BYTES = 4096


@dataclass(frozen=True)
class FilePrefix:
    """The beginning of a ledger file."""

    entries: int
    bytes: int
    sha256: str


class IntactPrefixes:
    """What is left of known beginnings of a ledger file."""

    def __init__(self, file: EntryFile, known: Iterable[FilePrefix]) -> None:
        """Read the file as far as the longest of those `known`. Raises `OSError`."""
        self.offsets: list[int] = []
        """Where each entry begins, with its length."""
        self._hashes: dict[FilePrefix, Any] = {}
        sought = set(known)
        counts = {prefix.entries for prefix in sought}
        most = max(counts, default=0)
        end, found = 0, hashlib.sha256()
        for entry in file.read(repair=False) if most else ():
            written = framed(entry)
            found.update(written)
            end += len(written)
            self.offsets.append(end - len(written))
            if len(self.offsets) in counts:
                prefix = FilePrefix(len(self.offsets), end, found.hexdigest())
                if prefix in sought:
                    self._hashes[prefix] = found.copy()
            if len(self.offsets) == most:
                break

    def __contains__(self, prefix: FilePrefix | None) -> bool:
        return prefix in self._hashes

    def hash(self, prefix: FilePrefix) -> Any:
        """Return the hash of an intact beginning, to be continued."""
        return self._hashes[prefix].copy()


def encode_statement(
    identity: Identity, kind: str, swarm: SwarmId, prefix: FilePrefix, **more: str
) -> bytes:
    """Return a node's signed statement about the beginning of its ledger file."""
    body = {"release": __version__, **asdict(prefix), **more}
    return sign(identity, kind, swarm, json.dumps(body).encode()).encode()


def decode_statement(
    data: bytes, kind: str, swarm: SwarmId, peer: PeerId | None
) -> tuple[FilePrefix, dict[str, Any]]:
    """Return the content of a statement. Raises `EnvelopeError`, `ValueError`, `KeyError` or `TypeError`
    unless it is a valid one by this node and release."""
    envelope = open_envelope(data, swarm=swarm)
    body = json.loads(envelope.body)
    if (envelope.kind, envelope.sender, body["release"]) != (kind, peer, __version__):
        raise ValueError("the statement of another node or another release")
    return FilePrefix(int(body["entries"]), int(body["bytes"]), str(body["sha256"])), body


class VerifiedPrefix:
    """The verified entries of one ledger file, and the signed statement about them at `path`."""

    def __init__(self, path: Path, swarm: SwarmId, node: Identity | PeerId | None) -> None:
        """`node`: whose statements are trusted, none without it; with its identity, statements are also
        written."""
        self._path = path
        self._swarm = swarm
        self._identity = node if isinstance(node, Identity) else None
        self._peer = node.peer if isinstance(node, Identity) else node
        self._stated = 0
        self.clear()

    def clear(self) -> None:
        """Start again with an empty file."""
        self._hash = hashlib.sha256()
        self._entries = 0
        self._bytes = 0

    def add(self, framed: bytes) -> None:
        """Add the next verified entry, as its bytes in the file."""
        if self._identity is None:
            # Nothing will be stated about it.
            return
        self._hash.update(framed)
        self._entries += 1
        self._bytes += len(framed)

    @property
    def prefix(self) -> FilePrefix:
        """The verified entries."""
        return FilePrefix(self._entries, self._bytes, self._hash.hexdigest())

    def stated(self) -> FilePrefix | None:
        """Return which beginning of the file this node has verified earlier; None without a valid
        statement."""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_STATEMENT_BYTES)
            return decode_statement(data, _KIND, self._swarm, self._peer)[0]
        except (OSError, EnvelopeError, ValueError, KeyError, TypeError):
            return None

    def note_intact(self, stated: FilePrefix) -> None:
        """Record that the file begins as stated, so that the statement need not be written again."""
        self._stated = stated.entries

    def begin(self, prefix: FilePrefix, hashed: Any) -> None:
        """Begin with these entries of the file, with their hash."""
        self._hash, self._entries, self._bytes = hashed, prefix.entries, prefix.bytes

    def save(self) -> None:
        """Write the statement if it is `STATEMENT_INTERVAL` entries old. The added entries must be on
        the disk. If it cannot be written, a later call tries again: only the time of the next start
        depends on it."""
        if self._identity is None or abs(self._entries - self._stated) < STATEMENT_INTERVAL:
            return
        try:
            write_atomically(
                self._path, encode_statement(self._identity, _KIND, self._swarm, self.prefix)
            )
        except OSError as error:
            _log.debug("the statement of verified entries could not be written: %s", error)
            return
        self._stated = self._entries
