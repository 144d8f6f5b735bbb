"""Whom a member looks at, and at which sequence: a draw that nobody can foresee or choose.

With each announcement a member commits to a secret. When the round's record is decided, the secret and
the record's id together say whether it looks at somebody in the next round, at whom, and at which
sequence of their share. Whoever is looked at can't know beforehand, since the secret is told with the
verdict alone; the member can't choose, since it was bound before there was a record. A leader that
tries many records to turn a draw has that of one secret, its own.
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
    record: bytes,
    checker: PeerId,
    shares: Mapping[PeerId, int],
    voters: Container[PeerId],
    chance: Fraction,
) -> Look | None:
    """What the `checker` looks at in the round behind the record with this id; None if nothing.

    `shares`: the members that are dealt something there, with the sequences of their share. Half of all
    looks are at members without votes, where there are any: they wait for it, and nobody knows them.
    Among these as among the others each sequence is drawn alike, so that many identities with little
    work have as many looks together as one with all of it. `chance`: how probable a look is.
    """
    if not _happens(secret, record, b"whether", chance):
        return None
    groups: tuple[list[PeerId], list[PeerId]] = ([], [])
    for peer, sequences in sorted(shares.items()):
        if peer != checker and sequences > 0:
            groups[peer in voters].append(peer)
    known = bool(groups[True]) and (
        not groups[False] or _happens(secret, record, b"known", Fraction(1, 2))
    )
    total = sum(shares[peer] for peer in groups[known])
    if not total:
        return None
    drawn = _number(secret, record, b"which") % total
    for peer in groups[known]:
        if drawn < shares[peer]:
            return Look(peer, drawn)
        drawn -= shares[peer]
    raise AssertionError("a number below the sum lies in one of its parts")


def is_called(secret: bytes, dispute: bytes, chance: Fraction) -> bool:
    """Whether whoever has this secret is to look again where a first look was low.

    `dispute`: the id of the record that holds the first look, and the first look in it.
    """
    return _happens(secret, dispute, b"again", chance)


def drawn_sequences(secret: bytes, dispute: bytes, share: int, most: int) -> tuple[int, ...]:
    """The sequences that a second look takes: all of a share, or as many as `most`, sorted."""
    ranked = sorted(range(share), key=lambda number: _number(secret, dispute, b"of %d" % number))
    return tuple(sorted(ranked[:most]))


def _happens(secret: bytes, about: bytes, what: bytes, chance: Fraction) -> bool:
    drawn = _number(secret, about, what)
    return drawn * chance.denominator < chance.numerator << (8 * _DRAWN_BYTES)


def _number(secret: bytes, about: bytes, what: bytes) -> int:
    """A number that is drawn: uniform below 2^128."""
    text = b"distro-node check draw\0" + what + b"\0" + secret + about
    return int.from_bytes(content_id(text)[:_DRAWN_BYTES], "big")
