"""Secrets of one member for the randomness beacon (`chain/beacon`) and for its audits (`chain/audits`).

With each announcement a member commits to two secrets, which it derives from its key: no peer without
the key can foresee them, nor derive one from the other, and a restarted member derives the same ones.
A few rounds later one of them draws the member's audit, and the audit's result reveals it. When the
member leads a round some rounds after that, it reveals the other one.
"""

from __future__ import annotations

from collections.abc import Callable

from ...crypto.envelope import Envelope
from ...crypto.hashing import content_id
from ...crypto.identity import PeerId
from ..chain.beacon import REVEALED_AFTER, Beacon
from ..chain.commitments import SECRET_BYTES, Purpose, SecretPair
from ..chain.ledger import Ledger
from ..wire.encoding import encode
from ..wire.messages import RecordId

Sign = Callable[[str, bytes], Envelope]
"""(kind, body) → the signed envelope of this member."""


class BeaconSecrets:
    """Secrets of one member, by round."""

    def __init__(self, me: PeerId, sign: Sign) -> None:
        self._me = me
        self._sign = sign

    def of_round(self, round: int, parent: RecordId) -> SecretPair:
        """Return the secrets of a round after the record `parent`. Only this member's key can make them,
        and they are the same each time."""
        return SecretPair(
            beacon=self._secret("beacon_secret", round, parent),
            audit=self._secret("audit_secret", round, parent),
        )

    def commitment(self, round: int, ledger: Ledger) -> bytes:
        """Return the commitment to announce in a round at the tip; empty if nothing is drawn."""
        if not ledger.manifest.draws_lots:
            return b""
        return self.of_round(round, ledger.head).commitment

    def reveal(self, ledger: Ledger) -> bytes:
        """Return the opening for a record of the next round that this member proposes; empty if none is
        due."""
        round_ = len(ledger)
        beacon = ledger.find(Beacon)
        if beacon is None or not beacon.commitment_due(self._me, round_):
            return b""
        return self.opening("beacon", round_ - REVEALED_AFTER, ledger)

    def opening(self, purpose: Purpose, round: int, ledger: Ledger) -> bytes:
        """Return what reveals one of the secrets to which this member committed in a decided round."""
        return self.of_round(round, ledger.parent(round)).opening(purpose)

    def _secret(self, kind: str, round: int, parent: RecordId) -> bytes:
        made = self._sign(kind, encode([round, parent]))
        return content_id(made.signature)[:SECRET_BYTES]
