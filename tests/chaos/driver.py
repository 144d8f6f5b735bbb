"""Executes a schedule of faults on a swarm of real processes, and watches their memory.

It prints each action with its time, so that a failure can be read beside the nodes' logs.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import psutil
from chaos.schedule import Fault
from distro_node.node.errors import ExitCode
from e2e.support import Ended, Node, Swarm
from namespaces import Town

_POLL_SECONDS = 0.25
_SAMPLE_SECONDS = 2.0

# A process grows while it warms up: libraries are loaded late, and gossip remembers messages for two
# minutes.
WARM_UP_SECONDS = 130.0


class Memory:
    """The resident memory of processes over time."""

    def __init__(self) -> None:
        self._samples: dict[psutil.Process, list[tuple[float, int]]] = {}
        self._names: dict[psutil.Process, str] = {}

    def sample(self, name: str, pid: int) -> None:
        """Record a process's memory now, if it runs."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            self._names[process] = name
            taken = (time.time(), process.memory_info().rss)
            self._samples.setdefault(process, []).append(taken)

    def growth(self, since: float) -> dict[str, float]:
        """Return how much each process has grown since a time, as a fraction of its memory then.

        It covers processes that were warm by then and were observed to the end. The medians of the
        first and of the last sixth of the samples are compared, since a single sample may catch a
        buffer in flight.
        """
        end = max((samples[-1][0] for samples in self._samples.values()), default=since)
        growth: dict[str, float] = {}
        for process, samples in self._samples.items():
            started = process.create_time()
            if started > since - WARM_UP_SECONDS or samples[-1][0] < end - 5 * _SAMPLE_SECONDS:
                continue
            sizes = [size for at, size in samples if at >= since]
            part = max(1, len(sizes) // 6)
            growth[self._names[process]] = median(sizes[-part:]) / median(sizes[:part]) - 1
        return growth


class Driver:
    """Makes the faults of a schedule happen."""

    def __init__(self, swarm: Swarm, nodes: Sequence[Node], town: Town | None) -> None:
        self.memory = Memory()
        self.visitors: list[Node] = []
        self._swarm = swarm
        self._nodes = {node.name: node for node in nodes}
        self._town = town
        self.began = 0.0
        """Start of the run, in seconds since 1970."""
        self._start = 0.0
        self._acted = 0.0
        self._down: set[str] = set()
        self._counter = itertools.count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []

    def run(self, faults: Iterable[Fault], seconds: float) -> None:
        """Run the schedule, and supervise the nodes for `seconds` in all.

        Raises `Ended` if a node ends that was not ended by a fault.
        """
        self.began, self._start = time.time(), time.monotonic()
        for fault in faults:
            self._at(fault.start, lambda fault=fault: self._begin(fault))
        next_sample = 0.0
        while self._elapsed < seconds or self._agenda:
            while self._agenda and self._agenda[0][0] <= self._elapsed:
                began = time.monotonic()
                heapq.heappop(self._agenda)[2]()
                self._acted += time.monotonic() - began
            if self._elapsed >= next_sample:
                next_sample = self._elapsed + _SAMPLE_SECONDS
                self._sample()
            time.sleep(_POLL_SECONDS)

    # Private

    @property
    def _elapsed(self) -> float:
        """Seconds of the schedule, whose clock stands still while a fault begins or ends: on a busy
        machine a restart takes most of a minute, and the faults after it must not fall together."""
        return time.monotonic() - self._start - self._acted

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._counter), act))

    def _sample(self) -> None:
        """Record the memory of all processes; none may have ended by itself."""
        for node in self._nodes.values():
            if node.running:
                self.memory.sample(node.name, node.program.pid)
                for child in node.program.children():
                    self.memory.sample(f"the trainer of {node.name}", child.pid)
            elif node.name not in self._down:
                raise Ended(f"{node.name} has ended by itself with code {node.program.code}")

    def _begin(self, fault: Fault) -> None:
        print(fault, flush=True)
        undo = getattr(self, f"_{fault.kind}")(*fault.nodes)
        self._at(self._elapsed + fault.seconds, undo)

    # One method for each kind of fault; each returns the function that ends it.

    def _kill(self, name: str) -> Callable[[], None]:
        node = self._end(name)
        return lambda: self._restart(node)

    def _forget(self, name: str) -> Callable[[], None]:
        node = self._end(name)
        key = node.data.identity.read_bytes()
        shutil.rmtree(node.data.root)
        node.data.create()
        node.data.identity.write_bytes(key)
        node.data.identity.chmod(0o600)
        return lambda: self._restart(node)

    def _wipe(self, name: str) -> Callable[[], None]:
        node = self._end(name)
        node.wipe()
        return lambda: self._restart(node)

    def _leave(self, name: str) -> Callable[[], None]:
        node = self._nodes[name]
        self._down.add(name)
        node.program.signal(signal.SIGTERM)

        def come_back() -> None:
            assert node.program.wait() == ExitCode.OK
            self._restart(node)

        return come_back

    def _freeze(self, name: str) -> Callable[[], None]:
        program = self._nodes[name].program
        family = [psutil.Process(program.pid), *program.children()]

        def each(act: Callable[[psutil.Process], None]) -> None:
            for process in family:
                with contextlib.suppress(psutil.Error):
                    act(process)

        each(psutil.Process.suspend)
        return lambda: each(psutil.Process.resume)

    def _trainer(self, name: str) -> Callable[[], None]:
        for child in self._nodes[name].program.children():
            child.kill()
        return lambda: None

    def _cut(self, *names: str) -> Callable[[], None]:
        return self._cut_links(names, one_way=False)

    def _one_way(self, *names: str) -> Callable[[], None]:
        return self._cut_links(names, one_way=True)

    def _cut_links(self, names: Sequence[str], *, one_way: bool) -> Callable[[], None]:
        assert self._town is not None
        others = self._town.hosts.keys() - set(names)
        self._town.cut(names, others, one_way=one_way)
        return self._town.heal

    def _visit(self, name: str) -> Callable[[], None]:
        visitor = self._swarm.node(name)
        visitor.start()
        self.visitors.append(visitor)
        return lambda: visitor.program.signal(signal.SIGTERM)

    # Helpers

    def _end(self, name: str) -> Node:
        node = self._nodes[name]
        self._down.add(name)
        node.program.kill()
        return node

    def _restart(self, node: Node) -> None:
        node.start()
        self._down.discard(node.name)
