"""Texts that people pass around: swarm-ids and invite links.

A swarm-id is written as `swarm-` and 56 letters and digits. The last ones are a checksum, which detects
any error within four neighbouring characters and misses one other error in 16 million. Every parser here
returns a value or raises a `SwarmIdError` that names the faulty part, whatever the text.
"""

from __future__ import annotations

import base64
import difflib
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, quote

from ...crypto.hashing import ContentId
from ...crypto.identity import peer_from_text
from .checkpoint import Checkpoint
from .manifest import SwarmId
from .messages import RecordId

PREFIX = "swarm-"
SCHEME = "distro:"

MAX_MULTIADDR_CHARACTERS = 256
# A link is pasted into chats, so it is short: sixteen addresses of 256 characters and a ticket fit.
MAX_INVITE_CHARACTERS = 8192
MAX_BOOTSTRAP = 16
MAX_TICKET_CHARACTERS = 2048

_ID_BYTES = 32
_CHECKSUM_BYTES = 3
# 35 bytes are exactly 56 characters of base32, so there is neither padding nor a second spelling.
_CHARACTERS = (_ID_BYTES + _CHECKSUM_BYTES) * 8 // 5
_ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz234567")
# The digits that base32 leaves out because they look like these letters.
_LOOKALIKES = {"0": "o", "1": "l", "8": "b"}
# The polynomial of OpenPGP's CRC-24 (RFC 9580, section 6.1.1). A CRC detects every error that spans at
# most its own width, and 24 bits are more than four characters. A truncated hash would miss some of
# these errors.
_CRC_POLYNOMIAL = 0x864CFB
_CRC_START = 0xB704CE
# A round as decimal digits without leading zeros; at most 18 digits, so it is below 2**63.
_ROUND = re.compile(r"0|[1-9][0-9]{0,17}")

Fault = Literal["prefix", "character", "length", "checksum", "link", "bootstrap", "ticket", "at"]


class SwarmIdError(ValueError):
    """Raised for a text that is not a swarm-id or invite link. `fault` names the part that is wrong."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, kw_only=True)
class Invite:
    """What a newcomer needs: the swarm, its bootstrap peers, and a ticket if one is required."""

    swarm: SwarmId
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs, each ending in `/p2p/<peer>`."""
    ticket: str | None = None
    """The admission ticket of a swarm whose policy is `invite`."""
    at: Checkpoint | None = None
    """A record of the intended chain. A chain without this record is not the intended one."""


def swarm_text(swarm: SwarmId) -> str:
    """Return a swarm-id, 32 bytes, as text of 62 characters."""
    if len(swarm) != _ID_BYTES:
        raise ValueError(f"a swarm-id has {_ID_BYTES} bytes, not {len(swarm)}")
    checked = swarm + _checksum(swarm)
    return PREFIX + base64.b32encode(checked).decode("ascii").lower()


def swarm_from_text(text: str) -> SwarmId:
    """Parse a text written by `swarm_text`, in upper or lower case and perhaps with blanks around it.

    Raises `SwarmIdError` with the fault `prefix`, `character`, `length` or `checksum`.
    """
    text = text.strip()
    if text[: len(PREFIX)].lower() != PREFIX:
        raise SwarmIdError(
            "prefix", f"a swarm-id begins with {PREFIX!r}, this one with {text[:6]!r}"
        )
    for position, character in enumerate(text[len(PREFIX) :], start=len(PREFIX) + 1):
        # ASCII is checked before lower(), which turns some other characters into ASCII ones.
        if not (character.isascii() and character.lower() in _ALPHABET):
            raise SwarmIdError("character", _bad_character(character, position))
    body = text[len(PREFIX) :].upper()
    if len(body) != _CHARACTERS:
        missing = _CHARACTERS - len(body)
        problem = f"{abs(missing)} {'character' if abs(missing) == 1 else 'characters'} too "
        problem += "short" if missing > 0 else "long"
        raise SwarmIdError("length", f"the swarm-id is {problem}: part of it was lost or repeated")
    raw = base64.b32decode(body)
    swarm = SwarmId(raw[:_ID_BYTES])
    if _checksum(swarm) != raw[_ID_BYTES:]:
        raise SwarmIdError(
            "checksum", "a character of the swarm-id is wrong: its checksum does not match"
        )
    return swarm


def checkpoint_text(checkpoint: Checkpoint) -> str:
    """Return a checkpoint as `<round>.<record>`; the second part ends with a checksum over both."""
    number = str(checkpoint.round)
    checked = checkpoint.record + _checksum(number.encode("ascii") + checkpoint.record)
    return f"{number}.{base64.b32encode(checked).decode('ascii').lower()}"


def checkpoint_from_text(text: str) -> Checkpoint:
    """Parse a text written by `checkpoint_text`. Raises `SwarmIdError` with the fault `at`."""
    number, _, body = text.partition(".")
    shaped = len(body) == _CHARACTERS and _ALPHABET.issuperset(body)
    if shaped and _ROUND.fullmatch(number):
        raw = base64.b32decode(body.upper())
        record = RecordId(ContentId(raw[:_ID_BYTES]))
        if _checksum(number.encode("ascii") + record) == raw[_ID_BYTES:]:
            return Checkpoint(int(number), record)
    raise SwarmIdError(
        "at", f"{_shorten(text)} is not of the form ROUND.RECORD, or a character of it is wrong"
    )


def invite_text(invite: Invite) -> str:
    """Return an invite link, `distro:<swarm-id>?bootstrap=<multiaddr>&…&ticket=<ticket>&at=<record>`."""
    pairs = [("bootstrap", address) for address in invite.bootstrap]
    if invite.ticket is not None:
        pairs.append(("ticket", invite.ticket))
    if invite.at is not None:
        pairs.append(("at", checkpoint_text(invite.at)))
    # Slashes and colons are legal in a query, and make a multiaddr readable.
    query = "&".join(f"{key}={quote(value, safe='/:')}" for key, value in pairs)
    return SCHEME + swarm_text(invite.swarm) + (f"?{query}" if query else "")


def parse_invite(text: str) -> Invite:
    """Parse an invite link or a bare swarm-id; blanks around it do not matter.

    Only the form of addresses is checked, since only dialling shows whether the program can dial one.
    Raises `SwarmIdError`.
    """
    text = text.strip()
    if len(text) > MAX_INVITE_CHARACTERS:
        raise SwarmIdError("link", f"the link has more than {MAX_INVITE_CHARACTERS} characters")
    if text[: len(SCHEME)].lower() != SCHEME:
        return Invite(swarm=swarm_from_text(text))
    identifier, has_query, query = text[len(SCHEME) :].partition("?")
    swarm = swarm_from_text(identifier)
    pairs = _query_pairs(query) if has_query else []
    bootstrap = tuple(check_bootstrap(value) for key, value in pairs if key == "bootstrap")
    if len(bootstrap) > MAX_BOOTSTRAP:
        raise SwarmIdError("link", f"the link names more than {MAX_BOOTSTRAP} bootstrap peers")
    tickets = [_check_ticket(value) for key, value in pairs if key == "ticket"]
    if len(tickets) > 1:
        raise SwarmIdError("link", "the link has more than one ticket")
    points = [checkpoint_from_text(value) for key, value in pairs if key == "at"]
    if len(points) > 1:
        raise SwarmIdError("link", "the link has more than one checkpoint ('at')")
    return Invite(
        swarm=swarm,
        bootstrap=bootstrap,
        ticket=tickets[0] if tickets else None,
        at=points[0] if points else None,
    )


def check_bootstrap(address: str) -> str:
    """Return `address` if it has the shape of a bootstrap peer's multiaddr.

    Raises `SwarmIdError` with the fault `bootstrap`.
    """
    check_multiaddr(address)
    head, marker, peer = address.rpartition("/p2p/")
    if not marker or not head:
        raise SwarmIdError(
            "bootstrap", f"the address {_shorten(address)} does not end in /p2p/ and a peer id"
        )
    try:
        peer_from_text(peer)
    except ValueError as error:
        raise SwarmIdError("bootstrap", f"the address {_shorten(address)}: {error}") from None
    return address


def check_multiaddr(address: str) -> str:
    """Return `address` if it has the shape of a multiaddr: `/`, printable ASCII, not too long.

    Raises `SwarmIdError` with the fault `bootstrap`.
    """
    if len(address) > MAX_MULTIADDR_CHARACTERS:
        raise SwarmIdError(
            "bootstrap",
            f"the address {_shorten(address)} has more than {MAX_MULTIADDR_CHARACTERS} characters",
        )
    parts = address.split("/")
    if not _is_token(address) or parts[0] or len(parts) < 3 or not all(parts[1:]):
        raise SwarmIdError(
            "bootstrap",
            f"{_shorten(address)} is not an address of the form /ip4/192.0.2.1/tcp/4001",
        )
    return address


def _query_pairs(query: str) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise SwarmIdError("link", "the part of the link after '?' is malformed") from None
    known = ["bootstrap", "ticket", "at"]
    for key, _ in pairs:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise SwarmIdError(
                "link", f"the link has an unknown part {_shorten(key)}; did you mean {near!r}?"
            )
    return pairs


def _check_ticket(ticket: str) -> str:
    if not 0 < len(ticket) <= MAX_TICKET_CHARACTERS or not _is_token(ticket):
        raise SwarmIdError("ticket", "the ticket in the link is damaged")
    return ticket


def _is_token(text: str) -> bool:
    """Whether the text has only visible ASCII characters and no blanks."""
    return all("!" <= character <= "~" for character in text)


def _bad_character(character: str, position: int) -> str:
    message = f"{character!r}, character {position} of the swarm-id, does not occur in swarm-ids"
    near = _LOOKALIKES.get(character)
    return f"{message}; did you mean {near!r}?" if near else message


def _checksum(data: bytes) -> bytes:
    crc = _CRC_START
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1000000 | _CRC_POLYNOMIAL
    return crc.to_bytes(_CHECKSUM_BYTES, "big")


def _shorten(text: str) -> str:
    """Quote an untrusted text: escaped, and not longer than a line."""
    shown = ascii(text)
    return shown if len(shown) <= 80 else shown[:79] + "…'"
