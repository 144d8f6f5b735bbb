"""Fork choice: which of two valid chains a member follows.

A partition that lasts longer than the silence lease makes two chains. When they meet, a member follows
the chain that the first applicable rule chooses: the chain with a final record since the fork; its own,
if a record since the fork is justified there; the chain whose followers have more votes in the finality
set at the fork; the one whose followers have more votes at the fork; the one with more followers among
the members at the fork; the one whose record at the fork has the lower id. A member never reverts its
last final record or its checkpoint (`Ledger.floor`). A member that is stranded on a chain that all
others have left compares by the ids alone. docs/protocol.md has the rules under "Fork choice", and the
reasons.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...crypto.identity import PeerId
from ..wire.membership import Votes
from .ledger import Ledger

COMPARED_ROUNDS = 1024
"""Most rounds after the fork that are compared. The first few show which members continue with a chain,
and a byzantine member can sign many rounds a second, so the cost of a comparison must be bounded."""


def prefers(ours: Ledger, other: Ledger, fork: int, *, me: PeerId, abandoned: bool) -> bool:
    """Whether a node on `ours` changes to `other`, which was checked and differs from round `fork` on.

    `me` is the node's own peer id. `abandoned`: no member of our chain is left on it
    (`Member.is_abandoned`).
    """
    if fork < ours.floor or fork >= min(len(ours), len(other)):
        return False
    if not ours.anchored or not other.anchored:
        return other.anchored
    members = ours.votes(fork), ours.membership(fork).one_each
    if not ours.binding and fork <= max(ours.final_round, other.final_round):
        own_count, other_count = (
            chain.contributors(chain.final_round + 1) for chain in (ours, other)
        )
        if own_count != other_count:
            return other_count > own_count
        # Equal numbers of contributors decide nothing: a chain that byzantine members continue alone has
        # all contributors from before the fork, too.
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

    For most members it may suffice, because later rounds of `other` only add followers to it. For a
    newcomer, and for a stranded member, the later rounds matter, so the result is False.
    """
    lasting = ours.binding and ours.anchored and not abandoned
    return lasting and prefers(ours, other, fork, me=me, abandoned=False)


def _more_went_on(ours: Ledger, other: Ledger, fork: int, weights: Iterable[Votes]) -> bool:
    """Whether followers of `other` have more votes than those of `ours`, by the first of `weights` by
    which the two differ; if none, whether its record at the fork has the lower id."""
    end = fork + COMPARED_ROUNDS
    sides = ours.followers(fork, end), other.followers(fork, end)
    for votes in weights:
        own_count, other_count = (
            _count(sides[0], sides[1], votes),
            _count(sides[1], sides[0], votes),
        )
        if own_count != other_count:
            return other_count > own_count
    return _lower(ours, other, fork)


def _count(followers: dict[PeerId, int], others: dict[PeerId, int], votes: Votes) -> int:
    """Return the votes of a chain's followers. Followers of both chains count only for the one that
    admitted them later; for both, if neither did."""
    return votes.among(
        peer for peer, admitted in followers.items() if others.get(peer, -1) <= admitted
    )


def _lower(ours: Ledger, other: Ledger, fork: int) -> bool:
    return other[fork].record.id < ours[fork].record.id
