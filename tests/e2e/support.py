"""A swarm of real processes for tests: created, started, watched and killed through users' own
interfaces.

Everything goes through the command line, the control socket and the files in the data directories.
"""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from distro_node.crypto.hashing import ContentId
from distro_node.node.control.command_socket import ask
from distro_node.node.errors import UserError
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir, SwarmDir
from distro_node.node.storage.entry_file import EntryFile
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.node.telemetry.status import EventStatus, Status, decode_status
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.manifest import Manifest, decode_manifest
from distro_node.protocol.wire.swarm_id import parse_invite
from e2e.program import Program, wait_for

_LOG_TAIL_LINES = 40

_MANIFEST = """
name = "tiny"
seed = 5
fault_model = "{fault_model}"

[model]
model_type = "llama"
hidden_size = {hidden}
intermediate_size = 48
num_hidden_layers = 1
num_attention_heads = 2
max_position_embeddings = 32
tie_word_embeddings = true

[data]
tokenizer = "bytes"
sequence_length = 32
heldout_fraction = 0.1

[optimizer]
top_k = {top_k}

[schedule]
peak = 4e-3
warmup_rounds = 2
total_rounds = {total_rounds}

[rounds]
sequences = {sequences}
overlap = {overlap}
start_members = {start_members}
snapshot_interval = {snapshot_interval}
min_seconds = {min_seconds}
collect_min_seconds = 5.0
slot_min_seconds = 2.0
lease_min_seconds = {lease_seconds}
"""


class Ended(AssertionError):
    """A process that was waited for has ended, so the awaited condition can never hold."""


@dataclass(frozen=True)
class Place:
    """Where a process runs: the prefix of its command, and its address there."""

    prefix: tuple[str, ...] = ()
    address: str = "127.0.0.1"

    @property
    def listen(self) -> str:
        """The multiaddr to listen on, at any port."""
        return f"/ip4/{self.address}/tcp/0"


class Node:
    """A node of a swarm: its data directory, and its process while it has one."""

    def __init__(self, swarm: Swarm, name: str, root: Path) -> None:
        self.swarm = swarm
        self.name = name
        self.data = DataDir(root)
        self._program: Program | None = None
        self._peer = ""

    @property
    def program(self) -> Program:
        """The process that was started last."""
        assert self._program is not None, f"{self.name} was never started"
        return self._program

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._program is not None and self._program.code is None

    @property
    def directory(self) -> SwarmDir:
        """Its files of the swarm."""
        return self.data.swarm(self.swarm.manifest.swarm)

    @property
    def blobs(self) -> BlobStore:
        """Its blobs."""
        return BlobStore(self.data.blobs)

    def start(self, *options: str | Path, link: str | None = None) -> Program:
        """Start `join`."""
        assert not self.running
        self._program = self.swarm.run(
            self.name,
            "join",
            link or self.swarm.link,
            *("--data-dir", self.data.root),
            *("--no-screen", "--metrics-addr", "127.0.0.1:0", "--dashboard", "127.0.0.1:0"),
            *("--threads", "1", "--device", "cpu"),
            *("--listen", self.swarm.place(self.name).listen, "--log-level", "info"),
            *("--evaluate-every", "5"),
            *options,
        )
        return self._program

    def observe(self, *options: str | Path) -> Program:
        """Start `observe`."""
        assert not self.running
        self._program = self.swarm.run(
            self.name,
            "observe",
            self.swarm.link,
            *("--data-dir", self.data.root, "--no-screen", "--dashboard", "127.0.0.1:0"),
            *("--listen", self.swarm.place(self.name).listen, "--log-level", "info"),
            *options,
        )
        return self._program

    def status(self) -> Status | None:
        """Return its status, None while it does not answer. Raises `Ended`."""
        if not self.running:
            raise Ended(f"{self.name} has ended with code {self.program.code}")
        try:
            answer = ask(self.data.socket, "status", 10.0)
        except UserError:
            return None
        return decode_status(answer)

    def told(self) -> Status:
        """Wait for its status and return it."""
        return wait_for(self.status, f"{self.name} to answer")

    @property
    def state(self) -> str:
        """Its state, or `silent`."""
        status = self.status()
        return "silent" if status is None else status.state

    def members(self) -> set[str]:
        """Return the members that it knows."""
        swarm = self.told().swarm
        return {member.peer for member in (swarm.members if swarm else None) or ()}

    @property
    def peer(self) -> str:
        """Its peer id."""
        if not self._peer:
            self._peer = self.told().node.peer
        return self._peer

    def wipe(self) -> None:
        """Remove everything from its disk, including its key."""
        shutil.rmtree(self.data.root)
        self._peer = ""

    def trainer(self) -> psutil.Process:
        """Return its trainer process."""
        return wait_for(
            lambda: next(iter(self.program.children()), None), f"the trainer of {self.name}"
        )

    def history(self) -> list[dict[str, Any]]:
        """Return the complete lines of its history."""
        try:
            text = self.directory.history.read_text("utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def rounds(self) -> dict[int, dict[str, Any]]:
        """Return the rounds that it applied."""
        return {line["round"]: line for line in self.history() if "fingerprint" in line}

    @property
    def round(self) -> int:
        """The last round that it applied; -1 if none."""
        if self.running:
            self.status()
        return max(self.rounds(), default=-1)

    def counted(self, since: int = 0) -> list[int]:
        """Return the rounds after `since` whose record counts this node's update, as it applied them."""
        return self.counts(self.peer, since)

    def counts(self, peer: str, since: int = 0) -> list[int]:
        """Return the rounds after `since` whose record counts a peer's update, as this node applied
        them."""
        return [r for r, line in self.rounds().items() if r > since and peer in line["counted"]]

    def events(self, kind: str, peer: str | None = None, since: int = -1) -> list[EventStatus]:
        """Return the events of a kind from round `since` on, of one peer or of all."""
        return [
            event
            for event in self.told().events
            if event.kind == kind and peer in (None, event.peer) and event.round >= since
        ]

    def ledger(self) -> Ledger:
        """Read its ledger from disk."""
        return SwarmStore(self.directory, self.swarm.manifest).load_ledger(repair=False)

    def metrics(self) -> str:
        """Return its metrics page."""
        url = self.told().node.metrics
        assert url is not None
        with urllib.request.urlopen(url, timeout=10) as page:
            return page.read().decode()

    def received(self) -> dict[str, float]:
        """Return the bytes that it has received since its start, by kind."""
        line = r'^distro_received_bytes_total{kind="(\w+)"} (\S+)$'
        found = re.findall(line, self.metrics(), re.MULTILINE)
        return {kind: float(count) for kind, count in found}

    def signed(self) -> list[bytes]:
        """Return the envelopes that it has signed and stored."""
        return list(EntryFile(self.directory.signed, 1 << 20).read(repair=False))


class Swarm:
    """A swarm, its bootstrap peer and its nodes; on leaving the context all processes are dead."""

    def __init__(
        self,
        root: Path,
        *,
        start_members: int = 1,
        fault_model: str = "byzantine",
        snapshot_interval: int = 5,
        hidden: int = 32,
        lease_seconds: float = 6.0,
        top_k: int = 8,
        sequences: int = 12,
        overlap: bool = False,
        min_seconds: float = 0.5,
        total_rounds: int = 100_000,
        tables: str = "",
        places: Mapping[str, Place] | None = None,
    ) -> None:
        """`tables` is appended to the founder's file; `places` states where nodes and `bootstrap`
        run, by default on loopback."""
        self.root = root
        self._places = places or {}
        self.programs: list[Program] = []
        self.nodes: dict[str, Node] = {}
        self.link = ""
        root.mkdir(parents=True, exist_ok=True)
        (root / "texts").mkdir()
        (root / "texts" / "corpus.txt").write_text(_corpus())
        (root / "swarm.toml").write_text(
            _MANIFEST.format(
                fault_model=fault_model,
                start_members=start_members,
                snapshot_interval=snapshot_interval,
                hidden=hidden,
                lease_seconds=lease_seconds,
                top_k=top_k,
                sequences=sequences,
                overlap=str(overlap).lower(),
                min_seconds=min_seconds,
                total_rounds=total_rounds,
            )
            + tables
        )

    def __enter__(self) -> Swarm:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for program in self.programs:
            program.destroy()
        if kind is not None:
            self.print_logs()

    def create(self, *options: str) -> None:
        """Start the bootstrap peer, with these options, and create the swarm of `founder`."""
        self.bootstrap = self.start_bootstrap("", *options)
        address = self.bootstrap_address = wait_for(
            lambda: (json.loads(self.bootstrap.stdout or "{}").get("addresses") or [None])[0],
            "the bootstrap peer's address",
        )
        founder = self.node("founder")
        made = self.run(
            "create",
            *("create", self.root / "swarm.toml", "--data", self.root / "texts", "--json"),
            *("--data-dir", founder.data.root, "--bootstrap", address),
        )
        assert made.wait() == 0, made.stderr
        self.link = json.loads(made.stdout)["invite"]
        swarm = parse_invite(self.link).swarm
        data = founder.blobs.get(ContentId(swarm))
        assert data is not None
        self.manifest: Manifest = decode_manifest(data, swarm)

    def place(self, name: str) -> Place:
        """Return where the process of this name runs."""
        return self._places.get(name, Place())

    def start_bootstrap(self, listen: str = "", *options: str) -> Program:
        """Start a bootstrap peer, with the same identity each time."""
        listen = listen or self.place("bootstrap").listen
        return self.run(
            "bootstrap",
            *("bootstrap", "--json", "--listen", listen, "--data-dir", self.root / "bootstrap"),
            *options,
        )

    def restore_bootstrap(self) -> None:
        """Start the bootstrap peer again, at its old address, if it is dead."""
        if self.bootstrap.code is not None:
            self.bootstrap = self.start_bootstrap(self.bootstrap_address.partition("/p2p/")[0])
            wait_for(lambda: self.bootstrap.stdout, "the bootstrap peer")

    def run(self, name: str, *arguments: str | Path) -> Program:
        """Start `distro-node` with these arguments."""
        folder = self.root / "output"
        folder.mkdir(exist_ok=True)
        program = Program(name, arguments, folder, self.place(name).prefix)
        self.programs.append(program)
        return program

    def node(self, name: str) -> Node:
        """Return the node of this name; a new one is not started."""
        if name not in self.nodes:
            self.nodes[name] = Node(self, name, self.root / name)
        return self.nodes[name]

    def start(self, *names: str) -> list[Node]:
        """Start these nodes unless they run, and wait until all of them are training members."""
        nodes = [self.node(name) for name in names]
        for node in nodes:
            if not node.running:
                node.start()
        wait_for(
            lambda: all(node.state == "training" for node in nodes),
            f"{', '.join(names)} to train",
            describe=lambda: {node.name: node.state for node in nodes},
        )
        return nodes

    def print_logs(self) -> None:
        """Print the end of each program's output."""
        seen: set[Path] = set()
        for program in self.programs:
            if program.stderr_path not in seen and program.stderr_path.exists():
                seen.add(program.stderr_path)
                lines = program.stderr_path.read_text("utf-8", "replace").splitlines()
                print(f"--- {program.name} (exit code {program.code}) ---")
                print("\n".join(lines[-_LOG_TAIL_LINES:]))


def wait_for_round(nodes: Iterable[Node], round: int) -> None:
    """Wait until all of the nodes have applied this round."""
    nodes = list(nodes)
    wait_for(
        lambda: all(node.round >= round for node in nodes),
        f"{', '.join(node.name for node in nodes)} to apply round {round}",
        describe=lambda: {node.name: node.round for node in nodes},
    )


def check_agreement(nodes: Sequence[Node], rounds: int = 3, *, since: int = 0) -> int:
    """Let the nodes run for `rounds` rounds; check that they have the same parameters.

    Every round from `since` on that two of them have applied must have given them the same
    fingerprint. Returns the last round that all have applied.
    """
    wait_for_round(nodes, max(node.round for node in nodes) + rounds)
    seen: dict[int, str] = {}
    for node in nodes:
        for line in node.history():
            if "fingerprint" in line and line["round"] >= since:
                known = seen.setdefault(line["round"], line["fingerprint"])
                assert known == line["fingerprint"], f"{node.name} differs in {line['round']}"
    return min(node.round for node in nodes)


def _corpus() -> str:
    """Return a text with more to learn than the frequency of letters, always the same."""
    words = ("the", "swarm", "trains", "a", "small", "model", "and", "nobody", "waits", "for", "it")
    state, text = 1, []
    for _ in range(6000):
        state = (state * 1103515245 + 12345) % (1 << 31)
        text.append(words[(state >> 16) % len(words)])
    return " ".join(text)
