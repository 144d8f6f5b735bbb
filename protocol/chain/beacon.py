"""Randomness beacon: one unpredictable value a round, by commit and reveal of the leaders' secrets.

A record's id could not serve as this value. Its leader can vary the record at no cost (the tokens in its
own announcement, the peers that it admits) and try until the id suits it, and knows the secrets of
members that collude with it. So everything that is drawn (audits, the auditors of a dispute, committees)
is drawn by the beacon instead.

Each update commits its author to a secret for the beacon (`commitments`). The leader of a round reveals
in its record the secret to which it committed `REVEALED_AFTER` rounds before, and the beacon is the hash
of the previous beacon and that secret. The leader has nothing to choose: a record with another secret is
not valid, nor one without a secret, unless the leader had no update in that round. The beacon depends on
nothing else in the record. Nothing else that the leader sends reveals the secret: its audit is drawn by
another one.

*Bias.* The leader of a round is the first to know what beacon its secret gives, and may let its slot
pass: then the leader of the next slot reveals. So each slot led by colluding members gives them one
more choice and costs them the slot (`leaders`). docs/protocol.md gives the resulting bound.

*What stays hidden.* No member knows the beacon of a round before the last honest leader up to that round
reveals. So a commitment, or an entry in a record, made some rounds before the beacon that decides its
effect was chosen blindly, unless colluding members led all of these rounds.

A signature over the round's number in place of the secret would leave a choice: an Ed25519 key can sign
a message in many ways, since the signer picks the nonce.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...crypto.envelope import Verify
from ...crypto.hashing import CONTENT_ID_BYTES, ContentId, content_id
from ...crypto.identity import PeerId
from ..wire.errors import ProtocolError
from ..wire.manifest import Manifest
from ..wire.messages import Record
from ..wire.saved_state import Restorable, fields, ids
from .chain_index import ChainView
from .commitments import opens, secret_of
from .leaders import LeaderHistory

REVEALED_AFTER = 8
"""Rounds from the update that commits its author to a secret to the record that reveals it."""


class Beacon(Restorable):
    """Beacons of a ledger's rounds, extended record by record."""

    STATE = fields(_values=ids(1))

    def __init__(self, chain: ChainView, values: Iterable[ContentId] = ()) -> None:
        self._chain = chain
        # From that of round -1 on.
        self._values = list(values) or [next_value(chain.manifest.swarm, b"")]

    def __getitem__(self, round: int) -> ContentId:
        """Return the beacon of a round whose record is decided. The beacon of round -1 is a public
        constant of the swarm."""
        if not -1 <= round < len(self._values) - 1:
            raise IndexError(f"no beacon of round {round}")
        return self._values[round + 1]

    def commitment_due(self, leader: PeerId, round: int) -> bytes:
        """Return the commitment whose secret the leader of the next round has to reveal; empty if it
        reveals none."""
        if round - REVEALED_AFTER < 1:
            return b""
        entry = self._chain.record(round - REVEALED_AFTER).update_by(leader)
        return b"" if entry is None else entry.commitment

    def follow(self, record: Record) -> None:
        """Add the beacon of the last `record`, which must have been checked."""
        self._values.append(next_value(self._values[-1], secret_of(record.opening)))

    def before(self, length: int, chain: ChainView) -> Beacon:
        """Return the beacons of the first `length` records, as an index of `chain`."""
        return Beacon(chain, self._values[: length + 1])


def next_value(value: bytes, secret: bytes) -> ContentId:
    """Return the beacon that follows `value` if the leader reveals this secret."""
    return content_id(b"distro-node beacon\0" + value + secret)


def check_commitment(announced: bytes, manifest: Manifest) -> None:
    """Check that an update has a commitment if the swarm draws something, and none otherwise. Raises
    `ProtocolError` (`audit`)."""
    if len(announced) != (CONTENT_ID_BYTES if manifest.draws_lots else 0):
        raise ProtocolError("audit", f"an update with a commitment of {len(announced)} bytes")


def check_reveal(record: Record, chain: ChainView, _verify: Verify) -> None:
    """Check the commitments of the next record's updates and the secret that the leader of its slot
    reveals. Raises `ProtocolError` (`audit`, `record`)."""
    for update in record.updates:
        check_commitment(update.commitment, chain.manifest)
    beacon = chain.find(Beacon)
    leader = chain.index(LeaderHistory).leaders(record.round)[record.slot]
    due = b"" if beacon is None else beacon.commitment_due(leader, record.round)
    if not due and record.opening:
        raise ProtocolError("record", "a secret to which its leader had not committed")
    if due and not opens(record.opening, "beacon", due):
        raise ProtocolError(
            "record", "its leader does not reveal the secret to which it had committed"
        )
