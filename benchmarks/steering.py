"""Liars that leave and come back so that one of them leads next, under the present rule and the former.

    python benchmarks/steering.py [--rounds 2000] [--json FILE]

Before each round the liars choose which of them are members in it, and of all choices with one of them
as leader of the first slot take that with fewest away. Who is away comes back in the next round, if they
want. All members have as many votes. Printed: the part of first slots that liars lead, beside what they
lead if they stay; and the part of their time that they are away.

- `order`: the program's rule (`chain/leaders`).
- `circle`: members in the order of a hash of swarm and id, of which each round begins with the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

from command_line import new_parser, write_json
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.leaders import LeaderHistory
from distro_node.protocol.util.draws import ranked
from distro_node.protocol.wire.membership import Membership, MembershipChange

SWARM = bytes(32)
SIZES = ((7, 2), (16, 5), (31, 10), (40, 13))
# Choices that are tried in a round, those with fewest away first.
_MOST_TRIED = 3000

Rule = Callable[[Membership, int], PeerId]
"""(members of a round, round) → the leader of its first slot."""


@dataclass(frozen=True)
class Figures:
    """What liars reach by leaving and coming back, as parts from 0 to 1."""

    rule: str
    members: int
    liars: int
    led_if_they_stay: float
    led: float
    away: float


def circle(members: Membership, round_: int) -> PeerId:
    """Return the leader by the rule before."""
    order = ranked(members.peers, SWARM)
    return order[round_ % len(order)]


def by_order(members: Membership, round_: int) -> PeerId:
    """Return the leader by the program's rule."""
    manifest = SimpleNamespace(swarm=SWARM)
    chain: Any = SimpleNamespace(
        manifest=manifest, membership=lambda _: members, votes=lambda _: members.one_each
    )
    return LeaderHistory(chain, [{}] * (round_ + 1)).leaders(round_)[1]


def play(name: str, rule: Rule, members: int, liars: int, rounds: int) -> Figures:
    """Play so many rounds, once with liars that stay and once with liars that come and go."""
    peers = [PeerId(content_id(b"member %d" % number)) for number in range(members)]
    theirs = peers[:liars]
    led: list[float] = []
    away = 0
    for comes_and_goes in (False, True):
        membership, first = Membership(since=dict.fromkeys(peers, 0)), 0
        # Not before everybody has been a member for long.
        for round_ in range(2 * members, 2 * members + rounds):
            choice = membership.changed(_change(membership, theirs, theirs, round_ - 1))
            if comes_and_goes:
                for there in _choices(theirs):
                    tried = membership.changed(_change(membership, theirs, there, round_ - 1))
                    if rule(tried, round_) in theirs:
                        choice = tried
                        break
            membership = choice
            away += sum(peer not in membership for peer in theirs)
            first += rule(membership, round_) in theirs
        led.append(first / rounds)
    return Figures(name, members, liars, led[0], led[1], away / rounds / liars)


def _choices(liars: Sequence[PeerId]) -> Iterator[tuple[PeerId, ...]]:
    """Return which liars may be there, fewest away first."""
    every = (
        there
        for count in range(len(liars), -1, -1)
        for there in itertools.combinations(liars, count)
    )
    return itertools.islice(every, _MOST_TRIED)


def _change(
    now: Membership, liars: Sequence[PeerId], there: Sequence[PeerId], round_: int
) -> MembershipChange:
    leaves = tuple(peer for peer in liars if peer in now and peer not in there)
    return MembershipChange(round_, leaves, tuple(p for p in there if p not in now))


def main() -> None:
    """Play all sizes under both rules."""
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    print(f"{'':<8}{'members':>8}{'liars':>7}{'led if they stay':>18}{'led':>7}{'away':>7}")
    found: list[Figures] = []
    for (members, liars), (name, rule) in itertools.product(
        SIZES, (("order", by_order), ("circle", circle))
    ):
        figures = play(name, rule, members, liars, options.rounds)
        found.append(figures)
        print(
            f"{name:<8}{members:>8}{liars:>7}{figures.led_if_they_stay:>18.1%}"
            f"{figures.led:>7.1%}{figures.away:>7.1%}",
            flush=True,
        )
    write_json(options.json, [asdict(each) for each in found])


if __name__ == "__main__":
    main()
