"""Fork choice: which of two valid chains to follow.

A partition that outlasts the silence lease makes two chains, each decided by those who could hear
each other. When they meet, these rules say which one stays; whoever held the other drops its state and
rejoins like a newcomer.

1. Nobody goes back behind its last final record (`finality`), nor behind its checkpoint. Nothing before
   is asked for or compared (`Ledger.floor`).
2. A chain on which a record since the fork is final wins. Two such chains cannot be.
3. Nobody goes back behind the last record that is justified on its own chain.
4. More distinct members of the finality set at the fork went on with it. Who went on with both counts
   for the one that admitted it last since the fork. Rounds count nothing: a member that calls all
   others silent can sign them as fast as it likes.
5. More distinct members in force at the fork did, by the same count: where all of the finality set are
   gone, or hardly anybody was in it yet.
6. The lower hash of the first record since.

Who went on is read from certificates, too, and members may hold different certificates of one record.
So two sides can each find the other's chain heavier, and both change at once: each then asks to be
admitted to a chain that all of its members have left. What both know alike are the records. Whoever is
stranded so, and is still a member on the other chain, compares by the hash alone.

A newcomer is bound by nothing but its checkpoint: a chain that has it wins over one that has not.
Between two chains that differ before the last final record of one, it takes the one to whose final
records more distinct peers have contributed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...crypto.identity import PeerId
from ..wire.errors import ProtocolError
from ..wire.messages import Decided
from .ledger import Ledger


def better_chain(
    ours: Ledger, theirs: Sequence[Decided], *, me: PeerId, abandoned: bool = False
) -> Ledger | None:
    """The ledger to change to, or None if ours is to be kept.

    `abandoned` says that no member of our chain is left on it (`Member.is_abandoned`).

    `theirs` is a run of entries of another chain that begins at or before the fork. Every one of them
    is checked. Raises `ProtocolError` if one does not hold or the run does not meet our chain.
    """
    fork = ours.fork_point(theirs)
    differing = [decided for decided in theirs if decided.record.round >= fork]
    if not differing or not ours.floor <= fork < len(ours):
        return None
    other = ours.truncated(fork)
    if differing[0].record.round != fork or differing[0].record.parent != other.head:
        raise ProtocolError("wrong_parent", "the entries do not meet our chain")
    for decided in differing:
        other.append(decided)
    return other if prefers(ours, other, fork, me=me, abandoned=abandoned) else None


def prefers(ours: Ledger, other: Ledger, fork: int, *, me: PeerId, abandoned: bool) -> bool:
    """Whether a node on `ours` changes to `other`, which differs from round `fork` on."""
    if fork < ours.floor:
        return False
    if not ours.anchored or not other.anchored:
        return other.anchored
    if not ours.binding and fork <= max(ours.final_round, other.final_round):
        return _has_more_contributors(ours, other, fork)
    if other.final_round >= fork:
        return True
    if ours.justified_round >= fork:
        return False
    if abandoned and me in other.membership(len(other)):
        return _lower(ours, other, fork)
    sides = ours.followers(fork), other.followers(fork)
    for among in (other.truncated(fork).finality_set, ours.membership(fork).peers):
        here, there = _count(sides[0], sides[1], among), _count(sides[1], sides[0], among)
        if here != there:
            return there > here
    return _lower(ours, other, fork)


def _count(
    followers: dict[PeerId, int], others: dict[PeerId, int], among: Collection[PeerId]
) -> int:
    """How many `among` these went on with a chain, but for those whom the other one admitted later."""
    return sum(
        peer in among and others.get(peer, -1) <= admitted for peer, admitted in followers.items()
    )


def _lower(ours: Ledger, other: Ledger, fork: int) -> bool:
    return other[fork].record.id < ours[fork].record.id


def _has_more_contributors(ours: Ledger, other: Ledger, fork: int) -> bool:
    here, there = (chain.contributors(chain.final_round + 1) for chain in (ours, other))
    return there > here or (there == here and _lower(ours, other, fork))
