"""Relay request: the signed announcement of an update, as a member sends it to a relay.

It states which peer the relay can fetch the update from and how long the update is, and proves that its
author announced it in that swarm. The relay cannot know whether the author is a member.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...crypto.envelope import SWARM_ID_BYTES, Envelope
from ...crypto.identity import PeerId
from .encoding import encode
from .manifest import SwarmId
from .messages import Announcement, decode_message
from .sealed import open_sealed

MAX_RELAY_REQUEST_BYTES = 512
"""An announcement and the envelope around it take about 320 bytes."""

_KIND = "announcement"


@dataclass(frozen=True)
class RelayRequest:
    """An update that a relay may pass on."""

    swarm: SwarmId
    author: PeerId
    announcement: Announcement
    sealed: bytes
    """What to send to the relay: the swarm-id and the author's envelope."""


def relay_request(
    swarm: SwarmId, author: PeerId, announcement: Announcement, signature: bytes
) -> RelayRequest:
    """Return the request for an announced update, built from a stored announcement."""
    envelope = Envelope(
        kind=_KIND, swarm=swarm, sender=author, body=encode(announcement), signature=signature
    )
    return RelayRequest(swarm, author, announcement, swarm + envelope.encode())


def open_relay_request(data: bytes) -> RelayRequest:
    """Check a request and decode it. Raises `ProtocolError`."""
    swarm = SwarmId(data[:SWARM_ID_BYTES])
    envelope = open_sealed(
        data[SWARM_ID_BYTES:], swarm, _KIND, "an announcement", max_bytes=MAX_RELAY_REQUEST_BYTES
    )
    announcement = decode_message(envelope)
    assert isinstance(announcement, Announcement)  # its kind says so
    return RelayRequest(swarm, envelope.sender, announcement, data)
