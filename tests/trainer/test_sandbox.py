"""A trainer process that was taken over: what it can still reach."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os, socket, subprocess, sys
from pathlib import Path
from distro_node.node.trainer.sandbox import confine

home, blobs = Path(sys.argv[1]), Path(sys.argv[2])
enforced = confine([], [blobs])
can = {}

def tries(name, act):
    try:
        act()
        can[name] = True
    except (OSError, subprocess.CalledProcessError):
        can[name] = False

tries("write a blob", lambda: (blobs / "new").write_bytes(b"x"))
tries("replace a blob", lambda: os.replace(blobs / "new", blobs / "newer"))
tries("read a blob", lambda: (blobs / "newer").read_bytes())
tries("load a library", lambda: __import__("decimal").Decimal(1))
tries("read the key", lambda: (home / "identity.key").read_bytes())
tries("list the home", lambda: os.listdir(home))
tries("write to the home", lambda: (home / "x").write_bytes(b"x"))
tries("cut the key", lambda: os.truncate(home / "identity.key", 0))
tries("remove the key", lambda: os.remove(home / "identity.key"))
tries("link it away", lambda: os.link(home / "identity.key", blobs / "link"))
tries("an IPv4 socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
tries("an IPv6 socket", lambda: socket.socket(socket.AF_INET6))
tries("a raw socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
tries("a local socket", lambda: socket.socket(socket.AF_UNIX))
tries("signal its parent", lambda: os.kill(os.getppid(), 0))
child = [sys.executable, "-c", f"open({str(home / 'identity.key')!r})"]
tries("read it in a child", lambda: subprocess.run(child, check=True, capture_output=True))
print(json.dumps({"enforced": enforced, "can": can}))
"""


@pytest.fixture
def result(tmp_path: Path) -> dict[str, Any]:
    """What was enforced, and what the confined process could do."""
    home, blobs = tmp_path / "home", tmp_path / "blobs"
    home.mkdir()
    blobs.mkdir()
    (home / "identity.key").write_bytes(b"secret")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(home), str(blobs)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_its_own_files_stay(result: dict[str, Any]) -> None:
    for own in (
        "write a blob",
        "replace a blob",
        "read a blob",
        "load a library",
        "a local socket",
    ):
        assert result["can"][own], own


def test_no_socket_leads_anywhere(result: dict[str, Any]) -> None:
    if "network" not in result["enforced"]:
        pytest.skip("this system has no seccomp filters")
    for name in ("an IPv4 socket", "an IPv6 socket", "a raw socket"):
        assert not result["can"][name], name


SEVERAL = """
import errno, json, os, socket
from distro_node.node.trainer.sandbox import confine

outside = socket.create_server(("127.0.0.1", 0))
enforced = confine([], [], several=True)
inside = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    socket.create_connection(inside.getsockname()).sendall(b"x")
    os._exit(0)
heard = inside.accept()[0].recv(1) == b"x"
os.waitpid(child, 0)
try:
    socket.create_connection(outside.getsockname(), timeout=5)
    reached = True
except OSError:
    reached = False
try:
    socket.create_connection(("192.0.2.1", 9), timeout=5)
    error = 0
except OSError as problem:
    error = problem.errno
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    raw = True
except OSError:
    raw = False
print(json.dumps({"enforced": enforced, "heard": heard, "reached": reached, "raw": raw,
    "unreachable": error == errno.ENETUNREACH}))
"""


def test_several_have_a_network_of_their_own() -> None:
    """They reach each other, and nobody else: not even this machine's own services."""
    run = subprocess.run([sys.executable, "-c", SEVERAL], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["heard"]
    if "network" not in found["enforced"]:
        pytest.skip("this system gives them none")
    assert not found["raw"]
    assert not found["reached"]
    assert found["unreachable"]


def test_no_file_of_others_is_within_reach(result: dict[str, Any]) -> None:
    if "files" not in result["enforced"]:
        pytest.skip("this system has no Landlock")
    for name in (
        *("read the key", "list the home", "write to the home", "cut the key"),
        *("remove the key", "link it away", "read it in a child"),
    ):
        assert not result["can"][name], name


def test_this_kernel_enforces_what_it_can(result: dict[str, Any]) -> None:
    """On the machines that tests usually run on, both: a filter that fails to load is noticed."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("nothing is enforced there")
    assert "network" in result["enforced"]
    if "landlock" in _lsm():
        assert "files" in result["enforced"]


def _lsm() -> str:
    try:
        return Path("/sys/kernel/security/lsm").read_text()
    except OSError:
        return ""
