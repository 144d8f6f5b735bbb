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

from collections.abc import Sequence

from ..wire.errors import ProtocolError
from ..wire.messages import Decided
from .ledger import Ledger


def better_chain(
    ours: Ledger, theirs: Sequence[Decided], *, abandoned: bool = False
) -> Ledger | None:
    """The ledger to change to, or None if ours is to be kept.

    `abandoned` says that no member of our chain is left on it (`Member.is_abandoned`).

    `theirs` is a run of entries of another chain that begins at or before the fork. Every one of them
    is checked. Raises `ProtocolError` if one does not hold or the run does not meet our chain.
    """
    fork = ours.fork_point(theirs)
    differing = [decided for decided in theirs if decided.record.round >= fork]
    if not differing or fork >= len(ours):
        return None
    other = ours.truncated(fork)
    if differing[0].record.round != fork or differing[0].record.parent != other.head:
        raise ProtocolError("wrong_parent", "the entries do not meet our chain")
    for decided in differing:
        other.append(decided)
    if abandoned:
        return other if other[fork].record.id < ours[fork].record.id else None
    return other if other.weight_from(fork) > ours.weight_from(fork) else None
