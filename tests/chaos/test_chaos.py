"""Real nodes under a storm of faults: afterwards there is one chain, and all nodes follow it.

The faults follow from a seed (`schedule`). As root every node gets a network namespace, so that
links can be cut; otherwise all are on loopback, and everything but the cuts happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from chaos.driver import Driver
from chaos.lying_node import CONTRADICTIONS, LIES, LONG_LIES, LONG_SECONDS, lies_sent
from chaos.schedule import draw_schedule
from distro_node.node.demo.processes import is_running
from distro_node.node.errors import ExitCode
from e2e.program import wait_for
from e2e.support import Node, Place, Swarm, check_agreement, wait_for_round
from namespaces import Town, available

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

LIAR = "liar"
TRAITOR = "traitor"
LYING_NODE = Path(__file__).parent / "lying_node.py"
LIAR_SEED = bytes(range(32))
# Sixteen busy processes on a few cores pause for seconds now and then.
LEASE_SECONDS = 10.0

# After the last fault: restarts, leases, fork choice and the way back, on a busy machine.
RECOVERY_SECONDS = 240.0


@pytest.mark.timeout(600)
def test_a_storm_of_a_minute(tmp_path: Path) -> None:
    # Two overlapping kills, and a freeze. Two of the four are gone for longer than a lease: a
    # byzantine member would be one of three, which is more than the others can tolerate.
    storm(tmp_path, seed=45, count=4, seconds=60.0, rounds=20, traitor=False)


@pytest.mark.timeout(1500)
def test_two_minutes_with_a_traitor(tmp_path: Path) -> None:
    # Three honest nodes and a member that sends every lie at once; for experiments.
    storm(tmp_path, seed=7, count=3, seconds=120.0, rounds=20, quiet=True)


@pytest.mark.timeout(1500)
def test_a_storm_over_committees(tmp_path: Path) -> None:
    # Each committee has two members, so one that is gone or behind silences its section.
    committees = "[committees]\nrotation_steps = 2\nmin_members = 2\nepoch_steps = 4\n"
    storm(tmp_path, seed=45, count=5, seconds=120.0, rounds=80, traitor=False, tables=committees)


@pytest.mark.timeout(1500)
def test_a_storm_of_ten_minutes(tmp_path: Path) -> None:
    driver = storm(tmp_path, seed=1, count=8, seconds=600.0, rounds=100)
    growth = driver.memory.growth(since=driver.began + 300.0)
    print("growth of memory over the second half:")
    for name, part in sorted(growth.items()):
        print(f"  {name}: {part:+.1%}")
    # The steady nodes and their trainers.
    assert len(growth) >= 8
    assert max(growth.values()) < 0.05


def storm(
    root: Path,
    *,
    seed: int,
    count: int,
    seconds: float,
    rounds: int,
    quiet: bool = False,
    traitor: bool = True,
    tables: str = "",
) -> Driver:
    """Let `count` nodes train under faults for some time, and check the invariants afterwards.

    A peer sends garbage throughout, and with a `traitor` one more member lies in every way at once
    (`lying_node`). If `quiet`, there are no other faults. `tables` is appended to the founder's
    file. The environment variable DISTRO_CHAOS_SEED overrides the seed.
    """
    seed = int(os.environ.get("DISTRO_CHAOS_SEED", seed))
    print(f"DISTRO_CHAOS_SEED={seed} repeats the faults of this run")
    names = ["founder", *(f"node-{number}" for number in range(2, count + 1))]
    schedule = draw_schedule(seed, names, seconds, links=available(), lease=LEASE_SECONDS)
    schedule = [] if quiet else schedule
    guests = [name for fault in schedule if fault.kind == "visit" for name in fault.nodes]
    with (
        maybe_town([*names, *guests, LIAR, TRAITOR, "bootstrap"]) as town,
        Swarm(
            root,
            start_members=count,
            snapshot_interval=10,
            lease_seconds=LEASE_SECONDS,
            tables=tables,
            places=places(town, seconds),
        ) as swarm,
    ):
        swarm.create()
        nodes = swarm.start(*names)
        peers = {node.peer for node in nodes}
        traitors = swarm.start(TRAITOR) if traitor else []
        driver = Driver(swarm, nodes, town)
        with liar(swarm, root / "liar.txt"):
            driver.run(schedule, seconds)
        # The traitor keeps lying.
        check_recovery(nodes, rounds)
        for each in traitors:
            told = lies_sent(each.data.root)
            print(f"lies told: {', '.join(sorted(told))}")
            assert told >= {*LIES, *(LONG_LIES if 0.9 * seconds >= LONG_SECONDS else ())}
            assert told & set(CONTRADICTIONS)
        assert peers & {node.peer for node in nodes}, "a seed that wipes everybody shows nothing"
        check_end([*nodes, *driver.visitors])
    return driver


def check_recovery(nodes: Sequence[Node], rounds: int) -> None:
    """Check that all nodes train, on one chain, with the same parameters, and have learned something."""
    wait_for(
        lambda: all(node.state == "training" for node in nodes) and on_one_chain(nodes),
        "everybody to train again, on one chain",
        limit=RECOVERY_SECONDS,
        describe=lambda: {node.name: (node.state, node.round) for node in nodes},
    )
    # Before that, the losing side of a partition had applied another chain.
    last = check_agreement(nodes, rounds=5, since=max(node.round for node in nodes))
    # A busy machine gets there later.
    wait_for_round(nodes, rounds)
    for node in nodes:
        wait_for(lambda node=node: node.counted(last), f"{node.name} to contribute")
    assert on_one_chain(nodes)
    losses = sorted(
        (line["round"], line["heldout"])
        for node in nodes
        for line in node.history()
        if "heldout" in line
    )
    assert losses[-1][1] < losses[0][1] - 0.5
    print(f"{last} rounds, held-out loss {losses[0][1]:.3f} to {losses[-1][1]:.3f}")


def on_one_chain(nodes: Sequence[Node]) -> bool:
    """Whether all have the same record in the last round decided for all, and so in all earlier ones."""
    ledgers = [node.ledger() for node in nodes]
    last = min(len(ledger) for ledger in ledgers) - 1
    return last >= 0 and len({ledger[last].record.id for ledger in ledgers}) == 1


def check_end(nodes: Sequence[Node]) -> None:
    """Check that they leave on request, without a trace of a bug, and leave no process behind."""
    processes: list[psutil.Process] = []
    for node in nodes:
        if node.running:
            processes += node.program.children()
            node.program.signal(signal.SIGTERM)
    for node in nodes:
        assert node.program.wait() == ExitCode.OK
        assert "Traceback" not in node.program.stderr_path.read_text("utf-8", "replace")
    wait_for(lambda: not any(map(is_running, processes)), "every process to end")


@contextlib.contextmanager
def maybe_town(names: Sequence[str]) -> Iterator[Town | None]:
    """Yield a network namespace for each name, where the system allows that."""
    if available():
        with Town(names) as town:
            yield town
    else:
        yield None


def places(town: Town | None, seconds: float) -> dict[str, Place]:
    """Return where each process runs. The traitor lets itself be caught near the end."""
    hosts = town.hosts if town is not None else {}
    found = {name: Place(host.prefix, host.address) for name, host in hosts.items()}
    home = found.get(TRAITOR, Place())
    lying = (*home.prefix, sys.executable, "-P", str(LYING_NODE), str(0.9 * seconds))
    return found | {TRAITOR: Place(lying, home.address)}


@contextlib.contextmanager
def liar(swarm: Swarm, log: Path) -> Iterator[None]:
    """Run a lying member for the duration of the context."""
    place = swarm.place(LIAR)
    script = Path(__file__).parent.parent / "e2e" / "tamperer.py"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*place.prefix, sys.executable, script, swarm.link, LIAR_SEED.hex(), place.listen],
            stdout=out,
            stderr=out,
        )
    try:
        yield
        assert process.poll() is None, log.read_text()
        # On a busy machine it takes minutes to be admitted.
        wait_for(lambda: '"did"' in log.read_text(), "the liar to lie", limit=RECOVERY_SECONDS)
    finally:
        process.kill()
        process.wait()
