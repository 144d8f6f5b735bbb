"""The canonical encoding: one value, one byte string.

MessagePack restricted so that nothing can be said in two ways: whatever decodes is encoded again and
compared. Hashes and signatures are over these bytes, so a second spelling would be a second identity.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack

from .errors import ProtocolError
from .structure import StructureError, from_plain, to_plain

T = TypeVar("T")

MAX_ITEMS = 1 << 17
"""The longest list of any format: the chunks of a blob list."""


def encode(value: Any, *, named: bool = False) -> bytes:
    """Encode a dataclass (or plain value) canonically."""
    return bytes(msgpack.Packer(use_bin_type=True).pack(to_plain(value, named=named)))


def decode(cls: type[T], data: bytes, *, max_bytes: int, named: bool = False) -> T:
    """Decode `data` into a `cls`.

    Raises `ProtocolError` with the reasons `oversized`, `malformed` (no MessagePack, trailing
    bytes, or not the canonical spelling) or `invalid` (does not fit the dataclass).
    """
    plain = decode_plain(data, max_bytes=max_bytes)
    try:
        value = from_plain(cls, plain, named=named)
    except StructureError as error:
        raise ProtocolError("invalid", f"{cls.__name__}: {error}") from None
    # A float given as an integer, or a table in another order, passes the checks above but would
    # have a second spelling.
    if encode(value, named=named) != data:
        raise ProtocolError("malformed", f"{cls.__name__} is not in its canonical encoding")
    return value


def decode_plain(data: bytes, *, max_bytes: int) -> Any:
    """Decode one MessagePack value, with nothing behind it; memory stays in proportion to `data`."""
    if len(data) > max_bytes:
        raise ProtocolError("oversized", f"{len(data)} bytes where at most {max_bytes} are allowed")
    try:
        # Texts are bounded by the length of `data`, which msgpack takes as its limit. A list is
        # allocated as long as it claims to be, before its items are seen, and lists nest up to a
        # thousand deep: hence a limit of our own, and the last of the errors.
        return msgpack.unpackb(
            data, raw=False, strict_map_key=True, max_array_len=min(MAX_ITEMS, len(data))
        )
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException, MemoryError) as error:
        raise ProtocolError("malformed", f"not MessagePack: {error!r}"[:200]) from None
