"""Where the bytes of a member's step go: updates, gossip, requests, and what carries them.

    python benchmarks/traffic.py [--steps 25] [--json FILE]

The swarm of `peers.py` trains: four members and a bootstrap peer, which relays their updates, on
loopback, with the demo's model. Printed are kB a member and step: what the nodes send, by purpose, and
all that passed the interface of a network namespace of its own, headers included. The rest is
encryption, TCP and IP. Requires root, `unshare` and `ip`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from command_line import new_parser, write_json
from e2e import program
from peers import MEMBERS, Ours, Watch, prepare

_TRACED = Path(__file__).resolve().parent / "traced_node"
_INSIDE = "DISTRO_TRAFFIC_INSIDE"
_WARMUP_STEPS = 10
_START_SECONDS = 900.0
_STEP_SECONDS = 60.0


def measure(folder: Path, steps: int) -> dict[str, float]:
    """Return kB a member and step by purpose, and the numbers of messages, writes and packets."""
    counts = folder / "counts"
    counts.mkdir()
    prepare(folder, "demo")
    os.environ |= {"PYTHONPATH": str(_TRACED), "TRACED_NODE": str(counts)}
    # A copy of a loaded process would not import what counts.
    program.start_node = lambda *_, **__: None
    ours, everyone = Ours(folder), range(MEMBERS)
    watch = Watch(ours)
    try:
        ours.start()
        if not watch.until(_WARMUP_STEPS, everyone, _START_SECONDS):
            raise RuntimeError(f"the swarm does not train: see the logs in {folder}")
        before, first = _sent(counts), watch.look(everyone)
        if not watch.until(first + steps, everyone, _STEP_SECONDS * steps):
            raise RuntimeError(f"the swarm stopped: see the logs in {folder}")
        after, last = _sent(counts), watch.look(everyone)
    finally:
        ours.stop()
    after.subtract(before)
    each = MEMBERS * (last - first)
    numbers = {"gossip messages", "writes", "packets"}
    return {
        what: count / each / (1 if what in numbers else 1000)
        for what, count in sorted(after.items())
        if count
    }


def _sent(folder: Path) -> Counter[str]:
    """Return what all processes have sent so far, and what the interface has carried."""
    total: Counter[str] = Counter()
    for file in folder.glob("*.json"):
        total.update(json.loads(file.read_text()))
    interface: Any = psutil.net_io_counters(pernic=True)["lo"]
    total["all on the wire"] = interface.bytes_sent
    total["packets"] = interface.packets_sent
    return total


def main() -> None:
    """Measure one swarm."""
    parser = new_parser(__doc__)
    parser.add_argument("--steps", type=int, default=25, help="steps that are measured")
    options = parser.parse_args()
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip"))):
        parser.exit(
            1, "traffic.py: a network namespace takes root and the programs unshare and ip\n"
        )
    if _INSIDE not in os.environ:
        words = ["unshare", "--net", sys.executable, *sys.argv]
        os.execvpe(words[0], words, {**os.environ, _INSIDE: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.steps)
    for what, figure in figures.items():
        print(f"{what:<40}{figure:>8.2f}")
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
