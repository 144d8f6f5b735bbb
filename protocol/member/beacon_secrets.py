"""Secrets of one member for the randomness beacon (`chain/beacon`).

With each announcement a member commits to a secret, which it derives from its key: no peer without the
key can foresee it, and a restarted member derives the same one. When it leads a round some rounds later,
it reveals the secret.
"""

from __future__ import annotations

from collections.abc import Callable

from ...crypto.envelope import Envelope
from ...crypto.hashing import content_id
from ...crypto.identity import PeerId
from ..chain.beacon import REVEALED_AFTER, SECRET_BYTES, Beacon, commitment
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

    def secret(self, round: int, parent: RecordId) -> bytes:
        """Return the secret of a round after the record `parent`. Only this member's key can make it,
        and it is the same each time."""
        made = self._sign("secret", encode([round, parent]))
        return content_id(made.signature)[:SECRET_BYTES]

    def commitment(self, round: int, ledger: Ledger) -> bytes:
        """Return the commitment to announce in a round at the tip; empty if nothing is drawn."""
        if not ledger.manifest.draws_lots:
            return b""
        return commitment(self.secret(round, ledger.head))

    def reveal(self, ledger: Ledger) -> bytes:
        """Return the secret to reveal in a record of the next round that this member proposes; empty if
        none is due."""
        round_ = len(ledger)
        beacon = ledger.find(Beacon)
        if beacon is None or not beacon.commitment_due(self._me, round_):
            return b""
        base = round_ - REVEALED_AFTER
        return self.secret(base, ledger.parent(base))
