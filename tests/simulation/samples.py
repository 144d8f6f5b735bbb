"""What became of every sample on every chain: trained once an epoch, or still to be dealt.

The account is kept from the samples that members were really told to train, and from which updates
count; the protocol's own account, where the stream stands and what is left over, is compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from distro_node.crypto.identity import PeerId
from distro_node.protocol.assignment import samples_at, share
from distro_node.protocol.deal import Deal
from distro_node.protocol.effects import Train
from distro_node.protocol.manifest import Manifest
from distro_node.protocol.membership import Membership
from distro_node.protocol.messages import Record, RecordId

Dealt = tuple[Sequence[range], Membership]
"""Which positions of the stream a round deals out, and to whom."""


class Samples:
    """By record: how often each sample was trained on the chain that ends there."""

    def __init__(self, manifest: Manifest) -> None:
        self._seed = manifest.seed
        self._samples = manifest.data.samples
        self._sequences = manifest.rounds.sequences
        self._overlap = manifest.rounds.overlap
        self._told: dict[tuple[RecordId, int, PeerId], tuple[int, ...]] = {}
        self._parents: dict[RecordId, RecordId] = {}
        self._trained: dict[RecordId, npt.NDArray[np.int64]] = {}
        self._epochs: list[list[int]] = []

    def told(self, peer: PeerId, effect: Train) -> None:
        """A member begins to train."""
        self._told[effect.parent, effect.round, peer] = effect.samples

    def check(self, record: Record, dealt: Dealt, after: Deal, ahead: Sequence[range]) -> str:
        """What is wrong with the account after `record`, whose round `dealt` this; mostly nothing.

        `ahead` is what the next round deals: with `overlap` that is settled, and counted, already.
        """
        if record.id in self._trained:
            return ""
        self._parents[record.id] = record.parent
        parent = self._trained.get(record.parent)
        trained = np.zeros(self._samples, np.int64) if parent is None else parent.copy()
        for entry in record.updates:
            trained += self._count(self._share(record, entry.peer, dealt))
        self._trained[record.id] = trained
        left = np.zeros_like(trained)
        for run in (*after.backlog, *(ahead if self._overlap else ())):
            left += self._count([self._at(position) for position in run])
        epochs = after.cursor // self._samples
        begun = range(epochs * self._samples, after.cursor)
        due = epochs + self._count([self._at(position) for position in begun])
        if left.sum() > self._sequences * (2 if self._overlap else 1):
            return f"{left.sum()} samples are left over"
        for sample in np.flatnonzero(trained + left != due)[:1]:
            what = "twice in an epoch" if trained[sample] + left[sample] > due[sample] else "never"
            return f"sample {sample} is trained {what}"
        return ""

    def _share(self, record: Record, peer: PeerId, dealt: Dealt) -> tuple[int, ...] | list[int]:
        # With `overlap` it was mostly told before the parent was known, and must have been told right.
        for known in (record.parent, self._parents.get(record.parent, record.parent)):
            told = self._told.get((known, record.round, peer))
            if told is not None:
                return told
        positions, members = dealt
        if peer not in members:
            return ()
        # A copycat has its own share counted without ever having trained it.
        return share(self._seed, self._samples, positions, members.peers, peer, record.round)

    def _at(self, position: int) -> int:
        """The sample at a position of the stream."""
        epoch, place = divmod(position, self._samples)
        while len(self._epochs) <= epoch:
            first = len(self._epochs) * self._samples
            whole = range(first, first + self._samples)
            self._epochs.append(samples_at(self._seed, self._samples, whole))
        return self._epochs[epoch][place]

    def _count(self, samples: tuple[int, ...] | list[int]) -> npt.NDArray[np.int64]:
        return np.bincount(np.asarray(samples, np.int64), minlength=self._samples)
