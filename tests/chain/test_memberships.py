"""Memberships of a chain: those of every round, in little memory."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import memberships
from distro_node.protocol.chain.memberships import MembershipHistory
from distro_node.protocol.wire.membership import Membership, MembershipChange, founding
from seeds import seeds
from simulation.still_chain import StillChain


def peer(number: int) -> PeerId:
    return PeerId(content_id(number.to_bytes(4, "big")))


class Story:
    """Changes, one per round, passed in the place of records."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._next = 1

    def after(self, membership: Membership, round_: int) -> MembershipChange:
        chance = self._chance
        change = MembershipChange(round_)
        if chance.random() < 0.3:
            return change
        leaver = chance.choice(membership.peers)
        departed = (leaver,) if len(membership) > 1 and chance.random() < 0.4 else ()
        rest = [one for one in membership.peers if one not in departed]
        expelled = (rest[0],) if len(rest) > 1 and chance.random() < 0.1 else ()
        self._next += 1
        return MembershipChange(round_, departed, (peer(self._next),), expelled)


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MembershipChange, "of", staticmethod(lambda change: change))


@pytest.mark.usefixtures("follow")
@pytest.mark.parametrize("seed", seeds(4))
def test_every_round_has_its_own_and_so_has_a_copy(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memberships, "_SPACING", 5)
    plain, story = [founding(peer(0))], Story(seed)
    made = MembershipHistory(plain[0])
    chance = random.Random(seed)
    for round_ in range(150):
        change = story.after(plain[-1], round_)
        plain.append(plain[-1].changed(change))
        made.follow(change)  # type: ignore[arg-type]
        assert made[-1] == plain[-1]
        back = chance.randrange(len(plain))
        assert made[back] == plain[back]
    assert list(made) == plain
    assert made[3:150:7] == plain[3:150:7]
    chain: Any = StillChain(bytes(32), plain[0])
    for length in (0, 1, 59, 149, 150):
        copy = made.before(length, chain)
        assert list(copy) == plain[: length + 1]
        # The copy is extended independently.
        story = Story(seed + 100)
        change = story.after(plain[length], length)
        copy.follow(change)  # type: ignore[arg-type]
        assert copy[length + 1] == plain[length].changed(change)
    assert list(made) == plain
    for outside in (151, -152):
        with pytest.raises(IndexError):
            made[outside]


@pytest.mark.usefixtures("follow")
def test_rounds_without_a_change_have_the_very_same() -> None:
    made = MembershipHistory(founding(peer(0)))
    for round_ in range(10):
        made.follow(MembershipChange(round_))  # type: ignore[arg-type]
    assert all(one is made[0] for one in made)


@pytest.mark.usefixtures("follow")
def test_a_chain_that_changes_its_members_in_each_round_takes_little_memory() -> None:
    """Regression: 23 kB a round with 256 members, so 1.4 GB in the 65,536 rounds that a newcomer may be
    sent."""
    peers = [peer(number) for number in range(256 + 2000)]
    made = MembershipHistory(Membership(since=dict.fromkeys(peers[:256], 0)))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for round_ in range(2000):
            made.follow(MembershipChange(round_, (peers[round_],), (peers[256 + round_],)))  # type: ignore[arg-type]
            made[-1].bit(peers[256 + round_])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A few MB for the latest rounds, whatever the length.
    assert after - before < 6 << 20
