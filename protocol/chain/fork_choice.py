"""Fork choice: which of two valid chains a member follows.

A partition that outlasts the silence lease makes two chains. When they meet, a member compares them in
this order and follows: the chain with a final record since the fork; its own, if a record since the
fork is justified there; the chain whose followers have more votes in the finality set at the fork; more
votes at the fork; more members in force at the fork; the lower hash. It never reverts its last final
record or its checkpoint (`Ledger.floor`). A member that is stranded on a chain that all others have
left compares by the hash alone. docs/protocol.md has the rules under "Fork choice", and the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...crypto.identity import PeerId
from ..wire.membership import Votes
from .ledger import Ledger

COMPARED_ROUNDS = 1024
"""Rounds after the fork that are compared. A member that continues with a chain shows it in the first
few, and the cost of a comparison must not grow with the rounds that a byzantine member can sign in a
second."""


def prefers(ours: Ledger, other: Ledger, fork: int, *, me: PeerId, abandoned: bool) -> bool:
    """Whether a node on `ours` changes to `other`, which was checked and differs from round `fork` on.

    `abandoned`: no member of our chain is left on it (`Member.is_abandoned`).
    """
    if fork < ours.floor or fork >= min(len(ours), len(other)):
        return False
    if not ours.anchored or not other.anchored:
        return other.anchored
    members = ours.votes(fork), ours.membership(fork).one_each
    if not ours.binding and fork <= max(ours.final_round, other.final_round):
        here, there = (chain.contributors(chain.final_round + 1) for chain in (ours, other))
        if here != there:
            return there > here
        # Byzantine members that continue alone have all contributors from before the fork, too.
        return _more_went_on(ours, other, fork, members)
    if other.final_round >= fork:
        return True
    if ours.justified_round >= fork:
        return False
    if abandoned and me in other.membership(len(other)):
        return _lower(ours, other, fork)
    return _more_went_on(ours, other, fork, (other.truncated(fork).finality_votes, *members))


def decided_early(ours: Ledger, other: Ledger, fork: int, *, me: PeerId, abandoned: bool) -> bool:
    """Whether the known part of `other` suffices to prefer it, whatever follows.

    More rounds only add followers of it. For a newcomer, and for a stranded member, the later rounds
    matter.
    """
    lasting = ours.binding and ours.anchored and not abandoned
    return lasting and prefers(ours, other, fork, me=me, abandoned=False)


def _more_went_on(ours: Ledger, other: Ledger, fork: int, weights: Iterable[Votes]) -> bool:
    """Whether `other` has more followers than `ours`, in the first of these votes in which they differ;
    by the lower hash if they differ in none."""
    end = fork + COMPARED_ROUNDS
    sides = ours.followers(fork, end), other.followers(fork, end)
    for votes in weights:
        here, there = _count(sides[0], sides[1], votes), _count(sides[1], sides[0], votes)
        if here != there:
            return there > here
    return _lower(ours, other, fork)


def _count(followers: dict[PeerId, int], others: dict[PeerId, int], votes: Votes) -> int:
    """Return the votes of a chain's followers, except followers that the other chain admitted later."""
    return votes.among(
        peer for peer, admitted in followers.items() if others.get(peer, -1) <= admitted
    )


def _lower(ours: Ledger, other: Ledger, fork: int) -> bool:
    return other[fork].record.id < ours[fork].record.id
