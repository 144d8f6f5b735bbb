"""Beside peers: DDP, torchft, hivemind, Flower and this program train one model on one machine.

    python benchmarks/peers.py [NAME …] [--size demo|15M] [--environment DIR] [--steps N] [--json FILE]

Four members on loopback train the demo's model, or one of 15 million parameters, on the demo's text,
from the same initial parameters, on 8,192 tokens a step; each process has one thread. For each system
the script prints, over the same steps:

- processor milliseconds a token, of all processes of the system;
- kB sent a member and step: all that passed the loopback interface of a network namespace of its own,
  headers included, by the number of members and steps. For Flower a step is a local one;
- what happens when one of the four is killed: the longest time without a step of the others in the
  minute after, beside the usual time of a step;
- whether the others' parameters are equal to the bit afterwards;
- after how many seconds a member that is started then has its first samples counted.

The peers are installed from PyPI into `--environment` (made if it is missing; about 2 GB), so that
their requirements do not meet this program's. Requires root, `unshare` and `ip`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from command_line import new_parser, write_json
from e2e.program import wait_for
from e2e.support import Swarm

MEMBERS = 4
SEQUENCES = 16
LENGTH = 128
STEP_TOKENS = MEMBERS * SEQUENCES * LENGTH
# The model in the demo's manifest, and what stands in its place.
SIZES: dict[str, dict[str, int]] = {
    "demo": {},
    "15M": {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
    },
}
# Steps before the measurement, while optimizers and connections settle.
_WARMUP_STEPS = 10
_POLL_SECONDS = 0.1
_START_SECONDS = 180.0
_MINUTE = 60.0
_NEWCOMER_SECONDS = 120.0
_PACKAGES = ("torch", "torchft", "hivemind", "flwr")
_WORKERS = Path(__file__).resolve().parent / "peer_workers"
# The other systems measure no held-out loss.
NO_EVALUATION = ("--evaluate-every", "1000000")
_INSIDE = "DISTRO_PEERS_INSIDE"


@dataclass(frozen=True)
class Figures:
    """What was measured of one system. None: it did not come to that."""

    name: str
    steps: int
    cpu_ms_per_token: float
    sent_kb_per_member_step: float
    usual_step_seconds: float
    loss: float
    ended_after_kill: bool
    longest_step_after_kill_seconds: float | None
    equal_replicas: bool | None
    newcomer_seconds: float | None


class Contestant(ABC):
    """A system with four members that train."""

    name: str
    has_replicas = True
    """Whether members are meant to have equal parameters after each step."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds `model/`, `tokens.npy` and `swarm/`, as `prepare` has made them."""
        self.folder = folder

    @abstractmethod
    def start(self) -> None:
        """Start all four members."""

    @abstractmethod
    def start_newcomer(self) -> None:
        """Start a fifth member, whose number is 4."""

    @abstractmethod
    def kill(self, member: int) -> None:
        """End all processes of a member with SIGKILL."""

    @abstractmethod
    def runs(self, member: int) -> bool:
        """Whether a member's process runs."""

    @abstractmethod
    def steps(self, member: int) -> list[dict[str, Any]]:
        """Return a member's steps that counted its samples: `step`, `loss`, `tokens` and `digest`, which
        is equal where all parameters are, or None."""

    @abstractmethod
    def roots(self) -> list[psutil.Process]:
        """Return the processes of the system whose children are its others."""

    @abstractmethod
    def stop(self) -> None:
        """End all processes."""

    def processor_seconds(self) -> float:
        """Return the processor time of all processes that run."""
        total = 0.0
        for root in self.roots():
            with contextlib.suppress(psutil.Error):
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        times = process.cpu_times()
                        total += times.user + times.system
        return total


class Workers(Contestant):
    """A system of which `peer_workers/` has a member."""

    def __init__(
        self, folder: Path, python: Path, name: str, script: str, options: Sequence[str] = ()
    ) -> None:
        super().__init__(folder)
        self.name = name
        self._python, self._script, self._options = python, script, options
        self._members: dict[int, subprocess.Popen[bytes]] = {}
        self._others: list[subprocess.Popen[bytes]] = []
        self._address = ""

    def start(self) -> None:
        self._address = self.prepare()
        for member in range(MEMBERS):
            self._start(member)

    def start_newcomer(self) -> None:
        self._start(MEMBERS)

    def prepare(self) -> str:
        """Start what the members need besides each other; return the address that they are given."""
        return "127.0.0.1:29400"

    def run(self, *words: str | Path, name: str) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own, with its output in a file."""
        log = (self.folder / f"{name}.log").open("ab")
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        return subprocess.Popen(
            [*map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables,
            start_new_session=True,
        )

    def worker(self, member: int, address: str) -> subprocess.Popen[bytes]:
        """Start the worker of a member."""
        return self.run(
            *(self._python, _WORKERS / f"{self._script}.py", "--folder", self.folder),
            *("--member", str(member), "--members", str(MEMBERS), "--address", address),
            *("--sequences", str(SEQUENCES), "--length", str(LENGTH), *self._options),
            name=f"member{member}",
        )

    def started(self, process: subprocess.Popen[bytes]) -> None:
        """Count a process that is not a member's to the system."""
        self._others.append(process)

    def _start(self, member: int) -> None:
        self._members[member] = self.worker(member, self._address)

    def kill(self, member: int) -> None:
        _end(self._members[member])

    def runs(self, member: int) -> bool:
        return self._members[member].poll() is None

    def steps(self, member: int) -> list[dict[str, Any]]:
        path = self.folder / f"steps-{member}.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def roots(self) -> list[psutil.Process]:
        found = []
        for process in (*self._members.values(), *self._others):
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(process.pid))
        return found

    def stop(self) -> None:
        for process in (*self._members.values(), *self._others):
            _end(process)


class FaultTolerant(Workers):
    """torchft: its lighthouse tells who takes part in a step."""

    def prepare(self) -> str:
        program = self._python.parent / "torchft_lighthouse"
        options = ("--min_replicas", "1", "--join_timeout_ms", "1000", "--bind", "127.0.0.1:29510")
        self.started(self.run(program, *options, name="lighthouse"))
        return "http://127.0.0.1:29510"


class Decentralized(Workers):
    """hivemind: the first member's address lets the others in."""

    def start(self) -> None:
        self._members[0] = self.worker(0, "first")
        told = self.folder / "first.txt"
        wait_for(told.exists, "hivemind's first member", limit=_START_SECONDS)
        self._address = told.read_text()
        for member in range(1, MEMBERS):
            self._start(member)


class Federated(Workers):
    """Flower, with its server."""

    has_replicas = False

    def prepare(self) -> str:
        address = super().prepare()
        self.started(self.worker(-1, address))
        return address


class Ours(Contestant):
    """This program: nodes as a user starts them, and a bootstrap peer."""

    name = "distro-node"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._swarm = demo_swarm(folder / "nodes", folder / "swarm")

    def start(self) -> None:
        swarm = self._swarm
        swarm.create()
        self._nodes = [swarm.node("founder"), *(swarm.node(f"node{i}") for i in range(1, MEMBERS))]
        for node in self._nodes:
            node.start(*NO_EVALUATION)

    def start_newcomer(self) -> None:
        node = self._swarm.node(f"node{MEMBERS}")
        self._nodes.append(node)
        node.start(*NO_EVALUATION)

    def kill(self, member: int) -> None:
        self._nodes[member].program.destroy()

    def runs(self, member: int) -> bool:
        return self._nodes[member].running

    def steps(self, member: int) -> list[dict[str, Any]]:
        node = self._nodes[member]
        if not node.running:
            return []
        return [
            {
                "step": number,
                "loss": line["loss"],
                # Of all members whose updates counted.
                "tokens": line["tokens"] / line["members"],
                "digest": line["fingerprint"],
            }
            for number, line in node.rounds().items()
            if number > 0 and (member < MEMBERS or node.peer in line["counted"])
        ]

    def roots(self) -> list[psutil.Process]:
        found = []
        for program in self._swarm.programs:
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(program.pid))
        return found

    def stop(self) -> None:
        self._swarm.__exit__(None)


@dataclass
class Watch:
    """When each step of each member was first seen."""

    contestant: Contestant
    seen: dict[int, dict[int, float]] = field(default_factory=dict)

    def look(self, members: Sequence[int]) -> int:
        """Note new steps; return the last step that all of these members have."""
        now = time.monotonic()
        for member in members:
            of_member = self.seen.setdefault(member, {})
            for line in self.contestant.steps(member):
                of_member.setdefault(line["step"], now)
        return min(max(self.seen[member], default=0) for member in members)

    def until(self, step: int, members: Sequence[int], seconds: float) -> bool:
        """Wait until all of these members have a step; return False if one ends or time is over."""
        deadline = time.monotonic() + seconds
        while self.look(members) < step:
            if time.monotonic() > deadline or not all(map(self.contestant.runs, members)):
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def gaps(self, member: int, since: float, until: float) -> list[float]:
        """Return the times between a member's steps, from one time to another."""
        times = [since, *(t for t in self.seen[member].values() if since < t < until), until]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


def measure(contestant: Contestant, steps: int) -> Figures:
    """Run a system through the whole programme."""
    everyone, watch = range(MEMBERS), Watch(contestant)
    contestant.start()
    # The first step may come late: libraries load, and members find each other.
    if not watch.until(_WARMUP_STEPS, everyone, _START_SECONDS + 30.0 * _WARMUP_STEPS):
        raise RuntimeError(f"{contestant.name} does not train: see the logs in {contestant.folder}")
    before = _sample(contestant, watch, everyone)
    if not watch.until(before.step + steps, everyone, 30.0 * steps):
        raise RuntimeError(f"{contestant.name} stopped: see the logs in {contestant.folder}")
    after = _sample(contestant, watch, everyone)
    done = after.step - before.step
    usual = (after.time - before.time) / done
    loss = statistics.mean(contestant.steps(member)[-1]["loss"] for member in everyone)

    survivors = range(MEMBERS - 1)
    contestant.kill(MEMBERS - 1)
    killed = time.monotonic()
    watch.look(survivors)
    watch.until(10**9, survivors, _MINUTE)
    alive = all(map(contestant.runs, survivors))
    longest = equal = newcomer = None
    if alive:
        now = time.monotonic()
        longest = max(max(watch.gaps(member, killed, now)) for member in survivors)
        equal = _equal(contestant, survivors) if contestant.has_replicas else None
        contestant.start_newcomer()
        begun = time.monotonic()
        if watch.until(1, [MEMBERS], _NEWCOMER_SECONDS):
            newcomer = time.monotonic() - begun
    return Figures(
        name=contestant.name,
        steps=done,
        cpu_ms_per_token=1000
        * (after.processor - before.processor)
        / (after.tokens - before.tokens),
        sent_kb_per_member_step=(after.sent - before.sent) / MEMBERS / done / 1000,
        usual_step_seconds=usual,
        loss=loss,
        ended_after_kill=not alive,
        longest_step_after_kill_seconds=longest,
        equal_replicas=equal,
        newcomer_seconds=newcomer,
    )


@dataclass(frozen=True)
class _Sample:
    time: float
    step: int
    tokens: int
    processor: float
    sent: int


def _sample(contestant: Contestant, watch: Watch, members: Sequence[int]) -> _Sample:
    step = watch.look(members)
    return _Sample(
        time=time.monotonic(),
        step=step,
        tokens=sum(line["tokens"] for member in members for line in contestant.steps(member)),
        processor=contestant.processor_seconds(),
        sent=psutil.net_io_counters(pernic=True)["lo"].bytes_sent,
    )


def _equal(contestant: Contestant, members: Sequence[int]) -> bool:
    """Whether these members had equal parameters after the last ten steps with a digest that all of
    them have."""
    digests = [
        {s["step"]: s["digest"] for s in contestant.steps(member) if s["digest"] is not None}
        for member in members
    ]
    common = sorted(set.intersection(*map(set, digests)))[-10:]
    return bool(common) and all(len({of[step] for of in digests}) == 1 for step in common)


def contestants(python: Path) -> dict[str, Any]:
    """Return how to make each system, by its name on the command line."""
    return {
        "ours": Ours,
        "ddp": lambda folder: Workers(folder, python, "DDP over gloo, AdamW", "ddp"),
        "ddp-muon": lambda folder: Workers(
            folder, python, "DDP over gloo, Muon", "ddp", ("--optimizer", "muon")
        ),
        "torchft": lambda folder: FaultTolerant(folder, python, "torchft", "fault_tolerant"),
        "hivemind": lambda folder: Decentralized(folder, python, "hivemind", "decentralized"),
        "flower": lambda folder: Federated(
            folder, python, "Flower, FedAvg of 10 local steps", "federated"
        ),
    }


def prepare(folder: Path, size: str) -> None:
    """Make the text, the tokenizer, the tokens and the initial model, which all systems share."""
    import numpy as np
    import torch
    from distro_node.node.demo.plan import DemoPlan, collect_text, manifest_text, write_tokenizer
    from distro_node.node.trainer.training_session import TrainingSession
    from distro_node.protocol.wire.blobs import decode_any_blob_list
    from tokenizers import Tokenizer

    plan = DemoPlan(nodes=MEMBERS, rounds=60, victim=MEMBERS)
    texts = folder / "swarm" / "texts"
    texts.mkdir(parents=True)
    collect_text(texts)
    write_tokenizer(texts, folder / "swarm" / "tokenizer.json")
    text = manifest_text(plan).replace("total_rounds = 60", "total_rounds = 100000")
    for name, number in SIZES[size].items():
        text = re.sub(rf"^{name} = \d+$", f"{name} = {number}", text, flags=re.MULTILINE)
    (folder / "swarm" / "swarm.toml").write_text(text)
    tokenizer = Tokenizer.from_file(str(folder / "swarm" / "tokenizer.json"))
    tokens = [
        token
        for path in sorted(texts.rglob("*.txt"))
        for token in tokenizer.encode(path.read_text()).ids
    ]
    np.save(folder / "tokens.npy", np.array(tokens, dtype=np.uint16))
    with demo_swarm(folder / "made", folder / "swarm") as swarm:
        swarm.create()
        store = swarm.node("founder").blobs
        session = TrainingSession(swarm.manifest, store, torch.device("cpu"))
        listed = store.get(swarm.manifest.initial)
        assert listed is not None
        session.load(decode_any_blob_list(listed).chunks)
        session.model.save_pretrained(folder / "model")


def demo_swarm(root: Path, made: Path) -> Swarm:
    """Return a swarm with the founder's file, the text and the tokenizer in `made`."""
    swarm = Swarm(root)
    shutil.copytree(made / "texts", root / "texts", dirs_exist_ok=True)
    for name in ("swarm.toml", "tokenizer.json"):
        shutil.copy(made / name, root / name)
    # The text of the tests' own swarms.
    (root / "texts" / "corpus.txt").unlink()
    return swarm


def install(environment: Path) -> Path:
    """Return the Python of an environment with the peers, which is made if it is missing."""
    python = environment / "bin" / "python"
    if not python.exists():
        print(f"installing {', '.join(_PACKAGES)} into {environment} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        ours = [f"{name}=={importlib.metadata.version(name)}" for name in ("torch", "transformers")]
        packages = [*ours, "torchft", "hivemind", "flwr"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def _versions(python: Path) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json; "
        f"print(json.dumps({{n: m.version(n) for n in {_PACKAGES!r}}}))"
    )
    return json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True).stdout)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it has started."""
    found = []
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in found:
        with contextlib.suppress(psutil.Error):
            child.kill()
    process.wait()


def _row(figures: Figures) -> str:
    after = figures.longest_step_after_kill_seconds
    kill = "all end" if figures.ended_after_kill else f"{after:.1f} s"
    equal = {True: "yes", False: "no", None: "–"}[figures.equal_replicas]
    newcomer = "never" if figures.newcomer_seconds is None else f"{figures.newcomer_seconds:.0f} s"
    return (
        f"{figures.name:<34}{figures.cpu_ms_per_token:>10.3f}"
        f"{figures.sent_kb_per_member_step:>12,.1f}{figures.usual_step_seconds:>10.2f} s"
        f"{kill:>10}{equal:>8}{newcomer:>10}{figures.loss:>8.3f}"
    )


_HEADER = (
    f"{'':<34}{'ms/token':>10}{'kB/member':>12}{'a step':>12}{'kill -9':>10}{'equal':>8}"
    f"{'newcomer':>10}{'loss':>8}"
)


def main() -> None:
    """Measure the systems that the command line names."""
    parser = new_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all, if none is given")
    parser.add_argument("--size", choices=SIZES, default="demo", help="the model")
    parser.add_argument("--environment", type=Path, default=Path(tempfile.gettempdir()) / "peers")
    parser.add_argument("--steps", type=int, default=50, help="steps that are measured")
    options = parser.parse_args()
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip"))):
        parser.exit(1, "peers.py: a network namespace takes root and the programs unshare and ip\n")
    python = install(options.environment.absolute())
    makers = contestants(python)
    names = options.names or list(makers)
    if unknown := set(names) - set(makers):
        parser.error(f"no system is called {', '.join(sorted(unknown))}: {', '.join(makers)}")
    if _INSIDE not in os.environ:
        words = ["unshare", "--net", sys.executable, *sys.argv]
        os.execvpe(words[0], words, {**os.environ, _INSIDE: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="peers-") as place:
        root = Path(place)
        prepare(root / "shared", options.size)
        print(_HEADER, flush=True)
        for name in names:
            folder = root / name
            shutil.copytree(root / "shared", folder, ignore=shutil.ignore_patterns("made"))
            contestant = makers[name](folder)
            try:
                figures = measure(contestant, options.steps)
            except (RuntimeError, AssertionError) as error:
                kept = shutil.move(folder, tempfile.mkdtemp(prefix=f"peers-{name}-"))
                print(f"{error} (kept in {kept})", flush=True)
                continue
            finally:
                contestant.stop()
            results.append(asdict(figures))
            print(_row(figures), flush=True)
            # After each, because all of them take half an hour.
            found = {
                "versions": _versions(python),
                "members": MEMBERS,
                "size": options.size,
                "systems": results,
            }
            write_json(options.json, found)


if __name__ == "__main__":
    main()
