"""Audit lottery: which member an auditor audits, and on which sequence, so that the audited member
cannot predict it and the auditor cannot choose it.

With each announcement a member commits to a secret for its audit (`chain/commitments`). Some rounds
later the secret and the beacon (`chain/beacon`) together determine whether it audits in the next round,
whom, and which sequence of that member's share. The audited member cannot know in advance, since the
secret is revealed only with the audit's result; the auditor cannot choose, since it committed before the
beacon was known. The secret serves nothing else, so that the result reveals nothing about the beacon.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from fractions import Fraction

from ...crypto.hashing import content_id
from ...crypto.identity import PeerId
from ..util.draws import draw

# Numbers come from a range so large that the modulo bias is negligible.
_DRAWN_BYTES = 16


@dataclass(frozen=True, slots=True)
class AuditTarget:
    """One sequence of one member's share. `sequence` is its number in the share, from 0."""

    peer: PeerId
    sequence: int


def draw_audit(
    secret: bytes,
    beacon: bytes,
    auditor: PeerId,
    share_sizes: Mapping[PeerId, int],
    update_weights: Mapping[PeerId, int],
    voters: Container[PeerId],
    chance: Fraction,
) -> AuditTarget | None:
    """Return what the `auditor` audits in the round whose audits this `beacon` draws; None if nothing.

    `share_sizes`: for each member with an assignment in that round, its number of sequences;
    `update_weights`: the weight of each one's update; `voters`: the members with votes; `chance`: the
    probability of an audit.

    Half of all audits go to members without votes, if there are any: they wait for an audit, and nothing
    is known about them. Within either group, the probability of being audited is proportional to the
    update's weight in the step: so per unit of weight a member that does little is audited as often as
    one that does much, and a crowd of identities as often as one member with the same weight.
    """
    if not _happens(secret, beacon, b"whether", chance):
        return None
    # Members without votes, and those with votes.
    groups: tuple[dict[PeerId, int], dict[PeerId, int]] = ({}, {})
    for peer, sequences in share_sizes.items():
        if peer != auditor and sequences > 0:
            groups[peer in voters][peer] = update_weights[peer]
    among_voters = bool(groups[True]) and (
        not groups[False] or _happens(secret, beacon, b"known", Fraction(1, 2))
    )
    # Nobody's absence moves the draw between the others, so that no accomplices steer it.
    peer = draw(groups[among_voters], _seed(secret, beacon, b"which"))
    if peer is None:
        return None
    return AuditTarget(peer, _number(secret, beacon, b"sequence") % share_sizes[peer])


def draw_sequences(name: bytes, share_size: int, most: int) -> tuple[int, ...]:
    """Return the sequences of a share, sorted, that a re-audit covers: all `share_size` of them, or
    `most` drawn ones if there are more. `name`: bytes unique to the re-audit, the seed of the draw."""
    ranked = sorted(range(share_size), key=lambda number: _number(b"", name, b"of %d" % number))
    return tuple(sorted(ranked[:most]))


def _happens(secret: bytes, seed: bytes, what: bytes, chance: Fraction) -> bool:
    drawn = _number(secret, seed, what)
    return drawn * chance.denominator < chance.numerator << (8 * _DRAWN_BYTES)


def _number(secret: bytes, seed: bytes, what: bytes) -> int:
    """Draw a number, uniform below 2^128, from the `secret`, the public `seed` and the purpose `what`:
    numbers for different purposes are independent."""
    return int.from_bytes(content_id(_seed(secret, seed, what))[:_DRAWN_BYTES], "big")


def _seed(secret: bytes, seed: bytes, what: bytes) -> bytes:
    return b"distro-node check draw\0" + what + b"\0" + secret + seed
