"""The faults of whole processes and their times, drawn from the seed before the run begins."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import trio
from simulation.faults import Action, Family, Schedule
from simulation.whole.trainer import USUAL_SECONDS

if TYPE_CHECKING:
    from simulation.whole.process import Machine
    from simulation.whole.swarm import WholeSwarm

_BEGIN, _SPAN = 8.0, 17.0
# In rounds of two seconds among eight, a node that forwards everything it receives sends up to 40,000
# bytes a second. On a slower line the queue grows without end, and no request leaves in time.
_GOSSIP_BYTES = 60_000.0
# Faults that neither silence a node for a lease nor remove it.
_HARMLESS = frozenset({"newcomer", "trainer dies", "slow trainer", "clock"})


def draw_schedule(family: Family, count: int, liars: int, chance: random.Random) -> Schedule:
    """Draw a schedule for `count` nodes, `liars` of which lie."""
    one = lambda: chance.randrange(count)  # noqa: E731
    when = lambda: _BEGIN + _SPAN * chance.random()  # noqa: E731
    away = lambda: chance.choice((0.0, 0.0, 4.0, 15.0)) * (0.5 + chance.random())  # noqa: E731
    dark = lambda: float(chance.random() < 0.6)  # noqa: E731

    def some(most: int) -> tuple[int, ...]:
        number = chance.randrange(1, max(2, most + 1))
        return tuple(sorted(chance.sample(range(count), number)))

    def partition() -> Iterable[Action]:
        if count > 1:
            seconds = chance.choice((3.0, 12.0, 30.0)) * (0.5 + chance.random())
            yield Action(when(), "partition", -1, seconds, 0.0, some(count - 1))

    def one_way() -> Iterable[Action]:
        node = one()
        others = tuple(i for i in range(count) if i != node and chance.random() < 0.7)
        yield Action(when(), "one-way", node, 15.0 * chance.random(), 0.0, others)

    def speeds() -> Iterable[Action]:
        """Set speeds in the ratio 1 : 2 : 4 : 8 : 16, and later the same in another order."""
        for at in (0.0, when()):
            for place, node in enumerate(chance.sample(range(count), count)):
                yield Action(at, "slow trainer", node, 0.0, 4.0 / 2 ** (place % 5))

    mild: list[Callable[[], Iterable[Action]]] = [
        lambda: [Action(when(), "newcomer", count)],
        lambda: [Action(when(), "trainer dies", one(), 0.0, chance.randrange(1, 3))],
        lambda: [Action(0.0, "slow trainer", one(), 0.0, chance.choice((0.1, 3.0, 6.0)))],
        lambda: [Action(0.0, "clock", one(), 0.0, chance.choice((-3600.0, 30.0, 86_400.0)))],
        speeds,
    ]
    crash: list[Callable[[], Iterable[Action]]] = [
        lambda: [Action(when(), "crash", one(), away(), dark())],
        lambda: [Action(when(), "fuse", one(), away(), chance.randrange(1, 12))],
        lambda: [Action(when(), "fuse", one(), away(), chance.randrange(1, 12))],
        lambda: [Action(when(), "fuse", one(), away(), chance.randrange(1, 40))],
        lambda: [Action(when(), "mass", -1, away(), dark(), some(count))],
        lambda: [Action(when(), "full disk", one(), chance.choice((3.0, 12.0)))],
        lambda: [Action(0.0, "slow disk", one(), 0.0, chance.choice((0.05, 0.3)))],
        lambda: [Action(when(), "leave", one(), away())],
        *mild,
    ]
    network: list[Callable[[], Iterable[Action]]] = [
        partition,
        partition,
        one_way,
        lambda: [Action(when(), "loss", -1, 8.0, chance.choice((0.05, 0.2, 0.4)))],
        lambda: [Action(0.0, "slow line", one(), 0.0, chance.choice((3e4, 1e5)))],
        lambda: [Action(0.0, "far away", one(), 0.0, chance.choice((0.1, 0.3)))],
        lambda: [Action(when(), "hangs up", one())],
    ]
    # Liars must stay fewer than a third of the nodes present.
    spared = [*mild, network[-1], network[4]]
    if liars and 3 * liars < count - 1:
        spared += [crash[0], crash[1]]
    # Only between honest members: liars can talk to all sides.
    cut = [partition, partition, one_way, crash[0], crash[1], mild[0], network[3]]
    both = crash + network
    tables = {"crash": crash, "network": network, "all": both, "audits": both, "cut": cut}
    kinds = spared if liars and family != "cut" else tables.get(family, [])
    actions: list[Action] = []
    if family == "cut":
        actions += partition()
    for _ in range(chance.randrange(2, 6) if kinds else 0):
        drawn = list(chance.choice(kinds)())
        if (
            liars
            and family != "cut"
            and any(a.what in ("crash", "fuse") for a in actions + drawn[:0])
        ):
            drawn = [a for a in drawn if a.what not in ("crash", "fuse")]
        actions += drawn
    actions.sort(key=lambda action: (action.time, action.what, action.node))
    numbers = itertools.count(count)
    named = [
        Action(a.time, a.what, next(numbers), a.seconds, a.number, a.others)
        if a.what == "newcomer"
        else a
        for a in actions
    ]
    return Schedule(tuple(named), any(a.what not in _HARMLESS for a in named))


class Faults:
    """Injects a schedule's faults. Lines to `spared` nodes are never cut."""

    def __init__(
        self,
        swarm: WholeSwarm,
        schedule: Schedule,
        nursery: trio.Nursery,
        spared: frozenset[int] = frozenset(),
    ) -> None:
        self._swarm = swarm
        self._spared = spared
        self._nursery = nursery
        self._chance = random.Random(f"faults {swarm.seed}")
        self.down: set[int] = set()
        """Machines that are to start again, and have not yet."""
        for action in schedule.actions:
            swarm.wires.at(action.time, lambda action=action: self._do(action))

    def start(
        self, index: int, after: float = 0.0, *, once: Callable[[], bool] = lambda: True
    ) -> None:
        """Start a process on a machine, a new one if there is none yet, after `after` seconds and not
        before `once` holds."""
        machine = self._swarm.machines.get(index) or self._swarm.add(index)
        self.down.add(index)

        async def live() -> None:
            await trio.sleep(after)
            while not once():  # noqa: ASYNC110 - what is waited for sets no event
                await trio.sleep(0.5)
            self.down.discard(index)
            await machine.live()

        self._nursery.start_soon(live)

    def end(self) -> None:
        """End all faults, and make what is slow no longer very slow."""
        swarm = self._swarm
        swarm.wires.loss = 0.0
        for line in swarm.wires.lines.values():
            line.up = max(line.up, _GOSSIP_BYTES)
        for machine in swarm.nodes:
            machine.storage.full = False
            machine.storage.fuse = lambda moment: None
            machine.workshop.deaths = 0
            # A node that takes several times as long as most is late in every round by design: no round
            # waits for the slowest (`timeouts`).
            machine.workshop.seconds = min(machine.workshop.seconds, USUAL_SECONDS)

    def _do(self, action: Action) -> None:
        swarm = self._swarm
        swarm.note(None, "fault", str(action).split(": ", 1)[1])
        machine = swarm.machines.get(action.node)
        match action.what:
            case "newcomer":
                self.start(action.node)
            case "loss":
                swarm.wires.loss = action.number
                self._later(action.seconds, lambda: setattr(swarm.wires, "loss", 0.0))
            case "partition":
                side = set(action.others)
                others = [index for index in swarm.machines if index not in side]
                pairs = [(one, other) for one in action.others for other in others]
                self._cut([*pairs, *((other, one) for one, other in pairs)], action.seconds)
            case "one-way":
                self._cut([(action.node, other) for other in action.others], action.seconds)
            case "mass":
                for other in action.others:
                    pause = action.seconds + self._chance.random()
                    self._kill(swarm.machines[other], pause, dark=bool(action.number))
            case "slow line":
                swarm.wires.line(action.node).up = action.number
            case "far away":
                swarm.wires.line(action.node).latency = action.number
            case _ if machine is not None:
                self._do_to(machine, action)

    def _do_to(self, machine: Machine, action: Action) -> None:
        match action.what:
            case "crash":
                self._kill(machine, action.seconds, dark=bool(action.number))
            case "fuse":
                self._light(machine, int(action.number), action.seconds)
            case "full disk":
                machine.storage.full = True
                self._later(action.seconds, lambda: setattr(machine.storage, "full", False))
            case "slow disk":
                machine.write_seconds = action.number
            case "slow trainer":
                machine.workshop.seconds = action.number
            case "trainer dies":
                machine.workshop.deaths += int(action.number)
            case "clock":
                machine.settings.ahead = action.number
            case "hangs up":
                if machine.network is not None and machine.alive:
                    for link in machine.network.links():
                        link.break_off()
            case "leave":
                if machine.alive and machine.session is not None:
                    machine.session.leave()
                    self._come_back(machine, action.seconds)

    def _come_back(self, machine: Machine, seconds: float) -> None:
        """Restart a node that was told to leave, once it has left. If a full disk ended it before
        that, it is started again anyway: a machine runs one process at a time."""
        index = machine.index
        self.down.add(index)

        async def wait() -> None:
            while machine.alive:  # noqa: ASYNC110 - a process that has ended sets no event
                await trio.sleep(0.5)
            self.down.discard(index)
            if not machine.comes_back:
                self.start(index, seconds)

        self._nursery.start_soon(wait)

    def _light(self, machine: Machine, syncs: int, seconds: float) -> None:
        """Let a machine die at one of its next syncs, before or after it."""
        left = syncs
        which, dark = self._chance.choice(("before", "after")), self._chance.random() < 0.7

        def burn(moment: str) -> None:
            nonlocal left
            left -= moment == which
            if left <= 0 and machine.alive and machine.storage.fuse is burn:
                machine.storage.fuse = lambda moment: None
                self._kill(machine, seconds, dark=dark)

        machine.storage.fuse = burn

    def _kill(self, machine: Machine, seconds: float, *, dark: bool) -> None:
        if machine.alive:
            machine.die(dark=dark)
            if machine.index not in self.down:
                self.start(machine.index, seconds)

    def _cut(self, pairs: list[tuple[int, int]], seconds: float) -> None:
        pairs = [pair for pair in pairs if not self._spared.intersection(pair)]
        self._swarm.wires.cut(pairs)
        self._later(seconds, lambda: self._swarm.wires.mend(pairs))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._swarm.wires.at(trio.current_time() + seconds, act)
