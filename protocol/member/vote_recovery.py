"""Whether this node knows what it signed before it was started.

A node's signed words are on its disk before anybody sees them. But disks are lost, and backups restored,
while the key lives on; and a node that signs twice is expelled like a liar. So before a node casts its
first ballot, in the round that it finds when it comes back, it asks the other members what it has said
there, and takes that back. It waits for a bounded time only, or a swarm of two that was restarted as a
whole would wait for ever. That is a precaution, no proof: it does not find a ballot that nobody within
reach remembers.
"""

from __future__ import annotations

from .effects import Effect, Recall

RECALL_SECONDS = 3.0
"""How long a node waits for the others' memory. Once they are connected they answer within a round
trip; a member that does not connect in this time is probably gone."""


class VoteRecovery:
    """The one question, its answer, and the time that it may take."""

    def __init__(self, *, needed: bool) -> None:
        self.complete = not needed
        """Whether the node may cast ballots."""
        self._round: int | None = None
        self._until = 0.0

    def ask(self, round: int, members: int, now: float) -> list[Effect]:
        """The node is a member of `round`, which is at the tip, and would like to cast ballots."""
        if self.complete:
            return []
        if self._round is None:
            self._round, self._until = round, now + RECALL_SECONDS
            if members > 1:
                return [Recall(round)]
        # Nobody else is there to remember; or the round in question is decided, and no earlier life
        # of this node came further; or whoever could answer does not.
        self.complete = members == 1 or round > self._round or now >= self._until
        return []

    def answered(self, round: int) -> None:
        """Every other member has told what it knows of `round`."""
        self.complete |= round == self._round
