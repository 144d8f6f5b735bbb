"""Whom a member looks at, and at which sequence: a draw that nobody can foresee or choose.

With each announcement a member commits to a secret. Some rounds later the secret and the beacon
(`chain/beacon`) together say whether it looks at somebody in the next round, at whom, and at which
sequence of their share. Whoever is looked at can't know beforehand, since the secret is told with the
verdict alone; the member can't choose, since it was bound before anybody knew the beacon.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from fractions import Fraction

from ...crypto.hashing import ContentId, content_id
from ...crypto.identity import PeerId

SECRET_BYTES = 16
"""Too many to be tried."""

# Numbers are drawn from so many that no remainder favours anybody.
_DRAWN_BYTES = 16


@dataclass(frozen=True, slots=True)
class Look:
    """One sequence of one member's share, counted from 0."""

    peer: PeerId
    sequence: int


def commitment(secret: bytes) -> ContentId:
    """What a member announces of its secret. Raises `ValueError` unless it has `SECRET_BYTES`."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    return content_id(b"distro-node check secret\0" + secret)


def drawn_look(
    secret: bytes,
    lot: bytes,
    checker: PeerId,
    shares: Mapping[PeerId, int],
    counts: Mapping[PeerId, int],
    voters: Container[PeerId],
    chance: Fraction,
) -> Look | None:
    """What the `checker` looks at in the round behind the one whose beacon is the `lot`; None if
    nothing.

    `shares`: the members that are dealt something there, with the sequences of their share; `counts`:
    how often the update of each counts. Half of all looks are at members without votes, where there are
    any: they wait for it, and nobody knows them. Among these as among the others looks go by what counts
    in the step: who does little has no more of a say unseen than who does much, and a crowd has as many
    looks as it has to say. `chance`: how probable a look is.
    """
    if not _happens(secret, lot, b"whether", chance):
        return None
    groups: tuple[list[PeerId], list[PeerId]] = ([], [])
    for peer, sequences in sorted(shares.items()):
        if peer != checker and sequences > 0:
            groups[peer in voters].append(peer)
    known = bool(groups[True]) and (
        not groups[False] or _happens(secret, lot, b"known", Fraction(1, 2))
    )
    group = groups[known]
    total = sum(counts[peer] for peer in group)
    if not total:
        return None
    drawn = _number(secret, lot, b"which") % total
    for peer in group:
        if drawn < counts[peer]:
            return Look(peer, _number(secret, lot, b"sequence") % shares[peer])
        drawn -= counts[peer]
    raise AssertionError("a number below the sum lies in one of its parts")


def drawn_sequences(name: bytes, share: int, most: int) -> tuple[int, ...]:
    """The sequences that a second look with this name takes: all of a share, or as many as `most`,
    sorted."""
    ranked = sorted(range(share), key=lambda number: _number(b"", name, b"of %d" % number))
    return tuple(sorted(ranked[:most]))


def _happens(secret: bytes, about: bytes, what: bytes, chance: Fraction) -> bool:
    drawn = _number(secret, about, what)
    return drawn * chance.denominator < chance.numerator << (8 * _DRAWN_BYTES)


def _number(secret: bytes, about: bytes, what: bytes) -> int:
    """A number that is drawn: uniform below 2^128."""
    text = b"distro-node check draw\0" + what + b"\0" + secret + about
    return int.from_bytes(content_id(text)[:_DRAWN_BYTES], "big")
