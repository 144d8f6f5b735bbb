"""The promises of docs/reference.md for each command, and the check that a value keeps exactly these."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"
_ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_LISTS = ("strings", "objects")


def documented() -> dict[str, dict[str, str]]:
    """Return, by command, the type of every field by its path.

    A type followed by a command in parentheses belongs to a field that this command alone prints.
    """
    found: dict[str, dict[str, str]] = {}
    text = _PAGE.read_text(encoding="utf-8").split("\n## JSON of the commands\n")[1]
    for section in text.split("\n## ")[0].split("\n### ")[1:]:
        heading, _, table = section.partition("\n")
        for command in re.findall(r"`([a-z-]+)`", heading):
            found[command] = {
                path: kind.partition(" (")[0].strip()
                for path, kind in _ROW.findall(table)
                if " (" not in kind or f"(`{command}`)" in kind
            }
    return found


def conforms(command: str, value: Any) -> None:
    """Check what a command printed against the page: no field too many or too few, each of its type."""
    fields = documented()[command]
    there: dict[str, set[str]] = {}
    for path, kind in _walk(value, "", fields):
        there.setdefault(path, set()).add(kind)
    for path, kinds in there.items():
        assert path in fields, f"docs/reference.md lacks {path} of {command}"
        stated = fields[path].removesuffix(", optional")
        allowed = stated.removesuffix("?")
        for kind in kinds:
            # An empty list, and an integer where any number is allowed.
            known = kind == allowed or (kind, allowed) == ("integer", "number")
            known |= kind == "list" and allowed in _LISTS
            known |= kind == "null" and stated.endswith("?")
            assert known, f"{command}: {path} is {kind}, and docs/reference.md says {fields[path]}"
    for path, kind in fields.items():
        # A field of a missing object or list cannot be present.
        parent = re.sub(r"(\[\])?\.[^.]+$", "", path)
        present = path == parent or _filled(value, parent)
        if not kind.endswith("optional") and present and "*" not in path:
            assert path in there or (path != parent and parent not in there), (
                f"{command}: no {path}"
            )


def _walk(value: Any, prefix: str, fields: dict[str, str]) -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        path = f"{prefix}*" if f"{prefix}*" in fields else f"{prefix}{key}"
        if isinstance(inner, dict):
            yield path, "object"
            yield from _walk(inner, f"{path}.", fields)
        elif isinstance(inner, list):
            tables = [each for each in inner if isinstance(each, dict)]
            yield path, "objects" if tables else "strings" if inner else "list"
            assert all(type(each) is type(inner[0]) for each in inner)
            for each in tables:
                yield from _walk(each, f"{path}[].", fields)
        else:
            yield path, "null" if inner is None else _NAMES[type(inner)]


def _filled(value: Any, parent: str) -> bool:
    """Whether there is an object at this path, in whatever lists are on the way."""
    values = [value]
    for step in parent.split("."):
        values = [each[step] for each in values if isinstance(each, dict) and step in each]
        values = [one for each in values for one in (each if isinstance(each, list) else [each])]
    return any(isinstance(each, dict) for each in values)
