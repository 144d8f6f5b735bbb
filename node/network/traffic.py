"""Traffic counters, for the metrics and the benchmarks.

Plain numbers in dictionaries whose keys come from fixed sets, so that no peer can make them grow.
"""

from __future__ import annotations

import copy
from collections import Counter

from .rate_limits import Rate

KINDS = ("update", "relayed", "blob", "gossip", "ledger", "other")
"""Traffic classes. `update` and `blob` use the same protocol and are counted separately; `relayed` are
the updates that a relay fetches and forwards for others."""

# Reasons and protocol names come from our own code; the bound makes a mistake harmless.
_MAX_LABELS = 128


class TrafficTotals:
    """Payload bytes and rejections of one network, or of several that are opened one after the other."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = dict.fromkeys(KINDS, 0)
        """Payload bytes sent, by traffic class."""
        self.received: dict[str, int] = dict.fromkeys(KINDS, 0)
        """Payload bytes received, by traffic class."""
        self.rejected: Counter[str] = Counter()
        """Gossip messages and requests rejected, by reason."""

    def snapshot(self) -> TrafficTotals:
        """Return an independent copy."""
        return copy.deepcopy(self)


class Traffic:
    """Traffic counts of one network, and its rate limits.

    If the `totals` of earlier networks are given, counting continues in them; all other counts begin at
    zero.
    """

    def __init__(
        self,
        upload: Rate | None = None,
        download: Rate | None = None,
        totals: TrafficTotals | None = None,
    ) -> None:
        self.upload = upload or Rate()
        """The limit shared by everything that is sent."""
        self.download = download or Rate()
        """The limit shared by everything that is received."""
        totals = totals or TrafficTotals()
        self.sent, self.received, self.rejected = totals.sent, totals.received, totals.rejected
        """As in `TrafficTotals`."""
        self._relayed_before = self.sent["relayed"]
        self.wire_sent = 0
        """All bytes written to connections that have ended; `Network.wire_bytes` adds the open ones."""
        self.wire_received = 0
        """The same for bytes read."""
        self.dropped: Counter[str] = Counter()
        """Accepted gossip messages that our own program did not read in time, by topic."""
        self.failures: Counter[str] = Counter()
        """Failures of our own handlers, by protocol: bugs."""

    @property
    def relayed(self) -> int:
        """Bytes of relayed updates sent since the network was opened."""
        return self.sent["relayed"] - self._relayed_before

    def count_sent(self, kind: str, size: int) -> None:
        """Count `size` payload bytes sent."""
        self.sent[kind if kind in self.sent else "other"] += size

    def count_received(self, kind: str, size: int) -> None:
        """Count `size` payload bytes received."""
        self.received[kind if kind in self.received else "other"] += size

    def reject(self, reason: str) -> None:
        """Count one rejection."""
        _count(self.rejected, reason)

    def drop(self, topic: str) -> None:
        """Count one accepted message that was not read in time."""
        _count(self.dropped, topic)

    def fail(self, protocol: str) -> None:
        """Count one failure of our own."""
        _count(self.failures, protocol)


def _count(counter: Counter[str], label: str) -> None:
    counter[label if label in counter or len(counter) < _MAX_LABELS else "other"] += 1
