"""Opening of signed envelopes that arrive outside of gossip: peer records, requests, list entries."""

from __future__ import annotations

from ...crypto.envelope import Envelope, EnvelopeError, open_envelope
from .errors import ProtocolError
from .manifest import SwarmId


def open_sealed(data: bytes, swarm: SwarmId, kind: str, what: str, *, max_bytes: int) -> Envelope:
    """Check a sealed envelope of this swarm and kind, and return it with its body undecoded.

    `what` names the expected content, with its article. Raises `ProtocolError`.
    """
    try:
        envelope = open_envelope(data, swarm=swarm, max_bytes=max_bytes)
    except EnvelopeError as error:
        raise ProtocolError(error.reason, str(error)) from None
    if envelope.kind != kind:
        raise ProtocolError("invalid", f"expected {what}, got a {envelope.kind}")
    return envelope
