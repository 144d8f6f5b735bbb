"""docs/round.md: its excerpts are lines of the functions that it links to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# A link to a function, at the end of the paragraph before its excerpt.
EXCERPT = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)\s+```python\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\]\(\.\./([\w/]+\.py)\)")


@dataclass(frozen=True)
class Excerpt:
    """Lines of one function, in runs between the marks for lines left out."""

    function: str
    path: str
    code: str

    def runs(self) -> list[list[str]]:
        """Return the excerpt's runs of lines without indentation."""
        parts = re.split(r"^\s*…\n", self.code, flags=re.MULTILINE)
        return [[line.strip() for line in part.splitlines()] for part in parts]


def excerpts(text: str) -> list[Excerpt]:
    return [Excerpt(*found) for found in EXCERPT.findall(text)]


def lines_of(source: str, function: str) -> list[str]:
    """Return the lines of a function or method without indentation, none if it does not exist."""
    body: list[ast.stmt] = ast.parse(source).body
    node: ast.AST | None = None
    for name in function.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        node = next((n for n in body if isinstance(n, kinds) and n.name == name), None)
        if node is None:
            return []
        body = node.body
    found = ast.get_source_segment(source, node) if node is not None else None
    return [line.strip() for line in (found or "").splitlines()]


def faults(excerpt: Excerpt, checkout: Path) -> Iterator[str]:
    lines = lines_of((checkout / excerpt.path).read_text(encoding="utf-8"), excerpt.function)
    if not lines:
        yield f"{excerpt.path} has no {excerpt.function}"
        return
    start = 0
    for run in excerpt.runs():
        places = range(start, len(lines) - len(run) + 1)
        place = next((i for i in places if lines[i : i + len(run)] == run), None)
        if place is None:
            yield f"{excerpt.function} does not have these lines there: {run}"
            return
        start = place + len(run)


@pytest.fixture(scope="module")
def text(checkout: Path) -> str:
    return (checkout / "docs" / "round.md").read_text(encoding="utf-8")


def test_every_excerpt_is_in_its_function(text: str, checkout: Path) -> None:
    found = excerpts(text)
    assert len(found) == text.count("```python") >= 10
    assert [fault for each in found for fault in faults(each, checkout)] == []


def test_the_comparison_can_fail(checkout: Path) -> None:
    path = "protocol/member/round.py"
    for function, code in (
        ("Round.no_such_step", "return (\n"),
        ("Round.step", "return everything\n"),
        ("Round.step", "or self._vote(round_input, now)\n…\nor self._propose(round_input, now)\n"),
        ("Round.step", "or self._vote(round_input, now)\nor self._propose(round_input, now)\n"),
    ):
        assert len([*faults(Excerpt(function, path, code), checkout)]) == 1


def test_it_names_eight_files_to_read(text: str, checkout: Path) -> None:
    _, _, order = text.partition("## Read these eight files in this order")
    files = LINK.findall(order)
    assert len(files) == len(set(files)) == 8
    # The way of an update leads through all of them except the formats.
    assert set(files) - set(LINK.findall(text.removesuffix(order))) == {
        "protocol/wire/messages.py",
        "protocol/member/effects.py",
    }


def test_the_pictures_names_exist(checkout: Path) -> None:
    picture = (checkout / "docs" / "round.svg").read_text(encoding="utf-8")
    named = re.findall(r'class="b"[^>]*>(\w+)</text>\n<text class="f"[^>]*>(\w+\.py)<', picture)
    assert len(named) >= 9
    code = [path for top in ("node", "protocol") for path in (checkout / top).rglob("*.py")]
    for name, file in named:
        texts = [path.read_text(encoding="utf-8") for path in code if path.name == file]
        assert any(re.search(rf"^(class|def) {name}\b", each, re.M) for each in texts), name
