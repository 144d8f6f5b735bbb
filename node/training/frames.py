"""Framing of the pipes between node and trainer: a length of four bytes, then one MessagePack value.

Either end may fail, and then send anything: lengths are bounded, and a frame that does not hold exactly
one value is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgpack

from ...crypto.hashing import ContentId

MAX_FRAME_BYTES = 64 << 20
"""Four times the largest blob: a message carries at most one update, which is no longer than a blob."""

EXPECT = "expect"
"""The method of a message that carries an `ExpectedUpdate`: it has no answer and may be sent during a
call."""

STOP = "stop"
"""The method of a message that carries a `StopSteps`: it has no answer and may be sent during a call."""

_HEADER_BYTES = 4


@dataclass(frozen=True)
class TrainedUpdate:
    """An update, with its loss and timings."""

    body: bytes
    loss: float
    """Mean in nats per token, always finite."""
    tokens: int
    """Number of tokens over which the loss is the mean."""
    coefficients: int
    """Number of coefficients in the update."""
    compute_seconds: float
    encode_seconds: float


@dataclass(frozen=True)
class ExpectedUpdate:
    """An update in the blob store that a record of `round` may name."""

    round: int
    update: ContentId


@dataclass
class StopSteps:
    """The end of local steps: those of this round's update end after the present one, and what the
    finished steps moved is sent."""

    round: int = -1


class FrameError(ValueError):
    """The stream violates the framing; nothing after this point can be decoded."""


def encode_frame(value: Any) -> bytes:
    """Encode one message. Raises `FrameError` if it is longer than `MAX_FRAME_BYTES`."""
    payload = cast(bytes, msgpack.packb(value, use_bin_type=True))
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(payload)} bytes, at most {MAX_FRAME_BYTES} allowed")
    return len(payload).to_bytes(_HEADER_BYTES, "big") + payload


class FrameDecoder:
    """Incremental decoder of a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Add some bytes and return the messages that they complete.

        Raises `FrameError` as soon as a header announces too great a length, before memory is
        allocated for it.
        """
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEADER_BYTES:
            length = int.from_bytes(self._buffer[:_HEADER_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes, at most {MAX_FRAME_BYTES} allowed")
            end = _HEADER_BYTES + length
            if len(self._buffer) < end:
                break
            messages.append(_decode(bytes(self._buffer[_HEADER_BYTES:end])))
            del self._buffer[:end]
        return messages


def _decode(payload: bytes) -> Any:
    try:
        return msgpack.unpackb(payload, raw=False, strict_map_key=True)
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise FrameError(f"not MessagePack: {error!r}"[:200]) from None
