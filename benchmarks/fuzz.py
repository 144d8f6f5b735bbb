"""Whether any input from a stranger raises a forbidden error, or takes 50 ms of CPU time.

    python benchmarks/fuzz.py [TARGET ...] [--inputs 100000] [--seed 1] [--json FILE]

Every decoder and every request handler that a stranger can reach (`tests/fuzz`) gets --inputs
inputs, guided by the coverage of the code (`atheris`, which is libFuzzer; extra `fuzz`). The slowest
inputs are measured again without instrumentation, as the least of several runs. Findings are written
to `tests/fuzz/findings`, where they stay as tests once they are fixed. An existing results file is
continued: targets that are in it are skipped.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import importlib
import importlib.util
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
# This folder's `network.py` would be taken for the tests' package.
sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]

FINDINGS = ROOT / "tests" / "fuzz" / "findings"
# Instrumented code: ours, and the parts of the library that read a stranger's bytes.
_GUIDING = (
    "distro_node",
    "libp2p.io",
    "libp2p.protocol_muxer",
    "libp2p.pubsub",
    "libp2p.relay.circuit_v2",
    "libp2p.security.noise",
    "libp2p.stream_muxer.yamux",
    "libp2p.utils",
    "httpcore",
    "h11",
)
_SLOWEST = 16
_PROGRESS = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")


def work(names: list[str], inputs: int, seed: int, folder: Path) -> None:
    """Fuzz targets one after the other, each in a fork of this process; report each that is done."""
    atheris: Any = importlib.import_module("atheris")

    with atheris.instrument_imports(include=list(_GUIDING)):
        from fuzz.targets import targets

        known = targets()
    for name in names:
        if not (child := os.fork()):
            with (folder / "log").open("wb") as log:
                os.dup2(log.fileno(), 2)
            fuzz_one(known[name], inputs, seed, folder / "result.json")
        os.waitpid(child, 0)
        print(name, flush=True)
        # Until it has been read.
        sys.stdin.readline()


def fuzz_one(target: Any, inputs: int, seed: int, out: Path) -> None:
    """Fuzz one target, write the result, and end the process."""
    atheris: Any = importlib.import_module("atheris")
    from fuzz.targets import Finding, attempt, mutated

    logging.disable(logging.CRITICAL)
    tried = valid = 0
    slow: list[tuple[float, bytes]] = []
    findings: dict[str, dict[str, str]] = {}

    def one(data: bytes) -> None:
        nonlocal tried, valid
        data = data[: target.most]
        tried += 1
        try:
            good, seconds = attempt(target, data)
            valid += good
            if len(slow) < _SLOWEST or seconds > slow[0][0]:
                (heapq.heappush if len(slow) < _SLOWEST else heapq.heapreplace)(
                    slow, (seconds, data)
                )
        except Finding as finding:
            cause = finding.__cause__
            assert cause is not None  # it is raised from one
            frames = traceback.extract_tb(cause.__traceback__)
            where = next((f for f in reversed(frames) if "fuzz" not in f.filename), frames[-1])
            key = f"{type(cause).__name__} at {Path(where.filename).name}:{where.name}"
            notes = " ".join(getattr(cause, "__notes__", []))
            findings.setdefault(key, {"input": data.hex(), "what": str(cause), "notes": notes})
        if tried >= inputs:
            result = {
                "inputs": tried,
                "valid": valid,
                "findings": findings,
                "slow": [data.hex() for _, data in slow],
            }
            out.write_text(json.dumps(result))
            sys.stderr.flush()
            # libFuzzer has no other exit that skips the exit handlers of trio's threads.
            os._exit(0)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        chance = random.Random(number)
        if chance.random() < 0.5:
            return mutated(target, data, chance)[:most]
        return atheris.Mutate(data, most)

    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(target.seeds):
            (Path(folder) / str(number)).write_bytes(data)
        arguments = [f"-runs={2 * inputs}", f"-seed={seed}", f"-max_len={target.most}"]
        atheris.Setup(
            ["fuzz", folder, *arguments, "-rss_limit_mb=0", "-len_control=20"],
            one,
            custom_mutator=mutate,
        )
        atheris.Fuzz()


def fuzz(names: list[str], inputs: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Fuzz targets in a process of their own, and measure the slowest inputs of each here."""
    from fuzz.targets import seconds_of, targets

    known = targets()
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile() as errors:
        folder = Path(place)
        worker = subprocess.Popen(
            [
                *(sys.executable, __file__, *names),
                *("--inputs", str(inputs), "--seed", str(seed), "--work", place),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A line for each instrumented module.
            stderr=errors,
            text=True,
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            for name in names:
                begun = time.monotonic()
                told = worker.stdout.readline().strip()
                if not told:
                    errors.seek(0)
                    raise SystemExit(errors.read().decode("utf-8", "replace")[-4000:])
                log = (folder / "log").read_text("utf-8", "replace")
                if told != name or not (folder / "result.json").exists():
                    raise SystemExit(f"error: {name} ended in the middle\n{log[-4000:]}")
                result = json.loads((folder / "result.json").read_text())
                (folder / "result.json").unlink()
                worker.stdin.write("\n")
                worker.stdin.flush()
                slow = (seconds_of(known[name], bytes.fromhex(data)) for data in result["slow"])
                for what, found in result["findings"].items():
                    keep(name, what, found)
                progress = _PROGRESS.findall(log) or [(0, 0, 0)]
                yield (
                    name,
                    {
                        "covers": known[name].covers,
                        "inputs": result["inputs"],
                        "valid": result["valid"],
                        "edges": int(progress[-1][0]),
                        "corpus": int(progress[-1][2]),
                        "slowest_ms": round(1e3 * max(slow, default=0.0), 2),
                        "findings": sorted(result["findings"]),
                        "seconds": round(time.monotonic() - begun),
                    },
                )
        finally:
            worker.kill()
            worker.wait()


def keep(name: str, what: str, found: dict[str, str]) -> None:
    """Put an input with a forbidden effect where the tests find it."""
    FINDINGS.mkdir(exist_ok=True)
    data = bytes.fromhex(found["input"])
    digest = hashlib.blake2b(data, digest_size=4).hexdigest()
    path = FINDINGS / f"{name.replace(' ', '_')}-{digest}.bin"
    path.write_bytes(data)
    print(f"  {what}: {found['what'][:200]} ({path.name})\n  {found['notes'][:2000]}", flush=True)


def main() -> None:
    """Fuzz the targets that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="TARGET")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.names, options.inputs, options.seed, options.work)
        return
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed: pip install -e '.[fuzz]'")
    from fuzz.targets import LIMIT_SECONDS, targets

    known = targets()
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    logging.disable(logging.CRITICAL)
    result: dict[str, Any] = {"inputs": options.inputs, "seed": options.seed, "targets": {}}
    if options.json and options.json.exists():
        result = json.loads(options.json.read_text())
    print(f"{'target':<32}{'inputs':>9}{'valid':>9}{'edges':>7}{'corpus':>8}{'slowest ms':>12}")
    wanted = [name for name in options.names or known if name not in result["targets"]]
    for name, row in fuzz(wanted, options.inputs, options.seed) if wanted else ():
        result["targets"][name] = row
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")
        print(
            f"{name:<32}{row['inputs']:>9}{row['valid']:>9}{row['edges']:>7}{row['corpus']:>8}"
            f"{row['slowest_ms']:>12}",
            flush=True,
        )
    rows = result["targets"].values()
    bad = any(row["findings"] or row["slowest_ms"] > 1e3 * LIMIT_SECONDS for row in rows)
    sys.exit(bad)


if __name__ == "__main__":
    main()
