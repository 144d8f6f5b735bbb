"""Bytecode that is written before workers start is what pytest would make itself."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from rewritten_assertions import bytecode, write_all


def test_pytest_finds_the_assertions_of_all_tests_rewritten(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    single, folder = tmp_path / "test_one.py", tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    for file in (single, folder / "below" / "test_other.py"):
        file.write_text("x = 1\nassert x == 2\n")
    (folder / "test_broken.py").write_text("assert (\n")
    (folder / "helper.py").write_text("assert False\n")
    write_all(pytestconfig, [single, folder])
    assert not bytecode(folder / "helper.py").exists()
    assert not bytecode(folder / "test_broken.py").exists()
    for file in (single, folder / "below" / "test_other.py"):
        with pytest.raises(AssertionError, match="assert 1 == 2"):
            runpy.run_path(str(bytecode(file)))
