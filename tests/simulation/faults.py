"""The faults of a run and their times: a schedule drawn from the seed before the run begins.

A schedule is a list of actions, each a word and numbers, so that a failing run can be shrunk by leaving
actions out, and printed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from distro_node.protocol.member.inputs import LeaveRequested
from simulation.node import Disk, Fuse, Node

if TYPE_CHECKING:
    from simulation.swarm import Swarm

Family = Literal["none", "crash", "network", "liars", "all", "cut", "down", "audits", "committees"]
FAMILIES: tuple[Family, ...] = get_args(Family)
"""In "cut" the network is cut between honest members, while liars can talk to all sides; in "down" many
members are dead, all the time or in turn, while others lie; in "audits" work is audited and earns votes,
and liars lie about that; in "committees" liars in committees send false aggregates."""


_DEADLY = ("crash", "wipe", "fuse", "mass")

# Two rounds: the others' announcements show a member that its parameters differ from theirs.
_NOTICED_SECONDS = 6.0


@dataclass(frozen=True)
class Action:
    """A fault injected at a time, or at some moment soon after it."""

    time: float
    what: str
    node: int = -1
    seconds: float = 0.0
    """How long it lasts, if it ends by itself."""
    number: float = 0.0
    others: tuple[int, ...] = ()

    def __str__(self) -> str:
        who = f" node {self.node}" if self.node >= 0 else ""
        others = f" {list(self.others)}" if self.others else ""
        number = f" {self.number:g}" if self.number else ""
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.time:7.2f} s: {self.what}{who}{others}{number}{lasts}"


@dataclass(frozen=True)
class Schedule:
    """All faults of a run."""

    actions: tuple[Action, ...]
    cut_off: bool
    """Whether members may be cut off from each other for a lease although they live."""

    @property
    def end(self) -> float:
        """The time at which the last fault ends."""
        return max((action.time + action.seconds for action in self.actions), default=0.0)


def draw_schedule(
    family: Family,
    count: int,
    lease: float,
    chance: random.Random,
    *,
    brief: bool = False,
    founder_away: bool = False,
) -> Schedule:
    """Draw a schedule for `count` nodes. Node 0, the founder, never lies; among liars, or if it is to be
    `brief`, it alone may be away, and briefly unless `founder_away` allows longer."""
    begin, span = 3.0, 60.0 if family == "audits" else 17.0
    crash: list[Callable[[], Iterable[Action]]] = [
        lambda: _crash(chance, count, begin, span),
        lambda: _crash(chance, count, begin, span),
        lambda: _fuse(chance, count, begin, span),
        lambda: _fuse(chance, count, begin, span),
        lambda: _fuse(chance, count, begin, span),
        lambda: _mass(chance, count, begin, span),
        lambda: [Action(_when(chance, begin, span), "freeze", _one(chance, count), _pause(chance))],
        lambda: [Action(0.0, "clock", _one(chance, count), number=chance.uniform(0.7, 1.4))],
        lambda: [Action(0.0, "disk", _one(chance, count), number=chance.choice((0.05, 0.3)))],
        lambda: [Action(0.0, "trainer", _one(chance, count), number=chance.choice((0.1, 3, 8)))],
        lambda: _speeds(chance, count, begin, span),
        lambda: [Action(_when(chance, begin, span), "newcomer", count + chance.randrange(3))],
        lambda: [Action(_when(chance, begin, span), "leave", _one(chance, count))],
        lambda: [Action(_when(chance, begin, span), "corrupt", _one(chance, count))],
    ]
    network: list[Callable[[], Iterable[Action]]] = [
        lambda: _partition(chance, count, begin, span, 0.6 * lease),
        lambda: _partition(chance, count, begin, span, 4 * lease),
        lambda: _one_way(chance, count, begin, span, 3 * lease),
        lambda: [
            Action(_when(chance, begin, span), "loss", -1, 8.0, chance.choice((0.05, 0.2, 0.4)))
        ],
        lambda: [Action(_when(chance, begin, span), "duplication", -1, 10.0, 0.5)],
        lambda: [
            Action(_when(chance, begin, span), "failing", -1, 10.0, chance.choice((0.3, 0.8)))
        ],
    ]
    # No node may be away for so long that liars are a third of the remaining ones.
    among_liars: list[Callable[[], Iterable[Action]]] = [
        lambda: [Action(_when(chance, begin, span), "newcomer", count)],
        lambda: [Action(_when(chance, begin, span), "newcomer", count)],
        lambda: [Action(_when(chance, begin, span), "crash", 0, 0.3 * lease * chance.random())],
        lambda: [Action(_when(chance, begin, span), "fuse", 0, 1.0, chance.randrange(1, 8))],
    ]
    # Three of these at a time make up to eight sides, for shorter and for longer than a lease.
    cut: list[Callable[[], Iterable[Action]]] = [
        lambda: _partition(chance, count, begin, span, 0.6 * lease),
        lambda: _partition(chance, count, begin, span, 4 * lease * (0.5 + chance.random())),
        lambda: _partition(chance, count, begin, span, 4 * lease * (0.5 + chance.random())),
        lambda: _one_way(chance, count, begin, span, 3 * lease),
        lambda: [Action(_when(chance, begin, span), "crash", _one(chance, count), _pause(chance))],
        lambda: _fuse(chance, count, begin, span),
        lambda: [Action(_when(chance, begin, span), "newcomer", count)],
        lambda: [Action(_when(chance, begin, span), "loss", -1, 8.0, chance.choice((0.05, 0.2)))],
    ]
    tables = {
        "crash": crash,
        "network": network,
        "all": crash + network,
        "liars": among_liars,
        "cut": cut,
        "audits": among_liars if brief else crash + network,
    }
    kinds = tables.get(family, [])
    actions: list[Action] = []
    if family == "cut":
        actions += _partition(chance, count, begin, span, 4 * lease * (0.5 + chance.random()))
    if founder_away and chance.random() < 0.4:
        # That early it has the only vote, and the others go on as heirs.
        away = 2 * lease * (0.5 + chance.random())
        actions.append(Action(_when(chance, 2.0, 15.0), "crash", 0, away))
    for _ in range(chance.randrange(2, 7) if kinds else 0):
        actions += chance.choice(kinds)()
    actions.sort(key=lambda action: (action.time, action.what, action.node))
    numbers = itertools.count(count)
    # A newcomer has a number of its own.
    named = [
        Action(a.time, a.what, next(numbers), a.seconds, a.number, a.others)
        if a.what == "newcomer"
        else a
        for a in actions
    ]
    return Schedule(tuple(named), _cut_off(named, lease))


def draw_absences(
    liars: Sequence[int], count: int, lease: float, chance: random.Random
) -> Schedule:
    """Draw deaths such that the living are always more than three times the liars: some nodes until the
    end, others in turn, and mostly so briefly that no mask marks all of them."""
    begin, span = 3.0, 12 * lease
    longest, pause = chance.choice(((1.0, 0.2), (1.0, 0.5), (3.0, 2.0)))
    most = count - 3 * len(liars) - 1
    honest = [index for index in range(count) if index not in liars]
    chance.shuffle(honest)
    gone = honest[: chance.randrange(most + 1)]
    actions = [Action(begin + lease * chance.random(), "crash", node, span) for node in gone]
    for turn in range(most - len(gone)):
        # Separate nodes for each sequence, so that no node is killed twice.
        others = honest[len(gone) + turn :: most - len(gone)]
        now = begin + 2 * lease * chance.random()
        while now < begin + span - 4 * lease:
            seconds = lease * chance.uniform(0.2, longest)
            actions.append(Action(now, "crash", chance.choice(others), seconds))
            # Then another node, or the same one again.
            now += seconds + lease * chance.uniform(0.1, pause)
    actions.sort(key=lambda action: (action.time, action.what, action.node))
    return Schedule(tuple(actions), _cut_off(actions, lease))


def with_wipes(
    schedule: Schedule, nodes: Sequence[int], lease: float, chance: random.Random
) -> Schedule:
    """Return the schedule with a loss of each of these nodes' disks, but not of its key, at some
    time."""
    wipes = [Action(_when(chance, 3.0, 17.0), "wipe", node, _pause(chance)) for node in nodes]
    actions = sorted(
        [*schedule.actions, *wipes], key=lambda action: (action.time, action.what, action.node)
    )
    return Schedule(tuple(actions), _cut_off(actions, lease))


def _cut_off(actions: Sequence[Action], lease: float) -> bool:
    # A restarted node sends nothing until it has caught up.
    requests_fail = any(a.what == "failing" for a in actions)
    return any(
        a.what in ("partition", "one-way", "loss", "freeze", "clock")
        # A node that comes back may find that the others, which went on without it, are dead.
        or (a.what in _DEADLY and (a.seconds > lease / 2 or requests_fail))
        for a in actions
    )


class Faults:
    """Injects a schedule's faults. Links to `spared` nodes are never cut, and their disks lose
    nothing."""

    def __init__(
        self,
        swarm: Swarm,
        schedule: Schedule,
        chance: random.Random,
        spared: frozenset[int] = frozenset(),
    ) -> None:
        self._swarm = swarm
        self._spared = spared
        self._schedule = schedule
        self._chance = chance
        self._corrupted = False
        for action in schedule.actions:
            swarm.clock.at(action.time, self._do, action)

    def _do(self, action: Action) -> None:
        swarm = self._swarm
        swarm.trace.note(swarm.now, -1, "fault", str(action).split(": ", 1)[1])
        node = swarm.node(action.node)
        match action.what:
            case "newcomer":
                if node is None:
                    swarm.add(action.node)
            case "loss" | "duplication" | "failing":
                # Of two at once the first to end ends both: nothing may outlast the schedule.
                setattr(swarm.network, action.what, action.number)
                swarm.clock.after(action.seconds, setattr, swarm.network, action.what, 0.0)
            case "partition":
                self._cut(_between(action.others, swarm), action.seconds, both=True)
            case "one-way":
                self._cut([(action.node, other) for other in action.others], action.seconds)
            case "mass":
                for other in action.others:
                    self._kill(swarm.node(other), action.seconds + self._chance.random())
            case _ if node is not None:
                self._do_to(node, action)

    def _do_to(self, node: Node, action: Action) -> None:
        swarm = self._swarm
        match action.what:
            case "crash":
                self._kill(node, action.seconds)
            case "wipe":
                node.stop()
                node.disk.lose(other.disk for other in swarm.nodes)
                swarm.watch.forgets(node)
                swarm.clock.after(action.seconds, self._start, node.index, node.disk)
            case "fuse":
                moment = self._chance.choice(("signed", "written", "sent"))
                node.fuse = Fuse(int(action.number), moment)
                node.died_of_fuse = lambda dead: self._return(dead, action.seconds)
            case "freeze":
                node.frozen = True
                pairs = [(other.index, node.index) for other in swarm.alive]
                swarm.breaks(pairs)
                swarm.clock.after(action.seconds, self._thaw, node)
            case "clock":
                node.clock_rate = action.number
            case "disk":
                node.write_seconds = action.number
            case "trainer":
                node.training_seconds = action.number
            case "corrupt":
                # The wrong parameters of a majority would be the right ones, and so would those of a
                # founder that has most votes.
                view = node.member.view
                members, votes = set(view.members), view.ledger.votes(view.round)
                here = [
                    o
                    for o in swarm.alive
                    if o.peer in members and not o.frozen and self._near(node, o)
                ]
                outvoted = 2 * votes[node.peer] < votes.total
                if view.at_tip and len(here) > 2 and outvoted and not self._corrupted:
                    self._corrupted = True
                    node.parameters += 1
                    node.member.parts.replica.fingerprint = node.parameters
            case "leave":
                node.tell(LeaveRequested())
                swarm.clock.after(5.0, node.stop)
                swarm.clock.after(8.0, self._start, node.index, node.disk)

    def _near(self, node: Node, other: Node) -> bool:
        """Whether the two stay connected until wrong parameters have been noticed."""
        now, network = self._swarm.now, self._swarm.network
        soon = [a for a in self._schedule.actions if now < a.time < now + _NOTICED_SECONDS]
        return (node is other or network.connected(node.index, other.index)) and not soon

    def _kill(self, node: Node | None, seconds: float) -> None:
        if node is not None:
            node.stop()
            self._return(node, seconds)

    def _return(self, node: Node, seconds: float) -> None:
        """Start a dead node again, possibly with a damaged disk."""
        disk, kind = node.disk, self._chance.random()
        # A node that forgets what it built on counts as a liar, and there are enough of those.
        if self._spared:
            kind = 1.0
        if kind < 0.2 and disk.entries:
            # The newest entry of the ledger was torn.
            disk.entries.pop()
        elif kind < 0.3:
            # Only blobs that others have can be lost; no protocol could recover the rest.
            others = {o.index: o.disk for o in self._swarm.nodes if o.disk is not disk}
            disk.blobs -= {blob for other in others.values() for blob in other.blobs}
        self._swarm.clock.after(seconds, self._start, node.index, disk, type(node))

    def _start(self, index: int, disk: Disk, kind: type[Node] = Node) -> None:
        if self._swarm.node(index) is None:
            self._swarm.add(index, disk, kind)

    def _thaw(self, node: Node) -> None:
        if node.alive:
            node.frozen = False
            self._swarm.heals()

    def _cut(self, pairs: list[tuple[int, int]], seconds: float, both: bool = False) -> None:
        swarm = self._swarm
        pairs = pairs + [(other, one) for one, other in pairs] if both else pairs
        pairs = [pair for pair in pairs if not self._spared.intersection(pair)]
        swarm.network.cut(pairs)
        swarm.breaks(pairs + [(other, one) for one, other in pairs])
        swarm.clock.after(seconds, self._mend, pairs)

    def _mend(self, pairs: list[tuple[int, int]]) -> None:
        self._swarm.network.mend(pairs)
        self._swarm.clock.after(1.0, self._swarm.heals)


def _between(side: tuple[int, ...], swarm: Swarm) -> list[tuple[int, int]]:
    others = {node.index for node in swarm.nodes} - set(side)
    return [(one, other) for one in side for other in sorted(others)]


def _when(chance: random.Random, begin: float, span: float) -> float:
    return begin + span * chance.random()


def _one(chance: random.Random, count: int) -> int:
    return chance.randrange(count)


def _some(chance: random.Random, count: int, most: int) -> tuple[int, ...]:
    return tuple(sorted(chance.sample(range(count), chance.randrange(1, max(2, most + 1)))))


def _pause(chance: random.Random) -> float:
    return chance.choice((0.5, 3.0, 9.0, 20.0)) * (0.5 + chance.random())


def _crash(chance: random.Random, count: int, begin: float, span: float) -> list[Action]:
    return [Action(_when(chance, begin, span), "crash", _one(chance, count), _pause(chance))]


def _fuse(chance: random.Random, count: int, begin: float, span: float) -> list[Action]:
    pause = chance.choice((0.0, 0.2, 1.0, 10.0)) * (0.5 + chance.random())
    writes = chance.randrange(1, 8)
    return [Action(_when(chance, begin, span), "fuse", _one(chance, count), pause, writes)]


def _mass(chance: random.Random, count: int, begin: float, span: float) -> list[Action]:
    """Kill half of all nodes at once, or all but one, or all."""
    number = chance.choice((count // 2, count - 1, count))
    if not number:
        return []
    gone = tuple(sorted(chance.sample(range(count), number)))
    return [Action(_when(chance, begin, span), "mass", -1, _pause(chance), 0.0, gone)]


def _speeds(chance: random.Random, count: int, begin: float, span: float) -> list[Action]:
    """Set speeds in the ratio 1 : 2 : 4 : 8 : 16, and later the same in another order."""
    actions: list[Action] = []
    for when in (0.0, _when(chance, begin, span)):
        order = chance.sample(range(count), count)
        actions += [
            Action(when, "trainer", node, number=4.0 / 2 ** (place % 5))
            for place, node in enumerate(order)
        ]
    return actions


def _partition(
    chance: random.Random, count: int, begin: float, span: float, seconds: float
) -> list[Action]:
    if count < 2:
        return []
    side = _some(chance, count, count - 1)
    return [Action(_when(chance, begin, span), "partition", -1, seconds, 0.0, side)]


def _one_way(
    chance: random.Random, count: int, begin: float, span: float, most: float
) -> list[Action]:
    one = _one(chance, count)
    others = tuple(index for index in range(count) if index != one and chance.random() < 0.7)
    seconds = most * chance.random()
    return [Action(_when(chance, begin, span), "one-way", one, seconds, 0.0, others)]
