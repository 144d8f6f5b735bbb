"""One seed, one run of whole processes: the swarm, its faults, and the required outcome."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from distro_node.protocol.wire.manifest import UpdateWeightRule
from distro_node.protocol.wire.work_specs import AuditsSpec, CommitteesSpec
from simulation.faults import Family, Schedule, draw_absences
from simulation.freeloaders import IDLE, draw_freeloaders
from simulation.invariants import Violation
from simulation.liars import FALSE_AGGREGATE, Liars, draw_leading
from simulation.scenario import (
    AUDITS_SECONDS,
    CUT_SECONDS,
    LEASE_SECONDS,
    RECOVERY_ROUNDS,
    SHARE,
    SHORT_SECONDS,
    draw_update_weight,
    lacking,
)
from simulation.whole import loop
from simulation.whole.faults import Faults, draw_schedule
from simulation.whole.liars import LIES, draw_strangers, liar_network, on_both_sides
from simulation.whole.swarm import WholeSwarm

RECOVERY_SECONDS = 240.0
"""Within this time after the last fault all nodes are on one chain, members and contributing. Longer
than in the fast simulation: a lost peer is dialled again after at most half a minute, and asked again
after that."""
_GOODBYE_SECONDS = 20.0
_AUDITS_ROUNDS = 40
"""With audits: two and a half epochs of votes."""
_AUDITS_DISK_SECONDS = 0.1
"""With audits: the longest that a slow disk takes for a write."""
_IDLE = tuple(lie for lie in IDLE if lie != "copycat")


@dataclass(frozen=True)
class Scenario:
    """The scenario that a seed yields."""

    seed: int
    family: Family
    members: int
    rounds: int
    """Minimum number of rounds to decide."""
    model: str
    liars: Liars
    schedule: Schedule
    overlap: bool = False
    say: UpdateWeightRule = "equal"
    epoch: int = 0
    """Number of steps in an epoch of the committees; 0: no committees."""
    every: int = 0
    """A member with votes audits once in this many rounds; 0: no audits."""


@dataclass
class Failure:
    """A violation, and the run that led to it."""

    scenario: Scenario
    invariant: str
    text: str
    trace: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        scenario = self.scenario
        return (
            f"python benchmarks/simulate_whole.py --seeds {scenario.seed}:{scenario.seed + 1} "
            f"--faults {scenario.family}"
        )


@dataclass
class Outcome:
    """The measurements of a run."""

    failure: Failure | None
    rounds: int
    digest: str
    """Digest of every event, with its time."""
    decided: str
    """Digest of the decided records, node by node."""
    seconds: float
    """Virtual time."""
    starts: int
    """Number of started processes."""
    forks: int
    excused: bool
    """Whether it ended with too many liars for any guarantee (see the fast simulation's)."""


def draw_scenario(seed: int, family: Family) -> Scenario:
    """Draw the scenario of `seed`."""
    if family == "committees":
        return _committees(seed)
    if family == "audits":
        return _auditor(seed)
    chance = random.Random(f"whole {seed} {family}")
    if family == "down":
        liar = (chance.randrange(1, 7), ("solo rounds", chance.choice(LIES)))
        schedule = draw_absences([liar[0]], 7, LEASE_SECONDS, chance)
        say = draw_update_weight(seed, family)
        return Scenario(seed, family, 7, 6, "byzantine", (liar,), schedule, say=say)
    cut = family == "cut"
    lying = cut or family == "liars" or (family == "all" and chance.random() < 0.35)
    count = chance.choice((4, 4, 5, 7)) if lying else chance.choice((1, 2, 2, 3, 3, 4, 4, 5))
    liars: Liars = ()
    if lying:
        number = 2 if count == 7 and chance.random() < 0.4 else 1
        liars = tuple(
            (index, tuple(sorted(chance.sample(LIES, chance.randrange(1, 4)))))
            for index in sorted(chance.sample(range(1, count), number))
        )
    model = "byzantine" if liars or chance.random() < 0.6 else "crash"
    schedule = draw_schedule(family, count, len(liars), chance)
    overlap = chance.random() < 0.15
    # Later additions have a separate stream; otherwise all older seeds would change.
    later = random.Random(f"whole later {seed} {family}")
    liars = on_both_sides(liars, later) if cut else draw_strangers(liars, later)
    liars = draw_leading(liars, random.Random(f"whole leading {seed} {family}"), 0.4)
    say = draw_update_weight(seed, family)
    return Scenario(seed, family, count, 6, model, liars, schedule, overlap, say)


def _committees(seed: int) -> Scenario:
    """Draw another family's scenario for a seed, with committees, and liars in them."""
    chance = random.Random(f"whole {seed} speakers")
    others: tuple[Family, ...] = ("none", "crash", "network", "liars", "liars", "all", "all")
    drawn = draw_scenario(seed, chance.choice(others))
    liars = tuple(
        (index, (*lies, FALSE_AGGREGATE) if chance.random() < 0.7 else lies)
        for index, lies in drawn.liars
    )
    # A step takes two rounds.
    return dataclasses.replace(
        drawn,
        family="committees",
        rounds=2 * drawn.rounds,
        liars=liars,
        overlap=False,
        epoch=chance.choice((1, 2, 3)),
    )


def _auditor(seed: int) -> Scenario:
    """Draw a scenario with audits: its liars do not do their work, lie about that of others, grind the
    records that they lead, or leave others out of them."""
    chance = random.Random(f"whole {seed} looks")
    count = chance.choice((3, 4, 4, 5, 5))
    liars = draw_freeloaders(count, chance, _IDLE) if count >= 4 and chance.random() < 0.7 else ()
    liars = draw_leading(liars, chance, 0.5)
    model = "byzantine" if liars or chance.random() < 0.6 else "crash"
    schedule = _with_disks_that_keep_up(draw_schedule("audits", count, len(liars), chance))
    overlap, every = chance.random() < 0.3, chance.choice((1, 2))
    return Scenario(
        seed, "audits", count, _AUDITS_ROUNDS, model, liars, schedule, overlap, every=every
    )


def _with_disks_that_keep_up(schedule: Schedule) -> Schedule:
    """Return the schedule with faster slow disks. Rounds are short with audits: a node whose disk takes
    as long as a round for what a round writes stays behind for ever, and nobody waits for it."""
    return dataclasses.replace(
        schedule,
        actions=tuple(
            dataclasses.replace(action, number=min(action.number, _AUDITS_DISK_SECONDS))
            if action.what == "slow disk"
            else action
            for action in schedule.actions
        ),
    )


def run_seed(seed: int, family: Family) -> Outcome:
    """Run a seed. Never raises for faults of the node: they are in the outcome."""
    return run(draw_scenario(seed, family))


def run(scenario: Scenario) -> Outcome:
    """Run a scenario."""
    found: list[Outcome] = []

    among = [index for index, _ in scenario.liars if index < scenario.members]

    async def main() -> None:
        with memory_folder() as base:
            swarm = WholeSwarm(
                scenario.seed,
                base,
                fault_model=scenario.model,
                # Liars come later, if they come at all.
                start_members=scenario.members - len(among),
                lease_min_seconds=LEASE_SECONDS,
                collect_max_seconds=20.0,
                overlap=scenario.overlap,
                say=scenario.say,
                committees=CommitteesSpec(min_members=2, epoch_steps=scenario.epoch)
                if scenario.epoch
                else None,
                **_with_audits(scenario),
            )
            if scenario.every:
                swarm.training_seconds = SHORT_SECONDS
            failure, ends = None, []

            async def play(nursery: trio.Nursery) -> None:
                ends.append(await _play(swarm, scenario, nursery))

            try:
                await swarm.run(play)
            except Violation as violation:
                failure = Failure(scenario, violation.invariant, str(violation))
                failure.trace = swarm.trace.shortened(violation.concerned)
            found.append(_outcome(swarm, failure, excused=any(ends)))

    loop.run(scenario.seed, main)
    return found[0]


def _with_audits(scenario: Scenario) -> dict[str, Any]:
    """Return the additional manifest fields with audits."""
    if not scenario.every:
        return {}
    audits = AuditsSpec(interval=scenario.every)
    return {"audits": audits, "sequences": SHARE * scenario.members}


def shrink(failure: Failure) -> Failure:
    """Return the same failure with a minimal set of faults and lies."""
    best, changed = failure, True
    while changed:
        changed = False
        for smaller in _smaller(best.scenario):
            again = run(smaller).failure
            if again is not None and again.invariant == best.invariant:
                best, changed = again, True
                break
    return best


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    actions = scenario.schedule.actions
    for place in range(len(actions)):
        fewer = dataclasses.replace(
            scenario.schedule, actions=actions[:place] + actions[place + 1 :]
        )
        yield dataclasses.replace(scenario, schedule=fewer)
    for place, (index, lies) in enumerate(scenario.liars):
        for lie in lies:
            kept = (index, tuple(other for other in lies if other != lie))
            liars = (*scenario.liars[:place], kept, *scenario.liars[place + 1 :])
            yield dataclasses.replace(scenario, liars=liars)


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Yield the folder for the disks: in memory, if the system has such a place."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="distro-whole-", dir=place) as name:
        yield Path(name).resolve()


async def _play(swarm: WholeSwarm, scenario: Scenario, nursery: trio.Nursery) -> bool:
    """Run it. Return whether it ended where nothing was guaranteed any more."""
    watch = swarm.watch
    watch.liars = {index for index, _ in scenario.liars}
    watch.forks_explained = scenario.schedule.cut_off
    watch.cut = scenario.family == "cut"
    watch.down = scenario.family == "down"
    for index, lies in scenario.liars:
        swarm.network_of[index] = liar_network(swarm, index, frozenset(lies))
    faults = Faults(swarm, scenario.schedule, nursery, frozenset(watch.liars if watch.cut else ()))

    def begun() -> bool:
        return any(machine.member and machine.member.view.round for machine in _honest(swarm))

    strangers = [index for index, _ in scenario.liars if index >= scenario.members]
    for index in [*range(scenario.members), *strangers]:
        after = 0.2 * min(index, scenario.members)
        if index in watch.liars and index < scenario.members:
            # The swarm starts without it (`start_members`): among the first three members, one liar
            # would be a third already.
            faults.start(index, after, once=begun)
        else:
            faults.start(index, after)
    await trio.sleep_until(max(scenario.schedule.end, 5.0) + 1.0)
    faults.end()
    watch.heard_by_all_since = trio.current_time()
    rounds = [m.member.view.round for m in _honest(swarm) if m.member is not None]
    target = max(RECOVERY_ROUNDS + max(rounds, default=0), scenario.rounds)
    patience = CUT_SECONDS if watch.cut else RECOVERY_SECONDS
    if scenario.every:
        patience = AUDITS_SECONDS
    deadline = trio.current_time() + patience
    while (problem := _lacking(swarm, faults, target)) is not None:
        if trio.current_time() > deadline:
            if watch.believed or ((watch.cut or watch.down) and watch.outnumbered()):
                return True
            text = f"after {patience:g} s {problem[1]}: {swarm.describe()}"
            raise Violation(problem[0], text)
        await trio.sleep(0.5)
    for machine in _honest(swarm):
        watch.check_memory(machine)  # type: ignore[arg-type]
    await _end(swarm)
    return False


def _honest(swarm: WholeSwarm) -> list:
    return [m for m in swarm.alive if m.index not in swarm.watch.liars]


def _lacking(swarm: WholeSwarm, faults: Faults, target: int) -> tuple[str, str] | None:
    liars = swarm.watch.liars
    # A node that starts while the others are ended would be left behind, liar or not.
    absent = [m.index for m in swarm.nodes if m.starting or not (m.alive or m.index in liars)]
    if absent or faults.down:
        return "progress", f"nodes {sorted({*absent, *faults.down})} are not there"
    if any(m.member is None for m in _honest(swarm)):
        return "progress", "somebody is still joining"
    return lacking(swarm, target)  # type: ignore[arg-type]


async def _end(swarm: WholeSwarm) -> None:
    """Let one leave politely, and end the others; nothing of them may remain."""
    honest = _honest(swarm)
    leaver = honest[-1]
    leaver.session.leave()
    with trio.move_on_after(_GOODBYE_SECONDS):
        while leaver.alive:  # noqa: ASYNC110 - a process that has ended sets no event
            await trio.sleep(0.2)
    if leaver.alive:
        raise Violation("goodbye", f"node {leaver.index} does not leave", leaver.index)
    for machine in swarm.alive:
        machine.die(dark=False)
    await trio.sleep(5.0)
    for machine in swarm.nodes:
        machine.member = machine.session = machine.network = None
        # A liar's knows its network.
        machine.workshop.work = None
    # Files held by a reference cycle are closed with the cycle.
    gc.collect()
    for machine in swarm.nodes:
        held = swarm.disks.open_files(machine.index)
        if held:
            raise Violation("handles", f"node {machine.index} left files open: {held}")


def _outcome(swarm: WholeSwarm, failure: Failure | None, *, excused: bool) -> Outcome:
    decided = hashlib.blake2b("\n".join(swarm.decided).encode(), digest_size=16).hexdigest()
    rounds = {line.split()[1] for line in swarm.decided}
    rebases = sum(event.what == "rebases" for event in swarm.trace.events)
    return Outcome(
        failure=failure,
        rounds=len(rounds),
        digest=swarm.trace.digest,
        decided=decided,
        seconds=trio.current_time(),
        starts=sum(machine.starts for machine in swarm.nodes),
        forks=rebases,
        excused=excused,
    )
