"""docs/protocol.md has every message and field, in the order in which the code has them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from distro_node.protocol.wire import messages

TYPES = [
    value
    for value in vars(messages).values()
    if dataclasses.is_dataclass(value)
    and isinstance(value, type)
    and value.__module__ == messages.__name__
]


@pytest.fixture(scope="module")
def text(checkout: Path) -> str:
    return (checkout / "docs" / "protocol.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sections(text: str) -> dict[str, str]:
    """Return the text under each heading that is a type."""
    parts = re.split(r"^#{2,3} (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_there_are_types() -> None:
    assert {"Announcement", "Ballot", "Record", "Decided"} <= {cls.__name__ for cls in TYPES}


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)
def test_every_field_of_every_type_in_order(cls: type, sections: dict[str, str]) -> None:
    section = sections[f"`{cls.__name__}`"]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert rows == [field.name for field in dataclasses.fields(cls)]


def test_no_type_that_does_not_exist(sections: dict[str, str]) -> None:
    named = {name.strip("`") for name in sections if name.startswith("`")}
    assert named == {cls.__name__ for cls in TYPES}


def test_every_kind_of_message(sections: dict[str, str]) -> None:
    for kind, cls in messages.MESSAGE_TYPES.items():
        assert f"`{kind}`" in sections[f"`{cls.__name__}`"]


def test_files_that_are_named_exist(text: str, checkout: Path) -> None:
    named = re.findall(r"`((?:protocol|crypto|tests)/[\w./]+\.\w+)`", text)
    assert len(named) > 8
    assert [name for name in named if not (checkout / name).is_file()] == []
