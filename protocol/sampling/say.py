"""How often an update counts in the shared step: the say of the member that made it.

Signs are added up, so an update that counts twice moves what it would move if it had been sent twice.
A rule gives each update of a record a whole number from 1 to `MOST`, and what it goes by is on the
chain: whoever applies a record comes to the same.

*Once each* (`once`) leaves nothing to gain by a claim of capacity. But an update of many sequences is
a better one, and where shares are unequal, it costs learning to hear it no louder than the others. If
each counted as often as it has sequences, that would cost nothing; but nobody sees what is behind an
update, and a claim would buy up to `max_share` of all that is said.

*Twice at most* (`by_share`) lies between the two. It bounds what a claim gains by how many may lie:
fewer than a third of the members, all counting twice and nobody else, say less than the others. With
three times that would not be so. The bound is the mean of the shares because it needs no scale: in
every swarm some member has as much, and unless all have the same, some have less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...crypto.identity import PeerId

MOST = 2
"""The most that an update counts."""


def once(peers: Iterable[PeerId]) -> dict[PeerId, int]:
    """Every update counts once."""
    return dict.fromkeys(peers, 1)


def by_share(shares: Mapping[PeerId, int]) -> dict[PeerId, int]:
    """An update counts twice if there are as many sequences behind it as in the mean, or more.

    `shares`: of each member whose update is in the record, how many sequences it was dealt for that, a
    lane over several rounds being one. Where all have as many, all count once, and with none of them
    there is nothing to say.
    """
    total, largest = sum(shares.values()), max(shares.values(), default=0)
    if largest * len(shares) == total:
        return once(shares)
    return {peer: MOST if own * len(shares) >= total else 1 for peer, own in shares.items()}
