"""Real nodes with audits, killed again and again beside liars: one that leads for itself, one that
grinds, and one that does not work."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from chaos.driver import Driver
from chaos.schedule import Fault, draw_schedule
from chaos.test_chaos import RECOVERY_SECONDS, check_end, on_one_chain
from distro_node.crypto.identity import PeerId, peer_from_text
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.chain.ledger import Ledger
from e2e.audited_swarm import IDLE_NODE, TOP_K, make_audited
from e2e.program import wait_for
from e2e.support import Node, Place, Swarm, check_agreement, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

_SCRIPTS = Path(IDLE_NODE).parent
LIARS = {
    "leading": _SCRIPTS / "censoring_leader.py",
    "grinding": _SCRIPTS / "grinding_leader.py",
    "idle": IDLE_NODE,
}
LEASE_SECONDS = 10.0
# From here on a record names more than its leader's update, if that is honest.
_FIRST_ROUND = 6


@pytest.mark.timeout(6000)
def test_an_hour_beside_kills(tmp_path: Path) -> None:
    """The two liars that work and vote are fewer than a third of the voters, with one more killed."""
    at_work(tmp_path, honest=6, liars=tuple(LIARS), seconds=3600.0)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("liar", ["leading", "grinding"])
def test_some_minutes_beside_kills(tmp_path: Path, liar: str) -> None:
    at_work(tmp_path, honest=4, liars=(liar, "idle"), seconds=300.0)


def at_work(root: Path, *, honest: int, liars: Sequence[str], seconds: float) -> None:
    """Let nodes train beside liars, one honest one at a time being killed, and check what the liars
    have achieved. The environment variable DISTRO_CHAOS_SEED overrides the seed."""
    seed = int(os.environ.get("DISTRO_CHAOS_SEED", 3))
    print(f"DISTRO_CHAOS_SEED={seed} repeats the faults of this run")
    names = ["founder", *(f"node-{number}" for number in range(2, honest + 1))]
    count = honest + len(liars)
    with Swarm(
        root / "swarm",
        start_members=count,
        snapshot_interval=8,
        sequences=2 * count,
        top_k=TOP_K,
        lease_seconds=LEASE_SECONDS,
        places={name: Place(prefix=(sys.executable, str(LIARS[name]))) for name in liars},
    ) as swarm:
        make_audited(swarm)
        started = swarm.start(*names, *liars)
        nodes, lying = started[:honest], started[honest:]
        peers = [peer_from_text(node.peer) for node in nodes]
        # At first the founder alone has votes, and nothing is decided without it.
        wait_for(
            lambda: set(peers) <= votes(nodes[1]),
            "all honest members to have votes",
            limit=900.0,
            describe=lambda: (nodes[1].round, len(votes(nodes[1]))),
        )
        began = nodes[0].round
        Driver(swarm, [*nodes, *lying], None).run(kills(seed, names, seconds), seconds)
        wait_for(
            lambda: all(node.state == "training" for node in nodes) and on_one_chain(nodes),
            "everybody to train again, on one chain",
            limit=RECOVERY_SECONDS,
            describe=lambda: {node.name: (node.state, node.round) for node in nodes},
        )
        wait_for_round(nodes, max(node.round for node in nodes) + 3)
        check_agreement(nodes)
        ledger = nodes[0].ledger()
        wicked = {node.name: peer_from_text(node.peer) for node in lying}
        print(f"{len(ledger) - began} rounds under kills, {led(ledger, wicked)}")
        check_liars(ledger, peers, wicked)
        for node in nodes:
            assert not node.events("mismatch")
        check_end(nodes)


def kills(seed: int, names: Sequence[str], seconds: float) -> list[Fault]:
    """Return kills of these nodes, one at a time: any fault of a schedule that hits one node is one."""
    drawn = draw_schedule(seed, names, seconds, links=False, lease=LEASE_SECONDS)
    found: list[Fault] = []
    for fault in drawn:
        free = not found or fault.start > found[-1].start + found[-1].seconds + LEASE_SECONDS
        if free and fault.kind != "visit":
            name, lasts = fault.nodes[0], min(fault.seconds, LEASE_SECONDS)
            found.append(Fault(start=fault.start, seconds=lasts, kind="kill", nodes=(name,)))
    return found


def votes(node: Node) -> set[PeerId]:
    """Return the members with votes, according to a node."""
    audits = node.ledger().find(AuditLedger)
    assert audits is not None
    return {*audits.reputation.votes}


def led(ledger: Ledger, wicked: dict[str, PeerId]) -> str:
    """Return how many records each liar wrote, and how many were decided in a later slot."""
    records = [(number, ledger[number].record) for number in range(_FIRST_ROUND, len(ledger))]
    wrote = {
        name: sum(ledger.leaders(number)[record.slot] == peer for number, record in records)
        for name, peer in wicked.items()
    }
    later = sum(record.slot > 1 for _, record in records)
    return f"{wrote} records led by liars, {later} of {len(records)} not decided in the first slot"


def check_liars(ledger: Ledger, honest: Sequence[PeerId], wicked: dict[str, PeerId]) -> None:
    """Check that every honest member counts, that no liar made a step alone, and that the one that does
    not work is out of the step."""
    audits = ledger.find(AuditLedger)
    assert audits is not None
    assert all(audits.reputation.updates_count(peer) for peer in honest)
    assert not audits.reputation.updates_count(wicked["idle"])
    assert wicked["idle"] not in audits.reputation.votes
    members = ledger.membership(len(ledger))
    assert not members.expelled.keys() & set(honest)
    for number in range(_FIRST_ROUND, len(ledger)):
        updates = ledger[number].record.updates
        assert not updates or any(entry.peer in honest for entry in updates), number
