"""Signed log: which of a node's signed messages its disk still has to hold.

A restart must not make a node contradict itself, so its messages stay until the round in which they were
signed is decided: then the ledger replaces them, and messages of that round no longer count. Rewriting
the log in every round would be expensive, so old messages are removed only occasionally.
"""

from __future__ import annotations

from typing import Generic, TypeVar

M = TypeVar("M")

FORGET_ROUNDS = 64
"""Rounds between two rewrites."""

FORGET_BYTES = 1 << 20
"""Size of the log in bytes that also triggers a rewrite: proposals of large swarms are long."""


class SignedLog(Generic[M]):
    """Logged messages, by the round in which they were signed."""

    def __init__(self, every: int = FORGET_ROUNDS) -> None:
        self._every = every
        self._rounds: dict[int, list[M]] = {}
        self._sizes: dict[int, int] = {}

    def note(self, round: int, message: M, size: int) -> None:
        """Note a message of `size` bytes that was logged during `round` now or before a restart."""
        self._rounds.setdefault(round, []).append(message)
        self._sizes[round] = self._sizes.get(round, 0) + size

    def forget(self, round: int) -> list[M]:
        """Return the messages to remove now that `round` is decided; empty unless a rewrite is due.
        Messages of `round` itself stay, because others may still ask for them."""
        if round % self._every and sum(self._sizes.values()) <= FORGET_BYTES:
            return []
        gone: list[M] = []
        for old in [r for r in self._rounds if r < round]:
            gone += self._rounds.pop(old)
            del self._sizes[old]
        return gone

    def kept(self) -> list[M]:
        """Return the remaining messages."""
        return [message for messages in self._rounds.values() for message in messages]
