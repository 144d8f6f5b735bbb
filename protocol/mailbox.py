"""The signed messages of the current round and of the few after it.

They are kept for two reasons: a peer that lost some can ask for them, and messages that arrive before
this node has reached their round must wait. What a peer can make us keep is bounded.
"""

from __future__ import annotations

from ..crypto.envelope import Envelope
from ..crypto.identity import PeerId

FUTURE_ROUNDS = 8
"""How far ahead of us a message's round may be. Who is further behind catches up from the ledger."""

# A member says one announcement, one leave and, in each slot, a proposal and three ballots. Rounds that
# need more slots than this are rare; what is dropped can be asked for.
_PER_SENDER = 64

_Key = tuple[str, int, PeerId]


class Mailbox:
    """Envelopes by round; within a round by (kind, slot, sender), the newest kept."""

    def __init__(self) -> None:
        self._rounds: dict[int, dict[_Key, Envelope]] = {}

    def has(self, round: int, slot: int, envelope: Envelope) -> bool:
        """Whether this very message is kept."""
        return self._rounds.get(round, {}).get((envelope.kind, slot, envelope.sender)) == envelope

    def put(self, round: int, slot: int, envelope: Envelope) -> None:
        """Keep a message, in the place of an older one of its kind, slot and sender."""
        box = self._rounds.setdefault(round, {})
        key = (envelope.kind, slot, envelope.sender)
        if key in box or sum(k[2] == envelope.sender for k in box) < _PER_SENDER:
            box[key] = envelope

    def of_round(self, round: int) -> list[Envelope]:
        """All messages of a round, in the order they came."""
        return list(self._rounds.get(round, {}).values())

    def forget_before(self, round: int) -> None:
        """Drop what belongs to rounds before `round`."""
        self._rounds = {r: box for r, box in self._rounds.items() if r >= round}
