"""The table in `docs/reference.md`: every field of a status, its type in JSON and its meaning."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

from distro_node.node.telemetry.status import BootstrapStatus, Status
from field_docs import field_docs

_JSON = {str: "string", int: "integer", float: "number", bool: "boolean"}


def reference() -> str:
    """Return the tables: path, type and meaning of every field."""
    shown: dict[Any, str] = {}
    return (
        _table(Status, shown)
        + "\nA bootstrap peer reports less:\n\n"
        + _table(BootstrapStatus, shown)
    )


def _table(cls: Any, shown: dict[Any, str]) -> str:
    """Return the table of a status. An object whose fields were `shown` already is only named."""
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for path, kind, meaning in _fields(cls, "", shown):
        lines.append(f"| `{path}` | {kind} | {meaning} |")
    return "\n".join(lines) + "\n"


def _fields(cls: Any, prefix: str, shown: dict[Any, str]) -> Iterator[tuple[str, str, str]]:
    hints, meanings = typing.get_type_hints(cls), field_docs(cls)
    for field in dataclasses.fields(cls):
        path = prefix + field.name
        kind, inner, many = _kind(hints[field.name])
        meaning = meanings.get(field.name, "").replace("None", "null")
        if inner is not None and not meaning:
            meaning = (inspect.getdoc(inner) or "").partition("\n")[0]
        if inner in shown:
            yield path, kind, f"{meaning} Fields as in `{shown[inner]}`."
        else:
            yield path, kind, meaning
            if inner is not None:
                shown[inner] = path
                yield from _fields(inner, f"{path}[]." if many else f"{path}.", shown)


def _kind(hint: Any) -> tuple[str, Any, bool]:
    """Return a type's name in JSON, the dataclass in it if there is one, and whether it is a list."""
    options = typing.get_args(hint)
    # `typing` represents a union that contains an `Annotated` type by the older class, `typing.Union`.
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
