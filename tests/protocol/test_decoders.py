"""Every decoder: what was encoded comes back, and any bytes give a value or `ProtocolError`.

The fast part runs some hundreds of inputs for each decoder; the soak runs `SOAK_INPUTS`.
"""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from typing import Annotated, Any, Literal

import msgpack
import pytest
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.protocol.blobs import CHUNK_BYTES, BlobList, decode_blob_list
from distro_node.protocol.errors import ProtocolError
from distro_node.protocol.structure import Length, Range
from distro_node.protocol.wire import encode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation.formats import FORMATS, Format

FAST_INPUTS = 300
SOAK_INPUTS = 100_000

REASONS = {"oversized", "malformed", "invalid", "mismatch", "version"}


# Values of any format, made from its annotations


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that an annotation allows. Lists are kept short: lengths have tests of their own."""
    if hint in (ContentId, PeerId):
        return st.binary(min_size=32, max_size=32)
    if isinstance(hint, typing.NewType):
        return values_of(hint.__supertype__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded(arguments[0], arguments[1:])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (option for option in arguments if option is not type(None))
        return st.none() | values_of(inner)
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), free_values, max_size=4)
    if dataclasses.is_dataclass(hint):
        return instances(hint)
    return {
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(max_size=10),
        bytes: st.binary(max_size=10),
        bool: st.booleans(),
    }[hint]


def _bounded(base: Any, bounds: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    bound = bounds[0]
    while typing.get_origin(base) is Annotated or isinstance(base, typing.NewType):
        base = base.__supertype__ if isinstance(base, typing.NewType) else base.__origin__
    if isinstance(bound, Range):
        return {int: st.integers, float: st.floats}[base](base(bound.low), base(bound.high))
    assert isinstance(bound, Length)
    most = min(bound.high, max(bound.low, 5))
    if typing.get_origin(base) is tuple:
        inner = values_of(typing.get_args(base)[0])
        return st.lists(inner, min_size=bound.low, max_size=most).map(tuple)
    return {str: st.text, bytes: st.binary}[base](min_size=bound.low, max_size=most)


free_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def instances(cls: Any) -> st.SearchStrategy[Any]:
    if cls is BlobList:
        return st.integers(1, 5 * CHUNK_BYTES).flatmap(_blob_lists)
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {name: values_of(hint) for name, hint in hints.items()}
    if cls.__name__ == "Manifest":
        fields["version"] = st.just(1)
    return st.fixed_dictionaries(fields).map(lambda made: _build(cls, made)).filter(bool)


def _blob_lists(size: int) -> st.SearchStrategy[BlobList]:
    count = -(-size // CHUNK_BYTES)
    chunks = st.lists(values_of(ContentId), min_size=count, max_size=count)
    return st.builds(
        BlobList, kind=st.just("snapshot"), size=st.just(size), chunks=chunks.map(tuple)
    )


def _build(cls: Any, made: dict[str, Any]) -> Any:
    try:
        return cls(**made)
    except ValueError:
        # Fields that do not go together: more warm-up than rounds, and the like.
        return None


@pytest.mark.parametrize("name", FORMATS)
def test_round_trip(name: str) -> None:
    format_ = FORMATS[name]

    @settings(
        max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
    )
    @given(instances(type(format_.value)))
    def check(value: Any) -> None:
        data = encode(value, named=format_.named)
        decoder = format_.decode
        if isinstance(value, BlobList):
            assert decode_blob_list(data, "snapshot", value.size) == value
        else:
            assert decoder(data) == value

    check()


# Mutations of what is valid


def hostile_item(chance: random.Random) -> Any:
    """Something valid in MessagePack that is probably not expected where it is put."""
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
    """One place of a decoded value changed."""
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


# The beginnings of items that claim a length, a count or a kind.
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
    """A table with one of its keys twice, or, where there is none, one more key than it says."""
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


def value_or_error(format_: Format, data: bytes) -> bool:
    """Decode; whether it was a value. Anything but a value or `ProtocolError` fails the test."""
    try:
        value = format_.decode(data)
    except ProtocolError as error:
        if error.reason not in REASONS or len(str(error)) > 1000:
            raise AssertionError(f"an error unfit for a log: {error.reason}") from error
        return False
    assert type(value) is type(format_.value)
    assert encode(value, named=format_.named) == data, "a second spelling"
    return True


def attack(format_: Format, name: str, inputs: int) -> tuple[int, int]:
    """How many hostile inputs gave a value, and how many an error."""
    valid = 0
    data = format_.data
    for number in range(inputs):
        chance = random.Random(f"{name} {number}")
        try:
            valid += value_or_error(format_, hostile(data, chance))
        except Exception as error:
            raise AssertionError(f"input {number} of {name!r}") from error
    return valid, inputs - valid


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_bytes(name: str) -> None:
    valid, refused = attack(FORMATS[name], name, FAST_INPUTS)
    # Some changes leave a valid value (another hash, another number); most must not.
    assert refused > valid


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_bytes_for_long(name: str) -> None:
    valid, refused = attack(FORMATS[name], name, SOAK_INPUTS)
    assert valid > 0
    assert refused > valid


@given(st.sampled_from(sorted(FORMATS)), st.binary(max_size=300))
def test_random_bytes(name: str, data: bytes) -> None:
    value_or_error(FORMATS[name], data)


@pytest.mark.parametrize("name", FORMATS)
def test_every_prefix_and_every_flipped_bit_of_the_first_bytes(name: str) -> None:
    format_ = FORMATS[name]
    data = format_.data
    assert value_or_error(format_, data)
    for length in range(len(data)):
        assert not value_or_error(format_, data[:length])
    for place in range(min(len(data), 100)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            value_or_error(format_, bytes(changed))


@pytest.mark.parametrize("name", FORMATS)
def test_one_format_is_not_another(name: str) -> None:
    """No message can be passed off as one of another shape."""
    format_ = FORMATS[name]
    for other_name, other in FORMATS.items():
        if type(other.value) is not type(format_.value):
            same_shape = {name, other_name} <= {"leave", "join"}
            assert same_shape or not value_or_error(format_, other.data), other_name
