"""The time to open a long chain, with every signature checked and as a restarted node does it.

    python benchmarks/chain.py [--members N] [--rounds N ...] [--json FILE]

A chain of `--members` is made and stored, and loaded from the disk: as a newcomer does, which checks
every signature; as its own node does after a restart without the saved state of the indexes, whose
signed statement about the file says what it has verified (`node/storage/verified_prefix.py`); and as it
usually does, with that state (`node/storage/saved_indexes.py`). Times are processor seconds of one core.
The fit `seconds = constant + slope * rounds` goes through the sizes that were run; `at_25000` is its
value at the rounds of the DisTrO report.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from distro_node.crypto.identity import Identity
from distro_node.node.storage.data_dir import SwarmDir
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.manifest import ScheduleSpec
from simulation.chain import Chain

REPORT_ROUNDS = 25_000
_NODE = Identity.from_seed(bytes(32))


def seconds(load: Callable[[], Ledger], rounds: int) -> float:
    """Return the processor time of `load`."""
    start = time.process_time()
    ledger = load()
    took = time.process_time() - start
    assert len(ledger) == rounds
    return took


def memory(load: Callable[[], Ledger]) -> int:
    """Return the bytes that a loaded chain keeps."""
    tracemalloc.start()
    ledger = load()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del ledger
    return kept


def measure(chain: Chain, root: Path, *, newcomers: bool) -> dict[str, Any]:
    """Store the chain below `root` and measure how it is opened, also by `newcomers`."""
    rounds = len(chain.ledger)
    directory = SwarmDir(root / f"{rounds}-rounds")
    store = SwarmStore(directory, chain.manifest, _NODE)
    store.load_ledger()
    for round_ in range(rounds):
        store.keep(chain.ledger.raw(round_))
    trio.run(store.written)

    def newcomer() -> Ledger:
        return SwarmStore(directory, chain.manifest).load_ledger()

    def restarted() -> Ledger:
        return SwarmStore(directory, chain.manifest, _NODE).load_ledger()

    def follow_all() -> Ledger:
        directory.indexes.unlink(missing_ok=True)
        return restarted()

    return {
        "rounds": rounds,
        **({"newcomer_seconds": seconds(newcomer, rounds)} if newcomers else {}),
        "follow_seconds": min(seconds(follow_all, rounds) for _ in range(2)),
        "open_seconds": min(seconds(restarted, rounds) for _ in range(3)),
        "bytes_per_round": directory.ledger.stat().st_size / rounds,
        "state_bytes_per_round": directory.indexes.stat().st_size / rounds,
        "memory_bytes_per_round": memory(restarted) / rounds,
    }


def fit(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Return the straight line through a figure of all sizes, and its value at the report's rounds."""
    slope, constant = np.polyfit([row["rounds"] for row in rows], [row[name] for row in rows], 1)
    return {
        "constant": float(constant),
        "slope": float(slope),
        "at_25000": float(constant + slope * REPORT_ROUNDS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--rounds", type=int, nargs="+", default=[400, 800, 1600])
    parser.add_argument(
        "--known", action="store_true", help="omit newcomers, and the checks when the chain is made"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chain, rows = Chain(options.members, schedule=ScheduleSpec(total_rounds=REPORT_ROUNDS)), []
    if options.known:
        chain.ledger.append = partial(chain.ledger.append, verified=True)
    with tempfile.TemporaryDirectory() as folder:
        for rounds in sorted(options.rounds):
            chain.grow_until(rounds)
            rows.append(measure(chain, Path(folder), newcomers=not options.known))
            print("  ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
    names = [name for name in rows[0] if name.endswith("_seconds")]
    fits = {name: fit(rows, name) for name in names} if len(rows) > 1 else {}
    for name, line in fits.items():
        print(f"{name}: {1e3 * line['slope']:.2f} ms a round, {line['at_25000']:.0f} s at 25,000")
    if options.json:
        found = {"members": options.members, "rows": rows, "fits": fits}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
