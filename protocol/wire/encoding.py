"""Canonical encoding: exactly one byte string for each value.

It is MessagePack restricted to one encoding of each value: every decoded value is encoded again and
compared with the input. Hashes and signatures are over these bytes, so a second encoding of the same
value would have a second identity.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgpack

from .errors import ProtocolError
from .structure import StructureError, from_plain, to_plain

T = TypeVar("T")

MAX_ITEMS = 1 << 19
"""Maximum number of items in one value. The longest honest values (a manifest with 20,000 tensors and
20,000 shards, a list of 131,072 chunks) have at most half of it."""


def encode(value: Any, *, named: bool = False) -> bytes:
    """Encode a dataclass (or plain value) canonically."""
    return encode_plain(to_plain(value, named=named))


def encode_plain(value: Any) -> bytes:
    """Encode a value without dataclasses. Raises `OverflowError` for an integer without room in 64
    bits."""
    return bytes(msgpack.Packer(use_bin_type=True).pack(value))


def decode(cls: type[T], data: bytes, *, max_bytes: int, named: bool = False) -> T:
    """Decode `data` into a `cls`.

    Raises `ProtocolError` with the reasons `oversized`, `malformed` (not MessagePack, trailing bytes, or
    not the canonical spelling) or `invalid` (does not fit the dataclass).
    """
    plain = decode_plain(data, max_bytes=max_bytes)
    try:
        value = from_plain(cls, plain, named=named)
    except StructureError as error:
        raise ProtocolError("invalid", f"{cls.__name__}: {error}") from None
    # A float given as an integer, or a table in another order, passes the checks above but would be a
    # second spelling.
    if encode(value, named=named) != data:
        raise ProtocolError("malformed", f"{cls.__name__} is not in its canonical encoding")
    return value


def decode_plain(data: bytes, *, max_bytes: int) -> Any:
    """Decode one MessagePack value without trailing bytes.

    Time and memory are bounded by the length of `data` and by `MAX_ITEMS` objects, whatever the bytes.
    Raises `ProtocolError` with the reason `oversized` or `malformed`.
    """
    if len(data) > max_bytes:
        raise ProtocolError("oversized", f"{len(data)} bytes exceed the limit of {max_bytes}")
    _count_items(data)
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError("malformed", f"not MessagePack: {type(error).__name__}") from None


# By the first byte of an item: the width of a number in bytes; the width of a length, which is followed
# by that many bytes; the width of a count, and the items that follow for each counted one. Any other
# first byte is a whole item or contains the length or count itself.
_NUMBERS = {0xCA: 4, 0xCB: 8, **{0xCC + i: 1 << i % 4 for i in range(8)}}
_TEXTS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNTS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
_SINGLES = re.compile(rb"[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]+")


def _count_items(data: bytes) -> None:
    """Raise `ProtocolError` if `data` holds more than one value, or one of more than `MAX_ITEMS` items.

    The library allocates a list at its claimed length before it has seen the items, and lists may be
    nested a thousand deep, so a few bytes could make it allocate gigabytes. Claims are therefore
    compared with the length of the data: every item takes at least one byte.
    """
    position, found, claimed = 0, 0, 1
    limit = min(len(data), MAX_ITEMS)
    while position < len(data):
        first = data[position]
        position += 1
        found += 1
        if first in _NUMBERS:
            position += _NUMBERS[first]
        elif first in _TEXTS:
            width = _TEXTS[first]
            position += width + int.from_bytes(data[position : position + width], "big")
        elif 0xA0 <= first < 0xC0:
            position += first & 31
        elif 0x80 <= first < 0xA0:
            claimed += (first & 15) * (2 if first < 0x90 else 1)
        elif first in _COUNTS:
            width, items = _COUNTS[first]
            claimed += items * int.from_bytes(data[position : position + width], "big")
            position += width
        elif run := _SINGLES.match(data, position - 1):
            found += run.end() - position
            position = run.end()
        else:
            # An unassigned byte, or an extension type (such as a timestamp), which no format here uses.
            raise ProtocolError("malformed", f"it holds an item of the forbidden type {first:#x}")
        if claimed > limit or found > claimed:
            raise ProtocolError("malformed", "it holds more than one value, or too many items")
