"""docs/founders-file.md: every key of the founder's file, generated from the code."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

import manifest_reference
from distro_node.node.create.manifest_file import DataTable, ManifestFile
from distro_node.protocol.wire.structure import Length, Range
from manifest_reference import reference, tables


def test_the_page_is_what_the_code_says(checkout: Path) -> None:
    page = (checkout / "docs" / "founders-file.md").read_text(encoding="utf-8")
    assert f"\n\n{reference()}\n" in page, "run `make docs`"


def test_every_key_is_there_and_has_a_meaning() -> None:
    keys = {heading: {key.name for key in keys} for heading, _, keys in tables()}
    data = {each.name for each in fields(DataTable)} - {"source"}
    assert keys["`[data]`"] == data
    assert {"start_members", "lease_rounds", "lease_min_seconds"} <= keys["`[rounds]`"]
    named = {f"`[{name}]`" for name in ("data", "optimizer", "schedule", "rounds", "admission")}
    assert named | {"`[[data.source]]`"} <= keys.keys()
    top = {each.name for each in fields(ManifestFile)}
    assert top == {*keys["Above all tables"]} | {
        found[1] for heading in keys if (found := re.fullmatch(r"`\[+(\w+)\]+`", heading))
    }
    nameless = [f"{h} {k.name}" for h, _, table in tables() for k in table if not k.meaning]
    assert nameless == []


@dataclass(frozen=True, kw_only=True)
class _Inner:
    """What the table is about."""

    width: Annotated[int, Range(1, 2**40)]
    """How wide."""


@dataclass(frozen=True, kw_only=True)
class _Outer:
    kind: Literal["a", "b"] = "a"
    """Which | of both."""
    names: Annotated[tuple[Annotated[str, Length(1, 8)], ...], Length(0, 3)] = ()
    """Their names."""
    share: Annotated[float, Range(0.0, 0.5)] | None = None
    """How much."""
    inner: _Inner | None = None
    many: tuple[_Inner, ...] = field(default=())
    """Several of it."""


def test_all_fields_of_the_dataclasses_are_documented(monkeypatch) -> None:
    monkeypatch.setattr(manifest_reference, "ManifestFile", _Outer)
    assert reference().splitlines() == [
        "## Above all tables",
        "",
        "| key | value | default | meaning |",
        "|---|---|---|---|",
        '| `kind` | `"a"`, `"b"` | `"a"` | Which \\| of both. |',
        "| `names` | strings | `[]` | Their names. |",
        "| `share` | number from 0 to 0.5 |  | How much. |",
        "",
        "## `[inner]`",
        "",
        "What the table is about.",
        "",
        "| key | value | default | meaning |",
        "|---|---|---|---|",
        "| `width` | integer from 1 | **needed** | How wide. |",
        "",
        "## `[[many]]`",
        "",
        "Several of it.",
        "",
        "As above: `width`.",
    ]
