"""Parts of sheets on disk: one file a part, under the name that it is asked for by.

Nothing hashes to a name; a rule says which bytes it stands for. So parts lie in a directory of their
own, and no content id, whoever says it, ever leads to one. A rule is known to the process that gave it,
for as long as it runs; what is stored under a name is there again for the next process that gives the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ...crypto.hashing import ContentId
from ...protocol.wire.blobs import MAX_BLOB_BYTES
from .blob_files import BlobFiles


class PartStore(BlobFiles):
    """The parts below `root`. Only those are given out of whose names this process knows the rules."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._fits: dict[ContentId, Callable[[bytes], bool]] = {}

    def name(self, name: ContentId, fits: Callable[[bytes], bool]) -> None:
        """From now on `name` stands for the first bytes that fit, which may be there already; until it
        is removed. A name says all that its rule depends on."""
        self._fits.setdefault(name, fits)

    def keep(self, cid: ContentId, data: bytes) -> bool:
        """Store what somebody gave for a name, if it is that and nothing is there. Raises `DiskFull`."""
        if not self._sound(data, cid):
            return False
        if not self.has(cid):
            self._write(self.path(cid), data)
        return True

    def get(self, cid: ContentId) -> bytes | None:
        """The bytes of a part, or None if it is not here, or was never named."""
        return super().get(cid) if cid in self._fits else None

    def set_aside(self, cids: Iterable[ContentId]) -> list[Path]:
        """Take parts out of the store at once, and forget their names."""
        cids = list(cids)
        files = super().set_aside(cids)
        for cid in cids:
            self._fits.pop(cid, None)
        return files

    def remove_nameless(self) -> None:
        """Remove what earlier processes had names for, and this one has not given any."""
        for cid in list(self.ids()):
            # Asked for each: a name may be given, and its part written, meanwhile.
            if cid not in self._fits:
                self.path(cid).unlink(missing_ok=True)

    def _sound(self, data: bytes, cid: ContentId) -> bool:
        fits = self._fits.get(cid)
        return fits is not None and len(data) <= MAX_BLOB_BYTES and fits(data)
