"""Certified snapshots of a chain."""

from __future__ import annotations

from collections.abc import Iterable

from ...crypto.envelope import Verify
from ..wire.errors import ProtocolError
from ..wire.messages import Record, SnapshotEntry
from ..wire.saved_state import Restorable, fields, of
from .chain_index import ChainView
from .snapshot_rounds import snapshot_round


class CertifiedSnapshots(Restorable):
    """Certified snapshots of a chain, in the order of their rounds."""

    STATE = fields(_entries=of(list[tuple[int, SnapshotEntry]]))

    def __init__(self, entries: Iterable[tuple[int, SnapshotEntry]] = ()) -> None:
        # Each with the round of the record that certifies it.
        self._entries = list(entries)

    @property
    def latest(self) -> SnapshotEntry | None:
        """The latest certified snapshot; None means the manifest's initial parameters."""
        return self._entries[-1][1] if self._entries else None

    def follow(self, record: Record) -> None:
        if record.snapshot is not None:
            self._entries.append((record.round, record.snapshot))

    def before(self, length: int, chain: ChainView) -> CertifiedSnapshots:
        return CertifiedSnapshots(known for known in self._entries if known[0] < length)


def check_snapshot(record: Record, chain: ChainView, _verify: Verify) -> None:
    """Check that the next record certifies a snapshot if one is due, and of the right size. Raises
    `ProtocolError` (`record`)."""
    manifest = chain.manifest
    interval, closing = manifest.rounds.snapshot_interval, manifest.schedule.closing_round
    due = snapshot_round(record.round, interval, closing)
    carried = record.snapshot.round if record.snapshot is not None else None
    if due != carried:
        found = "no snapshot" if carried is None else f"a snapshot of round {carried}"
        wanted = "none" if due is None else f"that of round {due}"
        raise ProtocolError("record", f"it certifies {found}, but {wanted} is due")
    if record.snapshot is not None and record.snapshot.size != 4 * manifest.elements:
        raise ProtocolError("record", "it certifies a snapshot of the wrong size")
