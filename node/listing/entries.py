"""Formats of the list of public swarms: signed entries, and the requests by which they move.

A swarm is public if its manifest states so. A member's entry states only what the manifest cannot: how
many members there are, how fast they are and how many rounds are done. Name, task, size and rules come
from the manifest, whose hash is the swarm-id, so no publisher can change them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...crypto.envelope import seal
from ...crypto.hashing import content_id
from ...crypto.identity import Identity, PeerId
from ...protocol.wire.encoding import decode, decode_plain, encode
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import MAX_MEMBERS, SwarmId
from ...protocol.wire.sealed import open_sealed
from ...protocol.wire.structure import U63, Length, Range

PUBLISH_PROTOCOL = "/distro/list-publish/1"
"""Request: a `PublishRequest`. Answer: a `PublishResponse`."""
LIST_PROTOCOL = "/distro/list/1"
"""Request: empty. Answer: a `SwarmListing`."""
MANIFEST_PROTOCOL = "/distro/list-manifest/1"
"""Request: the swarm-id of a listed swarm. Answer: the bytes of its manifest."""

MAX_LISTED_MANIFEST_BYTES = 256 << 10
"""Maximum size of a listed swarm's manifest: 5,000 tensors at 50 bytes each. A bootstrap peer keeps the
manifests in memory."""
MAX_ENTRY_BYTES = 256
"""Size of an entry of the largest numbers and the envelope around it, with some margin."""
MAX_LISTED_SWARMS = 128
MAX_ENTRIES_PER_SWARM = 8
"""Entries kept of one swarm: enough for a median that a few liars do not move."""
MAX_PUBLISH_BYTES = MAX_LISTED_MANIFEST_BYTES + MAX_ENTRY_BYTES + 128
MAX_PUBLISH_RESPONSE_BYTES = MAX_ENTRY_BYTES + 16
MAX_LISTING_BYTES = MAX_LISTED_SWARMS * (MAX_ENTRIES_PER_SWARM * (MAX_ENTRY_BYTES + 4) + 64) + 16

ENTRY_CLOCK_SECONDS = 3600.0
"""Maximum difference between the time in an entry and the reader's clock. A bootstrap peer that lies
can show an old entry for this long; clocks that differ by less do no harm."""

MAX_TOKENS_PER_SECOND = 2**63 - 1
"""The largest speed that an entry can state."""

_KIND = "listing"

Swarm = Annotated[bytes, Length(32, 32)]
EntryBytes = Annotated[bytes, Length(1, MAX_ENTRY_BYTES)]


@dataclass(frozen=True)
class Entry:
    """What one publisher reports about a swarm; `sealed` is its signed envelope."""

    publisher: PeerId
    swarm: SwarmId
    number: int
    """It increases with each new entry of the publisher, even across restarts."""
    written: int
    """The publisher's wall clock, in seconds since 1970."""
    members: int
    rounds_done: int
    tokens_per_second: int | None
    """Of the whole swarm; None: not known yet."""
    sealed: bytes


@dataclass(frozen=True)
class _EntryBody:
    number: U63
    written: U63
    members: Annotated[int, Range(1, MAX_MEMBERS)]
    rounds_done: U63
    tokens_per_second: U63 | None


@dataclass(frozen=True)
class PublishRequest:
    """An entry to keep, with the swarm's manifest if the bootstrap peer has asked for it."""

    swarm: Swarm
    entry: EntryBytes
    manifest: Annotated[bytes, Length(1, MAX_LISTED_MANIFEST_BYTES)] | None

    def encode(self) -> bytes:
        """Return the bytes for `decode_publish_request`."""
        return encode(self)


@dataclass(frozen=True)
class PublishResponse:
    """Answer to a `PublishRequest`."""

    wants_manifest: bool
    """Whether the entry was not kept because the swarm's manifest is missing."""
    newer: EntryBytes | None
    """The publisher's entry with a higher number, which was kept instead."""

    def encode(self) -> bytes:
        """Return the bytes for `decode_publish_response`."""
        return encode(self)


@dataclass(frozen=True)
class ListedSwarm:
    """A listed swarm and its sealed entries."""

    swarm: Swarm
    entries: Annotated[tuple[EntryBytes, ...], Length(1, MAX_ENTRIES_PER_SWARM)]


@dataclass(frozen=True)
class SwarmListing:
    """The swarms that a bootstrap peer lists."""

    swarms: Annotated[tuple[ListedSwarm, ...], Length(0, MAX_LISTED_SWARMS)]

    def encode(self) -> bytes:
        """Return the bytes for `decode_listing`."""
        return encode(self)


def seal_entry(
    identity: Identity,
    swarm: SwarmId,
    *,
    number: int,
    written: int,
    members: int,
    rounds_done: int,
    tokens_per_second: int | None,
) -> bytes:
    """Sign an entry for a swarm."""
    body = _EntryBody(number, written, members, rounds_done, tokens_per_second)
    return seal(identity, _KIND, swarm, encode(body), max_bytes=MAX_ENTRY_BYTES)


def open_entry(data: bytes, swarm: SwarmId) -> Entry:
    """Check a sealed entry of this swarm and decode it. Raises `ProtocolError`."""
    envelope = open_sealed(data, swarm, _KIND, "an entry of a list", max_bytes=MAX_ENTRY_BYTES)
    body = decode(_EntryBody, envelope.body, max_bytes=MAX_ENTRY_BYTES)
    return Entry(
        publisher=envelope.sender,
        swarm=swarm,
        number=body.number,
        written=body.written,
        members=body.members,
        rounds_done=body.rounds_done,
        tokens_per_second=body.tokens_per_second,
        sealed=data,
    )


def decode_publish_request(data: bytes) -> PublishRequest:
    """Decode a request; the entry in it is still sealed. Raises `ProtocolError`."""
    return decode(PublishRequest, data, max_bytes=MAX_PUBLISH_BYTES)


def decode_publish_response(data: bytes) -> PublishResponse:
    """Decode an answer; the entry in it is still sealed. Raises `ProtocolError`."""
    return decode(PublishResponse, data, max_bytes=MAX_PUBLISH_RESPONSE_BYTES)


def decode_listing(data: bytes) -> SwarmListing:
    """Decode a list; the entries in it are still sealed. Raises `ProtocolError`."""
    return decode(SwarmListing, data, max_bytes=MAX_LISTING_BYTES)


def check_public(manifest: bytes, swarm: SwarmId) -> None:
    """Raise `ProtocolError` unless these bytes are the manifest of `swarm` and state that it is public.

    A bootstrap peer does not decode the rest: swarms of any protocol version may be listed, and
    readers of the list check the whole manifest.
    """
    plain = decode_plain(manifest, max_bytes=MAX_LISTED_MANIFEST_BYTES)
    if content_id(manifest) != swarm:
        raise ProtocolError("mismatch", "the manifest does not hash to the swarm-id")
    admission = plain.get("admission") if isinstance(plain, dict) else None
    if not isinstance(admission, dict) or admission.get("public") is not True:
        raise ProtocolError("not_public", "the swarm's manifest does not make it public")
