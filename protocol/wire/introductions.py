"""How peers of a swarm hear of each other: signed peer records, and who keeps them.

A peer says of itself "I am in this swarm and can be dialled there": its peer record, as libp2p calls it,
signed for one swarm. A peer that introduces others keeps what each of them said in person, for a short
while, and hands it on. It never keeps one on a third party's word: two peers would keep a dead one alive
between them for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from ...crypto.envelope import EnvelopeError, open_envelope, seal
from ...crypto.hashing import content_id
from ...crypto.identity import Identity, PeerId, peer_text
from .bounded import Bounded
from .encoding import decode, encode
from .errors import ProtocolError
from .manifest import SwarmId
from .structure import U63, Length

MAX_ADDRESSES = 8
MAX_ADDRESS_CHARACTERS = 256
"""An address through a relay names two peers and has 121 characters and the relay's name."""
MAX_PEER_RECORD_BYTES = 3072
"""Eight of the longest addresses, the envelope around them, and some room."""

MAX_PEER_RECORDS = 64
"""In one answer: enough to fill a node's connections."""

MAX_REQUEST_BYTES = MAX_PEER_RECORD_BYTES + 128
MAX_RESPONSE_BYTES = MAX_PEER_RECORDS * (MAX_PEER_RECORD_BYTES + 8)

PEER_RECORD_SECONDS = 120.0
"""How long an introduction holds; peers repeat theirs well within it."""

MAX_PEERS_PER_SWARM = 512
MAX_SWARMS = 64
# Few honest peers are in more than one; without this one peer could push all swarms out.
MAX_SWARMS_PER_PEER = 4

_KIND = "peer"

Swarm = Annotated[bytes, Length(32, 32)]
PeerRecordBytes = Annotated[bytes, Length(1, MAX_PEER_RECORD_BYTES)]


@dataclass(frozen=True)
class PeerRecord:
    """What a peer says of itself; `sealed` is its signed envelope."""

    peer: PeerId
    swarm: SwarmId
    addresses: tuple[str, ...]
    """Multiaddresses, each ending in `/p2p/` and the peer."""
    number: int
    """Larger in each newer one of the peer, over restarts too."""
    sealed: bytes


@dataclass(frozen=True)
class _Body:
    addresses: Annotated[
        tuple[Annotated[str, Length(1, MAX_ADDRESS_CHARACTERS)], ...], Length(0, MAX_ADDRESSES)
    ]
    number: U63


@dataclass(frozen=True)
class IntroductionRequest:
    """ "Whom do you know in this swarm? I am …" A peer that only looks leaves its own out."""

    swarm: Swarm
    record: PeerRecordBytes | None

    def encode(self) -> bytes:
        """The bytes for `decode_request`."""
        return encode(self)


@dataclass(frozen=True)
class IntroductionResponse:
    """The sealed peer records of some peers of the swarm."""

    records: Annotated[tuple[PeerRecordBytes, ...], Length(0, MAX_PEER_RECORDS)]

    def encode(self) -> bytes:
        """The bytes for `decode_response`."""
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
    try:
        envelope = open_envelope(data, swarm=swarm, max_bytes=MAX_PEER_RECORD_BYTES)
    except EnvelopeError as error:
        raise ProtocolError(error.reason, str(error)) from None
    if envelope.kind != _KIND:
        raise ProtocolError("invalid", f"a {envelope.kind} where a peer record is expected")
    body = decode(_Body, envelope.body, max_bytes=MAX_PEER_RECORD_BYTES)
    ending = "/p2p/" + peer_text(envelope.sender)
    for address in body.addresses:
        # Nobody may send others to a third peer, or write to their terminals.
        if not (address.startswith("/") and address.endswith(ending) and _printable(address)):
            raise ProtocolError("invalid", "a peer record with an address that is not its peer's")
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


class Registry:
    """The peer records of those who introduced themselves, by swarm. `now` is any steady clock."""

    def __init__(self) -> None:
        self._swarms: dict[SwarmId, Bounded[PeerId, tuple[PeerRecord, float]]] = {}

    def add(self, record: PeerRecord, now: float) -> PeerRecord | None:
        """Keep what a peer has presented of itself. If a newer record is known, that is kept instead
        and returned: its peer must go on from there to be believed.

        Beyond the limits the longest unheard peer of the swarm goes, or the swarm with the fewest peers:
        a few keys with many swarms of their own must not push out one that people are in.
        """
        self.expire(now)
        peers = self._swarms.get(record.swarm, Bounded(MAX_PEERS_PER_SWARM))
        known = peers.get(record.peer)
        if known is not None and known[0].number > record.number:
            return known[0]
        # The order of both tables is that of the last introduction.
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
        """The swarm with the fewest peers, the longest unheard of several. A peer of several swarms
        counts in each for a part."""
        swarms = Counter(peer for members in self._swarms.values() for peer in members)
        return min(
            self._swarms, key=lambda swarm: sum(1 / swarms[peer] for peer in self._swarms[swarm])
        )

    def peer_records(self, swarm: SwarmId, now: float) -> list[PeerRecord]:
        """All peer records of a swarm that still hold, the longest unheard first."""
        self.expire(now)
        peers = self._swarms.get(swarm)
        return [record for record, _ in peers.values()] if peers else []

    def sample(self, swarm: SwarmId, now: float, salt: bytes, but: PeerId) -> list[PeerRecord]:
        """At most `MAX_PEER_RECORDS` of a swarm without the peer `but`, chosen by `salt`."""
        others = [record for record in self.peer_records(swarm, now) if record.peer != but]
        if len(others) > MAX_PEER_RECORDS:
            others.sort(key=lambda record: content_id(salt + record.peer))
        return others[:MAX_PEER_RECORDS]

    def swarms(self) -> int:
        """How many swarms there are peer records of."""
        return len(self._swarms)

    def expire(self, now: float) -> None:
        """Drop the peer records that no longer hold."""
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
