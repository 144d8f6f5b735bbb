"""Agreeing on a stream's protocol in the same breath as the request.

By multistream-select (https://github.com/multiformats/multistream-select), both ends of a new stream say
its name, and the one that opened it proposes a protocol, which the other repeats. The library waits for
each answer: two round trips before a request, half a second on some home lines. To a peer that has
agreed on the protocol before, name, proposal and request go out together, and its answer to them is read
before its reply.
"""

from __future__ import annotations

from typing import Any

from libp2p.protocol_muxer.multiselect import MULTISELECT_PROTOCOL_ID, PROTOCOL_NOT_FOUND_MSG
from libp2p.utils import encode_delim

from .streams import StreamEnded, read_bytes

_NAME = encode_delim(MULTISELECT_PROTOCOL_ID.encode())
_UNKNOWN = encode_delim(PROTOCOL_NOT_FOUND_MSG.encode())


def proposal(protocol: str) -> bytes:
    """Return what goes before the first bytes of a stream of `protocol`."""
    return _NAME + encode_delim(protocol.encode())


async def read_agreement(stream: Any, protocol: str, idle: float) -> bool:
    """Return whether the other end agrees on `protocol`, or does not have it.

    Raises `StreamEnded` if it answers anything else, and what `read_bytes` raises.
    """
    if await read_bytes(stream, len(_NAME), idle) != _NAME:
        raise StreamEnded("the other side does not negotiate")
    agreement = encode_delim(protocol.encode())
    answer = await read_bytes(stream, min(len(agreement), len(_UNKNOWN)), idle)
    if answer == _UNKNOWN:
        return False
    answer += await read_bytes(stream, len(agreement) - len(answer), idle)
    if answer != agreement:
        raise StreamEnded("the other side does not negotiate")
    return True
