"""The signed messages of the current round and of the few after it.

They are kept for two reasons: a peer that lost some can ask for them, and messages that arrive before
this node has reached their round must wait. How much a peer can make us keep is bounded.
"""

from __future__ import annotations

import itertools

from ...crypto.envelope import Envelope
from ...crypto.identity import PeerId

FUTURE_ROUNDS = 8
"""How many rounds ahead of us a message may be. A node further behind catches up from the ledger."""

MEMBER_BYTES = 1 << 20
"""Limit for a member's messages: the ballots of about 300 slots, or a few of the largest proposals and
the ballots of 100 slots. Any of them may be needed to show another member how a slot ended."""

NEWCOMER_BYTES = 4 << 10
"""Limit for a peer that asks for admission: it may already be a member, by a record that this node has
not seen. Asking is free, so this must be small."""

# Memory of an envelope in addition to its body: signature, sender, objects.
_OVERHEAD_BYTES = 1024


class MessageStore:
    """Envelopes by round, each once, in order of arrival."""

    def __init__(self) -> None:
        # The inner dictionaries serve as ordered sets.
        self._rounds: dict[int, dict[Envelope, None]] = {}
        self._bytes: dict[PeerId, int] = {}

    def has(self, round: int, envelope: Envelope) -> bool:
        """Whether this very message is kept."""
        return envelope in self._rounds.get(round, ())

    def put(self, round: int, envelope: Envelope, limit: int) -> None:
        """Keep a message unless its sender's messages would exceed `limit` bytes."""
        size = self._bytes.get(envelope.sender, 0) + len(envelope.body) + _OVERHEAD_BYTES
        if size <= limit and not self.has(round, envelope):
            self._rounds.setdefault(round, {})[envelope] = None
            self._bytes[envelope.sender] = size

    def of_round(self, round: int) -> list[Envelope]:
        """Return all messages of a round, in order of arrival."""
        return list(self._rounds.get(round, ()))

    def clear(self) -> None:
        """Drop all messages."""
        self._rounds.clear()
        self._bytes.clear()

    def forget_before(self, round: int) -> None:
        """Drop the messages of rounds before `round`."""
        self._rounds = {r: box for r, box in self._rounds.items() if r >= round}
        self._bytes = {}
        for envelope in itertools.chain.from_iterable(self._rounds.values()):
            size = len(envelope.body) + _OVERHEAD_BYTES
            self._bytes[envelope.sender] = self._bytes.get(envelope.sender, 0) + size
