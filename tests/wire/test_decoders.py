"""Every decoder: it returns what was encoded, and no bytes are a second spelling of a value.

`tests/fuzz` has more inputs for each, and longer runs.
"""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from typing import Annotated, Any, Literal

import pytest
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList, decode_blob_list
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.structure import Length, Range
from hypothesis import given
from hypothesis import strategies as st
from simulation.formats import FORMATS, Format
from simulation.hostile import hostile

FAST_INPUTS = 300

REASONS = {"oversized", "malformed", "invalid", "mismatch", "version"}


# Values of any format, generated from its annotations


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Return values that an annotation allows. Lists are kept short: lengths have tests of their own."""
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
    fields = {name: values_of(hint) for name, hint in _hints(cls).items()}
    return st.fixed_dictionaries(fields).map(lambda made: _build(cls, made)).filter(bool)


# A version other than the program's is refused. `committees` depends on many fields at once.
_REFUSED = [("Manifest", "version"), ("Manifest", "committees")]


def changed(value: Any) -> st.SearchStrategy[Any]:
    """Return a value like this one, with some fields regenerated that fit all fields before them.

    Where rules connect many fields, regenerating all of them hardly ever gives a valid value.
    """
    fields = {
        name: changed(getattr(value, name))
        if dataclasses.is_dataclass(getattr(value, name))
        else values_of(hint)
        for name, hint in _hints(type(value)).items()
        if (type(value).__name__, name) not in _REFUSED
    }
    return st.fixed_dictionaries({}, optional=fields).map(lambda new: _with(value, new))


def _hints(cls: Any) -> dict[str, Any]:
    """Return the annotations of a class's fields. Class variables are no part of an encoding."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _with(value: Any, new: dict[str, Any]) -> Any:
    for name, field in new.items():
        value = _build(type(value), {**_fields(value), name: field}) or value
    return value


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


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
        # Fields that do not fit together: more warm-up than rounds, and the like.
        return None


@pytest.mark.parametrize("name", FORMATS)
def test_round_trip(name: str) -> None:
    format_ = FORMATS[name]

    anew = isinstance(format_.value, BlobList)

    @given(instances(BlobList) if anew else changed(format_.value))
    def check(value: Any) -> None:
        data = encode(value, named=format_.named)
        decoder = format_.decode
        if isinstance(value, BlobList):
            assert decode_blob_list(data, "snapshot", value.size) == value
        else:
            assert decoder(data) == value

    check()


def value_or_error(format_: Format, data: bytes) -> bool:
    """Decode; return whether it was a value. Anything but a value or `ProtocolError` fails the test."""
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
    """Return how many hostile inputs gave a value, and how many an error."""
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
    """A message cannot be passed off as one of another shape."""
    format_ = FORMATS[name]
    for other_name, other in FORMATS.items():
        if type(other.value) is not type(format_.value):
            same_shape = {name, other_name} <= {"leave", "join"}
            assert same_shape or not value_or_error(format_, other.data), other_name
