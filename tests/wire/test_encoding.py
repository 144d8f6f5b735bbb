"""Canonical encoding: one spelling for each value, and no expensive input."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import dataclass
from typing import Annotated, Any

import msgpack
import pytest
from distro_node.protocol.wire.encoding import MAX_ITEMS, decode, decode_plain, encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.structure import Length, Range
from hypothesis import given
from hypothesis import strategies as st


@dataclass(frozen=True)
class Sample:
    number: Annotated[int, Range(-(2**63), 2**64 - 1)]
    real: float
    text: str
    data: bytes
    items: Annotated[tuple[int, ...], Length(0, 100_000)]
    maybe: float | None
    table: dict[str, Any]


samples = st.builds(
    Sample,
    number=st.integers(-(2**63), 2**64 - 1),
    real=st.floats(allow_nan=False, allow_infinity=False),
    text=st.text(),
    data=st.binary(),
    items=st.lists(st.integers(-(2**63), 2**64 - 1)).map(tuple),
    maybe=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    table=st.dictionaries(
        st.text(), st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
    ),
)


def pack(value: object) -> bytes:
    return bytes(msgpack.Packer().pack(value))


SAMPLE = Sample(5, 1.0, "a", b"b", (1, 2), None, {"k": 1, "l": 2})


def refused(data: bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        decode(Sample, data, max_bytes=1 << 20)
    return caught.value.reason


@given(samples)
def test_round_trip(sample: Sample) -> None:
    data = encode(sample)
    again = decode(Sample, data, max_bytes=len(data))
    assert again == sample
    assert encode(again) == data


def test_the_limit_is_on_bytes() -> None:
    data = encode(SAMPLE)
    assert decode(Sample, data, max_bytes=len(data)) == SAMPLE
    with pytest.raises(ProtocolError) as caught:
        decode(Sample, data, max_bytes=len(data) - 1)
    assert caught.value.reason == "oversized"


BODY = encode(SAMPLE)
PLAIN = [5, 1.0, "a", b"b", [1, 2], None, {"k": 1, "l": 2}]


def respelled(place: int, spelling: bytes) -> bytes:
    """Return the sample with one item spelled by hand."""
    parts = [pack(item) for item in PLAIN]
    parts[place] = spelling
    return b"\x97" + b"".join(parts)


@pytest.mark.parametrize(
    "data",
    [
        respelled(0, b"\xcc\x05"),
        respelled(0, b"\xd3" + (5).to_bytes(8, "big")),
        respelled(1, b"\x01"),
        respelled(1, b"\xca" + struct.pack(">f", 1.0)),
        respelled(2, b"\xd9\x01a"),
        respelled(2, b"\xdb\0\0\0\x01a"),
        respelled(3, b"\xc5\0\x01b"),
        respelled(4, b"\xdc\0\x02\x01\x02"),
        respelled(4, b"\xdd\0\0\0\x02\x01\x02"),
        respelled(6, b"\x82\xa1l\x02\xa1k\x01"),
        respelled(6, b"\x83\xa1k\x01\xa1k\x01\xa1l\x02"),
        respelled(6, b"\xde\0\x02\xa1k\x01\xa1l\x02"),
        b"\xdc\0\x07" + BODY[1:],
        BODY + b"\xc0",
        BODY + BODY,
        BODY[:-1],
        b"",
        b"\xc1",
    ],
)
def test_there_is_no_second_spelling(data: bytes) -> None:
    assert respelled(0, b"\x05") == BODY
    assert refused(data) == "malformed"


@pytest.mark.parametrize(
    "spelling",
    [
        b"\xd6\xff\0\0\0\0",  # a timestamp
        b"\xd7\xff" + b"\xff" * 8,
        b"\xc7\x0c\xff" + b"\xff" * 12,
        b"\xd4\x05\0",  # extensions
        b"\xc7\x02\x05ab",
        b"\xc9\0\0\0\0\x05",
        b"\xc1",
        b"\xa1\xff",  # not UTF-8
        b"\x81\x90\x00",  # keys that are not text
        b"\x81\xc0\x00",
    ],
)
def test_kinds_of_items_that_no_format_has(spelling: bytes) -> None:
    for place in range(7):
        assert refused(respelled(place, spelling)) == "malformed"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 5.0),
        (0, True),
        (0, "5"),
        (1, float("nan")),
        (1, float("inf")),
        (1, "1"),
        (2, b"a"),
        (3, "b"),
        (4, (1, "2")),
        (4, {}),
        (6, []),
        (6, {"k": float("nan")}),
        (6, {"k": b""}),
    ],
)
def test_values_of_another_type(place: int, value: object) -> None:
    assert refused(respelled(place, pack(value))) == "invalid"


def bombs(size: int) -> dict[str, bytes]:
    """Return inputs of `size` bytes that ask for as much as they can."""
    units = {
        "lists in lists, each as long as it may claim": b"\xdd" + (size - 5).to_bytes(4, "big"),
        "lists in lists, claiming more than there is": b"\xdd\xff\xff\xff\xff",
        "lists of 65,535 in lists": b"\xdc\xff\xff",
        "tables in tables": b"\xdf" + (size // 2 - 5).to_bytes(4, "big"),
        "lists of one in lists of one": b"\x91",
        "lists of fifteen": b"\x9f",
        "tables of fifteen": b"\x8f\xa0",
        "empty lists": b"\x90",
        "empty tables": b"\x80",
        "empty texts": b"\xa0",
        "empty bytes": b"\xc4\0",
        "small numbers": b"\x01",
        "large numbers": b"\xcf" + b"\xff" * 8,
        "a text that claims too much": b"\xdb\xff\xff\xff\xff",
    }
    found: dict[str, bytes] = {}
    for name, unit in units.items():
        found[name] = (unit * (size // len(unit) + 1))[:size]
        found[f"a list of {name}"] = (
            b"\xdd" + ((size - 5) // len(unit)).to_bytes(4, "big") + found[name]
        )[:size]
    return found


@pytest.mark.parametrize("name", bombs(1000))
def test_no_bomb_goes_off(name: str) -> None:
    """A message of 256 KiB costs some megabytes, whatever its content; a gigabyte was once possible."""
    data = bombs(256 << 10)[name]
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError) as caught:
            decode(Sample, data, max_bytes=len(data))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.reason in ("malformed", "invalid")
    assert len(str(caught.value)) < 300
    assert peak < 32 << 20


def test_items_are_limited_however_long_the_input() -> None:
    def of(count: int) -> bytes:
        return b"\xdd" + count.to_bytes(4, "big") + bytes(count)

    assert len(decode_plain(of(MAX_ITEMS - 1), max_bytes=1 << 20)) == MAX_ITEMS - 1
    with pytest.raises(ProtocolError, match="too many items"):
        decode_plain(of(MAX_ITEMS), max_bytes=1 << 20)


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
)


@given(plain_values)
def test_counting_items_refuses_nothing_honest(value: object) -> None:
    data = pack(value)
    assert decode_plain(data, max_bytes=len(data)) == value


@given(st.binary(max_size=40))
def test_any_bytes(data: bytes) -> None:
    try:
        value = decode_plain(data, max_bytes=40)
    except ProtocolError:
        return
    # NaN is not equal to itself, so compare the representations.
    assert repr(msgpack.unpackb(data)) == repr(value)
