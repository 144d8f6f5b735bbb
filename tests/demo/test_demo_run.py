"""The demo as a user runs it: it keeps all its promises, and no process is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


class Family:
    """Collects every process that a process starts, directly or indirectly, while it runs."""

    def __init__(self, root: psutil.Process) -> None:
        self.seen: set[psutil.Process] = set()
        self._root = root
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            with suppress(psutil.Error):
                self.seen.update(self._root.children(recursive=True))

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def running(self) -> list[str]:
        """Return the command lines of those still running."""
        lines = []
        # A copy: the thread that looks for processes goes on adding some.
        for process in list(self.seen):
            with suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    lines.append(" ".join(process.cmdline()))
        return lines


PROGRAM = ("-m", "distro_node.node")
HALF = (str(Path(__file__).with_name("half_demo.py")),)


@contextmanager
def demo(
    out: Path, *options: str, program: Sequence[str] = PROGRAM
) -> Iterator[tuple[subprocess.Popen[str], Family]]:
    """Run `distro-node demo` in a process, and collect its family; killed if the test ends early."""
    process = subprocess.Popen(
        [sys.executable, "-P", *program, "demo", "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background may ignore SIGINT, which would be inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    family = Family(psutil.Process(process.pid))
    try:
        yield process, family
    finally:
        family.stop()
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=300)


@pytest.mark.timeout(1800)
def test_a_small_demo_keeps_its_promises_without_its_founder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--nodes", "3", "--rounds", "16", "--victim", "1")
    # Most of its time is training. The other tests run the program itself.
    with demo(out, *options, program=HALF) as (process, family):
        stdout, stderr = process.communicate(timeout=1700)
    assert process.returncode == 0, f"{stdout}\n{stderr}"
    # A bootstrap peer, `create`, four nodes, and the trainers of all but the first.
    assert len(family.seen) >= 11
    assert family.running() == []

    summary = json.loads((out / "summary.json").read_text())
    assert summary["passed"]
    assert summary["rounds"] == 16
    assert {event["kind"] for event in summary["events"]} == {
        "killed", "started", "joined", "bootstrap_killed",
    }  # fmt: skip
    assert [node["exit"] for node in summary["nodes"]] == ["killed", "left", "left", "left"]
    survivors = summary["nodes"][1:]
    assert {node["last_round"] for node in survivors} == {16}
    assert len({node["final_fingerprint"] for node in survivors}) == 1
    assert survivors[-1]["first_round"] > 8
    assert summary["heldout_loss"][-1][0] == 16
    # Nats per piece of a word, of which there are 2,048: 7.62 before.
    assert summary["heldout_loss"][-1][1] < summary["heldout_loss"][0][1] - 0.5
    # The information in k = 8 positions of 4,096 and their signs, if all are equally likely.
    assert 8 < summary["bits_per_coefficient"] < 11.2
    assert summary["dense_bytes_per_round"] > 300 * summary["received_bytes_per_round"]
    assert (out / "loss.png").stat().st_size > 10_000
    assert "round 16/16" in stderr
    assert "✗" not in stdout


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)]
)
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    with demo(out, "--nodes", "2", "--rounds", "12") as (process, family):
        # Until the trainers run, too: two nodes, two trainers, one bootstrap peer.
        deadline = time.monotonic() + 600
        while len(family.running()) < 5:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130
    assert str(out / "logs") in stderr
    assert "Traceback" not in stderr
    assert family.running() == []


@pytest.mark.timeout(1500)
def test_a_process_that_dies_unasked_fails_the_demo_and_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with demo(out, "--nodes", "2", "--rounds", "12") as (process, family):
        deadline = time.monotonic() + 600
        # The second node has begun to log; its first line may be a warning of a taken port.
        while not (log := out / "logs" / "node-2.log").exists() or '"info"' not in log.read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # Its trainer and its workers name the same folder.
        (node,) = [
            one
            for one in family.seen
            if "join" in (words := cmdline(one)) and str(out / "node-2") in " ".join(words)
        ]
        node.kill()
        stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 3
    assert "error: node-2 ended unexpectedly after round 0 (exit code -9)" in stderr
    assert str(log) in stderr
    assert "info: " in stderr
    assert "✗" in stdout
    assert family.running() == []
    summary = json.loads((out / "summary.json").read_text())
    assert not summary["passed"]
    assert "node-2" in summary["failure"]


def cmdline(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []
