"""Six real nodes with audits: one trains on other data, one copies, and honest nodes suffer the
usual faults."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from distro_node.crypto.identity import PeerId, peer_from_text
from distro_node.protocol.chain.audits import AuditLedger
from e2e.audited_swarm import IDLE_NODE, TOP_K, audits_of, make_audited
from e2e.program import wait_for
from e2e.support import Node, Place, Swarm, check_agreement, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

COPYING_NODE = Path(__file__).with_name("copying_node.py")
CHEATS = {"idle": IDLE_NODE, "copycat": COPYING_NODE}
FOUND_WITHIN = 96
"""Rounds. An epoch of votes has 16, and a re-audit may take as many."""
STAYS_UNTIL = 40


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("overlap", [False, True])
def test_two_cheats_among_six(tmp_path: Path, *, overlap: bool) -> None:
    places = {name: Place(prefix=(sys.executable, str(file))) for name, file in CHEATS.items()}
    with Swarm(
        tmp_path / "swarm",
        start_members=5,
        snapshot_interval=8,
        sequences=12,
        top_k=TOP_K,
        overlap=overlap,
        places=places,
    ) as swarm:
        make_audited(swarm)
        founder, second, third, *cheating = swarm.start("founder", "second", "third", *CHEATS)
        cheats = [peer_from_text(node.peer) for node in cheating]
        wait_for_round([founder], 6)
        # One is killed in the middle, and one arrives late.
        third.program.kill()
        late = swarm.node("late")
        late.start()
        wait_for_round([founder], 10)
        third.start()
        honest_nodes = [founder, second, third, late]
        honest = [peer_from_text(node.peer) for node in honest_nodes]
        wait_for(
            lambda: settled(second, honest, cheats),
            "the two cheats to be found out, and all others to have votes",
            limit=1500.0,
            describe=lambda: standing(second),
        )
        # And this stays so.
        wait_for_round(honest_nodes, STAYS_UNTIL)
        check_agreement(honest_nodes)
        ledger = second.ledger()
        work = ledger.find(AuditLedger)
        assert work is not None
        found = {cheat: out_since(second, cheat) for cheat in cheats}
        print(f"found out in rounds {sorted(found.values())}, of {len(ledger)}")
        assert max(found.values()) <= FOUND_WITHIN
        assert all(work.reputation.updates_count(peer) for peer in honest)
        assert not work.reputation.votes.keys() & set(cheats)
        assert {peer for _, peer, _ in audits_of(ledger)} >= set(honest) | set(cheats)
        for node in honest_nodes:
            assert not node.events("mismatch")


def settled(node: Node, honest: list[PeerId], cheats: list[PeerId]) -> bool:
    """Whether, according to this node, all honest members have votes, and the cheats neither votes
    nor update weight."""
    work = node.ledger().find(AuditLedger)
    assert work is not None
    accounts = work.reputation
    votes = accounts.votes.keys()
    # Votes are constant until the end of an epoch.
    return (
        set(honest) <= votes
        and not votes & set(cheats)
        and not any(map(accounts.updates_count, cheats))
    )


def out_since(node: Node, peer: PeerId) -> int:
    """Return the round after whose record a peer's updates no longer counted."""
    ledger = node.ledger()
    for length in range(1, len(ledger) + 1):
        work = ledger.truncated(length).find(AuditLedger)
        if work is not None and not work.reputation.updates_count(peer):
            return length
    raise AssertionError("its updates still count")


def standing(node: Node) -> str:
    """Return the round, and every member's audits and votes."""
    work = node.ledger().find(AuditLedger)
    assert work is not None
    accounts = work.reputation
    told = [
        f"{number}: {accounts[peer].audited} audits, {accounts[peer].low} low, "
        f"{accounts[peer].failed} failed, {accounts.votes.get(peer, 0)} votes"
        for number, peer in enumerate(sorted(accounts.sums()))
    ]
    return f"round {node.round}; {'; '.join(told)}"
