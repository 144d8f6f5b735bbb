"""Frozen dataclasses to plain values and back, strictly.

Everything that crosses the wire or comes from a manifest is a frozen dataclass whose annotations
say all that may be in it: types, ranges, lengths. `from_plain` checks a decoded value against them
and names the place and the problem; nothing is converted, guessed or ignored.

Two shapes exist. *Named* (a dict by field name) is for what people read and write: the manifest.
*Positional* (a list in field order) is for messages, where names would be most of the bytes.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId

T = TypeVar("T")

_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
# Identifiers are 32 bytes wherever they appear; no field repeats it.
_FIXED_LENGTH: dict[Any, int] = {ContentId: 32, PeerId: 32}
# The deepest free-form value (a model's configuration) that we walk into.
_MAX_DEPTH = 12
# What MessagePack can carry, signed and unsigned.
_INTEGERS = range(-(2**63), 2**64)
# How much of a text somebody else chose goes into an error message.
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Range:
    """A number's bounds, both included."""

    low: float
    high: float


@dataclass(frozen=True)
class Length:
    """The bounds of a string's, byte string's or tuple's length, both included."""

    low: int
    high: int


ADDITION = {"addition": True}
"""The metadata of a field that was added to a named dataclass. It is left out while it has its default,
so that what was made before keeps its bytes, and a manifest its swarm-id."""

U63 = Annotated[int, Range(0, 2**63 - 1)]
U64 = Annotated[int, Range(0, 2**64 - 1)]


class StructureError(ValueError):
    """A value does not fit its dataclass. `where` is a dotted path, `problem` a full sentence."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}" if where else problem)
        self.where = where
        self.problem = problem


def to_plain(value: Any, *, named: bool) -> Any:
    """Turn a dataclass (or anything inside one) into dicts or lists of plain values."""
    cls = type(value)
    if cls in _SCALARS:
        return value
    names = _field_names(cls)
    if names is not None:
        items = [to_plain(getattr(value, name), named=named) for name in names]
        if not named:
            return items
        usual = _additions(cls)
        table = zip(names, items, strict=True)
        return {name: item for name, item in table if name not in usual or item != usual[name]}
    if isinstance(value, (tuple, list)):
        return [to_plain(item, named=named) for item in value]
    if isinstance(value, Mapping):
        # Sorted, so that equal mappings have equal encodings.
        return {key: to_plain(value[key], named=named) for key in sorted(value)}
    return value


def from_plain(cls: type[T], value: Any, *, named: bool, where: str = "") -> T:
    """Build a `cls` from plain values.

    Raises `StructureError` for an unknown or missing key, a wrong type, a value out of range, and
    for whatever the dataclass's own `__post_init__` refuses with a `ValueError`.
    """
    hints = _hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # T is always a dataclass here
    values_of = _named_values if named else _positional_values
    plain = values_of(fields, value, where)
    arguments = {
        name: _check(hints[name], item, f"{where}.{name}" if where else name, named)
        for name, item in plain.items()
    }
    try:
        return cls(**arguments)
    except StructureError:
        raise
    except ValueError as error:
        raise StructureError(where, str(error)) from None


@functools.cache
def _field_names(cls: type) -> tuple[str, ...] | None:
    """The fields of a dataclass in order; None for any other type. Asked for with every message."""
    if not dataclasses.is_dataclass(cls):
        return None
    return tuple(field.name for field in dataclasses.fields(cls))


@functools.cache
def _additions(cls: type) -> dict[str, Any]:
    """The defaults of the fields that were added, which are plain values."""
    fields = dataclasses.fields(cls)
    return {field.name: field.default for field in fields if "addition" in field.metadata}


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _named_values(fields: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise StructureError(where, f"expected a table, got {_describe(value)}")
    known = [f.name for f in fields]
    for key in value:
        if key not in known:
            # Finding the nearest takes time in the square of the length.
            short = str(key)[:_SHOWN_CHARACTERS]
            near = difflib.get_close_matches(short, known, n=1, cutoff=0.0)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise StructureError(where, f"unknown key {short!r}{hint}")
    for f in fields:
        if f.name not in value and _required(f):
            raise StructureError(where, f"the key {f.name!r} is missing")
    return dict(value)


def _positional_values(fields: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, list) or len(value) != len(fields):
        raise StructureError(where, f"expected a list of {len(fields)}, got {_describe(value)}")
    return {f.name: item for f, item in zip(fields, value, strict=True)}


def _required(f: Any) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _check(hint: Any, value: Any, where: str, named: bool) -> Any:
    """Check `value` against one annotation and return what the field should hold."""
    if typing.get_origin(hint) is Annotated:
        base, *bounds = typing.get_args(hint)
        checked = _check(base, value, where, named)
        for bound in bounds:
            _check_bound(bound, checked, where)
        return checked
    if hint in _FIXED_LENGTH:
        _check_bound(
            Length(_FIXED_LENGTH[hint], _FIXED_LENGTH[hint]),
            _check(bytes, value, where, named),
            where,
        )
        return value
    if isinstance(hint, typing.NewType):
        return _check(hint.__supertype__, value, where, named)
    if hint is Any:
        return _check_free(value, where)
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices or type(value) not in {type(c) for c in choices}:
            known = ", ".join(repr(c) for c in choices)
            raise StructureError(where, f"must be one of {known}, got {_describe(value)}")
        return value
    if origin in (Union, types.UnionType):
        return _check_optional(hint, value, where, named)
    if origin is tuple:
        return _check_tuple(hint, value, where, named)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise StructureError(where, f"expected a table, got {_describe(value)}")
        return _check_free(value, where)
    if dataclasses.is_dataclass(hint):
        return from_plain(hint, value, named=named, where=where)  # type: ignore[arg-type]  # a class
    return _check_scalar(hint, value, where)


def _check_optional(hint: Any, value: Any, where: str, named: bool) -> Any:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if value is None and len(options) < len(typing.get_args(hint)):
        return None
    if len(options) != 1:
        raise TypeError(f"{hint} is no optional: unions are not supported")
    return _check(options[0], value, where, named)


def _check_tuple(hint: Any, value: Any, where: str, named: bool) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise StructureError(where, f"expected a list, got {_describe(value)}")
    inner = typing.get_args(hint)
    if len(inner) == 2 and inner[1] is Ellipsis:
        return tuple(_check(inner[0], item, f"{where}[{i}]", named) for i, item in enumerate(value))
    if len(value) != len(inner):
        raise StructureError(where, f"expected {len(inner)} items, got {len(value)}")
    return tuple(
        _check(item_hint, item, f"{where}[{i}]", named)
        for i, (item_hint, item) in enumerate(zip(inner, value, strict=True))
    )


def _check_scalar(hint: Any, value: Any, where: str) -> Any:
    # bool is a subclass of int in Python and is neither a count nor a size to us.
    if hint is float and type(value) in (int, float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise StructureError(where, f"must be a finite number, got {_describe(value)}")
        return number
    if type(value) is not hint:
        raise StructureError(where, f"expected {_NAMES.get(hint, hint)}, got {_describe(value)}")
    return value


def _check_bound(bound: Any, value: Any, where: str) -> None:
    if isinstance(bound, Range) and not bound.low <= value <= bound.high:
        raise StructureError(
            where, f"must be between {bound.low:g} and {bound.high:g}, got {value}"
        )
    if isinstance(bound, Length) and not bound.low <= len(value) <= bound.high:
        size = f"{bound.low}" if bound.low == bound.high else f"{bound.low} to {bound.high}"
        unit = {str: "characters", bytes: "bytes"}.get(type(value), "items")
        raise StructureError(where, f"must have {size} {unit}, has {len(value)}")


def _check_free(value: Any, where: str) -> Any:
    """Check a free-form value: scalars, lists and string-keyed dicts, not too deep."""
    try:
        return _free(value, 0)
    except StructureError as error:
        raise StructureError(where + error.where, error.problem) from None


def _free(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise StructureError("", "nested too deeply")
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int and value in _INTEGERS:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise StructureError("", f"keys must be strings, got {_describe(key)}")
    elif not isinstance(value, (list, tuple)):
        raise StructureError("", f"unexpected {_describe(value)}")
    # The place is put together on the way out of an error only: keys may be long, and to write them
    # out for each of many items would take time in the square of the input.
    step: int | str = 0
    try:
        if isinstance(value, Mapping):
            table = {}
            for step in sorted(value):
                table[step] = _free(value[step], depth + 1)
            return table
        items = []
        for step in range(len(value)):
            items.append(_free(value[step], depth + 1))
        return items
    except StructureError as error:
        here = f"[{step}]" if isinstance(step, int) else f".{step[:_SHOWN_CHARACTERS]}"
        raise StructureError(here + error.where, error.problem) from None


_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bytes: "bytes",
    bool: "true or false",
}


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if type(value) is int and value not in _INTEGERS:
        # Python refuses to write out what has thousands of digits.
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    short = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "…"
    return f"{short} ({_NAMES.get(type(value), type(value).__name__)})"
