"""The part of a node's own ledger file that the node has verified before.

Checking the signatures of a long chain takes minutes, and a restarted node would check again what it has
checked itself. So the node signs a statement, with its own key, of how many entries at the start of the
file it has verified and of their SHA-256. A damaged file has another hash and a file of another node has
another signer; in both cases all entries are checked as if there were no statement. A statement by
another release is ignored too, because that release may have checked less.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

from ... import __version__
from ...crypto.envelope import EnvelopeError, open_envelope, sign
from ...crypto.identity import Identity, PeerId
from ...protocol.wire.manifest import SwarmId
from .atomic_write import write_atomically

_log = logging.getLogger(__name__)

STATEMENT_INTERVAL = 200
"""Entries after which the statement is written again: at about 10 ms each to verify, two seconds' work
that a crash may repeat."""

_KIND = "verified-prefix"
_MAX_STATEMENT_BYTES = 4096
_READ_BYTES = 1 << 20


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

    def stated_entries(self, ledger: Path) -> int:
        """Return how many entries at the start of the file `ledger` this node has verified earlier; 0
        without a valid statement about the file as it is."""
        try:
            entries, size, digest = self._read()
            with ledger.open("rb") as file:
                left, found = size, hashlib.sha256()
                while left and (piece := file.read(min(left, _READ_BYTES))):
                    found.update(piece)
                    left -= len(piece)
        except (OSError, EnvelopeError, ValueError, KeyError, TypeError):
            return 0
        if left or found.hexdigest() != digest:
            return 0
        self._stated = entries
        return entries

    def save(self) -> None:
        """Write the statement if it is `STATEMENT_INTERVAL` entries old. The added entries must be on
        the disk. If it cannot be written, a later call tries again: only the time of the next start
        depends on it."""
        if self._identity is None or abs(self._entries - self._stated) < STATEMENT_INTERVAL:
            return
        body = {
            "release": __version__,
            "entries": self._entries,
            "bytes": self._bytes,
            "sha256": self._hash.hexdigest(),
        }
        statement = sign(self._identity, _KIND, self._swarm, json.dumps(body).encode())
        try:
            write_atomically(self._path, statement.encode())
        except OSError as error:
            _log.debug("the statement of verified entries could not be written: %s", error)
            return
        self._stated = self._entries

    def _read(self) -> tuple[int, int, str]:
        """Return the statement's entries, bytes and hash. Raises `OSError`, or any of the errors of
        parsing if there is no valid statement by this node and release."""
        with self._path.open("rb") as file:
            envelope = open_envelope(file.read(_MAX_STATEMENT_BYTES), swarm=self._swarm)
        body = json.loads(envelope.body)
        if (envelope.kind, envelope.sender, body["release"]) != (_KIND, self._peer, __version__):
            raise ValueError("the statement of another node or another release")
        return int(body["entries"]), int(body["bytes"]), str(body["sha256"])
