"""Recovery of what this node signed before it was started.

A node's signed messages are on its disk before any peer sees them. But disks get lost and old backups
are restored while the key is still in use, and a node that contradicts itself is expelled as byzantine.
So before a node casts its first ballot, in the round that it finds on its return, it asks the other
members for its own messages of that round, and takes them in. The wait is bounded, or a swarm of two
members that both restart would wait for ever. This is a precaution, not a guarantee: it does not find a
ballot that no reachable member has.

`VoteRecovery` is the member's side: whether it may cast ballots yet. `RecallRequests` carries the
question to the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...crypto.identity import PeerId
from ..chain.sync import SyncAnswer, SyncQuery
from .effects import Effect, RecallOwnMessages

RECALL_SECONDS = 3.0
"""How long a node waits for the others' answers. Once connected they answer within a round trip; a
member that does not connect in this time is probably gone."""

CHECK_INTERVAL_SECONDS = 0.2
"""Interval at which new connections are looked for."""


class VoteRecovery:
    """State of the one question, its answer and its time limit."""

    def __init__(self, *, needed: bool) -> None:
        self.complete = not needed
        """Whether the node may cast ballots."""
        self._round: int | None = None
        self._until = 0.0

    def ask(self, round: int, members: int, now: float) -> list[Effect]:
        """Return the question, if it is due; the node is a member of the `round` at the tip."""
        if self.complete:
            return []
        if self._round is None:
            self._round, self._until = round, now + RECALL_SECONDS
            if members > 1:
                return [RecallOwnMessages(round)]
        # Complete if there is no other member that could have messages; if the round asked about is
        # decided, since this node signed nothing in later rounds before its start; or if time is up.
        self.complete = members == 1 or round > self._round or now >= self._until
        return []

    def note_all_answered(self, round: int) -> None:
        """Note that every other member has answered for `round`."""
        self.complete |= round == self._round


class RecallRequests:
    """One question to all other members; each is asked as soon as it is connected. Times are in seconds
    of any steady clock.

    An answer counts only if it was processed up to its end (`sync_ingest`), because the relevant message
    may be in the rest. No member is asked twice.
    """

    def __init__(self, round: int, others: Iterable[PeerId], now: float) -> None:
        """Ask `others` for their messages of `round`."""
        self.round = round
        self.done = False
        """Whether there is nothing left to ask."""
        self._unasked = set(others)
        # Members whose whole answer was not processed yet.
        self._missing = set(self._unasked)
        self._answers: list[tuple[PeerId, SyncAnswer]] = []
        self._until = now + RECALL_SECONDS

    @property
    def complete(self) -> bool:
        """Whether every other member has sent what it knows."""
        return not self._missing

    def deadline(self, now: float) -> float:
        """Return when to call `requests` again at the latest."""
        return min(self._until, now + CHECK_INTERVAL_SECONDS) if self._unasked else self._until

    def requests(self, connected: Iterable[PeerId], now: float) -> list[SyncQuery]:
        """Return the questions for the `connected` members."""
        self.done = self.complete or now >= self._until
        if self.done:
            return []
        asked = sorted(self._unasked.intersection(connected))
        self._unasked.difference_update(asked)
        return [SyncQuery(peer, self.round) for peer in asked]

    def on_answer(self, peer: PeerId, answer: SyncAnswer | None, now: float) -> None:
        """Note the `answer` of `peer`; None means that it sent none."""
        if answer is not None and peer in self._missing - self._unasked:
            self._answers.append((peer, answer))

    def drain(self) -> list[tuple[PeerId, SyncAnswer]]:
        """Return the answers since the last call. The caller passes them to the member, then calls
        `note_processed`."""
        answers, self._answers = self._answers, []
        return answers

    def note_processed(self, peer: PeerId, *, all_held: bool) -> None:
        """Note that the answer of `peer` was passed to the member; `all_held`: up to its end."""
        if all_held:
            self._missing.discard(peer)
