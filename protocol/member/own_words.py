"""What a node has signed, and how long its disk has to remember it.

A restart must not make a node contradict itself, so its words stay until the round in which they were
said is decided: then the ledger stands for them, and nobody counts what is said about that round any
more. To write the rest anew for each round would be dear, so that is done now and then.
"""

from __future__ import annotations

from typing import Generic, TypeVar

W = TypeVar("W")

FORGET_ROUNDS = 64
"""Rounds between two times of forgetting."""

FORGET_BYTES = 1 << 20
"""Or more words than this: proposals of large swarms are long."""


class OwnWords(Generic[W]):
    """The words on the disk, by the round in which they were said."""

    def __init__(self, every: int = FORGET_ROUNDS) -> None:
        self._every = every
        self._rounds: dict[int, list[W]] = {}
        self._sizes: dict[int, int] = {}

    def note(self, round: int, word: W, size: int) -> None:
        """A word of so many bytes is put on the disk while `round` is being agreed on, or was said about
        it in an earlier life."""
        self._rounds.setdefault(round, []).append(word)
        self._sizes[round] = self._sizes.get(round, 0) + size

    def forget(self, round: int) -> list[W]:
        """`round` is decided: which words may go now. Those of that very round stay, as others may still
        ask for them."""
        if round % self._every and sum(self._sizes.values()) <= FORGET_BYTES:
            return []
        gone: list[W] = []
        for old in [r for r in self._rounds if r < round]:
            gone += self._rounds.pop(old)
            del self._sizes[old]
        return gone

    def kept(self) -> list[W]:
        """The others."""
        return [word for said in self._rounds.values() for word in said]
