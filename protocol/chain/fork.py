"""Fork choice: which of two valid chains to follow.

A partition that outlasts the silence lease makes two chains, each decided by those who could hear each
other. When they meet, the chain wins that more of the members in force at the fork point went on with
(`Ledger.weight_from`); whoever held the other drops its state and rejoins like a newcomer.

Who went on is read from certificates, too, and members may hold different certificates of one record.
So two sides can each find the other's chain heavier, and both change at once: each then asks to be
admitted to a chain that all of its members have left. What both know alike are the records. Whoever is
stranded so compares by the hash alone: those on the higher one return to the chain on which they are
members still, and go on.
"""

from __future__ import annotations

from .ledger import Ledger, Weight

COMPARED_ROUNDS = 1024
"""Rounds after the fork that are compared. Whoever goes on with a chain shows it in the first few; and
what is compared must not grow with what a liar can sign in a second."""


def preferred(ours: Ledger, theirs: Ledger, fork: int, *, abandoned: bool = False) -> bool:
    """Whether to change to `theirs`, which was checked and parts from ours in round `fork`.

    `abandoned` says that no member of our chain is left on it (`Member.is_abandoned`).
    """
    if fork >= min(len(ours), len(theirs)):
        return False
    if abandoned:
        return theirs.parent(fork + 1) < ours.parent(fork + 1)
    return _weight(theirs, fork) > _weight(ours, fork)


def decided_early(ours: Ledger, theirs: Ledger, fork: int, *, abandoned: bool = False) -> bool:
    """Whether what is there of `theirs` suffices to prefer it, whatever follows."""
    if abandoned or fork >= len(theirs):
        return fork < len(theirs) and preferred(ours, theirs, fork, abandoned=True)
    return _weight(theirs, fork).followers > _weight(ours, fork).followers


def _weight(ledger: Ledger, fork: int) -> Weight:
    return ledger.weight_from(fork, fork + COMPARED_ROUNDS)
