"""Which rounds get a certified snapshot."""

from __future__ import annotations


def snapshot_round(record_round: int, interval: int, closing: int | None = None) -> int | None:
    """Return the round whose state the record of `record_round` must certify; None if none.

    For every round divisible by `interval`, except round 0, the record of the next round certifies its
    state. The record of the `closing` round certifies the state before it, which is the last one.
    """
    previous = record_round - 1
    over = closing is not None and record_round > closing
    due = not over and (previous % interval == 0 or record_round == closing)
    return previous if previous > 0 and due else None
