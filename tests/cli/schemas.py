"""The promises of docs/json.md for each command, and the check that a value keeps exactly these."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "json.md"
_ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)
_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "string"}


def documented() -> dict[str, dict[str, str]]:
    """Return, by command, the type of every field by its path."""
    found = {}
    for section in _PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        for command in re.findall(r"`([a-z-]+)`", heading):
            found[command] = {path: kind.strip() for path, kind in _ROW.findall(text)}
    return found


def conforms(command: str, value: Any) -> None:
    """Check a command's output against the page: no missing or additional field, and each of its
    type."""
    fields = documented()[command]
    there: dict[str, set[str]] = {}
    for path, kind in _walk(value, "", fields):
        there.setdefault(path, set()).add(kind)
    for path, kinds in there.items():
        assert path in fields, f"docs/json.md lacks {path} of {command}"
        allowed = fields[path].removesuffix(", or absent").removesuffix(", or null")
        for kind in kinds:
            # An empty list, and an integer where any number is allowed.
            known = kind == allowed or (kind, allowed) == ("whole number", "number")
            known |= kind == "list" and allowed.startswith("list of ")
            known |= kind == "null" and fields[path].endswith(", or null")
            assert known, f"{command}: {path} is a {kind}, and docs/json.md says {fields[path]}"
    for path, kind in fields.items():
        # A field of a missing table or list cannot be present.
        parent = re.sub(r"(\[\])?\.[^.]+$", "", path)
        present = path == parent or _filled(value, parent)
        if not kind.endswith("or absent") and present and "*" not in path:
            assert path in there or (path != parent and parent not in there), (
                f"{command}: no {path}"
            )


def _walk(value: Any, prefix: str, fields: dict[str, str]) -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        path = f"{prefix}*" if f"{prefix}*" in fields else f"{prefix}{key}"
        if isinstance(inner, dict):
            yield path, "table"
            yield from _walk(inner, f"{path}.", fields)
        elif isinstance(inner, list):
            tables = [each for each in inner if isinstance(each, dict)]
            yield path, "list of tables" if tables else "list of strings" if inner else "list"
            assert all(type(each) is type(inner[0]) for each in inner)
            for each in tables:
                yield from _walk(each, f"{path}[].", fields)
        else:
            yield path, "null" if inner is None else _NAMES[type(inner)]


def _filled(value: Any, parent: str) -> bool:
    """Whether there is a table at this path, inside any lists on the way."""
    values = [value]
    for step in parent.split("."):
        values = [each[step] for each in values if isinstance(each, dict) and step in each]
        values = [one for each in values for one in (each if isinstance(each, list) else [each])]
    return any(isinstance(each, dict) for each in values)
