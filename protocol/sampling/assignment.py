"""Which lanes of the sample stream a member has in a round: a function of what all members know.

A round takes one sample of each lane (`sampler`, `deal`). Its members have the lanes in runs, one after
the other, so shares never overlap and nobody has to announce one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ...crypto.identity import PeerId
from ..wire.membership import Membership
from .deal import Deal
from .sampler import Order


def share(
    order: Order, deals: Sequence[Deal], members: Membership, peer: PeerId
) -> tuple[int, ...]:
    """The samples that `peer` computes of what is dealt to the `members`: round by round, one a lane.

    Raises what `lanes_of` raises.
    """
    runs = [lanes_of(order, members, peer, deal.round) for deal in deals]
    lanes = [np.arange(run.start, run.stop) for run in runs]
    rows = [deal.rows(order.lanes)[own] for deal, own in zip(deals, lanes, strict=True)]
    return tuple(order.samples_at(np.concatenate(lanes), np.concatenate(rows)))


def lanes_of(order: Order, members: Membership, peer: PeerId, round: int) -> range:
    """The lanes that `peer`, one of the `members`, has in a round (from 1 on).

    It keeps them while a span lasts, so that it needs no more of the corpus than it trains, and has
    those of its neighbour next: a remainder falls on everybody alike, and what somebody who is always
    late leaves untrained comes to others. With fewer lanes than members everybody takes turns.

    Raises `ValueError` if `peer` is no member.
    """
    count = len(members)
    turn = round if order.lanes < count else (round - 1) // order.span
    rank = (members.peers.index(peer) - turn) % count
    return range(rank * order.lanes // count, (rank + 1) * order.lanes // count)


def lost_lanes(
    order: Order, members: Membership, counted: Collection[PeerId], round: int
) -> list[range]:
    """The lanes whose sample stays untrained: those of members whose update does not count."""
    return [lanes_of(order, members, peer, round) for peer in members.peers if peer not in counted]
