"""Almost valid bytes: valid data, mutated as bytes or as values."""

from __future__ import annotations

import random
from typing import Any

import msgpack


def hostile_item(chance: random.Random) -> Any:
    """Return an item that is valid MessagePack and probably unexpected in its place."""
    return chance.choice(
        (
            lambda: None,
            lambda: chance.random() < 0.5,
            lambda: chance.choice((0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))),
            lambda: float(chance.choice((0, 1, 50, 51, 1e308, float("nan"), float("inf")))),
            lambda: chance.randbytes(chance.choice((0, 1, 31, 32, 33, 64, 65, 600))),
            lambda: "x" * chance.choice((0, 1, 65, 300)),
            list,
            lambda: [[]] * chance.randrange(1, 5000),
            lambda: [0] * chance.randrange(1, 5000),
            dict,
            lambda: {"a": {"b": [1]}, "c": 0.5},
            lambda: {b"bytes": 1},
            lambda: msgpack.ExtType(chance.randrange(128), chance.randbytes(4)),
            lambda: msgpack.Timestamp(chance.randrange(1 << 33), 5),
            lambda: _nested(chance.choice((2, 13, 14, 100, 400))),
        )
    )()


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def mutate_plain(value: Any, chance: random.Random) -> Any:
    """Return a decoded value with one place changed."""
    if isinstance(value, (list, dict)) and value and chance.random() < 0.85:
        if isinstance(value, dict):
            key = chance.choice(list(value))
            changed = dict(value)
            if chance.random() < 0.1:
                changed[chance.choice((key, "x", "name"))] = changed.pop(key)
            else:
                changed[key] = mutate_plain(value[key], chance)
            return changed
        changed = list(value)
        place = chance.randrange(len(changed))
        match chance.randrange(8):
            case 0:
                del changed[place]
            case 1:
                changed.insert(place, changed[chance.randrange(len(changed))])
            case 2:
                other = chance.randrange(len(changed))
                changed[place], changed[other] = changed[other], changed[place]
            case _:
                changed[place] = mutate_plain(changed[place], chance)
        return changed
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.5:
        return float(value)
    if isinstance(value, bytes) and value and chance.random() < 0.5:
        return value[:-1] + bytes([value[-1] ^ 1])
    return hostile_item(chance)


# Prefixes of items that declare a length, a count or a kind.
_HEADS = [
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x05", b"\xdc\xff\xff", b"\xde\xff\xff",
    b"\xc5\xff\xff", b"\x9f", b"\x8f", b"\xbf", b"\xc1", b"\xd6\xff\0\0\0\0", b"\xd4\x01\0",
    b"\xca\0\0\0\0", b"\xcf\0\0\0\0\0\0\0\x01", b"\xc0", b"\xc3",
]  # fmt: skip


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        place = chance.randrange(len(changed) + 1)
        match chance.randrange(7):
            case 0:
                del changed[place:]
            case 1:
                changed += chance.randbytes(chance.choice((1, 1, 9, 200)))
            case 2:
                changed[place:place] = chance.choice(_HEADS)
            case 3:
                head = chance.choice(_HEADS)
                changed[place : place + len(head)] = head
            case 4:
                del changed[place : place + chance.randrange(1, 40)]
            case 5:
                changed[place:place] = changed[place : place + chance.randrange(1, 40)]
            case _:
                if place < len(changed):
                    changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


def repeat_a_key(data: bytes, chance: random.Random) -> bytes:
    """Return a table with a duplicated key or, without a table, with one more key than declared."""
    tables = [i for i, byte in enumerate(data) if 0x80 < byte < 0x8F]
    if not tables:
        return data + b"\xa1k\x01"
    place = chance.choice(tables)
    return (
        data[:place]
        + bytes([data[place] + 1])
        + chance.choice((b"\xa4name\x01", b"\xa1k\x01", b"\xa7version\x01"))
        + data[place + 1 :]
    )


def hostile(data: bytes, chance: random.Random) -> bytes:
    match chance.randrange(10):
        case 0:
            return chance.randbytes(chance.randrange(200))
        case 1:
            return repeat_a_key(data, chance)
        case 2 | 3 | 4 | 5:
            plain = msgpack.unpackb(data)
            for _ in range(chance.choice((1, 1, 2, 3))):
                plain = mutate_plain(plain, chance)
            return bytes(msgpack.Packer().pack(plain))
        case _:
            return mutate_bytes(data, chance)
