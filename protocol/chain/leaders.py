"""Who leads which slot of a round: the one whose proposal may be voted for there.

Where everybody has one vote, the members take turns in a circle. Elsewhere odd slots are led by who has
votes, as often as it has votes: a crowd without work would otherwise lead nearly all slots and waste
them. Even slots belong to the circle of all members, so that those without votes can propose when all
others are gone. Nothing of it is up to who proposes.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from functools import cached_property

from ...crypto.hashing import CONTENT_ID_BYTES, content_id
from ...crypto.identity import PeerId
from ..wire.membership import Membership, Votes


class Leaders:
    """The leaders of one round's slots."""

    def __init__(self, swarm: bytes, round: int, membership: Membership, votes: Votes) -> None:
        self._seed = swarm + round.to_bytes(8, "big")
        self._circle = membership.circle(swarm, round)
        self._votes = votes

    def __getitem__(self, slot: int) -> PeerId:
        if self._votes.equal:
            turn = slot - 1
        elif slot % 2:
            return self._drawn(slot)
        else:
            turn = slot // 2 - 1
        return self._circle[turn % len(self._circle)]

    def _drawn(self, slot: int) -> PeerId:
        """Where the slot's point falls on the line of all votes.

        A fraction of the line, not a remainder: a record that gives somebody one vote more or less moves
        bounds by as much, and does not draw anew, or its maker would try which of its looks to put in.
        """
        voters, bounds = self._line
        drawn = int.from_bytes(content_id(self._seed + slot.to_bytes(8, "big")), "big")
        point = drawn * self._votes.total >> 8 * CONTENT_ID_BYTES
        return voters[bisect_right(bounds, point)]

    @cached_property
    def _line(self) -> tuple[list[PeerId], list[int]]:
        """Who has votes, and where the votes of each end. In another order in each round: nobody makes
        itself an identity that stands where the points of many rounds fall."""
        voters = sorted(self._votes.by_peer, key=lambda peer: content_id(self._seed + peer))
        return voters, list(itertools.accumulate(self._votes[peer] for peer in voters))
