"""Commands whose standard streams are closed, or lack a character: they work, and report no bug."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli.test_receipt import stored
from distro_node.node.control.command_socket import ask
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.telemetry.status import encode_status
from distro_node.protocol.wire.manifest import Manifest
from e2e.program import wait_for
from results.support import make_swarm
from simulation.chain import Chain
from statuses import TRAINING

PROGRAM = [sys.executable, "-m", "distro_node.node"]
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


@pytest.mark.parametrize("encoding", ["ascii", "cp437"])
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
    # A prompt went on to the trainer, and could not be sent.
    done = run(folder, f"{' '.join(PROGRAM)} generate --data-dir node $'\\xff'")
    assert done.returncode == ExitCode.USAGE
    assert b"PROMPT is not text in UTF-8" in done.stderr


# --- commands to a running node ------------------------------------------------------------------


ANSWERS: dict[str, dict[str, Any]] = {
    "status": encode_status(TRAINING),
    "pause": {},
    "dashboard": {"url": "http://127.0.0.1:9466/", "link": "http://127.0.0.1:9466/#token=x"},
}
# `resume` and `leave` are as `pause`. The last one fails before it prints anything.
CODES = {
    **dict.fromkeys(("status", "pause", "dashboard --no-open"), ExitCode.OK),
    "--help": ExitCode.OK,
    "--version": ExitCode.OK,
    "pause --nonsense": ExitCode.USAGE,
    "evaluate --tasks gpt4all --swarm swarm-x": ExitCode.BAD_SWARM_ID,
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the directory of a node that answers each command as a real one might."""
    root = tmp_path_factory.mktemp("node")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(DataDir(root).socket))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as client, client.makefile("rw") as lines:
                        asked = json.loads(lines.readline())["command"]
                        lines.write(json.dumps(ANSWERS[asked]) + "\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield root
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def broken(
    arguments: Sequence[str], streams: Sequence[str], **environment: str
) -> subprocess.Popen[bytes]:
    """Start a command with these streams at a pipe whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    where = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE) | dict.fromkeys(streams, writer)
    try:
        return subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            env=os.environ | environment,
            stdout=where["stdout"],
            stderr=where["stderr"],
        )
    finally:
        os.close(writer)


# An answer and a mistake with all of them, and everything else with a reader that is gone and without
# any stream.
LOST = [
    (command, streams)
    for streams in ("stdout", "stdout,stderr", "2>&-", "<&- >&- 2>&-")
    for command in CODES
    if streams in ("stdout", "<&- >&- 2>&-") or command in ("status", "pause --nonsense")
]


@pytest.mark.parametrize(("command", "streams"), LOST)
def test_lost_streams_change_no_exit_code(node: Path, command: str, streams: str) -> None:
    environment = {"DISTRO_NODE_DATA_DIR": str(node)}
    if "&" in streams:
        done = run(node, f"{' '.join(PROGRAM)} {command} {streams}", **environment)
        code, errors = done.returncode, done.stderr
    else:
        process = broken(command.split(), streams.split(","), **environment)
        errors, code = process.communicate(timeout=120)[1] or b"", process.returncode
    assert code == CODES[command], errors
    # Usage errors have the library's usage before them.
    assert bool(errors) == (CODES[command] != ExitCode.OK and streams == "stdout")
    assert b"bug" not in errors
    assert b"Traceback" not in errors


def test_unbuffered_streams_may_be_lost_too(node: Path) -> None:
    environment = {"DISTRO_NODE_DATA_DIR": str(node), "PYTHONUNBUFFERED": "1"}
    for command in ("pause --nonsense", "pause"):
        process = broken(command.split(), ["stdout", "stderr"], **environment)
        assert process.wait(120) == CODES[command]


@pytest.mark.parametrize("command", [name for name in CODES if CODES[name] is ExitCode.OK])
def test_a_full_place_for_the_answer_is_reported(node: Path, command: str) -> None:
    done = run(node, f"{' '.join(PROGRAM)} {command} >/dev/full", DISTRO_NODE_DATA_DIR=str(node))
    assert done.returncode == ExitCode.DISK_FULL
    assert done.stderr.startswith(b"error: ")


# --- programs that run on ------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [">/dev/full", "<&- >&- 2>&-", "2>/dev/full"])
@pytest.mark.e2e
def test_a_bootstrap_peer_runs_on_without_its_streams(tmp_path: Path, streams: str) -> None:
    data = DataDir(tmp_path / "peer")
    arguments = ["bootstrap", "--data-dir", str(data.root), "--listen", "/ip4/127.0.0.1/tcp/0"]
    shell = f'exec "$@" {streams}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *PROGRAM, *arguments], stdout=subprocess.PIPE
    )

    def answered() -> bool:
        assert process.poll() is None
        with contextlib.suppress(UserError):
            return bool(ask(data.socket, "status", 60.0)["line"]["addresses"])
        return False

    wait_for(answered, "the peer to listen")
    process.terminate()
    assert process.wait(120) == ExitCode.OK


@pytest.mark.slow
def test_a_model_is_served_whoever_reads_where(tmp_path: Path) -> None:
    made = make_swarm(tmp_path / "node")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*free.getsockname())
    options = ["--data-dir", str(made.data.root), "--address", address]
    process = broken(["serve", *options], ["stdout", "stderr"])

    def served() -> bool:
        assert process.poll() is None
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://{address}/v1/models") as it,
        ):
            return it.status == 200
        return False

    wait_for(served, "the model to be served")
    process.terminate()
    assert process.wait(120) == ExitCode.OK
