"""One seed, one run: the swarm, its faults, and the required outcome.

`run_seed` does everything: it draws the scenario, runs it until the faults are over, and then waits for
the swarm to recover within a stated time. A failure is returned as a `Failure`, which can be shrunk and
printed.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field
from typing import Any

from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import (
    AuditsSpec,
    OptimizerSpec,
    ParameterSpec,
    UpdateWeightRule,
)
from distro_node.protocol.wire.membership import max_byzantine_votes
from distro_node.protocol.wire.work_specs import CommitteesSpec
from simulation.clock import Standstill
from simulation.faults import Family, Faults, Schedule, draw_absences, draw_schedule, with_wipes
from simulation.freeloaders import Freeloader, draw_freeloaders
from simulation.invariants import Violation
from simulation.keys import Keys
from simulation.liars import (
    BOTH_SIDES,
    CONSPIRACY,
    FALSE_AGGREGATE,
    LIES,
    Liars,
    draw_founder,
    draw_leading,
    draw_liars,
    draw_strangers,
)
from simulation.message_cache import shared_reading
from simulation.network import HOME, LAN, Links
from simulation.node import Node
from simulation.swarm import Swarm
from simulation.toy import toy_manifest

LEASE_SECONDS = 6.0
RECOVERY_SECONDS = 180.0
"""Within this time after the last fault all nodes are on one chain, members and contributing: a lease or
two until all dead members are out, a slot of at most a minute, a chain comparison every ten seconds, and
rejoining."""
CONSPIRACY_SECONDS = 600.0
"""The same where three of ten send only what stops the others: these must all be in one slot then, and a
member that was restarted meanwhile begins with short slots, which grow one by one."""
CUT_SECONDS = 1200.0
"""The same where liars were on both sides of a cut: a peer whose chain was fetched in vain is not asked
for it again for up to 160 seconds, and what liars alone may have signed is doubted for sixteen leases,
each of which may have grown to a minute while rounds were slow. If it is longer, `CUT_LEASES` leases."""
CUT_LEASES = 18
AUDITS_SECONDS = 900.0
"""The same where the run is long enough for epochs of votes to change."""
AUDITS_ROUNDS = 56
"""Three and a half epochs of votes."""
RECOVERY_ROUNDS = 3
"""Rounds to be decided within that time, with contributions of all members."""

# With audits: sequences per member, and the time for them. Rounds are many, so they are short.
SHARE = 4
SHORT_SECONDS = 0.3


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
    links: Links
    overlap: bool = False
    """Whether updates are computed a round ahead."""
    say: UpdateWeightRule = "equal"
    """The rule for update weights."""
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
            f"python benchmarks/simulate.py --seeds {scenario.seed}:{scenario.seed + 1} "
            f"--faults {scenario.family} --members {scenario.members} --rounds {scenario.rounds}"
            f"{' --overlap' if scenario.overlap else ''}"
        )


@dataclass
class Outcome:
    """The measurements of a run."""

    failure: Failure | None
    rounds: int
    digest: str
    delays: list[float]
    """From the arrival of a round's last update, at the leader and a quorum, to each member's decision;
    in one-way delays."""
    messages: float
    """Messages sent per member and round."""
    gossip_bytes: float
    """Bytes of gossip and sync per member and round."""
    seconds: float
    """Virtual time."""
    forks: int
    excused: bool = False
    """Whether it ended with so many liars in a membership, or in a finality set, that nothing is
    guaranteed any more: cuts, or deaths of many, had left them with fewer honest members than at the
    start."""


def draw_scenario(
    seed: int,
    family: Family,
    members: int | None = None,
    rounds: int | None = None,
    *,
    overlap: bool = False,
) -> Scenario:
    """Draw the scenario of `seed`; sizes are drawn as well unless given."""
    chance = random.Random(f"scenario {seed} {family}")
    # From a separate stream: a command that repeats a run names its size, and must give the same run.
    size = random.Random(f"size {seed} {family}")
    if family == "down":
        return _many_down(seed, members, rounds or 8, overlap)
    if family == "audits":
        return _auditor(seed, members, rounds or AUDITS_ROUNDS, overlap)
    if family == "committees":
        return _committees(seed, members, rounds)
    cut = family == "cut"
    lying = cut or family == "liars" or (family == "all" and chance.random() < 0.4)
    # Small swarms go through more rounds and faults in the same time; a few are larger.
    sizes = (4, 4, 4, 5, 6, 7) if lying else (1, 2, 3, 3, 4, 4, 5, 6, 8)
    sizes = (4, 4, 5, 6, 7, 7, 8, 10) if cut else sizes
    drawn = size.choice(sizes)
    # Later additions have separate streams; otherwise all older seeds would change.
    later = random.Random(f"later {seed} {family}")
    if (lying or family == "all") and later.random() < 0.02:
        drawn = 16
    # Fewer than three liars need an honest signer that they do not call silent.
    conspire = lying and size.random() < 0.06
    count = members or (10 if conspire else drawn)
    liars = draw_liars(count, chance) if lying and count >= 4 else ()
    if conspire and count >= 10:
        nodes = sorted(size.sample(range(1, count), (count - 1) // 3))
        liars = tuple((index, (CONSPIRACY, size.choice(LIES[:-1]))) for index in nodes)
    elif cut:
        liars = draw_strangers(_on_both_sides(liars, later), later, 0.2)
    else:
        liars = draw_founder(draw_strangers(liars, later), later)
    liars = draw_leading(liars, random.Random(f"leading {seed} {family}"))
    model = "byzantine" if liars or chance.random() < 0.6 else "crash"
    schedule = draw_schedule("liars" if liars and not cut else family, count, LEASE_SECONDS, chance)
    # A node that lost its disk may contradict itself, so it counts among those that may lie.
    most = max_byzantine_votes(model, count) if family in ("crash", "all") and not liars else 0
    if most and size.random() < 0.3:
        nodes = size.sample(range(count), size.randrange(1, most + 1))
        schedule = with_wipes(schedule, nodes, LEASE_SECONDS, size)
    links = chance.choice((LAN, Links(), Links(), HOME))
    return Scenario(
        say=draw_update_weight(seed, family),
        seed=seed,
        family=family,
        members=count,
        rounds=rounds or 8,
        model=model,
        liars=liars,
        schedule=schedule,
        links=links,
        overlap=overlap,
    )


def _committees(seed: int, members: int | None, rounds: int | None) -> Scenario:
    """Draw another family's scenario for a seed, with committees, and liars in them."""
    chance = random.Random(f"scenario {seed} speakers")
    others: tuple[Family, ...] = ("none", "crash", "network", "liars", "liars", "all", "all")
    drawn = draw_scenario(seed, chance.choice(others), members, rounds or 12)
    liars = tuple(
        (index, (*lies, FALSE_AGGREGATE) if chance.random() < 0.7 else lies)
        for index, lies in drawn.liars
    )
    epoch = chance.choice((1, 2, 3))
    return dataclasses.replace(drawn, family="committees", liars=liars, epoch=epoch)


def _many_down(seed: int, members: int | None, rounds: int, overlap: bool) -> Scenario:
    chance, size = random.Random(f"scenario {seed} down"), random.Random(f"size {seed} down")
    count = members or size.choice((6, 7, 8, 9, 11, 12))
    nodes = sorted(chance.sample(range(1, count), chance.randrange(1, 3) if count > 8 else 1))
    liars = tuple(
        (index, (chance.choice(LIES), *(("solo rounds",) if chance.random() < 0.7 else ())))
        for index in nodes
    )
    liars = draw_leading(liars, random.Random(f"leading {seed} down"))
    return Scenario(
        say=draw_update_weight(seed, "down"),
        seed=seed,
        family="down",
        members=count,
        rounds=rounds,
        model="byzantine",
        liars=liars,
        schedule=draw_absences(nodes, count, LEASE_SECONDS, chance),
        links=chance.choice((LAN, Links(), HOME)),
        overlap=overlap,
    )


def draw_update_weight(seed: int, family: Family) -> UpdateWeightRule:
    """Draw the rule for update weights of a seed's run."""
    return random.Random(f"say {seed} {family}").choice(("equal", "share"))


def _auditor(seed: int, members: int | None, rounds: int, overlap: bool) -> Scenario:
    chance, size = random.Random(f"scenario {seed} looks"), random.Random(f"size {seed} looks")
    count = members or size.choice((3, 4, 4, 5, 5, 6, 7))
    liars = draw_freeloaders(count, chance) if count >= 4 and chance.random() < 0.6 else ()
    model = "byzantine" if liars or chance.random() < 0.6 else "crash"
    # The founder may be away for long where liars are less than a third of the others.
    long = count - 1 > 3 * len(liars)
    schedule = draw_schedule(
        "audits", count, LEASE_SECONDS, chance, brief=bool(liars), founder_away=long
    )
    return Scenario(
        seed=seed,
        family="audits",
        members=count,
        rounds=rounds,
        model=model,
        liars=liars,
        schedule=schedule,
        links=chance.choice((LAN, Links(), HOME)),
        overlap=chance.random() < 0.3 or overlap,
        every=chance.choice((1, 2)),
    )


def run_seed(
    seed: int,
    family: Family,
    *,
    members: int | None = None,
    rounds: int | None = None,
    overlap: bool = False,
    keys: Keys | None = None,
) -> Outcome:
    """Run a seed. Never raises for faults of the protocol: they are in the outcome."""
    return run(draw_scenario(seed, family, members, rounds, overlap=overlap), keys)


def run(scenario: Scenario, keys: Keys | None = None) -> Outcome:
    """Run a scenario."""
    swarm = build(scenario, keys)
    failure, excused = None, False
    try:
        with shared_reading():
            excused = _play(swarm, scenario)
    except Violation as violation:
        failure = Failure(scenario, violation.invariant, str(violation))
        failure.trace = swarm.trace.shortened(violation.concerned)
    except Standstill as standstill:
        failure = Failure(scenario, "standstill", str(standstill))
        failure.trace = swarm.trace.shortened(())
    except (ProtocolError, AssertionError, ArithmeticError, LookupError, ValueError) as error:
        # The state machine itself must never fail.
        failure = Failure(scenario, "crash", f"{type(error).__name__}: {error}")
        failure.trace = swarm.trace.shortened(())
    return dataclasses.replace(_outcome(swarm, failure), excused=excused)


def build(scenario: Scenario, keys: Keys | None = None) -> Swarm:
    """Return the swarm of a scenario, with no node started yet."""
    manifest = toy_manifest(
        fault_model=scenario.model,
        start_members=scenario.members,
        lease_min_seconds=LEASE_SECONDS,
        collect_max_seconds=20.0,
        # An epoch of two to three rounds: most runs go through several.
        samples=150,
        overlap=scenario.overlap,
        optimizer=OptimizerSpec(update_weight=scenario.say, outlier_filter=not scenario.epoch),
        **_with_audits(scenario),
        **_with_committees(scenario),
    )
    size = 20_000 if scenario.links.up < 1e7 else 2_800_000
    swarm = Swarm(manifest, scenario.seed, links=scenario.links, keys=keys, update_bytes=size)
    # Half as often as the daemon, since every tick costs; immediate reactions need none.
    swarm.tick_seconds = 0.4
    if scenario.every:
        swarm.training_seconds = SHORT_SECONDS
    swarm.watch.liars = {index for index, _ in scenario.liars}
    swarm.watch.forks_explained = scenario.schedule.cut_off
    swarm.watch.cut = scenario.family == "cut"
    swarm.watch.down = scenario.family == "down"
    lies = dict(scenario.liars)
    spared = frozenset(lies) if scenario.family == "cut" else frozenset()
    # A node that receives from all sides of a cut and forwarded everything would be a bridge.
    swarm.network.mute = spared
    Faults(swarm, scenario.schedule, random.Random(f"faults {scenario.seed}"), spared)
    strangers = [index for index in lies if index >= scenario.members]
    for index in [*range(scenario.members), *strangers]:
        begin = 0.2 * min(index, scenario.members)
        if index in lies:
            swarm.clock.at(begin, _start_liar, swarm, index, lies[index])
        else:
            swarm.clock.at(begin, swarm.add, index)
    return swarm


def _with_audits(scenario: Scenario) -> dict[str, Any]:
    """Return the additional manifest fields with audits."""
    if not scenario.every:
        return {}
    # Shares as small as those whose scores were measured.
    return {
        "audits": AuditsSpec(interval=scenario.every),
        "sequences": SHARE * scenario.members,
    }


def _with_committees(scenario: Scenario) -> dict[str, Any]:
    """Return the additional manifest fields with committees."""
    if not scenario.epoch:
        return {}
    # Eight blocks, so that there are sections for several committees.
    table = (ParameterSpec(name="weight", shape=(512, 64)),)
    return {
        "committees": CommitteesSpec(min_members=2, epoch_steps=scenario.epoch),
        "parameters": table,
    }


def shrink(failure: Failure) -> Failure:
    """Return the same failure with a minimal set of faults and lies."""
    best = failure
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(best.scenario):
            again = run(smaller).failure
            if again is not None and again.invariant == best.invariant:
                best, changed = again, True
                break
    return best


def _smaller(scenario: Scenario) -> list[Scenario]:
    actions = scenario.schedule.actions
    fewer = [
        dataclasses.replace(
            scenario,
            schedule=dataclasses.replace(
                scenario.schedule, actions=actions[:place] + actions[place + 1 :]
            ),
        )
        for place in range(len(actions))
    ]
    for place, (index, lies) in enumerate(scenario.liars):
        for lie in lies:
            kept = tuple(other for other in lies if other != lie)
            liars = (
                *scenario.liars[:place],
                (index, kept),
                *scenario.liars[place + 1 :],
            )
            fewer.append(dataclasses.replace(scenario, liars=liars))
    return fewer


def _start_liar(swarm: Swarm, index: int, lies: tuple[str, ...]) -> None:
    class Chosen(Freeloader):
        tells = frozenset(lies)

    swarm.add(index, kind=Chosen)


def _on_both_sides(liars: Liars, chance: random.Random) -> Liars:
    """Return the same liars; most sign on both sides of cuts, some of them telling no other lie."""
    return tuple(
        (index, lies)
        if chance.random() < 0.2
        else (index, (BOTH_SIDES, *(lies if chance.random() < 0.5 else ())))
        for index, lies in liars
    )


def _play(swarm: Swarm, scenario: Scenario) -> bool:
    """Run it. Return whether it ended where nothing was guaranteed any more."""
    clock = swarm.clock
    faults_over = max(scenario.schedule.end, 0.2 * scenario.members) + 1.0
    while clock.next <= faults_over:
        clock.step()
    clock.now = faults_over
    # Pending deaths are cancelled; dead nodes come back by the schedule.
    for node in swarm.alive:
        node.fuse = None
    swarm.watch.heard_by_all_since = faults_over
    target = max([RECOVERY_ROUNDS + max((_honest_round(swarm)), default=0), scenario.rounds])
    conspired = any(CONSPIRACY in lies for _, lies in scenario.liars)
    patience = CONSPIRACY_SECONDS if conspired else RECOVERY_SECONDS
    if scenario.family == "cut":
        patience = CUT_SECONDS
    elif scenario.every:
        patience = AUDITS_SECONDS
    deadline = max(clock.now, faults_over) + patience
    while (problem := lacking(swarm, target)) is not None:
        if clock.next > deadline and scenario.family == "cut" and patience < _doubting(swarm):
            # A round that a cut made long causes a long lease, and a decision that liars may have signed
            # alone is doubted for sixteen (`Round.binds`).
            deadline += _doubting(swarm) - patience
            patience = _doubting(swarm)
        if clock.next > deadline:
            if scenario.family in ("cut", "down") and swarm.watch.outnumbered():
                return True
            if swarm.watch.believed:
                return True
            text = f"after {patience:g} s {problem[1]}: {swarm.describe()}"
            raise Violation(problem[0], text)
        for _ in range(len(swarm.nodes)):
            clock.step()
    for node in swarm.alive:
        if node.index not in swarm.watch.liars:
            swarm.watch.check_memory(node)
    return False


def _doubting(swarm: Swarm) -> float:
    honest = (node for node in swarm.alive if node.index not in swarm.watch.liars)
    return CUT_LEASES * max((node.member.view.lease for node in honest), default=0.0)


def _honest_round(swarm: Swarm) -> list[int]:
    return [n.member.view.round for n in swarm.alive if n.index not in swarm.watch.liars]


def lacking(swarm: Swarm, target: int) -> tuple[str, str] | None:
    """Return the invariant that the swarm still fails, and how; None if all honest nodes are members, on
    one chain of the length `target`, and contribute, and members that contradicted themselves are
    out."""
    watch = swarm.watch
    nodes = [
        node
        for node in swarm.alive
        if node.index not in watch.liars
        and not (node.index in watch.forgetful and node.member.view.is_expelled)
    ]
    height = min((node.member.view.applied_round for node in nodes), default=-1)
    if height < target:
        return "progress", f"round {target} is not reached by all"
    honest = {node.peer for node in nodes}
    if len({node.member.view.ledger.parent(height + 1) for node in nodes}) > 1:
        return "progress", "there is more than one chain"
    if not all(honest <= set(node.member.view.members) for node in nodes):
        return "progress", "somebody is no member"
    if not all(_contributed(node, height) for node in nodes):
        return "progress", "somebody does not contribute"
    members = set(nodes[0].member.view.members)
    for number in watch.unpunished(members, height, nodes[0].member.view.ledger):
        return "expelled", f"node {number} contradicts itself and is a member"
    return None


def _contributed(node: Node, height: int) -> bool:
    return any(
        entry.peer == node.peer
        for number in range(max(0, height - 2 * RECOVERY_ROUNDS), height + 1)
        for entry in node.member.view.ledger[number].record.updates
    )


def _outcome(swarm: Swarm, failure: Failure | None) -> Outcome:
    watch = swarm.watch
    rounds = max(
        (node.member.view.round for node in swarm.nodes if node.index not in watch.liars), default=0
    )
    one_way = swarm.network.typical_delay(300)
    delays = [
        (at - began) / one_way
        for block, decided in watch.chains.records.items()
        if (began := watch.ready(decided)) is not None
        for at in watch.decisions.get(block, [])
    ]
    share = max(1, rounds) * max(1, len(swarm.nodes))
    network = swarm.network
    return Outcome(
        failure=failure,
        rounds=rounds,
        digest=swarm.trace.digest,
        delays=delays,
        messages=network.messages / share,
        gossip_bytes=(network.gossip_bytes + network.other_bytes) / share,
        seconds=swarm.now,
        forks=swarm.forks,
    )
