"""Whether this node knows what it signed before it was started.

A node's signed words are on its disk before anybody sees them. But disks are lost, and backups restored,
while the key lives on; and a node that signs twice is expelled like a liar. So before a node casts its
first ballot, in the round that it finds when it comes back, it asks the other members what it has said
there, and takes that back. It waits for a bounded time only, or a swarm of two that was restarted as a
whole would wait for ever. That is a precaution, no proof: it does not find a ballot that nobody within
reach remembers.

`VoteRecovery` is the member's side: whether it may cast ballots yet. `Recalling` carries the question to
the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...crypto.identity import PeerId
from ..chain.sync import Answer, Question
from .effects import Effect, Recall

RECALL_SECONDS = 3.0
"""How long a node waits for the others' memory. Once they are connected they answer within a round
trip; a member that does not connect in this time is probably gone."""

LOOK_SECONDS = 0.2
"""How often it is looked who has connected."""


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


class Recalling:
    """One question to all other members, each as soon as it is connected. Times are in seconds of any
    steady clock.

    An answer counts if it was listened to up to its end (`taking_in`): what matters may stand in the
    rest. Nobody is asked twice.
    """

    def __init__(self, round: int, others: Iterable[PeerId], now: float) -> None:
        """Ask `others` for what they know of `round`."""
        self.round = round
        self.done = False
        """Whether nothing is to be asked any more."""
        self._unasked = set(others)
        # Who has not told everything yet.
        self._missing = set(self._unasked)
        self._came: list[tuple[PeerId, Answer]] = []
        self._until = now + RECALL_SECONDS

    @property
    def complete(self) -> bool:
        """Whether every other member has told what it knows."""
        return not self._missing

    def deadline(self, now: float) -> float:
        """When to call `questions` again at the latest."""
        return min(self._until, now + LOOK_SECONDS) if self._unasked else self._until

    def questions(self, connected: Iterable[PeerId], now: float) -> list[Question]:
        """What to ask now, of those who are `connected`."""
        self.done = self.complete or now >= self._until
        if self.done:
            return []
        asked = sorted(self._unasked.intersection(connected))
        self._unasked.difference_update(asked)
        return [Question(peer, self.round) for peer in asked]

    def answered(self, peer: PeerId, answer: Answer | None, now: float) -> None:
        """Take note of what `peer` answered; None if it did not."""
        if answer is not None and peer in self._missing - self._unasked:
            self._came.append((peer, answer))

    def drain(self) -> list[tuple[PeerId, Answer]]:
        """The answers that came since this was asked last: to be taken in, and then `heard`."""
        came, self._came = self._came, []
        return came

    def heard(self, peer: PeerId, *, all_held: bool) -> None:
        """The answer of `peer` was taken in, up to its end or not."""
        if all_held:
            self._missing.discard(peer)
