"""docs/tutorial.md as a newcomer follows it: every block of it runs, with the output shown."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = "tcp/4001"

# What a tutorial cannot require: test machines are shared, and tests stay on loopback.
SURROUNDINGS = {
    "DISTRO_NODE_JOIN_LISTEN": "/ip4/127.0.0.1/tcp/0",
    "DISTRO_NODE_MDNS": "false",
    "DISTRO_NODE_UPNP": "false",
    "DISTRO_NODE_JOIN_DASHBOARD": "127.0.0.1:0",
    "DISTRO_NODE_JOIN_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


def steps(text: str) -> list[tuple[str, str]]:
    """Return the blocks of shell in order, each with the output that the page shows after it."""
    found: list[tuple[str, str]] = []
    for kind, body in BLOCK.findall(text):
        if kind == "sh":
            found.append((body, ""))
        else:
            command, shown = found[-1]
            assert not shown, "two outputs of one block"
            found[-1] = (command, body)
    return found


def pattern(line: str) -> str:
    """Convert a shown line to a pattern: any number for a number, anything for `…`."""
    parts = re.split(r"(…|\d[\d,.]*|\s+)", line.strip())
    wild = {"…": ".*", "0": r"\d[\d,.]*", " ": r"\s+"}
    return "".join(
        wild[" " if part.isspace() else "0" if part[0].isdigit() else part]
        if re.fullmatch(r"…|\d.*|\s+", part)
        else re.escape(part)
        for part in parts
        if part
    )


def missing(shown: str, output: str) -> str | None:
    """Return the first line of the shown output that does not follow in the real output, or None."""
    lines = iter(output.splitlines())
    for line in shown.splitlines():
        if line.strip() not in ("", "…") and not any(
            re.match(pattern(line), got.strip()) for got in lines
        ):
            return line
    return None


def test_the_comparison_can_fail() -> None:
    shown = "Made 'x': 131,904 parameters.\n…\nround 5: loss 5.…\nswarm-id     swarm-…\n"
    output = "Made 'x': 7 parameters.\nmore\nround 5: loss 5.25, and so on\nswarm-id  swarm-abc\n"
    assert missing(shown, output) is None
    for before, after in (("Made", "Makes"), ("round 5: ", "round: "), ("swarm-abc", "abc")):
        assert missing(shown, output.replace(before, after)) is not None, before
    assert missing("one\ntwo", "two\none") == "two"


@contextlib.contextmanager
def shell(script: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script in a shell; at the end stop it with everything it started."""
    mine = {name: value for name, value in os.environ.items() if "DISTRO_NODE" not in name}
    programs = os.pathsep.join([str(Path(sys.executable).parent), mine["PATH"]])
    places = {"PATH": programs, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    running = subprocess.Popen(
        ["bash", script],
        cwd=folder,
        env={**mine, **SURROUNDINGS, **places},
        stdin=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        yield running
    finally:
        # Nodes, whose trainers end with them, and the shell.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


@pytest.mark.e2e
@pytest.mark.slow
def test_the_tutorial_runs_as_it_is_written(checkout: Path, tmp_path: Path) -> None:
    text = (checkout / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert PORT in text
    # The only change to the text: a port that other programs on this machine may use.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        todo = steps(text.replace(PORT, f"tcp/{free.getsockname()[1]}"))
    outputs = [tmp_path / f"step-{number}.txt" for number in range(len(todo))]
    script = tmp_path / "tutorial.sh"
    script.write_text(
        "set -e\n"
        + "".join(
            f"{{\n{command}}} > {output} 2>&1\n"
            for (command, _), output in zip(todo, outputs, strict=True)
        ),
        encoding="utf-8",
    )
    with shell(script, tmp_path) as running:
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = running.wait(2700.0)
        left = [each.pid for each in psutil.process_iter() if _in_group(each.pid, running.pid)]
    said = [output.read_text("utf-8", "replace") for output in outputs if output.exists()]
    folder = tmp_path / "first-swarm"
    logs = {path.name: path.read_text("utf-8", "replace") for path in folder.glob("*.log")}
    assert code == 0, f"step {len(said)}:\n{todo[len(said) - 1][0]}\n{said[-1]}\n{logs}"
    assert len(said) == len(todo)
    for (command, shown), output in zip(todo, said, strict=True):
        lost = missing(shown, output)
        assert lost is None, f"{command}\nshould say: {lost}\nbut says:\n{output}"
    # The page's claims in its text.
    assert left == [], "the tutorial leaves processes behind"
    losses = dict(re.findall(r"round (\d+): loss ([\d.]+)", logs["anna.log"]))
    assert float(losses["30"]) < float(losses["1"])
    assert "your update counted" in logs["anna.log"]
    assert "your update counted" in logs["ben.log"]
    (sample,) = [
        output for (command, _), output in zip(todo, said, strict=True) if "generate" in command
    ]
    # The first and the last word may be parts of one.
    words = re.findall(r"[A-Za-z]{2,}", sample)[1:-1]
    known = {word for text in (folder / "texts").iterdir() for word in _words(text)}
    assert len(words) > 10, sample
    assert sum(word in known for word in words) > 0.6 * len(words), sample


def _words(text: Path) -> set[str]:
    return set(re.findall(r"[A-Za-z]{2,}", text.read_text("utf-8")))


def _in_group(process: int, group: int) -> bool:
    try:
        return os.getpgid(process) == group
    except ProcessLookupError:
        return False
