"""Counters of what went over the network, for the metrics and the benchmarks.

Plain numbers in dictionaries whose keys come from fixed sets, so that no peer can make them grow.
"""

from __future__ import annotations

from collections import Counter

from .rates import Rate

KINDS = ("update", "relayed", "blob", "gossip", "ledger", "other")
"""What bytes are for. `update` and `blob` move by the same protocol and are told apart; `relayed` are
the updates that a relay brings in and passes on for others."""

# Reasons and protocol names come from our own code; the bound keeps a slip harmless.
_MAX_LABELS = 128


class Traffic:
    """Bytes and refusals since the network was opened, and the limits of the line."""

    def __init__(self, upload: Rate | None = None, download: Rate | None = None) -> None:
        self.upload = upload or Rate()
        """What all that is sent has to share."""
        self.download = download or Rate()
        self.sent: dict[str, int] = dict.fromkeys(KINDS, 0)
        """Payload bytes sent, by kind."""
        self.received: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.wire_sent = 0
        """All bytes handed to connections that have ended; `Network.wire_bytes` adds the rest."""
        self.wire_received = 0
        self.rejected: Counter[str] = Counter()
        """Gossip messages and requests refused, by reason."""
        self.dropped: Counter[str] = Counter()
        """Gossip messages that were accepted but overran their reader, by topic."""
        self.failures: Counter[str] = Counter()
        """Handlers of ours that failed, by protocol: bugs."""

    def count_sent(self, kind: str, size: int) -> None:
        """Count `size` payload bytes sent."""
        self.sent[kind if kind in self.sent else "other"] += size

    def count_received(self, kind: str, size: int) -> None:
        """Count `size` payload bytes received."""
        self.received[kind if kind in self.received else "other"] += size

    def reject(self, reason: str) -> None:
        """Count one refusal."""
        _count(self.rejected, reason)

    def drop(self, topic: str) -> None:
        """Count one message lost to a slow reader."""
        _count(self.dropped, topic)

    def fail(self, protocol: str) -> None:
        """Count one failure of our own."""
        _count(self.failures, protocol)


def _count(counter: Counter[str], label: str) -> None:
    counter[label if label in counter or len(counter) < _MAX_LABELS else "other"] += 1
