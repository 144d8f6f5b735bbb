"""Sync protocol: everything that gossip may have lost can be requested from a peer.

A request names the round that the requester has reached. The response holds the ledger entries from
there on, as many as fit and as the requester wants, or, if that round is not decided yet, its signed
messages. A request may also name rounds whose record ids are wanted, so that chains are compared
without being transferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from ...crypto.envelope import Envelope
from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..wire.encoding import decode
from ..wire.errors import ProtocolError
from ..wire.messages import Decided, RecordId
from ..wire.structure import U63, Length
from .entry_store import MAX_DECIDED_BYTES, decode_decided
from .ledger import Ledger

SYNC_PROTOCOL = "/distro/sync/2"

MAX_SYNC_REQUEST_BYTES = 512
MAX_SYNC_RESPONSE_BYTES = 8 << 20
# Entries are added until their bytes exceed this; one more entry of the largest size still fits.
_ENTRIES_BYTES = MAX_SYNC_RESPONSE_BYTES - MAX_DECIDED_BYTES - (1 << 20)
_MESSAGES_BYTES = 1 << 20

MAX_PROBES = 32
"""Most record ids in one response. With ids at doubling distances, two responses locate the fork in a
chain of a thousand rounds, and three in a chain of any length."""

MAX_ENTRIES = 65_536
"""Most entries in one response."""


@dataclass(frozen=True)
class SyncRequest:
    """Request of a node at `round` of `swarm`, for the record ids of the rounds in `probes` and at most
    `most` entries."""

    swarm: Annotated[bytes, Length(32, 32)]
    round: U63
    probes: Annotated[tuple[U63, ...], Length(0, MAX_PROBES)]
    most: U63


@dataclass(frozen=True)
class SyncResponse:
    """The responder's height (its number of decided rounds); the ids of the requested records that are
    decided, in the order of the request; ledger entries; envelopes."""

    height: U63
    ids: Annotated[tuple[Annotated[bytes, Length(32, 32)], ...], Length(0, MAX_PROBES)]
    entries: Annotated[tuple[bytes, ...], Length(0, 65_536)]
    envelopes: Annotated[tuple[bytes, ...], Length(0, 65_536)]


@dataclass(frozen=True)
class SyncQuery:
    """A request and its recipient: the fields of a `SyncRequest`."""

    peer: PeerId
    round: int
    probes: tuple[int, ...] = ()
    most: int = MAX_ENTRIES

    def request(self, swarm: bytes) -> SyncRequest:
        """Return the wire message."""
        return SyncRequest(swarm, self.round, self.probes, self.most)


@dataclass(frozen=True)
class SyncAnswer:
    """A response, before encoding or after decoding. Nothing in it is checked yet."""

    height: int
    ids: tuple[RecordId, ...] = ()
    envelopes: tuple[bytes, ...] = ()
    size: int = 0
    """Approximate size of the response in bytes."""
    raw: Sequence[bytes] = ()
    """Encoded entries."""
    at_hand: Sequence[Decided] = field(default=(), repr=False)
    """Entries that were never encoded."""

    def entries(self) -> Iterator[Decided]:
        """Return the ledger entries, each decoded when it is reached. Raises `ProtocolError`."""
        yield from self.at_hand
        for entry in self.raw:
            yield decode_decided(entry)

    def ids_of(self, probes: tuple[int, ...]) -> dict[int, RecordId]:
        """Return the record ids by round. Raises `ProtocolError` if they do not match the request."""
        decided = [round_ for round_ in probes if round_ < self.height]
        if len(decided) != len(self.ids):
            raise ProtocolError("invalid", "other record ids than those requested")
        return dict(zip(decided, self.ids, strict=True))


def answer_to(
    request: SyncRequest, ledger: Ledger, messages: Callable[[int], list[Envelope]]
) -> tuple[int, tuple[RecordId, ...], range, list[Envelope]]:
    """Return the response of a member with this ledger: its height, record ids, the rounds whose
    entries to send, and messages."""
    height = len(ledger)
    ids = tuple(ledger.parent(round_ + 1) for round_ in request.probes if round_ < height)
    end = min(height, request.round + min(request.most, MAX_ENTRIES))
    # A peer that wants no entries wants no messages either.
    wanted = request.round == height and request.most > 0
    rounds = range(request.round, end)
    return height, ids, rounds, messages(request.round) if wanted else []


def decode_request(data: bytes) -> SyncRequest:
    """Decode a request. Raises `ProtocolError`."""
    return decode(SyncRequest, data, max_bytes=MAX_SYNC_REQUEST_BYTES)


def decode_response(data: bytes) -> SyncResponse:
    """Decode a response. Raises `ProtocolError`."""
    return decode(SyncResponse, data, max_bytes=MAX_SYNC_RESPONSE_BYTES)


def read_answer(data: bytes) -> SyncAnswer:
    """Decode a response into a `SyncAnswer`. Raises `ProtocolError`."""
    response = decode_response(data)
    return SyncAnswer(
        response.height,
        tuple(map(RecordId, map(ContentId, response.ids))),
        response.envelopes,
        len(data),
        response.entries,
    )


def compose_response(
    height: int,
    entries: Iterable[bytes],
    envelopes: Iterable[bytes],
    ids: tuple[bytes, ...] = (),
) -> SyncResponse:
    """Return a response within the size limits: the first entries, and the first messages, that fit."""
    return SyncResponse(
        height,
        ids,
        tuple(_first(entries, _ENTRIES_BYTES)),
        tuple(_first(envelopes, _MESSAGES_BYTES)),
    )


def _first(items: Iterable[bytes], limit: int) -> Iterable[bytes]:
    size = 0
    for item in items:
        if size > limit:
            return
        size += len(item)
        yield item
