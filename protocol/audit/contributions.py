"""Each member's contribution to a swarm since its founding: how much of its work counted, and how much
of that is audited.

Work counts as audited once a later audit of the member by another one passes: one passed audit covers
all work that waits up to the audited round (`reputation`). Work that is waiting when an audit fails, or
that waits for too long, never counts as audited, and neither does work that no other member was there to
audit. Unlike the audit state that gives votes, contributions are never forgotten: they outlast leaving,
expulsion and the window of votes, and never decrease.

The table after a round is immutable and shares nearly all of its data with the table after the next, so
keeping the tables of many rounds is cheap, however many identities have passed through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..wire.saved_state import Restorable, fields, of
from . import merkle

# Recent changes are kept in a small second table, so that a round does not copy the whole table. It is
# merged into the main one when it has more than one entry for every this many entries of the main one.
_MERGE_RATIO = 8


@dataclass(frozen=True, slots=True)
class Contribution:
    """Counted work of one member."""

    updates: int
    """Number of its updates that counted."""
    sequences: int
    """Number of sequences in these updates."""
    audited: int
    """Number of those sequences that passed audits by other members cover."""

    def leaf(self, peer: PeerId) -> bytes:
        """Return the bytes of `peer`'s leaf in the tree: its public key, then the numbers, each of 8
        bytes, big-endian."""
        numbers = (self.updates, self.sequences, self.audited)
        return peer + b"".join(number.to_bytes(8, "big") for number in numbers)


_NOTHING = Contribution(0, 0, 0)


@dataclass(frozen=True, slots=True)
class InclusionProof:
    """Inclusion proof of a contribution in a tree (`merkle`)."""

    index: int
    size: int
    steps: tuple[ContentId, ...]


class Contributions(Restorable):
    """Immutable table of all contributions up to some round."""

    STATE = fields(
        _main=of(Mapping[PeerId, Contribution]),
        _recent=of(Mapping[PeerId, Contribution]),
    )

    def __init__(
        self,
        main: Mapping[PeerId, Contribution] | None = None,
        recent: Mapping[PeerId, Contribution] | None = None,
    ) -> None:
        """`main` is the main table and `recent` the small second one, whose entries take precedence.
        The caller must not change either afterwards: the tables of several rounds share them."""
        self._main = main or {}
        self._recent = recent or {}

    def after(self, counted: Mapping[PeerId, int], audited: Mapping[PeerId, int]) -> Contributions:
        """Return the table one record later.

        `counted` maps members to the number of sequences of their counted update; `audited`, to the
        number of their sequences that an audit in this record covers.
        """
        if not counted and not audited:
            return self
        recent = dict(self._recent)
        for peer, sequences in counted.items():
            old = self[peer]
            recent[peer] = Contribution(old.updates + 1, old.sequences + sequences, old.audited)
        for peer, sequences in audited.items():
            old = recent.get(peer) or self[peer]
            recent[peer] = Contribution(old.updates, old.sequences, old.audited + sequences)
        if _MERGE_RATIO * len(recent) > len(self._main):
            return Contributions({**self._main, **recent})
        return Contributions(self._main, recent)

    def __len__(self) -> int:
        return len(self.peers)

    def __contains__(self, peer: object) -> bool:
        return peer in self._recent or peer in self._main

    def __getitem__(self, peer: PeerId) -> Contribution:
        """Return a member's contribution, all zeros if it has none."""
        return self._recent.get(peer) or self._main.get(peer, _NOTHING)

    @cached_property
    def peers(self) -> tuple[PeerId, ...]:
        """All members whose work ever counted, sorted."""
        return tuple(sorted(self._main.keys() | self._recent.keys()))

    @cached_property
    def root(self) -> ContentId:
        """The tree hash of the whole table, which a record certifies."""
        return merkle.tree_hash(self._leaves())

    def proof(self, peer: PeerId) -> InclusionProof:
        """Return the inclusion proof of `peer` under `root`. Raises `KeyError` if it has no
        contribution."""
        if peer not in self:
            raise KeyError(peer)
        index = self.peers.index(peer)
        return InclusionProof(index, len(self), merkle.inclusion_path(self._leaves(), index))

    def _leaves(self) -> list[bytes]:
        return [self[peer].leaf(peer) for peer in self.peers]
