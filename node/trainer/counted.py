"""What a trainer is given to make the step of a record: the bodies that it takes, from the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...protocol.chain.stepping import Needed
from ..storage.blob_store import BlobStore


@dataclass(frozen=True)
class Counted:
    """Bodies, and how often each counts."""

    bodies: list[bytes]
    counts: list[int]


def counted_bodies(store: BlobStore, needed: Sequence[Needed]) -> Counted | None:
    """Those that are needed and fit; None if one of them is not here. They were decoded when they came,
    but not held against what is expected of them: everybody leaves the same ones out."""
    found = Counted([], [])
    for each in needed:
        body = store.get(each.entry.update)
        if body is None:
            return None
        if each.fits(body):
            found.bodies.append(body)
            found.counts.append(each.count)
    return found
