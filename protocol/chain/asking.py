"""Asking what was missed: one member after another, and the next one as soon as one dawdles.

A peer that answers slowly may be far away, or may want to keep us behind the others for as long as it
can: a node that is behind can be made to believe what nobody else would. So we wait for no single peer,
and the first answer counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...crypto.identity import PeerId
from .sync import Answer, Question

DAWDLE_SECONDS = 3.0
"""A peer that takes longer to answer is not waited for alone."""

AT_ONCE = 3
"""Peers that are asked at a time: an answer can be long, and the line slow."""

PATIENCE_SECONDS = 60.0
"""A peer that takes longer to answer is given up."""


class Asking:
    """One question to whoever answers first. Times are in seconds of any steady clock."""

    def __init__(self, peers: Sequence[PeerId], members: set[PeerId], round: int) -> None:
        """Ask for everything from `round` on: `members` of these `peers`, which are in random order,
        before the others, as they know more."""
        self.found: tuple[PeerId, Answer] | None = None
        """The first answer, and whose it is."""
        self._round = round
        self._waiting = sorted(peers, key=lambda peer: peer not in members)
        self._asked: dict[PeerId, float] = {}

    @property
    def done(self) -> bool:
        """Whether nothing is to be asked any more."""
        return self.found is not None or not (self._waiting or self._asked)

    def deadline(self, now: float) -> float:
        """When to call `questions` again at the latest."""
        asked = self._asked.values() or [now]
        until = min(asked) + PATIENCE_SECONDS
        if self._waiting and len(self._asked) < AT_ONCE:
            until = min(until, max(asked) + DAWDLE_SECONDS)
        return max(now, until)

    def questions(self, now: float) -> list[Question]:
        """What to ask now. Gives up peers that have not answered for too long."""
        for peer in [p for p, at in self._asked.items() if now >= at + PATIENCE_SECONDS]:
            del self._asked[peer]
        dawdling = all(now >= at + DAWDLE_SECONDS for at in self._asked.values())
        if self.done or not self._waiting or not dawdling or len(self._asked) >= AT_ONCE:
            return []
        peer = self._waiting.pop(0)
        self._asked[peer] = now
        return [Question(peer, self._round)]

    def answered(self, peer: PeerId, answer: Answer | None, now: float) -> None:
        """Take in what `peer` answered; None if it did not."""
        asked = self._asked.pop(peer, None)
        if asked is not None and answer is not None and self.found is None:
            self.found = peer, answer
