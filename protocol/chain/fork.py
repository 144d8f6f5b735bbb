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

from collections.abc import Collection

from ...crypto.identity import PeerId
from .ledger import Ledger

COMPARED_ROUNDS = 1024
"""Rounds after the fork that are compared. Whoever goes on with a chain shows it in the first few; and
what is compared must not grow with what a liar can sign in a second."""


def prefers(ours: Ledger, other: Ledger, fork: int, *, me: PeerId, abandoned: bool) -> bool:
    """Whether a node on `ours` changes to `other`, which was checked and differs from round `fork` on.

    `abandoned` says that no member of our chain is left on it (`Member.is_abandoned`).
    """
    if fork < ours.floor or fork >= min(len(ours), len(other)):
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
    end = fork + COMPARED_ROUNDS
    sides = ours.followers(fork, end), other.followers(fork, end)
    for among in (other.truncated(fork).finality_set, ours.membership(fork).peers):
        here, there = _count(sides[0], sides[1], among), _count(sides[1], sides[0], among)
        if here != there:
            return there > here
    return _lower(ours, other, fork)


def decided_early(ours: Ledger, other: Ledger, fork: int, *, me: PeerId, abandoned: bool) -> bool:
    """Whether what is there of `other` suffices to prefer it, whatever follows.

    More rounds of it only add to those who went on with it. For a newcomer, and for whoever is
    stranded, it matters how the chain goes on.
    """
    lasting = ours.binding and ours.anchored and not abandoned
    return lasting and prefers(ours, other, fork, me=me, abandoned=False)


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
