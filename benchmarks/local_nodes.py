"""A bootstrap peer and nodes as local processes, on loopback, for benchmarks that time them.

Everything goes through a user's own commands, and is read from the nodes' own histories.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from distro_node.node.demo.history import History
from distro_node.node.demo.plan import collect_text
from distro_node.node.demo.processes import Command, Processes, Program
from distro_node.node.storage.data_dir import DataDir
from distro_node.protocol.wire.manifest import SwarmId
from distro_node.protocol.wire.swarm_id import swarm_from_text

_MANIFEST = """\
name = {name}
seed = 1
fault_model = "byzantine"

[model]
{model}

[data]
tokenizer = "bytes"
sequence_length = {sequence}
include = ["*.py"]

[optimizer]
top_k = {top_k}

[schedule]
peak = 4e-3
warmup_rounds = 4
total_rounds = 100000
decay_rounds = 0

[rounds]
sequences = {sequences}
max_share = {max_share}
overlap = true
start_members = {members}
snapshot_interval = 1000
# Nobody's update is cut off: what is measured is the work, not the waiting for those who are late.
collect_min_seconds = 300.0
collect_max_seconds = 600.0
lease_min_seconds = 60.0
"""

_PATIENCE_SECONDS = 900.0
_POLL_SECONDS = 0.2


def timing_manifest(
    name: str,
    model: Mapping[str, Any],
    *,
    sequence: int,
    sequences: int,
    members: int,
    max_share: float,
    top_k: int = 8,
) -> str:
    """Return the founder's file of a swarm that is only timed: a model over bytes, with overlap and
    without a deadline that a member could miss."""
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in model.items())
    return _MANIFEST.format(
        name=json.dumps(name),
        model=lines,
        sequence=sequence,
        sequences=sequences,
        members=members,
        max_share=max_share,
        top_k=top_k,
    )


class LocalNodes:
    """The nodes of one swarm below `work`, numbered from 0, the founder."""

    def __init__(
        self, work: Path, manifest: str, members: int, device: str | Sequence[str] = "cpu"
    ) -> None:
        """`manifest` is the founder's file; `device` that of all nodes, or one for each."""
        self._work = work
        self._members = members
        self._devices = [device] * members if isinstance(device, str) else list(device)
        (work / "logs").mkdir(parents=True)
        self._config = work / "config.toml"
        self._config.write_text("")
        self._texts, self._file = work / "texts", work / "swarm.toml"
        collect_text(self._texts)
        self._file.write_text(manifest)
        self._made: dict[str, Any] = {}

    @property
    def swarm(self) -> SwarmId:
        """The swarm's id, once the nodes run."""
        return swarm_from_text(self._made["swarm"])

    def data(self, number: int) -> DataDir:
        """Return a node's data directory."""
        return DataDir(self._work / f"node-{number}")

    def history(self, number: int = 0) -> History:
        """Return a node's history."""
        return History(self.data(number).swarm(self.swarm).history)

    @contextlib.contextmanager
    def running(self) -> Iterator[list[Program]]:
        """Start the nodes and yield them; on leaving they have ended."""
        with Processes(self._work / "logs", self._config) as processes:
            bootstrap = processes.start(
                "bootstrap",
                *("bootstrap", "--json", "--listen", "/ip4/127.0.0.1/tcp/0"),
                *("--data-dir", str(self._work / "bootstrap")),
            )
            address = _answer(bootstrap, ended=False)["addresses"][0]
            made = processes.start(
                "create",
                *("create", str(self._file), "--json", "--bootstrap", address),
                *("--data-dir", str(self.data(0).root), "--data", str(self._texts)),
            )
            self._made = _answer(made, ended=True)
            yield [self._join(processes, number) for number in range(self._members)]

    def _join(self, processes: Processes, number: int) -> Program:
        return processes.start(
            f"node-{number}",
            *("join", self._made["invite"], "--data-dir", str(self.data(number).root)),
            *(
                "--listen",
                "/ip4/127.0.0.1/tcp/0",
                "--device",
                self._devices[number],
                "--threads",
                "1",
            ),
            *("--metrics-addr", "off", "--dashboard", "off", "--no-screen", "--no-mdns"),
            *("--no-upnp", "--evaluate-every", "1000000"),
        )


def trainer_of(program: Program) -> int:
    """Return the process id of a node's trainer, which must have started."""
    program.remember_children()
    (pid,) = [child.pid for child in program.children() if _is_trainer(child)]
    return pid


def wait_for_round(history: History, round_: int, programs: Sequence[Command]) -> None:
    """Wait until a round is in a history. Raises `SystemExit` if a process ends or there is no
    progress."""
    last = 0

    def there() -> bool:
        history.update()
        return history.last_round >= round_ or history.last_round > last

    while last < round_:
        _wait(there, programs)
        last = history.last_round


def _is_trainer(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "distro_node.node.trainer" in process.cmdline()
    return False


def _answer(program: Program, *, ended: bool) -> dict[str, Any]:
    def ready() -> bool:
        return program.printed() is not None and (program.code == 0 or not ended)

    _wait(ready, [program])
    answer = program.printed()
    assert answer is not None
    return answer


def _wait(ready: Callable[[], bool], programs: Sequence[Command]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not ready():
        for program in programs:
            if program.code not in (None, 0):
                raise SystemExit(f"a process ended with {program.code}; its log has the reason")
        if time.monotonic() > deadline:
            raise SystemExit("nothing has happened for a quarter of an hour; the logs may say why")
        time.sleep(_POLL_SECONDS)
