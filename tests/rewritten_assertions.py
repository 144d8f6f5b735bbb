"""Bytecode of tests, with the assertions that pytest rewrites, made by all cores before workers start.

Rewriting takes half of the collection in a fresh clone. Each of several workers collects all tests, at
the same time as the others, so each would rewrite all of them.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

# Private here: `_read_pyc`, `_rewrite_test`, `_write_pyc`: the library rewrites only what it then runs.


def write_all(config: pytest.Config, paths: Iterable[Path]) -> None:
    """Write the bytecode of these test files, and of the tests in these folders, that is not there."""
    files = [
        file
        for path in paths
        for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])
        if rewrite._read_pyc(file, bytecode(file)) is None
    ]
    if files:
        # Copied with the process: a configuration cannot be sent to another one.
        _Writer.config = config
        with multiprocessing.get_context("fork").Pool() as pool:
            pool.map(_Writer.write, files, chunksize=4)


def bytecode(file: Path) -> Path:
    """Return where pytest looks for a test file's bytecode."""
    return rewrite.get_cache_dir(file) / (file.name.removesuffix(".py") + rewrite.PYC_TAIL)


class _Writer:
    config: pytest.Config

    @classmethod
    def write(cls, file: Path) -> None:
        """Write the bytecode of a file. One that cannot be rewritten fails where it is collected."""
        try:
            source, code = rewrite._rewrite_test(file, cls.config)
        except (OSError, SyntaxError, ValueError):
            return
        if rewrite.try_makedirs(bytecode(file).parent):
            state = cls.config.stash[rewrite.assertstate_key]
            rewrite._write_pyc(state, code, source, bytecode(file))
