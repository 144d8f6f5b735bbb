"""The director of the demo: it starts all programs, watches them, and causes the planned failures.

It uses only what any user can see of the nodes: their history files, what `distro-node status`
shows, and how their processes end.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

import psutil

from ...crypto import keystore
from ...crypto.identity import peer_text
from ...protocol.wire.manifest import SwarmId
from ...protocol.wire.swarm_id import swarm_from_text
from .folder import DemoFolder
from .history import History, StatusPoller
from .outcome import DemoRun, Event, NodeRun
from .plan import DemoPlan
from .processes import Processes, Program
from .view import DemoPicture, NodeRow, View

_TICK_SECONDS = 0.25
# Ticks between two listings of the child processes.
_CHILDREN_TICKS = 4

# Limits on the time to start a program and to complete a round. PyTorch loads in half a minute if five
# processes load it at once on two cores; a slow disk or a busy machine may take several times as long.
# A working demo comes near neither limit.
_START_SECONDS = 180.0
_ROUND_SECONDS = 120.0
# Limit on the time from the last round to the last node's end. The result may not become final, because
# a member of the finality set was killed; then the other nodes exit after a few leases, which grow with
# the duration of the rounds.
_END_SECONDS = 900.0
# The prompt for the text at the end. Without a space after it, since a space is part of the next token.
_BEGINNING = "The"
# Without the unlikely tokens, which a model so small takes for more likely than they are.
_SAMPLING = ("--temperature", "0.7", "--top-p", "0.8")
# Time after which a killed node's trainer must have ended. It notices the end of its parent at once,
# unless it has just begun to import PyTorch.
_TRAINER_GONE_SECONDS = 15.0

# States of a node that is connected to the others, and so no longer needs an introduction.
_HAS_MET = ("joining", "waiting", "training")


class DemoFailed(Exception):
    """The demo cannot go on. `last_lines` are the last log lines of the failing program."""

    def __init__(self, problem: str, program: Program) -> None:
        super().__init__(problem)
        self.last_lines = program.last_lines()
        self.log = program.log


class _Node:
    """A node, running or ended."""

    def __init__(self, number: int, program: Program, folder: DemoFolder, swarm: SwarmId) -> None:
        self.number = number
        self.program = program
        self.killed = False
        data = folder.node(number)
        self.history = History(data.swarm(swarm).history)
        self.poller = StatusPoller(data.socket)
        self._identity = data.identity
        self._peer: str | None = None

    @property
    def peer(self) -> str | None:
        """Its peer id; None until it has one."""
        if self._peer is None and self._identity.exists():
            try:
                self._peer = peer_text(keystore.load_identity(self._identity, None).peer)
            except keystore.KeystoreError:
                # The node is writing it at this moment.
                return None
        return self._peer

    @property
    def ending(self) -> str:
        """How it ended, as in `NodeRun.exit`."""
        code = self.program.code
        if self.killed:
            return "killed"
        if code is None:
            return "running"
        return "left" if code == 0 else f"failed with exit code {code}"

    @property
    def state(self) -> str:
        """Its current state in one word, for display."""
        if self.ending != "running":
            return self.ending if self.ending in ("killed", "left") else "failed"
        latest = self.poller.latest
        return "starting" if latest is None else latest.state


class Director:
    """Runs one demo. The caller has to end the processes afterwards."""

    def __init__(
        self, plan: DemoPlan, folder: DemoFolder, processes: Processes, view: View, begun: float
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._processes = processes
        self._view = view
        self._begun = begun
        self._activity = ""
        self._log: list[tuple[float, str]] = []
        self._events: list[tuple[str, int, _Node | None]] = []
        self._nodes: list[_Node] = []
        self._bootstrap: Program | None = None
        self._bootstrap_killed = False
        self._parameters = 0
        self._orphans: list[psutil.Process] | None = None
        self._orphaned_at = 0.0
        self._trainer_gone_seconds: float | None = None
        self._ticks = 0
        self._round = 0
        self._round_at = time.monotonic()
        self._sample: str | None = None

    def run(self) -> None:
        """Run from the start of the first process to the end of the last node. Raises `DemoFailed` if
        the demo cannot go on."""
        self._activity = "starting the bootstrap peer"
        self._bootstrap = bootstrap = self._processes.start(
            "bootstrap",
            *("bootstrap", "--json", "--listen", "/ip4/127.0.0.1/tcp/0"),
            *("--data-dir", str(self._folder.bootstrap), "--log-format", "json"),
        )
        address = self._wait(bootstrap, bootstrap.printed)["addresses"][0]
        self._activity = "making the swarm: tokenising text, initialising a model"
        create = self._processes.start(
            "create",
            *("create", str(self._folder.manifest), "--json", "--data", str(self._folder.text)),
            *("--bootstrap", address, "--data-dir", str(self._folder.node(1).root)),
        )
        made = self._wait(create, lambda: create.printed() if create.code == 0 else None)
        self._parameters = made["parameters"]
        swarm, link = swarm_from_text(made["swarm"]), made["invite"]
        self._activity = f"starting {self._plan.nodes} nodes"
        for number in range(1, self._plan.nodes + 1):
            self._start_node(number, swarm, link)
        self._round_at = time.monotonic()
        while any(node.ending == "running" for node in self._nodes):
            self._tick()
            self._direct(swarm, link)
        # Read what the last nodes wrote before they left.
        self._observe()
        self._activity = "all nodes have left; the model writes"
        self._view.show(self._picture())
        self._sample = self._write()

    def result(self) -> DemoRun:
        """Return the results so far."""
        return DemoRun(
            plan=self._plan,
            parameters=self._parameters,
            nodes=[
                NodeRun(
                    number=node.number,
                    peer=node.peer or "",
                    exit=node.ending,
                    history=node.history,
                )
                for node in self._nodes
            ],
            # The peer ids are read here: a starting node has no key, and so no peer id, when its event
            # is recorded.
            events=[
                Event(kind=kind, round=round_, peer=node.peer if node is not None else None)
                for kind, round_, node in self._events
            ],
            trainer_gone_seconds=self._trainer_gone_seconds,
            seconds=time.monotonic() - self._begun,
            sample=self._sample,
        )

    def _write(self) -> str | None:
        """Return text written by the model of a node that was not killed; None if it writes none. No
        promise depends on it."""
        node = next((node for node in self._nodes if node.ending == "left"), None)
        if node is None:
            return None
        home = self._folder.node(node.number).root
        program = self._processes.start(
            "generate",
            *("generate", _BEGINNING, "--data-dir", str(home), "--max-tokens", "120"),
            *_SAMPLING,
        )
        try:
            if program.wait(_START_SECONDS):
                return None
        except subprocess.TimeoutExpired:
            return None
        return program.answer.read_text("utf-8", errors="replace")

    # The schedule of events

    def _direct(self, swarm: SwarmId, link: str) -> None:
        """Cause the events that are due after the completed rounds."""
        plan, done = self._plan, self._done_kinds()
        if "killed" not in done and self._round >= plan.kill_round:
            self._kill(self._nodes[plan.victim - 1])
        elif "started" not in done and self._round >= plan.join_round:
            newcomer = self._start_node(plan.newcomer, swarm, link)
            self._note("started", newcomer, f"node-{plan.newcomer} starts, with only a link")
        # Killing the bootstrap peer before the newcomer is introduced would cut the newcomer off, which
        # would demonstrate nothing.
        met = "started" in done and self._nodes[-1].state in _HAS_MET
        if "bootstrap_killed" not in done and met and self._round >= plan.bootstrap_round:
            self._kill_bootstrap()
        self._activity = self._next(done)

    def _next(self, done: set[str]) -> str:
        plan = self._plan
        if self._round == 0:
            return "PyTorch loads and the nodes connect; training starts when all are present"
        if self._round >= plan.rounds:
            return (
                "the last round is done; each node leaves once the others need nothing more from it"
            )
        upcoming = [
            ("killed", f"after round {plan.kill_round} node-{plan.victim} is killed"),
            ("started", f"after round {plan.join_round} another node joins"),
            (
                "bootstrap_killed",
                f"after round {plan.bootstrap_round} the bootstrap peer is killed",
            ),
        ]
        following = next((what for kind, what in upcoming if kind not in done), None)
        return f"training; {following or f'the nodes leave after round {plan.rounds}'}"

    def _kill(self, node: _Node) -> None:
        node.program.remember_children()
        self._orphans = node.program.children()
        node.program.kill()
        node.program.wait_gone()
        self._orphaned_at = time.monotonic()
        node.killed = True
        node.poller.stop()
        self._note("killed", node, f"node-{node.number} was killed with SIGKILL")

    def _kill_bootstrap(self) -> None:
        assert self._bootstrap is not None
        self._bootstrap.kill()
        self._bootstrap.wait_gone()
        self._bootstrap_killed = True
        self._note("bootstrap_killed", None, "the bootstrap peer was killed with SIGKILL")

    def _start_node(self, number: int, swarm: SwarmId, link: str) -> _Node:
        data = self._folder.node(number)
        program = self._processes.start(
            data.root.name,
            *("join", link, "--data-dir", str(data.root), "--listen", "/ip4/127.0.0.1/tcp/0"),
            *("--device", "cpu", "--threads", "1", "--metrics-addr", "off", "--no-screen"),
            *("--evaluate-every", "5", "--until-round", str(self._plan.rounds)),
            *("--log-format", "json"),
        )
        node = _Node(number, program, self._folder, swarm)
        self._nodes.append(node)
        return node

    # Observation

    def _wait(self, program: Program, answer: Callable[[], Any]) -> Any:
        """Wait until a program has printed its answer, and return the answer. Raises `DemoFailed` if the
        program fails or takes too long."""
        deadline = time.monotonic() + _START_SECONDS
        while (value := answer()) is None:
            if program.code not in (None, 0):
                raise DemoFailed(
                    f"`distro-node {program.name}` ended with exit code {program.code}", program
                )
            if time.monotonic() > deadline:
                raise DemoFailed(f"`distro-node {program.name}` takes too long", program)
            self._tick()
        return value

    def _tick(self) -> None:
        """Wait a moment, observe all programs, and show their state. Raises `DemoFailed` if one of them
        ended unexpectedly, or if no round was completed for too long."""
        time.sleep(_TICK_SECONDS)
        self._ticks += 1
        if self._ticks % _CHILDREN_TICKS == 0:
            self._processes.remember_children()
        self._observe()
        self._view.show(self._picture())
        for node in self._nodes:
            reached = node.history.last_round >= self._plan.rounds
            if node.ending.startswith("failed") or (node.ending == "left" and not reached):
                raise DemoFailed(
                    f"node-{node.number} ended unexpectedly after round "
                    f"{node.history.last_round} (exit code {node.program.code})",
                    node.program,
                )
        if self._bootstrap is not None and not self._bootstrap_killed:
            code = self._bootstrap.code
            if code is not None:
                raise DemoFailed(f"the bootstrap peer ended (exit code {code})", self._bootstrap)
        over = self._round >= self._plan.rounds
        limit = _END_SECONDS if over else _ROUND_SECONDS if self._round else _START_SECONDS
        if self._nodes and time.monotonic() - self._round_at > limit:
            slowest = min(
                (node for node in self._nodes if node.ending == "running"),
                key=lambda node: node.history.last_round,
            )
            problem = "the nodes have not left" if over else f"no round was done for {limit:.0f} s"
            raise DemoFailed(
                f"{problem}; node-{slowest.number}, the slowest, is in the state {slowest.state!r}",
                slowest.program,
            )

    def _observe(self) -> None:
        for node in self._nodes:
            node.history.update()
        round_ = max((node.history.last_round for node in self._nodes), default=0)
        if round_ > self._round:
            self._round, self._round_at = round_, time.monotonic()
        self._look_for_newcomer()
        self._look_for_orphans()

    def _look_for_newcomer(self) -> None:
        kinds = self._done_kinds()
        if "started" not in kinds or "joined" in kinds:
            return
        newcomer = self._nodes[-1]
        counted = newcomer.history.values("counted")
        first = next((r for r, peers in counted.items() if newcomer.peer in peers), None)
        if first is not None:
            self._events.append(("joined", first, newcomer))
            self._log_event(f"the update of node-{newcomer.number} counts from round {first} on")

    def _look_for_orphans(self) -> None:
        if self._orphans is not None and self._trainer_gone_seconds is None:
            waited = time.monotonic() - self._orphaned_at
            victim = self._nodes[self._plan.victim - 1].program
            if self._orphans and not victim.children():
                self._trainer_gone_seconds = waited
                self._log_event(f"its trainer ended by itself, {waited:.1f} s later")
            elif waited > _TRAINER_GONE_SECONDS:
                raise DemoFailed(
                    "the killed node's trainer is still running"
                    if self._orphans
                    else "the killed node had no trainer",
                    victim,
                )

    def _done_kinds(self) -> set[str]:
        return {kind for kind, _, _ in self._events}

    def _note(self, kind: str, node: _Node | None, what: str) -> None:
        self._events.append((kind, self._round, node))
        self._log_event(f"after round {self._round}: {what}")

    def _log_event(self, what: str) -> None:
        self._log.append((time.monotonic() - self._begun, what))

    def _picture(self) -> DemoPicture:
        run = self.result()
        bootstrap = "not running" if self._bootstrap is None else "introduces nodes to each other"
        return DemoPicture(
            doing=self._activity,
            seconds=run.seconds,
            round=self._round,
            rounds=self._plan.rounds,
            training=[loss for _, loss in run.curve("loss")],
            heldout=run.curve("heldout"),
            bootstrap="killed" if self._bootstrap_killed else bootstrap,
            nodes=[
                NodeRow(
                    name=facts.name,
                    peer=node.peer,
                    state=node.state,
                    round=node.history.last_round,
                    contributed=len(facts.counted),
                    line=node.poller.latest and node.poller.latest.line,
                )
                for node, facts in zip(self._nodes, run.nodes, strict=True)
            ],
            happened=self._log,
        )
