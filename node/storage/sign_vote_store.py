"""Parts of sign votes on disk: one file per part, under the name by which it is requested.

A name is not a hash of content; a predicate decides which content it names. So parts have a
directory of their own, and a request by content id never finds one. A predicate is known only to the
process that registered it; stored content becomes available again when the next process registers the
same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ...crypto.hashing import ContentId
from ...protocol.wire.blobs import MAX_BLOB_BYTES
from .blob_files import BlobFiles


class SignVotePartStore(BlobFiles):
    """The parts in the directory `root`. Only parts whose names this process has registered are
    returned."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._fits: dict[ContentId, Callable[[bytes], bool]] = {}

    def register(self, name: ContentId, fits: Callable[[bytes], bool]) -> None:
        """Register `name` until it is removed: it names the first content that fits, which may be
        on the disk already. A name must determine everything that its predicate depends on."""
        self._fits.setdefault(name, fits)

    def keep(self, cid: ContentId, data: bytes) -> bool:
        """Store content received for a name if it fits and nothing is stored yet; return whether it
        fits. Raises `DiskFull`."""
        if not self._matches(data, cid):
            return False
        if not self.has(cid):
            self._write(self.path(cid), data)
        return True

    def get(self, cid: ContentId) -> bytes | None:
        """Return a part, or None if it is not here or its name is not registered."""
        return super().get(cid) if cid in self._fits else None

    def set_aside(self, cids: Iterable[ContentId]) -> list[Path]:
        """Take parts out of the store at once, and unregister their names."""
        cids = list(cids)
        files = super().set_aside(cids)
        for cid in cids:
            self._fits.pop(cid, None)
        return files

    def remove_unregistered(self) -> None:
        """Remove the parts that earlier processes left and whose names this one has not registered."""
        for cid in list(self.ids()):
            # Checked for each one, since a name may be registered and its part written meanwhile.
            if cid not in self._fits:
                self.path(cid).unlink(missing_ok=True)

    def _matches(self, data: bytes, cid: ContentId) -> bool:
        fits = self._fits.get(cid)
        return fits is not None and len(data) <= MAX_BLOB_BYTES and fits(data)
