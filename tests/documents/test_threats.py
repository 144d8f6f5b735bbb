"""docs/threats.md, and the table of simulations in docs/protocol.md: each row names the tests that show
it, and these exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import takewhile
from pathlib import Path

REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows(checkout: Path) -> list[list[str]]:
    """The cells of the rows of all tables that have a column of tests."""
    found: list[list[str]] = []
    columns: list[str] = []
    for line in (checkout / "docs" / "threats.md").read_text("utf-8").splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not columns:
            columns = cells
        elif columns[-1] in ("shown by", "test") and not set(line) <= set("|-"):
            assert len(cells) == len(columns), line[:80]
            found.append(cells)
    return found


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_row_names_tests_that_exist(checkout: Path) -> None:
    table = rows(checkout)
    assert len(table) > 40
    faults: list[str] = []
    for cells in table:
        named = REFERENCE.findall(cells[-1])
        if not named:
            faults.append(f"{cells[0]}: shown by nothing")
        for name, function in named:
            path = checkout / "tests" / name
            if not path.is_file() or function not in functions(path):
                faults.append(f"{cells[0]}: there is no {name}::{function}")
    assert faults == []


def test_nothing_else_stands_in_the_column_of_tests(checkout: Path) -> None:
    for cells in rows(checkout):
        assert re.sub(r"[`,\s]", "", REFERENCE.sub("", cells[-1])) == "", cells[0]


# docs/protocol.md's table of what is simulated


def simulated(checkout: Path) -> list[list[str]]:
    """The rows of the table of what each simulation runs."""
    lines = (checkout / "docs" / "protocol.md").read_text("utf-8").splitlines()
    begin = lines.index("| what | fast | whole | else covered by |")
    table = takewhile(lambda line: line.startswith("|"), lines[begin + 2 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_what_is_not_simulated_names_files_of_tests(checkout: Path) -> None:
    table = simulated(checkout)
    assert len(table) > 10
    faults: list[str] = []
    for what, fast, whole, covered in table:
        named = re.findall(r"`tests/([\w/]+\.py)`", covered)
        if not named and not fast.startswith("yes"):
            faults.append(f"{what}: covered by nothing")
        if re.sub(r"[`,\s]|tests/[\w/]+\.py", "", covered):
            faults.append(f"{what}: {covered} is more than files")
        for name in named:
            path = checkout / "tests" / name
            if not path.is_file() or not any(f.startswith("test_") for f in functions(path)):
                faults.append(f"{what}: there are no tests in {name}")
        for name in re.findall(r"`(tests/[\w/]+\.py)`", fast + whole):
            if not (checkout / name).is_file():
                faults.append(f"{what}: there is no {name}")
    assert faults == []
