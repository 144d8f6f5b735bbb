"""What other swarms of a data directory need of the blobs, which all its swarms share.

A swarm that goes on from another one's export begins with the very blobs of a snapshot there.
"""

from __future__ import annotations

import contextlib
import os

from ...crypto.hashing import ContentId
from ...protocol.wire.blobs import decode_any_blob_list
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.swarm_id import SwarmIdError, swarm_from_text
from .blob_store import BlobStore
from .data_dir import SwarmDir
from .swarm_store import blob_of, read_snapshots


def needed_by_others(own: SwarmDir, store: BlobStore) -> set[ContentId]:
    """Return the blobs of the initial models, base models and snapshots of all swarms beside `own`."""
    lists: set[ContentId] = set()
    for name in _names_beside(own):
        directory = SwarmDir(own.root.parent / name)
        # A swarm of another protocol version is none that could be joined.
        with contextlib.suppress(OSError, SwarmIdError, ProtocolError):
            manifest = directory.read_manifest(swarm_from_text(name))
            lists.add(manifest.initial)
            if manifest.adapter is not None:
                lists.add(manifest.adapter.base)
        lists.update(map(blob_of, read_snapshots(directory.snapshots)))
    needed = set(lists)
    for blob in lists:
        with contextlib.suppress(ProtocolError):
            needed.update(decode_any_blob_list(store.get(blob) or b"").chunks)
    return needed


def _names_beside(own: SwarmDir) -> list[str]:
    try:
        return [name for name in os.listdir(own.root.parent) if name != own.root.name]
    except OSError:
        return []
