"""Of which states the chain certifies snapshots."""

from __future__ import annotations


def snapshot_round(record_round: int, interval: int, closing: int | None = None) -> int | None:
    """The round whose state the record of `record_round` must certify, if any.

    The state after every round divisible by `interval`, and the last one before the `closing` round, is
    certified by the record that follows it; after that nothing changes.
    """
    previous = record_round - 1
    over = closing is not None and record_round > closing
    due = not over and (previous % interval == 0 or record_round == closing)
    return previous if previous > 0 and due else None
