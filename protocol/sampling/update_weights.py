"""Update weights: how often each update counts in the shared step.

The step adds up the signs in all updates, so an update of weight 2 has the effect of being sent twice. A
rule gives each update of a record a whole number from 0 to `MOST`, computed from the chain: every member
that applies a record gets the same weights.

*Equal weights* (`equal_weights`) leave nothing to gain by a false claim of capacity. But an update from
more sequences is more accurate, so if shares are unequal, equal weights slow down learning. Weights in
proportion to sequences would not; but an update does not show how much work it took, so a false claim
would buy as much of the total weight as one member can have of the sequences (`RoundSpec.max_share`).

*At most twice* (`by_share`) is the compromise: an update from at least the mean number of sequences has
weight 2, all others have weight 1. It bounds the gain of a claim by the share of byzantine members: even
if all byzantine members, fewer than a third, have weight 2 and all others weight 1, they have less
weight together than the others. With weight 3 they would not. The threshold is the mean because it needs
no scale: in every swarm some member reaches it, and unless all shares are equal, some member does not.

*Under audits* (`audited_weights`) the update of a member that failed its audits has weight 0. Members
without votes, for whose work too few others vouch so far, have at most half of the voters' weight
together, which is a third of the total (or `NEWCOMERS_WEIGHT` if that is more). So the effect of a crowd
is bounded before any audit of it, however many identities it has.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from ...crypto.identity import PeerId
from ..util.draws import ranked

MOST = 2
"""The largest weight of an update."""

NEWCOMERS_WEIGHT = 2
"""The total weight that members without votes may have however little weight the voters have: at the
beginning only the founder has votes."""


def equal_weights(peers: Iterable[PeerId]) -> dict[PeerId, int]:
    """Return weight 1 for every update."""
    return dict.fromkeys(peers, 1)


def by_share(shares: Mapping[PeerId, int]) -> dict[PeerId, int]:
    """Return weight 2 for each update from at least the mean number of sequences, otherwise 1.

    `shares`: for each member whose update is in the record, how many sequences were assigned for it (one
    for a sequence that takes several rounds). If all have the same number, all weights are 1; with no
    members the result is empty.
    """
    total, largest = sum(shares.values()), max(shares.values(), default=0)
    if largest * len(shares) == total:
        return equal_weights(shares)
    return {peer: MOST if own * len(shares) >= total else 1 for peer, own in shares.items()}


def audited_weights(
    weights_before: Mapping[PeerId, int],
    voters: Container[PeerId],
    excluded: Container[PeerId],
    seed: bytes,
) -> dict[PeerId, int]:
    """Return the update weights under audits. `weights_before`: the weights without them.

    Members that are `excluded` have weight 0. Members that are not `voters` keep their weights one after
    the other, in an order drawn for each round by its `seed`, until they have half of the voters' weight
    together, or `NEWCOMERS_WEIGHT` if that is more; those that no longer fit have weight 0. If no voter
    has weight, all other weights stay.
    """
    weights = {peer: 0 if peer in excluded else weight for peer, weight in weights_before.items()}
    new = [peer for peer, weight in weights.items() if weight and peer not in voters]
    voter_weight = sum(weights.values()) - sum(weights[peer] for peer in new)
    if not voter_weight:
        return weights
    left = max(NEWCOMERS_WEIGHT, voter_weight // 2)
    for peer in ranked(new, seed):
        if weights[peer] > left:
            weights[peer] = 0
        left -= weights[peer]
    return weights
