"""The state of a chain's indexes on the disk, by which a restarted node opens a long chain at once.

The state follows from the ledger file, but following it takes a millisecond a round. It is stored with a
statement, signed by the node as that of the verified entries is (`verified_prefix`), of which beginning
of the ledger file it is the state. Without a valid statement, or if either file has changed, all records
are followed as if there were no state.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from ...crypto.envelope import EnvelopeError
from ...crypto.identity import Identity, PeerId
from ...protocol.chain.saved_chain import MAX_STATE_BYTES
from ...protocol.wire.manifest import SwarmId
from .atomic_write import write_atomically
from .verified_prefix import MAX_STATEMENT_BYTES, FilePrefix, decode_statement, encode_statement

_log = logging.getLogger(__name__)

STATE_INTERVAL = 1000
"""Entries after which the state is written again: a second's work for the next start. It has a few
hundred bytes for each round of the chain, so writing it more often would be most of what is written."""

_KIND = "saved-indexes"
_LENGTH_BYTES = 2


@dataclass(frozen=True)
class SavedIndexes:
    """A state, and the beginning of the ledger file from which it follows."""

    prefix: FilePrefix
    state: bytes


class SavedIndexesFile:
    """The file with the last state. It holds the length of the statement in 2 bytes, the statement, and
    the state."""

    def __init__(self, path: Path, swarm: SwarmId, node: Identity | PeerId | None) -> None:
        """`node`: as for `VerifiedPrefix`."""
        self.path = path
        self._swarm = swarm
        self._identity = node if isinstance(node, Identity) else None
        self._peer = node.peer if isinstance(node, Identity) else node
        self._entries = 0

    def clear(self) -> None:
        """Begin with another chain, of which there is no state yet."""
        self._entries = 0

    def is_due(self, entries: int) -> bool:
        """Whether the last state is `STATE_INTERVAL` entries old."""
        return self._identity is not None and abs(entries - self._entries) >= STATE_INTERVAL

    def read(self) -> SavedIndexes | None:
        """Return the last state; None, with a line in the log, if the file holds none of this node and
        release, and None if it does not exist."""
        try:
            with self.path.open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH_BYTES), "big")
                statement = file.read(min(length, MAX_STATEMENT_BYTES))
                prefix, body = decode_statement(statement, _KIND, self._swarm, self._peer)
                state = file.read(MAX_STATE_BYTES)
            if hashlib.sha256(state).hexdigest() != body["state"]:
                raise ValueError("the state is damaged")
        except FileNotFoundError:
            return None
        except (OSError, EnvelopeError, ValueError, KeyError, TypeError) as error:
            self.note_unusable(error)
            return None
        self._entries = prefix.entries
        return SavedIndexes(prefix, state)

    def note_unusable(self, problem: object) -> None:
        """Report in the log why all records are followed."""
        self.clear()
        _log.info(
            "the saved state of the chain (%s) cannot be used: all its records are read, which takes "
            "about a millisecond each: %s",
            self.path,
            problem,
        )

    def note_queued(self, entries: int) -> None:
        """Record that a state of so many entries will be written."""
        self._entries = entries

    def write(self, prefix: FilePrefix, state: bytes) -> None:
        """Write a state. If the disk refuses it, a later one is written: only the time of the next start
        depends on it."""
        if self._identity is None:
            return
        digest = hashlib.sha256(state).hexdigest()
        statement = encode_statement(self._identity, _KIND, self._swarm, prefix, state=digest)
        length = len(statement).to_bytes(_LENGTH_BYTES, "big")
        try:
            write_atomically(self.path, length + statement + state)
        except OSError as error:
            _log.info("the state of the chain could not be saved in %s: %s", self.path, error)
