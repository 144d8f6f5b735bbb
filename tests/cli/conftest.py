"""Fixtures that run the command line inside the test's process, in a home directory of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from distro_node.node.cli import main


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        """The lines on stderr, without those that show progress ("mixing the training data …")."""
        lines = self.err.splitlines()
        return [line for line in lines if line.startswith("  ") or not line.endswith(" …")]

    def refused_with(self, code: int, *words: str) -> None:
        """Check that the command printed what is wrong and what to do, in one line each."""
        assert self.code == code, self
        problem, remedy = self.complaints
        assert problem.startswith("error: ")
        assert remedy.startswith("  ")
        assert remedy.strip()
        for word in words:
            assert word in problem
        assert "Traceback" not in self.err


Command = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home directory, with none of the settings of the user who runs the tests."""
    for variable in list(os.environ):
        if variable.startswith(("DISTRO_NODE", "XDG_")):
            monkeypatch.delenv(variable)
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    return place


@pytest.fixture(autouse=True)
def logging_is_put_back(logging_as_it_was: None) -> None:
    """Restore logging: each command configures it for the whole process."""


@pytest.fixture
def command(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command line and returns its result."""

    def run(*arguments: str | Path) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return run
