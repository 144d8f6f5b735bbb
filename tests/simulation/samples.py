"""What became of every sample on every chain: trained once an epoch, or still to be dealt.

The account is kept from the samples that members were really told to train, and from which updates
count; the protocol's own account, which samples of each lane were dealt, is compared with it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from distro_node.crypto.identity import PeerId
from distro_node.protocol.member.effects import Train
from distro_node.protocol.sampling.assignment import share
from distro_node.protocol.sampling.deal import Deal
from distro_node.protocol.sampling.sampler import Lanes, order_of
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.membership import Membership
from distro_node.protocol.wire.messages import Record, RecordId

_Counts = npt.NDArray[np.int64]


class Chains(Protocol):
    """All chains that there are, by their records."""

    def dealt(self, parent: RecordId) -> tuple[Deal, Membership]:
        """What the round after this record deals out, and to whom."""
        ...

    def last_deal(self, parent: RecordId) -> Deal:
        """The last one that is settled by this record."""
        ...


class Samples:
    """By record: how often each sample was trained on the chain that ends there."""

    def __init__(self, manifest: Manifest) -> None:
        self._order = order_of(manifest)
        self._lanes = np.arange(self._order.lanes)
        self._told: dict[tuple[RecordId, int, PeerId], tuple[int, ...]] = {}
        self._parents: dict[RecordId, RecordId] = {}
        self._trained: dict[RecordId, _Counts] = {}
        # How often each sample comes in the rows that were dealt, by the first rows that were not.
        self._due: dict[bytes, _Counts] = {}

    def told(self, peer: PeerId, effect: Train) -> None:
        """A member begins to train."""
        self._told[effect.parent, effect.round, peer] = effect.samples

    def check(self, record: Record, chains: Chains) -> str:
        """What is wrong with the account after `record`; mostly nothing."""
        if record.id in self._trained:
            return ""
        self._parents[record.id] = record.parent
        parent = self._trained.get(record.parent)
        trained = np.zeros(self._order.samples, np.int64) if parent is None else parent.copy()
        for entry in record.updates:
            trained += self._count(self._share(record, entry.peer, *chains.dealt(record.parent)))
        self._trained[record.id] = trained
        last = chains.last_deal(record.id)
        # With `overlap` the next round and the one after it are dealt, and neither is decided.
        under_way = {chains.dealt(record.id)[0], last}
        left = sum(self._count_rows(deal.rows(self._order.lanes)) for deal in under_way)
        before = chains.last_deal(record.parent).fresh(self._order.lanes)
        due = self._count_until(last.fresh(self._order.lanes), before)
        for sample in np.flatnonzero(trained + left != due)[:1]:
            what = "twice in an epoch" if (trained + left)[sample] > due[sample] else "never"
            return f"sample {sample} is trained {what}"
        return ""

    def _share(
        self, record: Record, peer: PeerId, deal: Deal, members: Membership
    ) -> tuple[int, ...]:
        # With `overlap` it was mostly told before the parent was known, and must have been told right.
        for known in (record.parent, self._parents.get(record.parent, record.parent)):
            told = self._told.get((known, record.round, peer))
            if told is not None:
                return told
        # A copycat has its own share counted without ever having trained it.
        return share(self._order, [deal], members, peer) if peer in members else ()

    def _count_until(self, rows: Lanes, before: Lanes) -> _Counts:
        """How often each sample comes in the lanes before these rows; `before` was counted earlier."""
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

    def _count_rows(self, rows: Lanes, lanes: npt.NDArray[np.bool_] | None = None) -> _Counts:
        chosen = slice(None) if lanes is None else lanes
        return self._count(tuple(self._order.samples_at(self._lanes[chosen], rows[chosen])))

    def _count(self, samples: tuple[int, ...]) -> _Counts:
        return np.bincount(np.asarray(samples, np.int64), minlength=self._order.samples)
