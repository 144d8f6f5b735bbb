"""Beginnings of blobs whose transfer broke off, so that the next provider sends only the rest.

A content id verifies a whole blob and not its beginning. A blob put together from several providers'
bytes that does not match therefore proves nothing against any one of them: what is there is dropped, and
from then on each provider continues only what it sent itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....crypto.hashing import ContentId
from ....crypto.identity import PeerId
from ....protocol.wire.blobs import MAX_BLOB_BYTES

LEAST_BYTES = 1 << 15
"""A transfer that delivered fewer bytes than this before it broke off counts as one without progress;
its bytes are dropped."""
# Of a blob with a mismatch, the beginnings of this many providers are kept.
_MOST_SOURCES = 3
# All beginnings of blobs that are not being fetched at the moment: four chunks.
_MOST_IDLE_BYTES = MAX_BLOB_BYTES


@dataclass(frozen=True)
class Beginning:
    """The first bytes of a blob, and the peers that sent them."""

    data: bytes = b""
    sources: frozenset[PeerId] = frozenset()


_EMPTY = Beginning()


class PartialBlob:
    """What is here of one blob."""

    def __init__(self) -> None:
        self._shared = _EMPTY
        # After a mismatch: each provider's own.
        self._own: dict[PeerId, Beginning] | None = None

    @property
    def size(self) -> int:
        """Number of bytes kept."""
        kept = [self._shared] if self._own is None else self._own.values()
        return sum(len(each.data) for each in kept)

    def beginning(self, peer: PeerId) -> Beginning:
        """Return the bytes that `peer` may continue."""
        return self._shared if self._own is None else self._own.get(peer, _EMPTY)

    def keep(self, peer: PeerId, beginning: Beginning, rest: bytes | memoryview) -> bool:
        """Keep the bytes with which `peer` continued `beginning`; return whether that is progress."""
        current = self.beginning(peer)
        if len(rest) < LEAST_BYTES or len(beginning.data) + len(rest) < (
            len(current.data) + LEAST_BYTES
        ):
            return False
        longer = Beginning(beginning.data + rest, beginning.sources | {peer})
        if self._own is None:
            self._shared = longer
        elif longer.sources == {peer}:
            self._own.pop(peer, None)
            while len(self._own) >= _MOST_SOURCES:
                del self._own[next(iter(self._own))]
            self._own[peer] = longer
        else:
            return False
        return True

    def note_mismatch(self, peer: PeerId, beginning: Beginning) -> bool:
        """Note that the blob does not match that `peer` completed from `beginning`; return whether the
        peer is to blame, having sent every byte."""
        if beginning.sources <= {peer}:
            if self._own is not None:
                self._own.pop(peer, None)
            elif peer in self._shared.sources:
                self._shared = _EMPTY
            return True
        self._shared, self._own = _EMPTY, self._own or {}
        return False


class PartialBlobs:
    """What is here of blobs whose download ended without success, within a bound."""

    def __init__(self) -> None:
        # Oldest first.
        self._partials: dict[ContentId, PartialBlob] = {}

    def take(self, cid: ContentId) -> PartialBlob:
        """Return what is here of a blob, and forget it: its download begins."""
        return self._partials.pop(cid, None) or PartialBlob()

    def put(self, cid: ContentId, partial: PartialBlob) -> None:
        """Keep what is here of a blob for its next download."""
        self._partials.pop(cid, None)
        if partial.size:
            self._partials[cid] = partial
        while sum(each.size for each in self._partials.values()) > _MOST_IDLE_BYTES:
            del self._partials[next(iter(self._partials))]
