"""State of a chain's indexes as plain data, by which a node opens a long chain without following all of
its records again.

An index lists the attributes of its state (`Restorable.STATE`), each with a `Codec`. What has an item
for each round is packed: it would otherwise be most of the time and of the bytes. Decoding checks types,
lengths and counts, and raises `StructureError`; its time and memory are bounded by the length of the
data and of the chain. It raises `ProtocolError` for parts that are no MessagePack.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
import typing
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Union

import numpy as np

from ...crypto.hashing import CONTENT_ID_BYTES
from .encoding import MAX_ITEMS, decode_plain, encode_plain
from .structure import StructureError

_NUMBER = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class RestoreScope:
    """What all parts of one state have in common while it is decoded."""

    length: int
    """Number of records of the chain."""
    names: dict[bytes, bytes] = dataclasses.field(default_factory=dict)
    """Byte strings that occur many times: each is kept in memory once."""


class Codec(NamedTuple):
    """Conversion of one kind of value into plain data and back."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any, RestoreScope], Any]
    """Raises `StructureError` for anything that `pack` does not return."""


class Restorable:
    """A part of a chain whose state can be saved and restored."""

    STATE: ClassVar[Mapping[str, Codec]] = types.MappingProxyType({})
    """The attributes of the state."""

    def state(self) -> list[Any]:
        """Return the state as plain data."""
        return [codec.pack(getattr(self, name)) for name, codec in self.STATE.items()]

    def restore(self, state: Any, scope: RestoreScope) -> None:
        """Take over a state that an equal object has returned. This object has none yet, and the indexes
        before it on its chain are restored. Raises `ProtocolError`, or an error of a wrong type, index
        or value, for anything else; then this object cannot be used."""
        values = _items(state, len(self.STATE))
        for (name, codec), value in zip(self.STATE.items(), values, strict=True):
            setattr(self, name, codec.unpack(value, scope))


def fields(**codecs: Codec) -> Mapping[str, Codec]:
    """Return the attributes of a state (`Restorable.STATE`)."""
    return codecs


def part(make: Callable[[], Restorable]) -> Codec:
    """Return the codec of objects that have a state of their own; `make` returns one without."""

    def unpack(state: Any, scope: RestoreScope) -> Restorable:
        made = make()
        made.restore(state, scope)
        return made

    return Codec(lambda value: value.state(), unpack)


def apart(whole: Codec) -> Codec:
    """Return the codec of a value as a byte string of its own. The number of items in one value is
    bounded, and a long chain has many of these. A value with too many raises `ProtocolError`."""

    def pack(value: Any) -> bytes:
        data = encode_plain(whole.pack(value))
        if len(data) > MAX_ITEMS:
            # Only so many bytes can be too many items.
            decode_plain(data, max_bytes=len(data))
        return data

    def unpack(data: Any, scope: RestoreScope) -> Any:
        _check_type(data, bytes)
        return whole.unpack(decode_plain(data, max_bytes=len(data)), scope)

    return Codec(pack, unpack)


# With an item for each round


def ids(extra: int) -> Codec:
    """Return the codec of a list of ids of 32 bytes: `extra` more than there are records."""

    def unpack(joined: Any, scope: RestoreScope) -> list[bytes]:
        _check_type(joined, bytes)
        _check_count(len(joined), (scope.length + extra) * CONTENT_ID_BYTES)
        starts = range(0, len(joined), CONTENT_ID_BYTES)
        return [joined[at : at + CONTENT_ID_BYTES] for at in starts]

    return Codec(b"".join, unpack)


def numbers(extra: int | None) -> Codec:
    """Return the codec of a list of numbers of 64 bits without a sign: `extra` more than there are
    records, or any number of them for None."""

    def unpack(joined: Any, scope: RestoreScope) -> list[int]:
        found = unpack_numbers(joined)
        if extra is not None:
            _check_count(len(found), scope.length + extra)
        return found

    return Codec(pack_numbers, unpack)


def pack_numbers(values: Sequence[int]) -> bytes:
    """Return numbers as 8 bytes each, little-endian. Raises `OverflowError` if one has no room."""
    return np.array(values, _NUMBER).tobytes()


def unpack_numbers(joined: Any) -> list[int]:
    """Return the numbers in the result of `pack_numbers`. Raises `StructureError` for anything else."""
    _check_type(joined, bytes)
    _check_count(len(joined) % _NUMBER.itemsize, 0)
    return np.frombuffer(joined, _NUMBER).tolist()


def runs(item: Codec, extra: int | None) -> Codec:
    """Return the codec of a list in which an item often equals the one before: `extra` more of them than
    there are records, or at most two more for None."""

    def pack(values: Sequence[Any]) -> list[Any]:
        counts: list[int] = []
        found: list[Any] = []
        for value in values:
            # Equal neighbours are mostly one object, which is compared faster.
            if found and (value is found[-1] or value == found[-1]):
                counts[-1] += 1
            else:
                counts.append(1)
                found.append(value)
        return [pack_numbers(counts), [item.pack(value) for value in found]]

    def unpack(state: Any, scope: RestoreScope) -> list[Any]:
        joined, packed = _items(state, 2)
        counts = unpack_numbers(joined)
        values = _items(packed, len(counts))
        total = sum(counts)
        _check_count(total, min(total, scope.length + 2) if extra is None else scope.length + extra)
        found = (
            itertools.repeat(item.unpack(v, scope), n) for v, n in zip(values, counts, strict=True)
        )
        return list(itertools.chain.from_iterable(found))

    return Codec(pack, unpack)


# By type


def of(kind: Any) -> Codec:
    """Return the codec of a type: a number, byte string, text or identifier, a dataclass, a collection
    or a tuple of these."""
    return _of(kind)


@functools.cache
def _of(kind: Any) -> Codec:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, typing.NewType):
        return _identifier() if _is_bytes(kind) else _of(kind.__supertype__)
    if origin is Literal:
        return Codec(lambda value: value, functools.partial(_choice, inner))
    if origin in (Union, types.UnionType):
        (some,) = (_of(option) for option in inner if option is not type(None))
        return Codec(
            lambda value: None if value is None else some.pack(value),
            lambda value, scope: None if value is None else some.unpack(value, scope),
        )
    if origin is tuple and inner[-1:] != (Ellipsis,):
        return _fields(lambda values: tuple(values), [_of(each) for each in inner], tuple)
    if origin in _COLLECTIONS:
        return collection(_of(inner[0]), _COLLECTIONS[origin])
    if origin in (dict, Mapping):
        return table(_of(inner[0]), _of(inner[1]))
    if kind is range:
        return _range()
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return _fields(lambda values: kind(*values), [_of(hints[n]) for n in kind._fields], tuple)
    if kind not in (int, bool, bytes, str):
        raise TypeError(f"no state can hold {kind}")
    return Codec(lambda value: value, lambda value, _: _check_type(value, kind))


_COLLECTIONS: dict[Any, Callable[[Iterable[Any]], Any]] = {
    tuple: tuple,
    list: list,
    set: set,
    frozenset: frozenset,
    deque: deque,
}


def _is_bytes(kind: Any) -> bool:
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    return kind is bytes


def _identifier() -> Codec:
    def unpack(value: Any, scope: RestoreScope) -> bytes:
        _check_type(value, bytes)
        _check_count(len(value), CONTENT_ID_BYTES)
        return scope.names.setdefault(value, value)

    return Codec(lambda value: value, unpack)


def _fields(make: Callable[[Iterable[Any]], Any], codecs: Sequence[Codec], values_of: Any) -> Codec:
    def pack(value: Any) -> list[Any]:
        return [codec.pack(each) for codec, each in zip(codecs, values_of(value), strict=True)]

    def unpack(state: Any, scope: RestoreScope) -> Any:
        values = _items(state, len(codecs))
        return make([codec.unpack(each, scope) for codec, each in zip(codecs, values, strict=True)])

    return Codec(pack, unpack)


def _dataclass(kind: Any) -> Codec:
    names = [field.name for field in dataclasses.fields(kind)]
    hints = typing.get_type_hints(kind)
    bounded = [name for name in names if typing.get_origin(hints[name]) is deque]

    def make(values: Iterable[Any]) -> Any:
        made = kind(*values)
        for name in bounded:
            # The bound of a deque is in the dataclass's default.
            empty = getattr(kind(), name)
            empty.extend(getattr(made, name))
            setattr(made, name, empty)
        return made

    return _fields(
        make, [_of(hints[name]) for name in names], lambda value: [getattr(value, n) for n in names]
    )


def collection(item: Codec, make: Callable[[Iterable[Any]], Any] = list) -> Codec:
    """Return the codec of a collection, which `make` returns of its items."""
    ordered = make not in (set, frozenset)

    def pack(values: Any) -> list[Any]:
        return [item.pack(value) for value in (values if ordered else sorted(values))]

    def unpack(state: Any, scope: RestoreScope) -> Any:
        return make([item.unpack(value, scope) for value in _items(state)])

    return Codec(pack, unpack)


def table(key: Codec, item: Codec) -> Codec:
    """Return the codec of a mapping, in its order, on which some rules depend."""

    def pack(table: Mapping[Any, Any]) -> list[Any]:
        return [[key.pack(name), item.pack(value)] for name, value in table.items()]

    def unpack(state: Any, scope: RestoreScope) -> dict[Any, Any]:
        rows = [_items(row, 2) for row in _items(state)]
        return {key.unpack(name, scope): item.unpack(value, scope) for name, value in rows}

    return Codec(pack, unpack)


def _range() -> Codec:
    def unpack(state: Any, scope: RestoreScope) -> range:
        first, end = _items(state, 2)
        return range(_check_type(first, int), _check_type(end, int))

    return Codec(lambda value: [value.start, value.stop], unpack)


def _choice(choices: tuple[Any, ...], value: Any, _: RestoreScope) -> Any:
    if value not in choices:
        raise StructureError("", "an unknown choice")
    return value


def _items(value: Any, count: int | None = None) -> list[Any]:
    if type(value) is not list:
        raise StructureError("", f"a list was expected, not {type(value).__name__}")
    if count is not None:
        _check_count(len(value), count)
    return value


def _check_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise StructureError("", f"{kind.__name__} was expected, not {type(value).__name__}")
    return value


def _check_count(found: int, expected: int) -> None:
    if found != expected:
        raise StructureError("", f"{found} where {expected} were expected")
