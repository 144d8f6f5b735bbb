"""The fate of every sample on every chain: trained once an epoch, or still to be assigned.

It is tracked from the samples that members were really told to train, and from the updates that count;
the protocol's own account, the samples assigned from each stream, is compared with it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from distro_node.crypto.identity import PeerId
from distro_node.protocol.member.effects import Train
from distro_node.protocol.sampling.assignment import MOST_ROUNDS
from distro_node.protocol.sampling.sampler import Streams, order_of
from distro_node.protocol.sampling.stream_cursor import StreamCursors
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.messages import Record, RecordId

_Counts = npt.NDArray[np.int64]


class Chains(Protocol):
    """All chains, by their records."""

    def share(self, parent: RecordId, peer: PeerId) -> tuple[int, ...] | None:
        """Return the samples for which an update is due in the round after this record."""
        ...

    def under_way(self, parent: RecordId) -> list[tuple[int, int]]:
        """Return streams and rows that were assigned, and are neither trained nor given up."""
        ...

    def last_cursors(self, parent: RecordId) -> StreamCursors:
        """Return the last assignment that this record settles."""
        ...


class Samples:
    """By record: how often each sample was trained on the chain that ends there."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._order = order_of(manifest)
        self._streams = np.arange(self._order.streams)
        self._told: dict[tuple[RecordId, int, PeerId], tuple[int, ...]] = {}
        self._parents: dict[RecordId, RecordId] = {}
        self._trained: dict[RecordId, _Counts] = {}
        # How often each sample occurs in the assigned rows, by the first rows that were not assigned.
        self._due: dict[bytes, _Counts] = {}

    def told(self, peer: PeerId, effect: Train) -> None:
        """Note the samples that a member begins to train."""
        self._told[effect.parent, effect.round, peer] = effect.samples

    def check(self, record: Record, chains: Chains) -> str:
        """Return the error in the account after `record`; usually the empty string."""
        if record.id in self._trained:
            return ""
        self._parents[record.id] = record.parent
        parent = self._trained.get(record.parent)
        trained = np.zeros(self._order.samples, np.int64) if parent is None else parent.copy()
        for entry in () if self._manifest.aggregates_in(record.round) else record.updates:
            trained += self._count(self._share(record, entry.peer, chains))
        self._trained[record.id] = trained
        if self._manifest.aggregates_in(record.round + 1):
            # The next samples are assigned once the committees have aggregated.
            return ""
        last = chains.last_cursors(record.id)
        places = np.array(chains.under_way(record.id), np.int64).reshape(-1, 2)
        left = self._count(tuple(self._order.samples_at(places[:, 0], places[:, 1])))
        before = chains.last_cursors(record.parent).fresh(self._order.streams)
        due = self._count_until(last.fresh(self._order.streams), before)
        for sample in np.flatnonzero(trained + left != due)[:1]:
            what = "twice in an epoch" if (trained + left)[sample] > due[sample] else "never"
            return f"sample {sample} is trained {what}"
        return ""

    def _share(self, record: Record, peer: PeerId, chains: Chains) -> tuple[int, ...]:
        # With `overlap`, or several rounds' time, it was told before the parent was known, and must have
        # been told right.
        known: RecordId | None = record.parent
        for _ in range(MOST_ROUNDS + 2):
            if known is None:
                break
            told = self._told.get((known, record.round, peer))
            if told is not None:
                return told
            known = self._parents.get(known)
        # A copycat has its own share counted without ever having trained it.
        return chains.share(record.parent, peer) or ()

    def _count_until(self, rows: Streams, before: Streams) -> _Counts:
        """Return how often each sample occurs in the streams before these rows; `before` was counted
        earlier."""
        key = rows.tobytes()
        if key not in self._due:
            known = self._due.get(before.tobytes())
            begun = np.zeros_like(rows) if known is None else before
            counts = np.zeros(self._order.samples, np.int64) if known is None else known.copy()
            while (short := begun < rows).any():
                counts += self._count_rows(begun, short)
                begun = begun + short
            self._due[key] = counts
        return self._due[key]

    def _count_rows(self, rows: Streams, streams: npt.NDArray[np.bool_] | None = None) -> _Counts:
        chosen = slice(None) if streams is None else streams
        return self._count(tuple(self._order.samples_at(self._streams[chosen], rows[chosen])))

    def _count(self, samples: tuple[int, ...]) -> _Counts:
        return np.bincount(np.asarray(samples, np.int64), minlength=self._order.samples)
