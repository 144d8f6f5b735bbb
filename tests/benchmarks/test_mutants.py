"""The mutation run: what it skips, which tests it runs, and what it draws."""

from __future__ import annotations

import importlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

SOURCE = """\
def bit(number: int | None = 1 | 2) -> str | None:
    held: int | bool = 4 | 8
    return held
"""


@pytest.fixture
def benchmark(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("mutants")


def test_annotations_are_left_alone(benchmark: Any) -> None:
    bars = [
        (row, column)
        for row, line in enumerate(SOURCE.splitlines(), 1)
        for column, sign in enumerate(line)
        if sign == "|"
    ]
    assert [benchmark.in_annotations(SOURCE, *bar) for bar in bars] == [
        True,
        False,
        True,
        True,
        False,
    ]


def test_the_tests_named_for_a_module_come_first(benchmark: Any, checkout: Path) -> None:
    found = benchmark.tests_of("protocol/chain/fork_choice.py", checkout)
    assert found[0] == "tests/chain/test_fork_choice.py"
    assert found[-1] == "tests/chain"


@pytest.mark.parametrize("module", ["protocol/wire/manifest.py", "crypto/hashing.py"])
def test_every_module_has_a_folder_of_tests(benchmark: Any, checkout: Path, module: str) -> None:
    assert module in benchmark.all_modules()
    assert all((checkout / place).exists() for place in benchmark.tests_of(module, checkout))


def test_so_many_are_drawn_the_same_each_time(benchmark: Any, tmp_path: Path) -> None:
    columns = "job_id, start_pos_row, start_pos_col, operator_name, occurrence"

    def session(name: str) -> Path:
        with sqlite3.connect(tmp_path / name) as database:
            database.execute(f"CREATE TABLE mutation_specs ({columns})")
            database.execute("CREATE TABLE work_items (job_id)")
            for row, column in ((1, 19), (1, 31), (2, 23), (2, 25), (2, 27)):
                job = f"{row} {column}"
                database.execute(
                    "INSERT INTO mutation_specs VALUES (?, ?, ?, 'x', 0)", (job, row, column)
                )
                database.execute("INSERT INTO work_items VALUES (?)", (job,))
        return tmp_path / name

    def left(path: Path) -> list[str]:
        with sqlite3.connect(path) as database:
            return [job for (job,) in database.execute("SELECT job_id FROM work_items")]

    one, other, all_of_them = session("one"), session("other"), session("all")
    # The bar in the first annotation is not an operator.
    assert benchmark.draw(one, SOURCE, 2, 0) == (4, 2)
    assert benchmark.draw(other, SOURCE, 2, 0) == (4, 2)
    assert left(one) == left(other)
    assert benchmark.draw(all_of_them, SOURCE, 0, 0) == (4, 4)
    assert left(all_of_them) == ["1 31", "2 23", "2 25", "2 27"]
