"""Every guard has a fault it is there for; if the library mends one, the first test says so."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from distro_node.node.network import guards
from network import faults

NAMES = [fault.__name__ for fault in faults.FAULTS]


def run_faults(*arguments: str) -> dict[str, bool | str]:
    program = Path(faults.__file__)
    finished = subprocess.run(
        [sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return json.loads(finished.stdout)


@pytest.fixture(scope="module")
def unguarded() -> dict[str, bool | str]:
    return run_faults()


@pytest.fixture(scope="module")
def guarded() -> dict[str, bool | str]:
    return run_faults("guarded")


@pytest.mark.parametrize("name", NAMES)
def test_the_library_has_the_fault(unguarded: dict[str, bool | str], name: str) -> None:
    assert unguarded[name] is True


@pytest.mark.parametrize("name", NAMES)
def test_the_guard_is_effective(guarded: dict[str, bool | str], name: str) -> None:
    assert guarded[name] is False


def test_installing_twice_patches_once() -> None:
    from libp2p.stream_muxer.yamux.yamux import Yamux

    before = Yamux.__init__
    guards.install()
    assert Yamux.__init__ is before
    assert guards.ORIGINALS["Yamux.__init__"] is not before


def test_another_version_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.0")
    with pytest.raises(ImportError, match=r"cannot run with libp2p 0\.9\.0"):
        runpy.run_path(guards.__file__)


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
