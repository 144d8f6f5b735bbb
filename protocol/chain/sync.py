"""Asking a peer what was missed: gossip may lose anything, so everything can be asked for.

A request names the round that the asker stands at. The answer holds the ledger entries from there on, as
many as fit, or, if that round is not decided yet, its signed messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from ..wire.encoding import decode
from ..wire.messages import Decided
from ..wire.structure import U63, Length
from .entries import MAX_DECIDED_BYTES, decode_decided

SYNC_PROTOCOL = "/distro/sync/1"

MAX_SYNC_REQUEST_BYTES = 128
MAX_SYNC_RESPONSE_BYTES = 8 << 20
# Entries are added until they exceed this; one more of the largest kind still fits the response.
_ENTRIES_BYTES = MAX_SYNC_RESPONSE_BYTES - MAX_DECIDED_BYTES - (1 << 20)
_MESSAGES_BYTES = 1 << 20


@dataclass(frozen=True)
class SyncRequest:
    """ "I stand at `round` of `swarm`." """

    swarm: Annotated[bytes, Length(32, 32)]
    round: U63


@dataclass(frozen=True)
class SyncResponse:
    """The answerer's height (its number of decided rounds), ledger entries, envelopes."""

    height: U63
    entries: Annotated[tuple[bytes, ...], Length(0, 65_536)]
    envelopes: Annotated[tuple[bytes, ...], Length(0, 65_536)]

    def decided(self) -> Iterator[Decided]:
        """The ledger entries. Raises `ProtocolError`; nothing is checked against a chain yet."""
        return map(decode_decided, self.entries)


def decode_request(data: bytes) -> SyncRequest:
    """Raises `ProtocolError`."""
    return decode(SyncRequest, data, max_bytes=MAX_SYNC_REQUEST_BYTES)


def decode_response(data: bytes) -> SyncResponse:
    """Raises `ProtocolError`."""
    return decode(SyncResponse, data, max_bytes=MAX_SYNC_RESPONSE_BYTES)


def compose_response(
    height: int, entries: Iterable[bytes], envelopes: Iterable[bytes]
) -> SyncResponse:
    """An answer within the size limits: the first entries, and the first messages, that fit."""
    return SyncResponse(
        height,
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
