"""The lease that moves finality on where members of the finality set are gone for good.

No record can tell how long finality has stood still, since rounds cost nothing. So each member observes
it for itself: a record that it has had on its chain for a whole finality lease (days), while it was a
member among others, is final for it if a quorum of the rest of the finality set agrees. The rest are
those that were members at any time since. Time asleep, as no member or alone on a chain does not count,
so a machine that was cut off alone comes back. docs/protocol.md: "The finality lease".
"""

from __future__ import annotations

from collections import deque

from ...crypto.identity import PeerId
from ..chain.ledger import Ledger

# Longer than any pause between two looks of a healthy process.
_MOST_SECONDS = 5.0
# How many looks back are remembered, evenly over a lease.
_MARKS = 16
# The finality lease is never shorter than so many of the leases after which a member counts as silent.
_LEASES = 4


class FinalityLease:
    """What one member has seen of its chain, and for how long. Times are in seconds."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._last = now
        self.start_over()

    def start_over(self) -> None:
        """The chain is another one: nothing of it was seen yet."""
        self._seen = 0.0
        # How long the chain was, by the time that was seen until then.
        self._marks: deque[tuple[float, int]] = deque()

    def look(self, ledger: Ledger, *, is_member: bool, silence: float, now: float) -> int | None:
        """Look at the chain, now and then. Moves its finality on where it is time for that, and returns
        the round that it moved to. `silence` is the ordinary lease."""
        passed, self._last = now - self._last, now
        tip = len(ledger)
        if not is_member or not ledger.anchored or len(ledger.membership(tip)) < 2:
            return None
        self._seen += min(max(0.0, passed), _MOST_SECONDS)
        # The records that follow a checkpoint show it to be final, but where a lease was needed for it.
        if self._seen >= silence and ledger.believe_checkpoint():
            return ledger.final_round
        lease = max(self._seconds, _LEASES * silence)
        if self._marks and self._seen - self._marks[-1][0] < lease / _MARKS:
            return None
        self._marks.append((self._seen, tip))
        while len(self._marks) > 1 and self._marks[1][0] <= self._seen - lease:
            self._marks.popleft()
        since, length = self._marks[0]
        if since > self._seen - lease or length - 1 <= ledger.final_round:
            return None
        present: set[PeerId] = set()
        for _, height in self._marks:
            present.update(ledger.membership(height).peers)
        if not ledger.move_finality_on(length - 1, frozenset(present)):
            return None
        # Those who are left get as long to make the next record final by themselves.
        self.start_over()
        return ledger.final_round
