"""Generator of the tables in docs/founders-file.md: every key of the founder's file, from the
dataclasses that describe it.

A key added to these dataclasses appears in the tables with the next `make docs`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

from distro_node.node.create.manifest_file import LoraTable, ManifestFile
from distro_node.protocol.wire.structure import Range
from field_docs import field_docs

# An upper bound of this or more is not shown: it only limits what is decoded, and real values stay far
# below.
_FAR = 2.0**31
_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string"}


@dataclasses.dataclass(frozen=True)
class Key:
    """One key: its kind of value, its default and its meaning, in words for people."""

    name: str
    kind: str
    default: str
    meaning: str


def reference() -> str:
    """Return, as Markdown, a table of the keys above all TOML tables, and one for each TOML table.

    A key that an earlier table has with the same meaning, such as those of a source in `[data]`, is
    only named.
    """
    parts: list[str] = []
    above: set[Key] = set()
    for heading, meaning, keys in tables():
        lines = [f"## {heading}", "", *([meaning, ""] if meaning else [])]
        known = [f"`{key.name}`" for key in keys if key in above]
        if known:
            lines += [f"As above: {', '.join(known)}.", ""]
        new = [key for key in keys if key not in above]
        if new:
            lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
        for key in new:
            cells = (f"`{key.name}`", key.kind, key.default, key.meaning)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        above.update(keys)
        parts.append("\n".join(lines).rstrip() + "\n")
    return "\n".join(parts)


def tables() -> Iterator[tuple[str, str, list[Key]]]:
    """Yield heading, meaning and keys of each table, in the order in which the file is usually
    written."""
    yield from _tables(ManifestFile, "", "Above all tables", "")
    if any(field.name == "model" for field in dataclasses.fields(ManifestFile)):
        # `model` contains a configuration of transformers; our own keys are in a table below it.
        meaning = (inspect.getdoc(LoraTable) or "").partition(": ")[2]
        yield from _tables(LoraTable, "model.lora.", "`[model.lora]`", meaning)


def _tables(cls: type, prefix: str, heading: str, meaning: str) -> Iterator[Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    docs = field_docs(cls)
    keys, inner = [], []
    for field in dataclasses.fields(cls):
        hint, says = hints[field.name], docs.get(field.name, "")
        found = list(_dataclasses(hint))
        for table in found:
            path = prefix + field.name
            name = f"`[[{path}]]`" if _is_many(hint) else f"`[{path}]`"
            own = (inspect.getdoc(table) or "").partition("\n\n")[0].replace("\n", " ")
            inner.append((table, path + ".", name, says or own))
        if not found:
            keys.append(Key(field.name, _kind(hint), _default(field), says))
    if keys:
        yield heading, meaning, keys
    for each in inner:
        yield from _tables(*each)


def _dataclasses(hint: Any) -> Iterator[type]:
    # The metadata after a type in `Annotated` may be instances of dataclasses, and are passed over.
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
        return
    for option in typing.get_args(hint):
        yield from _dataclasses(option)


def _is_many(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return origin in (tuple, list) or any(map(_is_many, typing.get_args(hint)))


def _kind(hint: Any) -> str:
    """Return a type in words, with its bounds."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _bounded(options[0], options[1:])
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_kind(each) for each in options if each is not types.NoneType)
    if origin is Literal:
        return ", ".join(f"`{_toml(each)}`" for each in options)
    if origin in (tuple, list):
        return f"{_kind(options[0])}s"
    if origin is dict or hint is dict:
        return "table"
    while hint not in _SCALARS and hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return _SCALARS[hint]


def _bounded(hint: Any, metadata: tuple[Any, ...]) -> str:
    """Return a type in words with the range of a number; lengths of texts and lists stay out."""
    ranges = [f" {_range(each)}" for each in metadata if isinstance(each, Range)]
    return _kind(hint) + "".join(ranges)


def _range(bounds: Range) -> str:
    if bounds.high >= _FAR:
        return f"from {_number(bounds.low)}"
    return f"from {_number(bounds.low)} to {_number(bounds.high)}"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == math.floor(value) else f"{value:g}"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return "" if field.default is None else f"`{_toml(field.default)}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{_toml(field.default_factory())}`"
    return "**needed**"


def _toml(value: Any) -> str:
    """Return a value as written in TOML; JSON's spelling is the same for everything a default can be."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)


if __name__ == "__main__":
    print(reference(), end="")
