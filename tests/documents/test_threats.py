"""docs/threats.md, and the table of simulations in docs/protocol.md: each row names the tests that
show it, and these exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import takewhile
from pathlib import Path

REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")


def sections(checkout: Path) -> dict[str, str]:
    """Return the cells of the rows of all tables that have a column of tests."""
    text = (checkout / "docs" / "threats.md").read_text("utf-8")
    parts = re.split(r"^(#{2,3}) (.*)$", text, flags=re.MULTILINE)
    return {
        heading: body
        for level, heading, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
        if level == "###"
    }


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_threat_names_tests_that_exist(checkout: Path) -> None:
    threats = sections(checkout)
    assert len(threats) > 30
    faults: list[str] = []
    for threat, body in threats.items():
        *_, last = body.strip().splitlines()
        named = REFERENCE.findall(last)
        if not named or not last.startswith("Tests: "):
            faults.append(f"{threat}: shown by nothing")
        if re.sub(r"[`,\s]", "", REFERENCE.sub("", last.removeprefix("Tests: "))):
            faults.append(f"{threat}: its line of tests holds something else")
        for name, function in named:
            path = checkout / "tests" / name
            if not path.is_file() or function not in functions(path):
                faults.append(f"{threat}: there is no {name}::{function}")
    assert faults == []


# docs/protocol.md's table of simulations


def simulated(checkout: Path) -> list[list[str]]:
    """Return the rows of the table of what each simulation runs."""
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
