"""Signed envelopes: one small message of one kind, in one swarm, by one peer.

What `open_envelope` returns was signed by its sender for exactly this kind and this swarm; bytes
that were changed, cut, extended, or signed for another use raise `EnvelopeError`. This module does not
know what the body means, nor whether it is fresh: rounds and nonces belong in the body.

The bytes of an envelope; k is the length of the kind, n that of the body, numbers are big-endian:

    offset     bytes   what
    0          1       0xD1, which begins neither text nor a MessagePack list or map
    1          1       version, 1
    2          1       k, 1 to 32
    3          k       kind, ASCII: a lower-case letter, then lower-case letters, digits, "_", "-"
    3+k        32      swarm-id
    35+k       32      sender's Ed25519 public key
    67+k       4       n
    71+k       n       body
    71+k+n     64      Ed25519 signature of `signing_bytes(kind, swarm, body)`

Nothing follows, and the encoding is unique: the same fields never have two encodings.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass

from .identity import PEER_ID_BYTES, SIGNATURE_BYTES, Identity, PeerId
from .identity import verify as verify_signature

MAX_ENVELOPE_BYTES = 256 << 10
"""Default maximum size of an envelope in bytes. Gossip silently drops messages over 1 MiB; a quarter of
that leaves room for several in one RPC."""

SWARM_ID_BYTES = 32

Verify = Callable[[str, bytes, PeerId, bytes, bytes], bool]
"""(kind, swarm, sender, body, signature) → whether the signature is valid, as `verify_detached`."""

_VERSION = 1
_HEAD = bytes([0xD1, _VERSION])
# The peer's key also signs for libp2p (noise, pubsub, peer records). None of those messages begins with
# this text, so a signature made for libp2p is invalid here, and vice versa.
_DOMAIN = b"distro-node envelope\0" + bytes([_VERSION])
_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_LENGTH_BYTES = 4
_FIXED_BYTES = len(_HEAD) + 1 + SWARM_ID_BYTES + PEER_ID_BYTES + _LENGTH_BYTES + SIGNATURE_BYTES


class EnvelopeError(Exception):
    """Error: bytes are not a valid envelope. That is the fault of the peer that sent them.

    `reason` is `oversized`, `malformed`, `wrong_swarm` or `bad_signature`, fit for a metric label;
    the message is for people.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A signed message. `open_envelope` makes only verified ones."""

    kind: str
    swarm: bytes
    """The swarm-id, 32 bytes."""
    sender: PeerId
    body: bytes
    signature: bytes
    """64 bytes. `verify_detached` checks it against the other fields."""

    def encode(self) -> bytes:
        """Return the envelope's bytes, as `open_envelope` takes them: 135 + len(kind) bytes more than
        the body."""
        return b"".join(
            (
                _HEAD,
                bytes([len(self.kind)]),
                self.kind.encode("ascii"),
                self.swarm,
                self.sender,
                len(self.body).to_bytes(_LENGTH_BYTES, "big"),
                self.body,
                self.signature,
            )
        )


def signing_bytes(kind: str, swarm: bytes, body: bytes) -> bytes:
    """Return what is signed: domain and version, length of kind, kind, swarm-id, body.

    All parts but the last have a fixed or a stated length, so messages that differ in kind, swarm-id or
    body never give the same bytes. The sender is not among them because Ed25519 hashes the public key
    itself.

    Raises `ValueError` for a kind or a swarm-id that no envelope can hold.
    """
    if not _KIND.fullmatch(kind):
        raise ValueError(f"{kind!r} is not a valid kind of envelope")
    if len(swarm) != SWARM_ID_BYTES:
        raise ValueError(f"a swarm-id has {SWARM_ID_BYTES} bytes, not {len(swarm)}")
    return b"".join((_DOMAIN, bytes([len(kind)]), kind.encode("ascii"), swarm, body))


def sign(
    identity: Identity,
    kind: str,
    swarm: bytes,
    body: bytes,
    *,
    max_bytes: int = MAX_ENVELOPE_BYTES,
) -> Envelope:
    """Sign `body`.

    Raises `ValueError` if the envelope would be over `max_bytes` (no peer would open it), and whatever
    `signing_bytes` raises.
    """
    signature = identity.sign(signing_bytes(kind, swarm, body))
    size = _FIXED_BYTES + len(kind) + len(body)
    if size > max_bytes:
        raise ValueError(f"an envelope of {size} bytes exceeds the limit of {max_bytes}")
    return Envelope(kind=kind, swarm=swarm, sender=identity.peer, body=body, signature=signature)


def seal(
    identity: Identity,
    kind: str,
    swarm: bytes,
    body: bytes,
    *,
    max_bytes: int = MAX_ENVELOPE_BYTES,
) -> bytes:
    """Return the bytes of a signed envelope around `body`. Raises what `sign` raises."""
    return sign(identity, kind, swarm, body, max_bytes=max_bytes).encode()


def verify_detached(kind: str, swarm: bytes, sender: PeerId, body: bytes, signature: bytes) -> bool:
    """Whether `signature` is the one of `sender` for an envelope of these fields.

    For signatures kept without their envelope, as in certificates. Never raises: a kind or swarm-id
    that no envelope can hold is simply not signed.
    """
    try:
        message = signing_bytes(kind, swarm, body)
    except ValueError:
        return False
    return verify_signature(sender, message, signature)


def open_envelope(
    data: bytes,
    *,
    swarm: bytes,
    max_bytes: int = MAX_ENVELOPE_BYTES,
    verify: Verify = verify_detached,
) -> Envelope:
    """Check `data` whole and return the envelope in it. `verify` checks the signature.

    Raises `EnvelopeError` and nothing else, with the reason `oversized` (more than `max_bytes`),
    `malformed` (not the layout above), `wrong_swarm`, or `bad_signature`; the costly check is last.
    """
    if len(data) > max_bytes:
        raise EnvelopeError(
            "oversized", f"an envelope of {len(data)} bytes exceeds the limit of {max_bytes}"
        )
    envelope = _parse(data)
    if envelope.swarm != swarm:
        raise EnvelopeError("wrong_swarm", f"a {envelope.kind} of another swarm")
    if not verify(envelope.kind, swarm, envelope.sender, envelope.body, envelope.signature):
        raise EnvelopeError("bad_signature", f"the signature of a {envelope.kind} is not valid")
    return envelope


def _parse(data: bytes) -> Envelope:
    if not data.startswith(_HEAD):
        raise EnvelopeError("malformed", f"not an envelope of version {_VERSION}")
    reader = io.BytesIO(data)
    reader.seek(len(_HEAD))
    # Reading past the end gives fewer bytes; the check of the whole length below detects that.
    kind_length = int.from_bytes(reader.read(1), "big")
    # latin-1 gives every byte a character, so this cannot fail and the pattern decides.
    kind = reader.read(kind_length).decode("latin-1")
    if not _KIND.fullmatch(kind):
        raise EnvelopeError("malformed", "the kind is not a short lower-case word")
    swarm = reader.read(SWARM_ID_BYTES)
    sender = PeerId(reader.read(PEER_ID_BYTES))
    body_length = int.from_bytes(reader.read(_LENGTH_BYTES), "big")
    if len(data) != _FIXED_BYTES + kind_length + body_length:
        raise EnvelopeError("malformed", "the envelope's length differs from the one it states")
    body = reader.read(body_length)
    signature = reader.read(SIGNATURE_BYTES)
    return Envelope(kind=kind, swarm=swarm, sender=sender, body=body, signature=signature)
