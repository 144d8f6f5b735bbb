"""What everybody has done for a swarm since its beginning: how much work counted, and how much of it
somebody else has vouched for.

Unlike the accounts that give votes (`accounts`) this is never forgotten: it outlasts leaving, expulsion
and the window of votes, and nothing in it is ever taken back. Work that waits when a check fails, or for
too long, is never vouched for; and where nobody else is there to look, nobody has.

The value of a round never changes, and that of the next shares nearly all with it: it costs nothing to
keep those of many rounds, however many identities have passed through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from . import merkle

# What has changed of late is kept apart until it is this part of the whole: so a round costs what
# changes in it, and two values differ in no more than that part.
_APART = 8


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one member has done."""

    updates: int
    """How many of its updates counted."""
    sequences: int
    """That these were made of."""
    checked: int
    """Of the sequences: how many somebody else has vouched for."""

    def leaf(self, peer: PeerId) -> bytes:
        """Its bytes in the tree."""
        numbers = (self.updates, self.sequences, self.checked)
        return peer + b"".join(number.to_bytes(8, "big") for number in numbers)


_NOTHING = Contribution(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Proof:
    """That a contribution is in a tree (`merkle`)."""

    index: int
    size: int
    steps: tuple[ContentId, ...]


class Contributions:
    """All contributions up to some round. To be grown by making another one."""

    def __init__(
        self,
        settled: Mapping[PeerId, Contribution] | None = None,
        fresh: Mapping[PeerId, Contribution] | None = None,
    ) -> None:
        """`fresh` goes before `settled`. Neither is ever changed: others have them too."""
        self._settled = settled or {}
        self._fresh = fresh or {}

    def after(self, counted: Mapping[PeerId, int], checked: Mapping[PeerId, int]) -> Contributions:
        """Those one record later: the sequences of each update that `counted`, and how many of whose
        sequences were `checked`."""
        if not counted and not checked:
            return self
        fresh = dict(self._fresh)
        for peer, sequences in counted.items():
            old = self[peer]
            fresh[peer] = Contribution(old.updates + 1, old.sequences + sequences, old.checked)
        for peer, sequences in checked.items():
            old = fresh.get(peer) or self[peer]
            fresh[peer] = Contribution(old.updates, old.sequences, old.checked + sequences)
        if _APART * len(fresh) > len(self._settled):
            return Contributions({**self._settled, **fresh})
        return Contributions(self._settled, fresh)

    def __len__(self) -> int:
        return len(self.peers)

    def __contains__(self, peer: object) -> bool:
        return peer in self._fresh or peer in self._settled

    def __getitem__(self, peer: PeerId) -> Contribution:
        """That of a member; nothing for whoever has done nothing."""
        return self._fresh.get(peer) or self._settled.get(peer, _NOTHING)

    @cached_property
    def peers(self) -> tuple[PeerId, ...]:
        """Everybody whose work ever counted, sorted."""
        return tuple(sorted(self._settled.keys() | self._fresh.keys()))

    @cached_property
    def root(self) -> ContentId:
        """The hash of all of it, which a record certifies."""
        return merkle.tree_hash(self._leaves())

    def proof(self, peer: PeerId) -> Proof:
        """That what `peer` has done is part of the `root`. Raises `KeyError` if it has done nothing."""
        if peer not in self:
            raise KeyError(peer)
        index = self.peers.index(peer)
        return Proof(index, len(self), merkle.path(self._leaves(), index))

    def _leaves(self) -> list[bytes]:
        return [self[peer].leaf(peer) for peer in self.peers]
