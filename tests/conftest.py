"""Fixtures and hooks shared by several test files."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from distro_node.node.telemetry import logs
from hypothesis import HealthCheck, settings
from preloaded.copies import cold, preloaded
from rewritten_assertions import write_all
from trio.testing import MockClock
from virtual_time import jumping_clock, run_in_virtual_time

# Set before anything loads torch, and for all processes that tests start: several workers and
# trainers share few cores, and OpenMP threads that wait for each other burn the time of those that
# compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Nothing of what collection makes goes away: the collector need not look for it, then or later.
gc.disable()

# A slow example reflects the machine, and not the code under test. `make soak` looks for rare ones
# with the profile `soak`; tests with an explicit number of examples try that many in both.
settings.register_profile(
    "usual", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("usual"), max_examples=2000)
settings.load_profile("usual")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Assign files to several parallel workers, file by file (`xdist_schedule`)."""
    from xdist_schedule import FromBothEnds

    return FromBothEnds(config, log) if config.getvalue("dist") == "loadfile" else None


# Files that take minutes, the longest first: the run waits for any that starts last.
_LONG = (
    *("e2e/test_swarm.py", "demo/test_demo_run.py", "e2e/test_dashboard.py"),
    *("e2e/test_audits.py", "e2e/test_mistakes.py", "e2e/test_kills.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files in which every test has real processes first, the longest in front, and extend the
    time limit of such tests; have those marked `virtual_time` run in it."""
    others = {item.path for item in items if item.get_closest_marker("e2e") is None}

    def turn(item: pytest.Item) -> tuple[bool, int]:
        name = "/".join(item.path.parts[-2:])
        return item.path in others, _LONG.index(name) if name in _LONG else len(_LONG)

    items.sort(key=turn)
    for item in items:
        if item.get_closest_marker("virtual_time") is not None:
            # Before the mark that pytest-trio adds.
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
        # They wait for several things one after the other, each for ten minutes at most.
        processes = item.get_closest_marker("e2e") is not None
        if processes and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(3000))


def pytest_configure(config: pytest.Config) -> None:
    """Start the processes that trainers and nodes are copied from; parallel workers share the
    controller's, and find all assertions rewritten."""
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        if config.getoption("numprocesses", None) and not sys.dont_write_bytecode:
            write_all(config, (Path(each.partition("::")[0]) for each in config.args))
        started = ExitStack()
        folder = started.enter_context(TemporaryDirectory(prefix="preloaded-"))
        started.enter_context(preloaded(Path(folder)))
        config.add_cleanup(started.close)


def pytest_collection_finish() -> None:
    """Start the garbage collector, which was stopped during collection."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def cold_trainers() -> Iterator[None]:
    """Have trainers and nodes load their libraries themselves: the test looks at the process itself."""
    with cold():
        yield


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """Restore logging: configuring it affects the whole process, here pytest's."""
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    levels = {name: logging.getLogger(name).level for name in logs._LIBRARY_LEVELS}
    yield
    for name, quiet in levels.items():
        logging.getLogger(name).setLevel(quiet)
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    logging.raiseExceptions = raising


@pytest.fixture
def autojump_clock() -> Iterator[MockClock]:
    """Run the test in virtual time."""
    with jumping_clock() as clock:
        yield clock


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Return the repository's root."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def project_files(checkout: Path) -> list[Path]:
    """Return every file that git tracks or would track, as absolute paths."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed, so there is no telling which files are the project's")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = sorted({checkout / name for name in listed.stdout.split("\0") if name})
    return [path for path in paths if path.is_file()]


@pytest.fixture(scope="session")
def fault_in_command() -> Callable[[Sequence[str]], str | None]:
    """Return a function that returns what is wrong with the words after `distro-node`, or None.

    It uses the parsers of the program itself, without running anything: unknown commands and
    options, options without their value, missing or surplus arguments.
    """
    from distro_node.node.cli.main import app
    from typer.main import get_command

    group: Any = get_command(app)

    def parse(command: Any, words: Sequence[str]) -> tuple[str | None, list[str]]:
        parser = command.make_parser(command.context_class(command))
        try:
            values, rest, _ = parser.parse_args(args=list(words))
        except Exception as error:
            # The parser has its own exception classes; any of them means that the words are wrong.
            return str(error), []
        missing = [
            parameter.name
            for parameter in command.params
            if parameter.required and values.get(parameter.name) is None
        ]
        fault = f"lacks {', '.join(missing)}" if missing and "help" not in values else None
        return fault, rest

    def fault(words: Sequence[str]) -> str | None:
        found, rest = parse(group, words)
        if found or not rest:
            return found
        name, *rest = rest
        if name not in group.commands:
            return f"there is no command {name!r}"
        found, rest = parse(group.commands[name], rest)
        return found or (f"does not take {rest}" if rest else None)

    return fault


@pytest.fixture(scope="session")
def promtool() -> str:
    """Return the path of promtool. Without it tests are skipped, except in CI."""
    found = shutil.which("promtool")
    if found is None:
        assert os.environ.get("CI") != "true", "CI needs promtool (Debian: prometheus)"
        pytest.skip("promtool is not installed")
    return found
