"""The beacon: a number for each round that nobody can choose, from secrets that leaders reveal.

A record's id is no such number. Its leader may vary the record for nothing (what its own announcement
says of tokens, whom it lets in) and try until the id suits it, and its friends have told it all their
secrets. So whatever is drawn (who looks at whom, who is called to a dispute, who sits in a panel) is
drawn by the beacon instead.

With each update its author binds itself to a secret. Who leads a round reveals with its record the
secret to which it was bound `REVEALED_AFTER` rounds before, and the beacon is the hash of the one before
and that secret. Nothing else can be said in its place: a record with another secret is not valid, nor
one without, unless the leader had no update in that round. Nothing else of the record is in it.

*What a liar can do.* The leader of a round knows before anybody else what its secret would make of the
beacon, and may let its slot pass: then the leader of the next slot reveals. So each slot that liars lead
gives them one choice more, and costs them the slot (`leaders`). docs/protocol.md says what it comes to.

*What it cannot do.* Nobody knows the beacon of a round before the last honest leader up to that round
reveals. So whoever binds itself to something, or has a leader put something into a record, some rounds
before those whose beacon draws what becomes of it, has chosen blindly, unless liars led all of these.

A signature over the round's number in place of the secret would be something to choose: an Ed25519 key
can sign a message in many ways, since the signer picks the nonce.
"""

from __future__ import annotations

from collections.abc import Callable

from ...crypto.hashing import CONTENT_ID_BYTES, ContentId, content_id
from ...crypto.identity import PeerId
from ..checks.draw import commitment
from ..wire.errors import ProtocolError
from ..wire.manifest import Manifest
from ..wire.messages import Record

REVEALED_AFTER = 8
"""Rounds from the update that binds somebody to a secret to the record with which it reveals it. By then
the look that the same secret draws is over, with `overlap` as well (`checked`)."""


class Beacon:
    """The beacons of a ledger's rounds, to be grown by one record."""

    def __init__(self, swarm: bytes, records: Callable[[int], Record]) -> None:
        self._records = records
        self._values = [next_value(swarm, b"")]

    def __getitem__(self, round: int) -> ContentId:
        """That of a round whose record is here: it is known once the record is decided. That of round -1
        is known to everybody."""
        if not -1 <= round < len(self._values) - 1:
            raise IndexError(f"no beacon of round {round}")
        return self._values[round + 1]

    def bound(self, leader: PeerId, round: int) -> bytes:
        """What the secret hashes to that somebody has to reveal who leads the next round; nothing if it
        reveals none."""
        if round - REVEALED_AFTER < 1:
            return b""
        entry = self._records(round - REVEALED_AFTER).update_by(leader)
        return b"" if entry is None else entry.commitment

    def follow(self, record: Record) -> None:
        """Add that of the last `record`, which must have been checked."""
        self._values.append(next_value(self._values[-1], record.secret))

    def before(self, length: int, records: Callable[[int], Record]) -> Beacon:
        """That of the first `length` records, in a ledger with these."""
        copy = Beacon.__new__(Beacon)
        copy._records, copy._values = records, self._values[: length + 1]
        return copy


def next_value(value: bytes, secret: bytes) -> ContentId:
    """The beacon after this one, if the leader reveals this secret."""
    return content_id(b"distro-node beacon\0" + value + secret)


def beacon_of(manifest: Manifest, records: Callable[[int], Record]) -> Beacon | None:
    """That of a new ledger; None where nothing is drawn."""
    draws = manifest.checks is not None or manifest.speakers is not None
    return Beacon(manifest.swarm, records) if draws else None


def check_commitment(bound_to: bytes, beacon: Beacon | None) -> None:
    """Check what an update binds its author to: a secret where something is drawn, and nothing
    elsewhere. Raises `ProtocolError` (`look`)."""
    if len(bound_to) != (0 if beacon is None else CONTENT_ID_BYTES):
        raise ProtocolError("look", f"an update that binds its author to {len(bound_to)} bytes")


def check_reveal(record: Record, beacon: Beacon | None, leader: PeerId) -> None:
    """Check what the updates of the next record bind to, and what the leader of its slot reveals.
    Raises `ProtocolError` (`look`, `record`)."""
    for update in record.updates:
        check_commitment(update.commitment, beacon)
    bound = b"" if beacon is None else beacon.bound(leader, record.round)
    if not bound and record.secret:
        raise ProtocolError("record", "a secret to which its leader was not bound")
    if bound and (not record.secret or commitment(record.secret) != bound):
        raise ProtocolError("record", "its leader does not reveal the secret to which it was bound")
