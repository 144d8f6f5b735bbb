"""The peers that a node remembers on disk, with which it rejoins without a bootstrap peer."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....protocol.wire.errors import ProtocolError
from ....protocol.wire.introductions import MAX_PEER_RECORD_BYTES, PeerRecord, open_peer_record
from ....protocol.wire.manifest import SwarmId
from ...storage.atomic_write import write_atomically

log = logging.getLogger(__name__)

_MAX_REMEMBERED = 64
_MAX_FILE_BYTES = _MAX_REMEMBERED * (MAX_PEER_RECORD_BYTES * 4 // 3 + 16) + 1024


class PeersFile:
    """A file with the peer records of one swarm; it may be missing or damaged."""

    def __init__(self, path: Path, swarm: SwarmId) -> None:
        self._path = path
        self._swarm = swarm
        self._saved = b""

    def save(self, records: Sequence[PeerRecord]) -> None:
        """Store the first 64 records. Without any, keep the previous ones."""
        kept = [base64.b64encode(record.sealed).decode() for record in records[:_MAX_REMEMBERED]]
        data = json.dumps({"version": 1, "records": kept}).encode()
        if not kept or data == self._saved:
            return
        try:
            write_atomically(self._path, data)
            self._saved = data
        except OSError as error:
            log.warning("cannot write the known peers to %s: %s", self._path, error)

    def load(self) -> list[PeerRecord]:
        """Return the remembered peers: of a damaged file, those before the first invalid record, or
        none if it is not JSON or too large."""
        try:
            with self._path.open("rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("cannot read the known peers in %s: %s", self._path, error)
            return []
        records: list[PeerRecord] = []
        try:
            if len(data) > _MAX_FILE_BYTES:
                raise ValueError("too large")
            content: Any = json.loads(data)
            for text in content["records"][:_MAX_REMEMBERED]:
                records.append(open_peer_record(base64.b64decode(text, validate=True), self._swarm))
        except (ValueError, TypeError, KeyError, RecursionError, ProtocolError) as error:
            log.warning("the list of known peers in %s is damaged: %s", self._path, error)
        return records
