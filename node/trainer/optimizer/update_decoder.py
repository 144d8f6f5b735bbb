"""Decoding of updates as they arrive, in a thread of its own, so that the step finds them decoded.

numpy takes a quarter of a second for one update of 1.2 billion parameters, and a record names up to
hundreds: if they were decoded only after the decision, a GPU would wait for seconds or longer.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ....crypto.hashing import ContentId, content_id
from ....protocol.wire.errors import ProtocolError
from ...storage.blob_store import BlobStore
from ...training.frames import ExpectedUpdate

T = TypeVar("T")


class UpdateDecoder(Generic[T]):
    """The decoded updates of rounds that are not applied yet, at most `limit` of them."""

    def __init__(self, store: BlobStore, decode: Callable[[bytes], T], limit: int) -> None:
        self._store = store
        self._decode = decode
        self._limit = limit
        self._lock = threading.Lock()
        # By content id: the round whose record may name the update, and the decoded update.
        self._decoded: dict[ContentId, tuple[int, T]] = {}
        self._applied = -1

    def start(self, expected: queue.SimpleQueue[ExpectedUpdate]) -> None:
        """Start a thread that decodes what is put into this queue; it ends with the process.

        It skips updates that are missing, damaged or beyond the limit; `take` decodes or reports them.
        """
        threading.Thread(target=self._run, args=(expected,), name="decoder", daemon=True).start()

    def take(self, round: int, bodies: Sequence[bytes]) -> list[T]:
        """Return the decoded bodies of a round's record, and drop all others of this round and earlier
        ones. Raises `ProtocolError` for a body that does not decode."""
        with self._lock:
            self._applied = round
            kept = self._decoded
            self._decoded = {cid: each for cid, each in kept.items() if each[0] > round}
        return [
            kept[cid][1] if (cid := content_id(body)) in kept else self._decode(body)
            for body in bodies
        ]

    def forget(self) -> None:
        """Drop everything, and accept updates of any round again: other parameters were loaded, perhaps
        those of an earlier round."""
        with self._lock:
            self._applied = -1
            self._decoded.clear()

    def decode(self, expected: ExpectedUpdate) -> bool:
        """Decode an update and keep it; return False, with nothing changed, if it is not needed, is not
        in the store, does not decode, or if `limit` updates are kept."""
        if not self._is_wanted(expected):
            return False
        body = self._store.get(expected.update)
        if body is None:
            return False
        try:
            decoded = self._decode(body)
        except ProtocolError:
            return False
        with self._lock:
            if not self._is_wanted(expected):
                return False
            self._decoded[expected.update] = expected.round, decoded
        return True

    def _is_wanted(self, expected: ExpectedUpdate) -> bool:
        known = expected.update in self._decoded
        return expected.round > self._applied and not known and len(self._decoded) < self._limit

    def _run(self, expected: queue.SimpleQueue[ExpectedUpdate]) -> None:
        while True:
            try:
                self.decode(expected.get())
            except (OSError, MemoryError):
                # If the update counts, `take` meets the error again and reports it.
                continue
