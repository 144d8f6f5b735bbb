"""Whom a member audits: determined by the secret and the beacon, proportional, and never itself."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from fractions import Fraction

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.lottery import AuditTarget, draw_audit, draw_sequences
from distro_node.protocol.chain.commitments import SECRET_BYTES

PEERS = [PeerId(content_id(b"%d" % number)) for number in range(6)]
ALWAYS = Fraction(1)
DRAWS = 4000


def secrets() -> list[bytes]:
    return [random.Random(number).randbytes(SECRET_BYTES) for number in range(DRAWS)]


def draw(
    secret: bytes,
    shares: dict[PeerId, int],
    *,
    beacon: bytes = b"r",
    weights: dict[PeerId, int] | None = None,
    voters: Collection[PeerId] = PEERS,
    chance: Fraction = ALWAYS,
) -> AuditTarget | None:
    """Return the first one's audit; each update counts once unless given otherwise."""
    says = dict.fromkeys(shares, 1) if weights is None else weights
    return draw_audit(secret, beacon, PEERS[0], shares, says, voters, chance)


def test_a_draw_follows_from_secret_and_beacon() -> None:
    shares = dict.fromkeys(PEERS, 4)
    one, other = secrets()[:2]
    assert draw(one, shares) == draw(one, shares)
    others = [draw(one, shares, beacon=b"%d" % number) for number in range(64)]
    assert len(set(others)) > 10
    assert others != [draw(other, shares, beacon=b"%d" % number) for number in range(64)]


def test_each_count_is_audited_alike_and_never_by_its_own_member() -> None:
    shares = {PEERS[0]: 50, PEERS[1]: 1, PEERS[2]: 3, PEERS[3]: 0, PEERS[4]: 64}
    weights = {PEERS[0]: 2, PEERS[1]: 1, PEERS[2]: 1, PEERS[3]: 1, PEERS[4]: 2}
    audits = [draw(secret, shares, weights=weights) for secret in secrets()]
    assert all(audit is not None and audit.sequence < shares[audit.peer] for audit in audits)
    seen = Counter(audit.peer for audit in audits if audit)
    assert seen.keys() == {PEERS[1], PEERS[2], PEERS[4]}
    # 1,000 each per count, with a standard deviation of 27.
    assert all(abs(seen[peer] - 1000 * weights[peer]) < 150 for peer in seen)
    # And each of its sequences alike.
    within = Counter(audit.sequence for audit in audits if audit and audit.peer == PEERS[2])
    assert all(abs(within[number] - seen[PEERS[2]] / 3) < 80 for number in range(3))


def test_half_of_the_audits_are_of_members_without_votes() -> None:
    shares = {PEERS[1]: 100, PEERS[2]: 1}
    audits = [draw(secret, shares, voters={PEERS[1]}) for secret in secrets()]
    assert abs(audits.count(AuditTarget(PEERS[2], 0)) - DRAWS / 2) < 160
    alone = {PEERS[2]: 1}
    assert draw(secrets()[0], alone, voters={PEERS[1]}) == AuditTarget(PEERS[2], 0)
    assert draw(secrets()[0], alone, voters={PEERS[2]}) == AuditTarget(PEERS[2], 0)


def test_audits_are_as_many_as_the_chance() -> None:
    shares = dict.fromkeys(PEERS, 1)
    audits = [draw(secret, shares, chance=Fraction(1, 10)) for secret in secrets()]
    assert abs(DRAWS - audits.count(None) - DRAWS / 10) < 100
    assert all(draw(secret, shares, chance=Fraction(0)) is None for secret in secrets()[:50])
    assert draw(secrets()[0], {PEERS[0]: 4}) is None


def test_some_of_a_large_share_are_reaudited() -> None:
    assert draw_sequences(b"d", 3, 8) == (0, 1, 2)
    drawn = draw_sequences(b"d", 64, 8)
    assert len(set(drawn)) == 8
    assert list(drawn) == sorted(drawn)
    assert set(drawn) <= set(range(64))
    assert drawn != draw_sequences(b"another", 64, 8)
