"""Introductions: signed peer records, by which the peers of a swarm find each other, and their registry.

A peer states in its record (libp2p's term), signed for one swarm, that it belongs to the swarm and where
it can be dialled. A peer that introduces others keeps the records that it received from their owners,
for a short while, and passes them on. It never keeps one received from a third party: otherwise two
peers would keep a dead peer's record alive between them for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from ...crypto.envelope import seal
from ...crypto.hashing import content_id
from ...crypto.identity import Identity, PeerId, peer_text
from ..util.bounded_dict import BoundedTable
from .encoding import decode, encode
from .errors import ProtocolError
from .manifest import SwarmId
from .sealed import open_sealed
from .structure import U63, Length, Range

MAX_ADDRESSES = 8
MAX_ADDRESS_CHARACTERS = 256
"""Maximum length of an address. One through a relay names two peers: it has 121 characters plus the
relay's host name."""
MAX_PEER_RECORD_BYTES = 3072
"""Size of eight of the longest addresses and the envelope around them, with some margin."""

MAX_PEER_RECORDS = 64
"""Maximum number in one answer: enough for all connections of a node."""

MAX_REQUEST_BYTES = MAX_PEER_RECORD_BYTES + 128
MAX_RESPONSE_BYTES = MAX_PEER_RECORDS * (MAX_PEER_RECORD_BYTES + 8)
MAX_VERSION_BYTES = 16

PEER_RECORD_SECONDS = 120.0
"""Lifetime of a peer record. Peers send a new one well before that."""

MAX_PEERS_PER_SWARM = 512
MAX_SWARMS = 64
# Few honest peers are in more than one swarm. Without this limit one peer could evict all swarms.
MAX_SWARMS_PER_PEER = 4

_KIND = "peer"

Swarm = Annotated[bytes, Length(32, 32)]
PeerRecordBytes = Annotated[bytes, Length(1, MAX_PEER_RECORD_BYTES)]


@dataclass(frozen=True)
class PeerRecord:
    """A peer's statement about itself; `sealed` is its signed envelope."""

    peer: PeerId
    swarm: SwarmId
    addresses: tuple[str, ...]
    """Multiaddrs, each ending in `/p2p/` and the peer."""
    number: int
    """It increases with each new record of the peer, even across restarts."""
    sealed: bytes


@dataclass(frozen=True)
class _Body:
    addresses: Annotated[
        tuple[Annotated[str, Length(1, MAX_ADDRESS_CHARACTERS)], ...], Length(0, MAX_ADDRESSES)
    ]
    number: U63


@dataclass(frozen=True)
class IntroductionRequest:
    """Request for the peers of a swarm, with the sender's own record, which a mere observer omits."""

    swarm: Swarm
    record: PeerRecordBytes | None

    def encode(self) -> bytes:
        """Return the bytes for `decode_request`."""
        return encode(self)


@dataclass(frozen=True)
class IntroductionResponse:
    """Sealed records of some peers of the swarm."""

    records: Annotated[tuple[PeerRecordBytes, ...], Length(0, MAX_PEER_RECORDS)]

    def encode(self) -> bytes:
        """Return the bytes for `decode_response`."""
        return encode(self)


@dataclass(frozen=True)
class VersionMessage:
    """Protocol version that a program supports.

    This format is the same in all versions, so that any two programs understand it.
    """

    version: Annotated[int, Range(0, 2**31)]

    def encode(self) -> bytes:
        """Return the bytes for `decode_version_message`."""
        return encode(self)


def seal_peer_record(
    identity: Identity, swarm: SwarmId, addresses: Iterable[str], number: int
) -> bytes:
    """Sign a peer record of `identity` with the first `MAX_ADDRESSES` of its addresses."""
    ending = "/p2p/" + peer_text(identity.peer)
    fitting = [
        address
        for address in addresses
        if address.endswith(ending) and len(address) <= MAX_ADDRESS_CHARACTERS
    ]
    body = encode(_Body(addresses=tuple(fitting[:MAX_ADDRESSES]), number=number))
    return seal(identity, _KIND, swarm, body, max_bytes=MAX_PEER_RECORD_BYTES)


def open_peer_record(data: bytes, swarm: SwarmId) -> PeerRecord:
    """Check a sealed peer record of this swarm and decode it. Raises `ProtocolError`."""
    envelope = open_sealed(data, swarm, _KIND, "a peer record", max_bytes=MAX_PEER_RECORD_BYTES)
    body = decode(_Body, envelope.body, max_bytes=MAX_PEER_RECORD_BYTES)
    ending = "/p2p/" + peer_text(envelope.sender)
    for address in body.addresses:
        # A record must not direct others to a third peer, or put control characters on their terminals.
        if not (address.startswith("/") and address.endswith(ending) and _printable(address)):
            raise ProtocolError("invalid", "a peer record with an address of another peer")
    return PeerRecord(
        peer=envelope.sender,
        swarm=swarm,
        addresses=body.addresses,
        number=body.number,
        sealed=data,
    )


def decode_request(data: bytes) -> IntroductionRequest:
    """Decode a request; the peer record in it is still sealed. Raises `ProtocolError`."""
    return decode(IntroductionRequest, data, max_bytes=MAX_REQUEST_BYTES)


def decode_response(data: bytes) -> IntroductionResponse:
    """Decode a response; the peer records in it are still sealed. Raises `ProtocolError`."""
    return decode(IntroductionResponse, data, max_bytes=MAX_RESPONSE_BYTES)


def decode_version_message(data: bytes) -> VersionMessage:
    """Decode the version that a peer supports. Raises `ProtocolError`."""
    return decode(VersionMessage, data, max_bytes=MAX_VERSION_BYTES)


class Registry:
    """Peer records by swarm, as received from their owners. `now` is any steady clock."""

    def __init__(self) -> None:
        self._swarms: dict[SwarmId, BoundedTable[PeerId, tuple[PeerRecord, float]]] = {}

    def add(self, record: PeerRecord, now: float) -> PeerRecord | None:
        """Keep a record received from its owner. If a record with a higher number is known, keep and
        return that one instead: the owner must continue from its number.

        If there are too many peers in the swarm, the one unheard for longest is dropped; if there are
        too many swarms, the one with the fewest peers, because a few keys with many swarms of their own
        must not evict a swarm with real members.
        """
        self.expire(now)
        peers = self._swarms.get(record.swarm, BoundedTable(MAX_PEERS_PER_SWARM))
        known = peers.get(record.peer)
        if known is not None and known[0].number > record.number:
            return known[0]
        # Both tables are in the order of the last introduction.
        self._swarms.pop(record.swarm, None)
        self._swarms[record.swarm] = peers
        peers[record.peer] = (record, now)
        elsewhere = [swarm for swarm, members in self._swarms.items() if record.peer in members]
        for swarm in elsewhere[:-MAX_SWARMS_PER_PEER]:
            self._remove(swarm, record.peer)
        if len(self._swarms) > MAX_SWARMS:
            del self._swarms[self._emptiest()]
        return None

    def _emptiest(self) -> SwarmId:
        """Return the swarm with the fewest peers; of several such swarms, the one unheard for longest. A
        peer of n swarms counts as 1/n in each."""
        swarms = Counter(peer for members in self._swarms.values() for peer in members)
        return min(
            self._swarms, key=lambda swarm: sum(1 / swarms[peer] for peer in self._swarms[swarm])
        )

    def peer_records(self, swarm: SwarmId, now: float) -> list[PeerRecord]:
        """Return all valid peer records of a swarm, the one unheard for longest first."""
        self.expire(now)
        peers = self._swarms.get(swarm)
        return [record for record, _ in peers.values()] if peers else []

    def sample(self, swarm: SwarmId, now: float, salt: bytes, exclude: PeerId) -> list[PeerRecord]:
        """Return at most `MAX_PEER_RECORDS` records of a swarm's peers, except the peer `exclude`. If
        there are more, a hash with `salt` chooses them."""
        others = [record for record in self.peer_records(swarm, now) if record.peer != exclude]
        if len(others) > MAX_PEER_RECORDS:
            others.sort(key=lambda record: content_id(salt + record.peer))
        return others[:MAX_PEER_RECORDS]

    def swarms(self) -> int:
        """Return the number of swarms with peer records."""
        return len(self._swarms)

    def expire(self, now: float) -> None:
        """Drop the expired peer records."""
        for swarm in list(self._swarms):
            peers = self._swarms[swarm]
            while peers:
                peer = next(iter(peers))
                if peers[peer][1] + PEER_RECORD_SECONDS > now:
                    break
                del peers[peer]
            if not peers:
                del self._swarms[swarm]

    def _remove(self, swarm: SwarmId, peer: PeerId) -> None:
        del self._swarms[swarm][peer]
        if not self._swarms[swarm]:
            del self._swarms[swarm]


def _printable(text: str) -> bool:
    return text.isascii() and text.isprintable()
