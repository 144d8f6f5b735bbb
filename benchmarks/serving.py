"""What serving a model costs the swarm that trains it on the same processor.

    python benchmarks/serving.py [--pairs 20] [--steps 15] [--json FILE]

Four members on loopback train the demo's model, with one thread each and at least as many of them as
there are cores, so that all cores compute. `distro-node serve` serves the newest state of one of them.
Stretches of steps alternate: in one a program asks for text without a pause, in the other all processes
of `serve` are stopped. Printed are the seconds a step with and without it, the median over the pairs of
how much longer a step took, with its standard error (1.25 times that of the mean), and how many tokens
a second were served meanwhile.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from command_line import new_parser, write_json
from e2e.program import Program, wait_for
from e2e.support import Node
from peers import MEMBERS, NO_EVALUATION, demo_swarm, prepare

_WARMUP_STEPS = 20
_TOKENS = 16
_ANSWER_SECONDS = 600.0
_POLL_SECONDS = 0.05
_RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class Pair:
    """Two stretches of steps, one after the other."""

    without_seconds: float
    """Seconds a step while nothing was served."""
    with_seconds: float

    @property
    def longer(self) -> float:
        """By what part a step took longer."""
        return self.with_seconds / self.without_seconds - 1


class Reader:
    """A program that asks for text, again and again, while it is allowed to."""

    def __init__(self, url: str) -> None:
        self.tokens = 0
        self._url = url
        with urllib.request.urlopen(f"{url}/v1/models") as answer:
            self._model: str = json.load(answer)["data"][0]["id"]
        self._may_ask = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Let it ask meanwhile. Raises `RuntimeError` if it was refused."""
        self._may_ask.set()
        try:
            yield
        finally:
            self._may_ask.clear()
        if not self._thread.is_alive():
            raise RuntimeError("the server refused a request")

    def _ask(self) -> None:
        body = json.dumps(
            {"model": self._model, "prompt": "Once", "max_tokens": _TOKENS, "temperature": 1.0}
        ).encode()
        while self._may_ask.wait():
            request = urllib.request.Request(
                f"{self._url}/v1/completions", body, {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
                    self.tokens += json.load(answer)["usage"]["completion_tokens"]
            except urllib.error.HTTPError as error:
                # A server that was stopped for long may find that its next snapshot is gone: it says
                # so, and opens a newer one.
                if error.code != 503:
                    raise
                time.sleep(_RETRY_SECONDS)


def measure(folder: Path, pairs: int, steps: int) -> dict[str, Any]:
    """Return the pairs, and how many tokens a second were served."""
    prepare(folder, "demo")
    with demo_swarm(folder / "nodes", folder / "swarm") as swarm:
        swarm.create()
        nodes = [swarm.node("founder"), *(swarm.node(f"node{i}") for i in range(1, MEMBERS))]
        for node in nodes:
            node.start(*NO_EVALUATION)
        step = _stepping(nodes[0])
        step(_WARMUP_STEPS)
        url = f"http://127.0.0.1:{_free_port()}"
        program = swarm.run(
            "serve", "serve", "--data-dir", nodes[0].data.root, "--address", url[len("http://") :]
        )
        wait_for(lambda: _answers(url), "the served model")
        reader = Reader(url)
        measured, served, asked = [], 0, 0.0
        for _ in range(pairs):
            with _stopped(program):
                without = step(steps)
            tokens, began = reader.tokens, time.monotonic()
            with reader.asking():
                measured.append(Pair(without, step(steps)))
            served += reader.tokens - tokens
            asked += time.monotonic() - began
    return {
        "cores": os.cpu_count(),
        "steps": steps,
        "pairs": [asdict(pair) for pair in measured],
        "longer": statistics.median(pair.longer for pair in measured),
        "standard_error": 1.25
        * statistics.stdev(pair.longer for pair in measured)
        / len(measured) ** 0.5,
        "tokens_per_second": served / asked,
    }


def _stepping(node: Node) -> Callable[[int], float]:
    """Return a function that waits for so many steps and returns the seconds of one."""

    def last() -> int:
        return max(node.rounds(), default=0)

    def step(count: int) -> float:
        first = last()
        while (before := last()) == first:
            time.sleep(_POLL_SECONDS)
        began = time.monotonic()
        while (after := last()) < before + count:
            if not node.running:
                raise RuntimeError("a member has ended")
            time.sleep(_POLL_SECONDS)
        return (time.monotonic() - began) / (after - before)

    return step


@contextmanager
def _stopped(program: Program) -> Iterator[None]:
    """Stop all processes of a program meanwhile."""
    root = psutil.Process(program.pid)
    family = [root, *root.children(recursive=True)]
    for process in family:
        process.suspend()
    try:
        yield
    finally:
        for process in family:
            process.resume()


def _answers(url: str) -> bool:
    with suppress(OSError, urllib.error.URLError), urllib.request.urlopen(f"{url}/v1/models"):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def main() -> None:
    """Measure one swarm."""
    parser = new_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of stretches")
    parser.add_argument("--steps", type=int, default=15, help="steps of a stretch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.pairs, options.steps)
    for pair in figures["pairs"]:
        print(f"{pair['without_seconds']:.3f} s a step, {pair['with_seconds']:.3f} s with serving")
    print(
        f"a step takes {100 * figures['longer']:.1f} ± {100 * figures['standard_error']:.1f} % longer, "
        f"{figures['tokens_per_second']:.1f} tokens a second"
    )
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
