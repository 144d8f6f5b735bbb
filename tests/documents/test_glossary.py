"""docs/glossary.md: sixty terms, each with code that exists, linked from the README."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
CODE = re.compile(r"(?:`(\w+)` in )?`([\w/]+\.py)`")


@pytest.fixture(scope="module")
def rows(checkout: Path) -> list[tuple[str, str, str]]:
    text = (checkout / "docs" / "glossary.md").read_text(encoding="utf-8")
    heading, _, *found = ROW.findall(text)
    assert heading == ("term", "meaning", "code")
    return found


def defined(module: Path) -> set[str]:
    """Return the names of the classes, functions and type aliases at the top of a module."""
    names: set[str] = set()
    for statement in ast.parse(module.read_text(encoding="utf-8")).body:
        match statement:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(statement.name)
            case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                names.add(name)
            case _:
                pass
    return names


def faults(rows: list[tuple[str, str, str]], checkout: Path) -> list[str]:
    found: list[str] = []
    for term, _, code in rows:
        if not CODE.fullmatch(code):
            found.append(f"{term}: {code} names no code")
            continue
        name, path = CODE.findall(code)[0]
        if not (checkout / path).is_file():
            found.append(f"{term}: there is no {path}")
        elif name and name not in defined(checkout / path):
            found.append(f"{term}: {path} has no {name}")
    return found


def test_every_term_names_code_that_exists(
    rows: list[tuple[str, str, str]], checkout: Path
) -> None:
    assert faults(rows, checkout) == []


def test_the_comparison_can_fail(checkout: Path) -> None:
    wrong = [
        ("a", "", "`Nothing` in `crypto/envelope.py`"),
        ("b", "", "`crypto/nothing.py`"),
        ("c", "", "somewhere"),
    ]
    assert len(faults(wrong, checkout)) == 3


def test_terms_are_sorted_unique_and_enough(rows: list[tuple[str, str, str]]) -> None:
    terms = [term for term, _, _ in rows]
    assert terms == sorted(set(terms), key=str.lower)
    assert len(terms) >= 60
    assert [term for term, meaning, _ in rows if meaning.count(". ") > 1] == []


def test_the_readme_links_it(checkout: Path) -> None:
    assert "(docs/glossary.md)" in (checkout / "README.md").read_text(encoding="utf-8")


def test_no_class_name_stands_twice(checkout: Path) -> None:
    found: dict[str, list[str]] = {}
    for folder in ("crypto", "protocol", "node"):
        for path in sorted((checkout / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(path.relative_to(checkout).as_posix())
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
