"""Every patch has a fault that it mends; if the library fixes one, the first test fails.

And every fault that the library could fix has a program that shows it and a patch that fixes it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import logging
import os
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import libp2p
import pytest
from distro_node.node.network import library_patches
from network import faults

PROGRAM = Path(faults.__file__)
README = faults.UPSTREAM / "README.md"


def run_faults(*arguments: str, library: Path | None = None) -> dict[str, bool | str]:
    path = {} if library is None else {"PYTHONPATH": str(library)}
    finished = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env={**os.environ, **path},
    )
    return json.loads(finished.stdout)


def copy_library(to: Path) -> Path:
    installed = Path(libp2p.__file__).parent
    # With its bytecode, so that only patched modules are compiled again.
    shutil.copytree(installed, to / "libp2p")
    return to


def apply(patch: Path, library: Path, *options: str) -> None:
    command = ["git", "apply", *options, str(patch)]
    subprocess.run(command, cwd=library, check=True, timeout=60)


@pytest.fixture(scope="module")
def unguarded() -> dict[str, bool | str]:
    return run_faults()


@pytest.fixture(scope="module")
def guarded() -> dict[str, bool | str]:
    return run_faults("guarded")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_library(tmp_path_factory.mktemp("pristine"))


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool | str]:
    library = copy_library(tmp_path_factory.mktemp("patched"))
    for name in faults.PATCHED:
        apply(faults.UPSTREAM / f"{name}.patch", library)
    return run_faults("patched", library=library)


@pytest.mark.parametrize("name", faults.NAMES)
def test_the_library_has_the_fault(unguarded: dict[str, bool | str], name: str) -> None:
    assert unguarded[name] is True


@pytest.mark.parametrize("name", faults.NAMES)
def test_the_guard_is_effective(guarded: dict[str, bool | str], name: str) -> None:
    assert guarded[name] is False


@pytest.mark.parametrize("name", faults.PATCHED)
def test_the_patch_applies_by_itself(pristine: Path, name: str) -> None:
    apply(faults.UPSTREAM / f"{name}.patch", pristine, "--check")


@pytest.mark.parametrize("name", faults.PATCHED)
def test_the_patch_mends_it(patched: dict[str, bool | str], name: str) -> None:
    assert patched[name] is False


def test_every_patch_has_its_program() -> None:
    assert sorted(path.stem for path in faults.UPSTREAM.glob("*.patch")) == faults.PATCHED


def test_every_guard_names_a_patch_or_why_it_is_ours() -> None:
    targets = Counter(patch.target for patch in library_patches.PATCHES)
    assert max(targets.values()) == 1
    assert "`patches` in `node/network/library_patches.py`" in README.read_text()
    for patch in library_patches.PATCHES:
        assert patch.why
        if not patch.upstream.startswith("ours: "):
            assert set(patch.upstream.split(", ")) <= set(faults.PATCHED)


def test_every_patch_is_in_the_table() -> None:
    text = README.read_text()
    for name in faults.PATCHED:
        title = ast.get_docstring(ast.parse((faults.UPSTREAM / f"{name}.py").read_text()))
        assert title is not None
        assert f"| [{name}]({name}.py) | {title.partition(chr(10))[0]} |" in text


def test_the_list_of_guards_is_what_is_installed() -> None:
    for patch in library_patches.PATCHES:
        now = patch.owner.__dict__[patch.name]
        assert type(now) is type(patch.function)
        assert patch.target in library_patches.ORIGINALS
        assert now is not library_patches.ORIGINALS[patch.target]


def test_installing_twice_patches_once() -> None:
    from libp2p.stream_muxer.yamux.yamux import Yamux

    before = Yamux.__init__
    library_patches.install()
    assert Yamux.__init__ is before
    assert library_patches.ORIGINALS["Yamux.__init__"] is not before


def test_nodes_connect_on_a_machine_without_a_name_server() -> None:
    program = """
import dns.resolver, trio

def unconfigured(*_):
    raise dns.resolver.NoResolverConfiguration

dns.resolver.BaseResolver.read_resolv_conf = unconfigured
from network.support import star

async def main():
    async with star(2) as (a, b):
        assert a.connected() == {b.peer}

trio.run(main)
"""
    tests = Path(__file__).parents[1]
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(tests)},
    )


def test_another_version_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.0")
    with pytest.raises(ImportError, match=r"cannot run with libp2p 0\.9\.0"):
        runpy.run_path(library_patches.__file__)


def test_warnings_of_the_library_reach_our_log_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    library = logging.getLogger("libp2p")
    assert library.level == logging.WARNING
    assert all(isinstance(handler, logging.NullHandler) for handler in library.handlers)
    with caplog.at_level(logging.INFO, logger="root"):
        logging.getLogger("libp2p.somewhere").warning("seen")
        logging.getLogger("libp2p.somewhere").info("not seen")
    assert [record.message for record in caplog.records] == ["seen"]
