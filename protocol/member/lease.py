"""Finality lease: moves finality on when members of the finality set are permanently gone.

Records cannot show how long finality has stalled: a forger can make any number of rounds in no time. So
each member measures it locally. Once a record has been on a member's chain for a whole finality lease
(days), the member treats it as final if a quorum of the remaining set supports it. The remaining set:
the finality set's members that were in the membership at any time during that lease. Only time in which
the member was in a membership with others counts, not time asleep, outside the membership or alone on a
chain; so a machine that was cut off alone can still return to the others' chain. See "The finality
lease" in docs/protocol.md.
"""

from __future__ import annotations

from collections import deque

from ...crypto.identity import PeerId
from ..chain.ledger import Ledger

# At most this much is counted per call of `observe`. A healthy process calls it more often; longer gaps
# are sleep.
_MAX_COUNTED_SECONDS = 5.0
# Number of past observations kept, spread evenly over a lease.
_MARKS = 16
# Minimum finality lease, in multiples of the lease after which a member counts as silent.
_MIN_SILENCES = 4


class FinalityLease:
    """Observation of the chain by one member over time. Times are in seconds."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._last = now
        self.start_over()

    def start_over(self) -> None:
        """Forget all observations, as for another chain."""
        self._observed_seconds = 0.0
        # (observed time, length of the chain at that time).
        self._marks: deque[tuple[float, int]] = deque()

    def observe(self, ledger: Ledger, *, is_member: bool, silence: float, now: float) -> int | None:
        """Observe the chain; to be called regularly. Moves the chain's finality on once a finality lease
        has passed, or to the checkpoint after `silence` seconds, and returns the new final round; else
        returns None. `silence` is the lease after which a member counts as silent."""
        passed, self._last = now - self._last, now
        tip = len(ledger)
        if not is_member or not ledger.anchored or len(ledger.membership(tip)) < 2:
            return None
        self._observed_seconds += min(max(0.0, passed), _MAX_COUNTED_SECONDS)
        # Usually the records prove that the checkpoint is final. If only a finality lease made it final,
        # they do not; then the checkpoint is believed after `silence` seconds.
        if self._observed_seconds >= silence and ledger.believe_checkpoint():
            return ledger.final_round
        lease = max(self._seconds, _MIN_SILENCES * silence)
        if self._marks and self._observed_seconds - self._marks[-1][0] < lease / _MARKS:
            return None
        self._marks.append((self._observed_seconds, tip))
        while len(self._marks) > 1 and self._marks[1][0] <= self._observed_seconds - lease:
            self._marks.popleft()
        since, length = self._marks[0]
        if since > self._observed_seconds - lease or length - 1 <= ledger.final_round:
            return None
        present: set[PeerId] = set()
        for _, height in self._marks:
            present.update(ledger.membership(height).peers)
        if not ledger.move_finality_on(length - 1, frozenset(present)):
            return None
        # The remaining members get another finality lease to make the next record final by themselves.
        self.start_over()
        return ledger.final_round
