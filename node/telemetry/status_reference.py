"""The table in `docs/reference.md`: every field of a status, its type in JSON and its meaning."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator, Set
from typing import Any, Literal

from ..field_docs import field_docs
from .status import BootstrapStatus, Status

_JSON = {str: "string", int: "integer", float: "number", bool: "boolean"}


def reference() -> str:
    """Return the tables: path, type and meaning of every field."""
    return (
        _table(Status)
        + "\nA bootstrap peer reports less:\n\n"
        + _table(BootstrapStatus, above=Status)
    )


def _table(cls: Any, above: Any = None) -> str:
    """Return the table of a status; objects that the one `above` has too are only named."""
    known = {_kind(hint)[1] for hint in typing.get_type_hints(above).values()} if above else set()
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for path, kind, meaning in _fields(cls, "", known):
        lines.append(f"| `{path}` | {kind} | {meaning} |")
    return "\n".join(lines) + "\n"


def _fields(cls: Any, prefix: str, known: Set[Any]) -> Iterator[tuple[str, str, str]]:
    hints, meanings = typing.get_type_hints(cls), field_docs(cls)
    for field in dataclasses.fields(cls):
        path = prefix + field.name
        kind, inner, many = _kind(hints[field.name])
        meaning = meanings.get(field.name, "").replace("None", "null")
        if inner is not None and not meaning:
            meaning = (inspect.getdoc(inner) or "").partition("\n")[0]
        if inner is not None and inner in known:
            yield path, kind, f"{meaning} As above."
            continue
        yield path, kind, meaning
        if inner is not None:
            yield from _fields(inner, f"{path}[]." if many else f"{path}.", known)


def _kind(hint: Any) -> tuple[str, Any, bool]:
    """Return a type's name in JSON, the dataclass in it if there is one, and whether it is a list."""
    options = typing.get_args(hint)
    # With bounds in it, `typing` creates the older kind of union.
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        kind, inner, many = _kind(next(each for each in options if each is not types.NoneType))
        return f"{kind}?", inner, many
    if typing.get_origin(hint) is tuple:
        kind, inner, _ = _kind(options[0])
        return f"{kind}s", inner, True
    if typing.get_origin(hint) is Literal:
        return " ".join(f"`{each}`" for each in options), None, False
    if dataclasses.is_dataclass(hint):
        return "object", hint, False
    return _JSON[hint], None, False


if __name__ == "__main__":
    print(reference(), end="")
