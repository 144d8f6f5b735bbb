"""The swarm of job.py: a bootstrap peer and nodes as local processes, observed from outside.

Everything goes through a user's own commands and views: histories, status and exit codes. It can be
stopped at any time and started again: nodes continue from their own disks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distro_node.node.demo.history import History, StatusPoller
from distro_node.node.demo.processes import Processes, Program
from distro_node.node.storage.data_dir import DataDir
from distro_node.protocol.wire.swarm_id import swarm_from_text

POINTS = 5
PROMPTS = ("The function returns", "If the argument is", "A list of")
"""The prompts for the model: common beginnings in the text."""

_TICK_SECONDS = 0.5
_KEPT_SECONDS = 10.0
_TOLD_SECONDS = 30.0
# Five processes load PyTorch at once, beside other load.
_PATIENCE_SECONDS = 1800.0
_SAMPLE_TRIES = 5
_SAMPLE_TOKENS = 60


class SwarmFailed(Exception):
    """The swarm cannot go on; the message names the failing process, with its last log lines."""

    def __init__(self, problem: str, program: Program) -> None:
        super().__init__(
            "\n  ".join([f"{problem}; {program.log} ends with:", *program.last_lines()])
        )


@dataclass
class Session:
    """The cost of one session of the nodes; an interrupted run has several."""

    first_round: int | None = None
    """The first round that ended in it."""
    last_round: int | None = None
    seconds: float = 0.0
    """Seconds between the ends of these two."""
    sent: list[int] = field(default_factory=list)
    """Bytes by node."""
    received: list[int] = field(default_factory=list)

    def ended(self, round_: int, began: float, now: float) -> float:
        """Record that a round has ended; return when the first one did."""
        if self.first_round is None:
            self.first_round, began = round_, now
        self.last_round, self.seconds = round_, now - began
        return began


def pace(sessions: Sequence[Session]) -> tuple[int, float]:
    """Return the number of timed rounds in all sessions, and their seconds."""
    timed = [s for s in sessions if s.first_round is not None and s.last_round is not None]
    rounds = sum((s.last_round or 0) - (s.first_round or 0) for s in timed)
    return rounds, sum(s.seconds for s in timed)


def traffic(sessions: Sequence[Session], nodes: int) -> list[dict[str, int]]:
    """Return the bytes that each node sent and received, over all sessions."""
    return [
        {
            "sent": sum(s.sent[number] for s in sessions if number < len(s.sent)),
            "received": sum(s.received[number] for s in sessions if number < len(s.received)),
        }
        for number in range(nodes)
    ]


def points(rounds: int) -> list[int]:
    """Return the rounds after which samples are taken: the last one, and four evenly before it."""
    return sorted({max(1, round(rounds * number / POINTS)) for number in range(1, POINTS + 1)})


class LocalSwarm:
    """The data directories, logs and results of one swarm below `work`."""

    def __init__(self, work: Path, nodes: int) -> None:
        self.work = work
        self.nodes = nodes
        self.file = work / "swarm.toml"
        self.logs = work / "logs"
        self.config = work / "config.toml"
        self.made_file = work / "made.json"
        self._sessions = work / "sessions"
        self._samples = work / "samples.jsonl"
        for folder in (self.logs, self._sessions):
            folder.mkdir(exist_ok=True)
        # Used instead of the user's own.
        self.config.write_text("")

    def data(self, number: int) -> DataDir:
        """Return the data directory of a node, counted from 1, the founder."""
        return DataDir(self.work / f"node-{number}")

    @property
    def made(self) -> dict[str, Any] | None:
        """The output of `create`, with the bootstrap peer's `address`; None before there is a swarm."""
        return json.loads(self.made_file.read_text()) if self.made_file.exists() else None

    def sessions(self) -> list[Session]:
        """Return the stored sessions, sorted from the oldest."""
        files = sorted(self._sessions.glob("*.json"), key=lambda file: int(file.stem))
        return [Session(**json.loads(file.read_text())) for file in files]

    def samples(self) -> list[dict[str, Any]]:
        """Return the texts that the model generated during the run."""
        if not self._samples.exists():
            return []
        return [json.loads(line) for line in self._samples.read_text().splitlines()]

    def histories(self) -> list[History]:
        """Return the nodes' histories so far."""
        made = self.made
        assert made is not None
        swarm = swarm_from_text(made["swarm"])
        found = [History(self.data(n).swarm(swarm).history) for n in range(1, self.nodes + 1)]
        for history in found:
            history.update()
        return found

    def processes(self) -> Processes:
        """Return a context that ends every process started in it."""
        return Processes(self.logs, self.config)

    def forecast(self, processes: Processes) -> dict[str, Any]:
        """Return the output of `create --dry-run`; its tokens are reused."""
        program = processes.start("dry-run", *self._create(), "--dry-run", "--device", "cpu")
        return self._answer(program)["forecast"]

    def create(self, processes: Processes) -> None:
        """Create the swarm, unless it exists."""
        if self.made is not None:
            return
        address = self._bootstrap(processes, "/ip4/127.0.0.1/tcp/0")
        made = self._answer(processes.start("create", *self._create(), "--bootstrap", address))
        self.made_file.write_text(json.dumps(made | {"address": address}) + "\n")

    def run(self, processes: Processes, rounds: int, every: int) -> None:
        """Run from the first round, or from an interruption, to the end of the run, with all samples.

        Raises `SwarmFailed`.
        """
        made = self.made
        assert made is not None
        if len(self.samples()) == len(points(rounds)):
            return
        # Its members know its previous address.
        self._bootstrap(processes, made["address"].partition("/p2p/")[0])
        _Watch(self, processes, made["invite"], rounds, every).run()

    def keep(self, session: Session, number: int) -> None:
        """Store the cost of a session so far."""
        path = self._sessions / f"{number}.json"
        aside = path.with_suffix(".partial")
        aside.write_text(json.dumps(asdict(session)) + "\n")
        aside.replace(path)

    def add_sample(self, round_: int, texts: dict[str, str]) -> None:
        """Store the model's texts after a round."""
        with self._samples.open("a") as file:
            file.write(json.dumps({"round": round_, "texts": texts}) + "\n")

    def export(self, processes: Processes, to: Path) -> dict[str, Any]:
        """Export the founder's newest state and return the command's output."""
        made, data = self.made, ("--data-dir", str(self.data(1).root))
        assert made is not None
        words = ("export", made["swarm"], "--to", str(to), "--json", *data)
        return self._answer(processes.start("export", *words))

    def _create(self) -> tuple[str, ...]:
        return ("create", str(self.file), "--json", "--data-dir", str(self.data(1).root))

    def _bootstrap(self, processes: Processes, listen: str) -> str:
        program = processes.start(
            "bootstrap",
            *("bootstrap", "--json", "--listen", listen),
            *("--data-dir", str(self.work / "bootstrap"), "--log-format", "json"),
        )
        return _wait(program, program.printed)["addresses"][0]

    def _answer(self, program: Program) -> dict[str, Any]:
        return _wait(program, lambda: program.printed() if program.code == 0 else None)


class _Watch:
    def __init__(
        self, swarm: LocalSwarm, processes: Processes, link: str, rounds: int, every: int
    ) -> None:
        self._swarm = swarm
        self._processes = processes
        self._rounds = rounds
        self._session, self._number = Session(), len(swarm.sessions()) + 1
        self._histories = swarm.histories()
        self._begun = 0.0
        self._round = self._histories[0].last_round
        self._due = [p for p in points(rounds) if p not in {s["round"] for s in swarm.samples()}]
        self._sampling: _Sampling | None = None
        self._tries = 0
        self._programs = [self._join(number, link, every) for number in range(1, swarm.nodes + 1)]
        self._pollers = [
            StatusPoller(swarm.data(number).socket) for number in range(1, swarm.nodes + 1)
        ]

    def _join(self, number: int, link: str, every: int) -> Program:
        # One node evaluates during the run; the others only train.
        every = every if number == 1 else 100 * self._rounds
        data = self._swarm.data(number).root
        return self._processes.start(
            data.name,
            *("join", link, "--data-dir", str(data), "--listen", "/ip4/127.0.0.1/tcp/0"),
            *("--device", "cpu", "--threads", "1", "--metrics-addr", "off", "--dashboard", "off"),
            *("--no-screen", "--no-mdns", "--no-upnp", "--evaluate-every", str(every)),
            *("--log-format", "json"),
        )

    def run(self) -> None:
        kept = told = progressed = time.monotonic()
        while not self._done():
            time.sleep(_TICK_SECONDS)
            now = time.monotonic()
            if self._look(now):
                progressed = now
            self._sample()
            if now - kept > _KEPT_SECONDS:
                kept = now
                self._processes.remember_children()
                self._swarm.keep(self._session, self._number)
            if now - told > _TOLD_SECONDS:
                told = now
                self._tell()
            for program in self._programs:
                if program.code not in (None, 0):
                    raise SwarmFailed(f"{program.name} ended with {program.code}", program)
            if now - progressed > _PATIENCE_SECONDS:
                raise SwarmFailed("no round ended for half an hour", self._programs[0])
        self._swarm.keep(self._session, self._number)
        for poller in self._pollers:
            poller.stop()

    def _done(self) -> bool:
        return not self._due and all(program.code == 0 for program in self._programs)

    def _look(self, now: float) -> bool:
        """Record the nodes' status; return whether a round has ended, or samples arrive after the
        last one."""
        told = [poller.latest for poller in self._pollers]
        if all(told):
            self._session.sent = [each.line.sent_bytes for each in told if each]
            self._session.received = [each.line.received_bytes for each in told if each]
        self._histories[0].update()
        round_ = min(self._histories[0].last_round, self._rounds)
        if round_ <= self._round:
            return round_ == self._rounds
        self._round = round_
        self._begun = self._session.ended(round_, self._begun, now)
        return True

    def _sample(self) -> None:
        """Start generating text when it is due, without waiting for it."""
        if self._sampling is not None:
            code = self._sampling.code
            if code is None:
                return
            if code == 0:
                self._swarm.add_sample(self._due.pop(0), self._sampling.texts())
                self._tries = 0
            else:
                self._tries += 1
                if self._tries == _SAMPLE_TRIES:
                    raise SwarmFailed(f"generate ended with {code}", self._sampling.program)
            self._sampling = None
        if self._due and self._round >= self._due[0]:
            name, root = f"generate-{self._due[0]}", self._swarm.data(1).root
            self._sampling = _Sampling(self._processes, name, root, self._due[0])

    def _tell(self) -> None:
        rounds, seconds = pace([self._session])
        left = ""
        if rounds:
            minutes = (self._rounds - self._round) * seconds / rounds / 60
            left = f", about {minutes:.0f} min left"
        heldout = [*self._histories[0].values("heldout").items()]
        loss = f", held-out {heldout[-1][1]:.3f} after round {heldout[-1][0]}" if heldout else ""
        print(f"swarm: round {self._round} of {self._rounds}{loss}{left}", flush=True)


class _Sampling:
    """`distro-node generate` for one prompt after the other, on the state after one round."""

    def __init__(self, processes: Processes, name: str, root: Path, round_: int) -> None:
        self._programs: list[Program] = []
        self._start = lambda number: processes.start(
            f"{name}-{number}",
            *("generate", PROMPTS[number], "--data-dir", str(root), "--round", str(round_)),
            *("--max-tokens", str(_SAMPLE_TOKENS)),
        )

    @property
    def program(self) -> Program:
        return self._programs[-1]

    @property
    def code(self) -> int | None:
        """None while it runs; 0 when everything is generated; otherwise the failing exit code."""
        if self._programs and self.program.code != 0:
            return self.program.code
        if len(self._programs) == len(PROMPTS):
            return 0
        self._programs.append(self._start(len(self._programs)))
        return None

    def texts(self) -> dict[str, str]:
        """Return the texts by prompt, each including it."""
        return {
            prompt: program.answer.read_text("utf-8").strip()
            for prompt, program in zip(PROMPTS, self._programs, strict=True)
        }


def _wait(program: Program, answer: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (value := answer()) is None:
        if program.code not in (None, 0):
            raise SwarmFailed(f"`distro-node {program.name}` ended with {program.code}", program)
        if time.monotonic() > deadline:
            raise SwarmFailed(f"`distro-node {program.name}` takes too long", program)
        time.sleep(_TICK_SECONDS)
    return value
