"""Commands whose standard streams are closed, or lack a character: they work, and report no bug."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.test_receipt import stored
from distro_node.node.errors import ExitCode
from distro_node.protocol.wire.manifest import Manifest
from simulation.chain import Chain

SHOWN = f"{sys.executable} -m distro_node.node contributions --data-dir node"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a data directory whose swarm has a name beyond ASCII."""
    root = tmp_path_factory.mktemp("streams")
    chain = Chain(2, name="bees 🐝")
    assert isinstance(chain.manifest, Manifest)
    stored(root / "node", chain.grow_until(3).ledger)
    return root


def run(folder: Path, command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "| head -1", ">&- 2>/dev/full"]
)
def test_closed_streams_are_no_bug(folder: Path, streams: str) -> None:
    done = run(folder, f"{SHOWN} {streams}")
    assert (done.returncode, done.stderr) == (ExitCode.OK, b"")
    assert done.stdout == b"" if ">&-" in streams.split() else done.stdout


def test_an_error_without_a_place_to_go_keeps_its_exit_code(folder: Path) -> None:
    done = run(folder, f"{SHOWN.replace('node contributions', 'node status')} <&- >&- 2>&-")
    assert (done.returncode, done.stderr) == (ExitCode.NOT_RUNNING, b"")


def test_a_full_place_is_reported(folder: Path) -> None:
    done = run(folder, f"{SHOWN} >/dev/full")
    assert done.returncode == ExitCode.DISK_FULL
    assert done.stderr.startswith(b"error: ")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_characters_that_a_terminal_lacks_are_replaced(folder: Path, encoding: str) -> None:
    done = run(folder, SHOWN, PYTHONIOENCODING=encoding, PYTHONUTF8="0", LC_ALL="C")
    assert (done.returncode, done.stderr) == (ExitCode.OK, b"")
    # The library writes UTF-8 where the encoding is ASCII, since that is mostly a missing setting.
    shown = "🐝".encode() if encoding == "ascii" else b"?"
    assert done.stdout.startswith(b"bees " + shown + b" (swarm-")


def test_marks_stay_apart_without_their_characters(folder: Path) -> None:
    script = (
        "from distro_node.node.util.standard_streams import open_standard_streams\n"
        "open_standard_streams(); print('✓ ✗ … × 🐝')"
    )
    done = run(folder, f'{sys.executable} -c "{script}"', PYTHONIOENCODING="ascii")
    assert done.stdout == b"+ x ... x ?\n"


def test_an_argument_that_is_no_text_is_one_line(folder: Path) -> None:
    done = run(folder, f"{SHOWN} $'swarm-\\xff'")
    assert done.returncode == ExitCode.BAD_SWARM_ID
    assert b"bug" not in done.stderr
    assert len(done.stderr.splitlines()) == 2
