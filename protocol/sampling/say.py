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

*Where work is checked* (`of_checked`) whoever was found not to do it does not count at all, and those
who have no votes yet, of whom nobody knows anything, have a third of the say together. So what a crowd
does before anybody has looked at it is bounded, however many identities it comes with.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from ...crypto.hashing import content_id
from ...crypto.identity import PeerId

MOST = 2
"""The most that an update counts."""

NEWCOMERS = 2
"""The say that those without votes have in any case: at the beginning the founder alone has some."""


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


def of_checked(
    counts: Mapping[PeerId, int], voters: Container[PeerId], out: Container[PeerId], seed: bytes
) -> dict[PeerId, int]:
    """How often each update counts in a swarm whose work is checked; without checks, as `counts` says.

    Those who are `out` do not count. Those who are no `voters` count one after the other, in an order
    that is drawn anew for each round by its `seed`, until they have half of what the voters say, and no
    less than `NEWCOMERS`; the others of them not at all. Where there are no voters, all count as before.
    """
    heard = {peer: 0 if peer in out else count for peer, count in counts.items()}
    new = [peer for peer, count in heard.items() if count and peer not in voters]
    said = sum(heard.values()) - sum(heard[peer] for peer in new)
    if not said:
        return heard
    left = max(NEWCOMERS, said // 2)
    for peer in sorted(new, key=lambda peer: content_id(seed + peer)):
        if heard[peer] > left:
            heard[peer] = 0
        left -= heard[peer]
    return heard
