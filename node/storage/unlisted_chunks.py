"""Chunks on disk that no blob list names yet: those of a snapshot in the making.

The list follows from the chunks, so it is stored after them. If a process dies in between, nothing else
leads to the chunks, and they would stay for ever.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ...crypto.hashing import ContentId, content_from_text
from ...protocol.wire.manifest import SwarmId
from ...protocol.wire.swarm_id import swarm_text
from .blob_store import BlobStore


class UnlistedChunks(BlobStore):
    """A blob store that notes what it adds for one swarm, until `forget`. Several processes may add; a
    power cut may lose the notes of the last seconds."""

    def __init__(self, root: Path, swarm: SwarmId) -> None:
        super().__init__(root)
        self._notes = root / f".unlisted-{swarm_text(swarm)}"

    def _write(self, path: Path, data: bytes | memoryview) -> None:
        # What is here already belongs to something else, such as an earlier snapshot.
        if not path.is_file():
            with self._notes.open("ab") as file:
                # On a new line: a process that was killed, or a full disk, has left half a line.
                file.write(f"\n{path.name}".encode())
        super()._write(path, data)

    def noted(self) -> set[ContentId]:
        """Return what was added since the last `forget`, even by a process that died meanwhile."""
        found: set[ContentId] = set()
        with contextlib.suppress(FileNotFoundError):
            for line in self._notes.read_bytes().split():
                with contextlib.suppress(ValueError):
                    found.add(content_from_text(line.decode("ascii")))
        return found

    def forget(self) -> None:
        """Forget all notes. Nothing may be adding chunks meanwhile."""
        self._notes.unlink(missing_ok=True)
