"""Rounds per hour of four real nodes of different speeds, with equal shares and with shares by speed.

    python benchmarks/shares.py [--quotas 0.04 0.08 0.16 0.32] [--sequences 1200] [--rounds 8]
        [--settle 10] [--work FOLDER] [--json FILE]

Each node is a process of this machine, on loopback, whose trainer may use a fixed part of one core.
This script enforces the quota: it reads the CPU time of the trainer's process, stops it (SIGSTOP)
when that exceeds the quota, and continues it (SIGCONT) when it is below, fifty times a second;
unused time is lost except for a tenth of a second's worth. So it needs no privileges, and a
trainer's speed hardly depends on what else runs here, if the machine can give the sum of the quotas.
It begins when the trainer has loaded its model.

The ideal is measured in the same run: the sequences per second of each trainer alone under its
quota, added up. Rounds are counted by the sequences whose updates count in them: a round that leaves
a share untrained counts in part. With equal shares everything is the same except `max_share` in the
manifest, which is 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import trio
from distro_node.node.content.downloads import blob_list_at
from distro_node.node.demo.history import History
from distro_node.node.results.saved_state import read_swarm
from distro_node.node.training.client import TrainerSpec, open_trainer
from local_nodes import LocalNodes, timing_manifest, trainer_of, wait_for_round

TICK_SECONDS = 0.02
# CPU time that a trainer may have saved up.
BURST_SECONDS = 0.1
SEQUENCE = 128
# Time for which each trainer is measured alone.
ALONE_SECONDS = 25.0
# With the first no member has more than an equal share; with the second the fastest of 1 : 2 : 4 : 8
# has its own.
EQUAL_SHARE, LARGE_SHARE = 0.0, 0.6

MODEL = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": SEQUENCE,
    "tie_word_embeddings": True,
}


class Quota:
    """Limits a process to a part of one core until it is closed."""

    def __init__(self, pid: int, part: float) -> None:
        self._process = psutil.Process(pid)
        self._part = part
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let the process run freely."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        # An ended process needs no quota.
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            self._hold()
        with contextlib.suppress(psutil.Error):
            self._process.resume()

    def _hold(self) -> None:
        credit, stopped = 0.0, False
        used, then = self._used(), time.monotonic()
        while not self._over.wait(TICK_SECONDS):
            now_used, now = self._used(), time.monotonic()
            credit += self._part * (now - then) - (now_used - used)
            credit, used, then = min(credit, self._part * BURST_SECONDS), now_used, now
            if credit < 0 and not stopped:
                self._process.suspend()
            elif credit >= 0 and stopped:
                self._process.resume()
            stopped = credit < 0

    def _used(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


class Swarm:
    """A bootstrap peer, a founder and other nodes below `work`, with these quotas."""

    def __init__(self, work: Path, options: argparse.Namespace, max_share: float) -> None:
        self._quotas: Sequence[float] = options.quotas
        self._sequences: int = options.sequences
        manifest = timing_manifest(
            "shares",
            MODEL,
            sequence=SEQUENCE,
            sequences=options.sequences,
            members=len(self._quotas),
            max_share=max_share,
        )
        self._nodes = LocalNodes(work, manifest, len(self._quotas))

    def measure(self, rounds: int, settle: int) -> dict[str, Any]:
        """Return the rounds per hour over `rounds` rounds, after `settle` others in which the shares
        settle."""
        with self._nodes.running() as programs, contextlib.ExitStack() as stack:
            history = self._nodes.history()
            wait_for_round(history, 1, programs)
            for program, part in zip(programs, self._quotas, strict=True):
                stack.callback(Quota(trainer_of(program), part).close)
            wait_for_round(history, 1 + settle + rounds, programs)
        return self._result(history, settle + 1, settle + 1 + rounds)

    def _result(self, history: History, first: int, last: int) -> dict[str, Any]:
        facts = history.rounds
        seconds = facts[last]["time"] - facts[first]["time"]
        counted = [facts[round_]["tokens"] / SEQUENCE for round_ in range(first + 1, last + 1)]
        known = trio.run(read_swarm, self._nodes.data(0), self._nodes.swarm)
        sequences = known.manifest.rounds.sequences
        record = known.ledger[last].record
        shares = {entry.peer: entry.tokens // SEQUENCE for entry in record.updates}
        gaps = [facts[r]["time"] - facts[r - 1]["time"] for r in range(first + 1, last + 1)]
        return {
            "rounds": last - first,
            "seconds": seconds,
            "rounds_per_hour": sum(counted) / sequences / seconds * 3600,
            "round_seconds": statistics.median(gaps),
            "sequences": sorted(shares.values()),
            "capacities": sorted(entry.capacity for entry in record.updates),
        }

    def speeds(self) -> list[float]:
        """Return the sequences per second of a trainer alone under each quota."""
        whole = self._sequences / sum(self._quotas)
        return [
            trio.run(_speed, self._nodes, part, max(1, round(whole * part)))
            for part in self._quotas
        ]


async def _speed(nodes: LocalNodes, part: float, share: int) -> float:
    """Measure with the number of sequences at a time that it would have in the swarm."""
    data = nodes.data(0)
    known = await read_swarm(data, nodes.swarm)
    manifest, store = known.manifest, known.store
    blobs = blob_list_at(store, "snapshot", manifest.initial, 4 * manifest.elements)
    assert blobs is not None
    spec = TrainerSpec(manifest.encode(), data.blobs, device="cpu", threads=1)
    async with open_trainer(spec) as trainer:
        await trainer.load(blobs.chunks)
        # The first gradient determines its memory.
        await trainer.train(1, range(share))
        quota = Quota(trainer.pid, part)
        count, seconds = 0, 0.0
        while seconds < ALONE_SECONDS:
            done = await trainer.train(2 + count, range(share))
            count, seconds = count + share, seconds + done.compute_seconds
        await trio.to_thread.run_sync(quota.close)
    return count / seconds


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Return all three measurements."""
    by_speed = Swarm(work / "by-speed", options, LARGE_SHARE)
    shares = by_speed.measure(options.rounds, options.settle)
    print(_line("by speed", shares), flush=True)
    speeds = by_speed.speeds()
    ideal = sum(speeds) / options.sequences * 3600
    print(f"{'ideal':10}{ideal:10.1f} rounds an hour: {_numbers(speeds)} sequences a second")
    same = Swarm(work / "equal", options, EQUAL_SHARE).measure(max(2, options.rounds // 4), 1)
    print(_line("equal", same), flush=True)
    rounds = {
        "equal": same["rounds_per_hour"],
        "by_speed": shares["rounds_per_hour"],
        "ideal": ideal,
    }
    return {
        "quotas": list(options.quotas),
        "sequences": options.sequences,
        "max_share": LARGE_SHARE,
        "throttle": "SIGSTOP and SIGCONT by the processor time of the trainer",
        "speeds": speeds,
        "rounds_per_hour": rounds,
        "of_ideal": {name: value / ideal for name, value in rounds.items()},
        "by_speed": shares,
        "equal": same,
    }


def _numbers(values: Sequence[float]) -> str:
    return " + ".join(f"{value:.2f}" for value in values)


def _line(name: str, found: dict[str, Any]) -> str:
    shares = " ".join(map(str, found["sequences"]))
    return f"{name:10}{found['rounds_per_hour']:10.1f} rounds an hour, shares of {shares} sequences"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quotas", type=float, nargs="+", default=[0.04, 0.08, 0.16, 0.32])
    parser.add_argument("--sequences", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--settle", type=int, default=10)
    parser.add_argument("--work", type=Path, help="keep logs and data here")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="distro-shares-") as temporary:
        found = measure(options, options.work or Path(temporary))
    print(f"by speed: {found['of_ideal']['by_speed']:.3f} of the ideal")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
