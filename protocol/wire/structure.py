"""Strict conversion between frozen dataclasses and plain values.

Everything that crosses the wire or comes from a manifest is a frozen dataclass whose annotations state
everything that may be in it: types, ranges, lengths. `from_plain` checks a decoded value against them
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId

T = TypeVar("T")
Check = Callable[[Any], Any]

_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
# Identifiers are 32 bytes long wherever they appear, so fields need not state their length.
_FIXED_LENGTH: dict[Any, int] = {ContentId: 32, PeerId: 32}
# Maximum depth of a free-form value (a model's configuration).
_MAX_DEPTH = 12
# Range of MessagePack, signed and unsigned.
_INTEGERS = range(-(2**63), 2**64)
# Maximum number of characters of a text chosen by others that an error message quotes.
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Range:
    """A number's bounds, both included."""

    low: float
    high: float

    def check(self, value: float) -> None:
        """Raise `StructureError` for a number outside the bounds."""
        if not self.low <= value <= self.high:
            raise StructureError("", f"must be between {self.low:g} and {self.high:g}, got {value}")


@dataclass(frozen=True)
class Length:
    """The bounds of a string's, byte string's or tuple's length, both included."""

    low: int
    high: int

    def check(self, value: Any) -> None:
        """Raise `StructureError` for a value that is shorter or longer."""
        if not self.low <= len(value) <= self.high:
            size = f"{self.low}" if self.low == self.high else f"{self.low} to {self.high}"
            unit = {str: "characters", bytes: "bytes"}.get(type(value), "items")
            raise StructureError("", f"must have {size} {unit}, has {len(value)}")


ADDITION = {"addition": True}
"""Metadata of a field added to a dataclass later. It is left out while it has its default, so that
earlier values keep their bytes, and a manifest its swarm-id. In the positional shape such fields come
last, and only those at the end of the list are left out, up to the last one without its default."""

U63 = Annotated[int, Range(0, 2**63 - 1)]
U64 = Annotated[int, Range(0, 2**64 - 1)]


class StructureError(ValueError):
    """Raised if a value does not fit its dataclass. `where` is a dotted path, `problem` says what is
    wrong there."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}" if where else problem)
        self.where = where
        self.problem = problem

    def inside(self, step: str) -> StructureError:
        """Return the same problem, seen from one step further out.

        Paths are built only here: building one for each of many items with long keys would take time
        quadratic in the input.
        """
        dot = "." if step and self.where[:1] not in ("", ".", "[") else ""
        return StructureError(f"{step}{dot}{self.where}", self.problem)


def to_plain(value: Any, *, named: bool) -> Any:
    """Turn a dataclass (or anything inside one) into dicts or lists of plain values."""
    cls = type(value)
    if cls in _SCALARS:
        return value
    names = _field_names(cls)
    if names is not None:
        items = [to_plain(getattr(value, name), named=named) for name in names]
        usual = _additions(cls)
        if not named:
            while usual and names[len(items) - 1] in usual:
                if items[-1] != to_plain(usual[names[len(items) - 1]], named=False):
                    break
                items.pop()
            return items
        table = zip(names, items, strict=True)
        return {name: item for name, item in table if name not in usual or item != usual[name]}
    if isinstance(value, (tuple, list)):
        return [to_plain(item, named=named) for item in value]
    if isinstance(value, Mapping):
        # Sorted, so that equal mappings have equal encodings.
        return {key: to_plain(value[key], named=named) for key in sorted(value)}
    return value


def from_plain(cls: type[T], value: Any, *, named: bool) -> T:
    """Build a `cls` from plain values.

    Raises `StructureError` for an unknown or missing key, a wrong type, a value out of range, and for
    any `ValueError` of the dataclass's own `__post_init__`.
    """
    return _checker(cls, named)(value)


@functools.cache
def _field_names(cls: type) -> tuple[str, ...] | None:
    """Return a dataclass's fields in order; None for any other type. Called for every message."""
    if not dataclasses.is_dataclass(cls):
        return None
    return tuple(field.name for field in dataclasses.fields(cls))


@functools.cache
def _additions(cls: type) -> dict[str, Any]:
    """Return the defaults of the fields that were added later. These defaults are plain values."""
    fields = dataclasses.fields(cls)
    return {field.name: field.default for field in fields if "addition" in field.metadata}


def _named_values(fields: Any, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise StructureError("", f"expected a table, got {_describe(value)}")
    known = [f.name for f in fields]
    for key in value:
        if key not in known:
            # Finding the most similar known key takes time quadratic in the key's length.
            short = str(key)[:_SHOWN_CHARACTERS]
            near = difflib.get_close_matches(short, known, n=1, cutoff=0.0)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise StructureError("", f"unknown key {short!r}{hint}")
    for f in fields:
        if f.name not in value and _required(f):
            raise StructureError("", f"the key {f.name!r} is missing")
    return value


def _positional_values(fields: Any, value: Any) -> dict[str, Any]:
    least = sum("addition" not in f.metadata for f in fields)
    if not isinstance(value, list) or not least <= len(value) <= len(fields):
        raise StructureError("", f"expected a list of {len(fields)}, got {_describe(value)}")
    # Fields missing at the end have their default. Only the shortest list is canonical.
    return {f.name: item for f, item in zip(fields, value, strict=False)}


def _required(f: Any) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


@functools.cache
def _checker(hint: Any, named: bool) -> Check:
    """Return a function that checks a value against one annotation and returns the field's value.

    Cached per annotation, since every message is checked. The path of a problem is built while the error
    propagates.
    """
    if hint in _FIXED_LENGTH:
        size = _FIXED_LENGTH[hint]
        return _bounded(_scalar(bytes), [Length(size, size)])
    if isinstance(hint, typing.NewType):
        return _checker(hint.__supertype__, named)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded(_checker(inner[0], named), inner[1:])
    if hint is Any:
        return functools.partial(_free, depth=0)
    if origin is Literal:
        return functools.partial(_choice, inner)
    if origin in (Union, types.UnionType):
        return _optional(hint, named)
    if origin is tuple:
        if inner[1:] != (Ellipsis,):
            raise TypeError(f"{hint} has a fixed length: use a dataclass")
        return functools.partial(_sequence, _checker(inner[0], named))
    if Mapping in (hint, origin) or dict in (hint, origin):
        return _table
    return _dataclass(hint, named) if dataclasses.is_dataclass(hint) else _scalar(hint)


def _dataclass(cls: Any, named: bool) -> Check:
    fields = dataclasses.fields(cls)
    values_of = _named_values if named else _positional_values
    hints = typing.get_type_hints(cls, include_extras=True)
    checkers = {f.name: _checker(hints[f.name], named) for f in fields}

    def check(value: Any) -> Any:
        arguments: dict[str, Any] = {}
        name = ""
        try:
            for name, item in values_of(fields, value).items():
                arguments[name] = checkers[name](item)
        except StructureError as error:
            raise error.inside(name) from None
        try:
            return cls(**arguments)
        except StructureError:
            raise
        except ValueError as error:
            raise StructureError("", str(error)) from None

    return check


def _bounded(inner: Check, bounds: Iterable[Any]) -> Check:
    def check(value: Any) -> Any:
        checked = inner(value)
        for bound in bounds:
            bound.check(checked)
        return checked

    return check


def _optional(hint: Any, named: bool) -> Check:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if len(options) != 1:
        raise TypeError(f"{hint} is not an optional type: other unions are not supported")
    inner = _checker(options[0], named)
    return lambda value: None if value is None else inner(value)


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    if value not in choices or type(value) not in {type(c) for c in choices}:
        known = ", ".join(repr(c) for c in choices)
        raise StructureError("", f"must be one of {known}, got {_describe(value)}")
    return value


def _sequence(inner: Check, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise StructureError("", f"expected a list, got {_describe(value)}")
    items: list[Any] = []
    try:
        for item in value:
            items.append(inner(item))
    except StructureError as error:
        raise error.inside(f"[{len(items)}]") from None
    return tuple(items)


def _table(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise StructureError("", f"expected a table, got {_describe(value)}")
    return _free(value, 0)


def _scalar(kind: Any) -> Check:
    def check(value: Any) -> Any:
        # In Python bool is a subclass of int, but True is not accepted as a number here.
        if type(value) is not kind:
            raise StructureError("", f"expected {_NAMES.get(kind, kind)}, got {_describe(value)}")
        return value

    return _number if kind is float else check


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise StructureError("", f"expected {_NAMES[float]}, got {_describe(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise StructureError("", f"must be a finite number, got {_describe(value)}")
    return number


def _free(value: Any, depth: int) -> Any:
    """Check a free-form value: scalars, lists and dicts with string keys, at most `_MAX_DEPTH` deep."""
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
        path = f"[{step}]" if isinstance(step, int) else f".{step[:_SHOWN_CHARACTERS]}"
        raise error.inside(path) from None


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
        # Python refuses to print integers of thousands of digits.
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    short = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "…"
    return f"{short} ({_NAMES.get(type(value), type(value).__name__)})"
