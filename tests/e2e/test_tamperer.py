"""Two honest nodes and a byzantine third: they train on, agree, and count nothing of its."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distro_node.crypto.identity import Identity, peer_text
from e2e.program import wait_for
from e2e.support import Node, Swarm, check_agreement

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEED = bytes(range(32))
TRICKS = {
    "wrong_fingerprint",
    "garbage_body",
    "bad_signature",
    "ballot_of_another",
    "proposal_out_of_turn",
    "garbage_on_every_protocol",
}


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    # Two of three must be a quorum here: more than half.
    root = tmp_path_factory.mktemp("tampered")
    with Swarm(root, start_members=2, fault_model="crash") as swarm:
        swarm.create()
        yield swarm


def start(swarm: Swarm, name: str) -> Node:
    node = swarm.node(name)
    node.start("--metrics-addr", "127.0.0.1:0")
    return node


def rejected(node: Node) -> dict[str, float]:
    """Return what a node has rejected, by reason, from its metrics."""
    lines = node.metrics().splitlines()
    prefix = 'distro_messages_rejected_total{reason="'
    found = (line.removeprefix(prefix) for line in lines if line.startswith(prefix))
    return {reason: float(count) for reason, _, count in (line.partition('"} ') for line in found)}


def test_lies_cost_the_honest_nothing(swarm: Swarm, tmp_path: Path) -> None:
    nodes = [start(swarm, "founder"), start(swarm, "second")]
    wait_for(lambda: all(node.state == "training" for node in nodes), "two to train")
    liar = peer_text(Identity.from_seed(SEED).peer)
    log = tmp_path / "tamperer.txt"
    script = Path(__file__).with_name("tamperer.py")
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, str(script), swarm.link, SEED.hex()], stdout=out, stderr=out
        )
    try:

        def done() -> set[str]:
            lines = log.read_text().splitlines()
            return {json.loads(line)["did"] for line in lines if line.startswith("{")}

        wait_for(lambda: done() >= TRICKS, "every trick to be tried", describe=log.read_text)
        # It is expelled for the worst of it, and refused for a while.
        honest = {node.peer for node in nodes}
        wait_for(
            lambda: all(node.members() == honest for node in nodes),
            "the liar to be thrown out",
            describe=lambda: [node.members() for node in nodes],
        )
        assert process.poll() is None, log.read_text()
        check_agreement(nodes)
    finally:
        process.kill()
        process.wait()
    for node in nodes:
        assert liar in {
            admission
            for decided in node.ledger()
            for admission in map(peer_text, (entry.peer for entry in decided.record.admitted))
        }
        assert not node.counts(liar)
        assert len(node.counted()) >= 3
        assert node.told().training.trainer.restarts == 0
        refused = rejected(node)
        assert refused["bad_signature"] >= 2
        assert refused["not_leader"] >= 1
        assert refused["malformed"] >= 1
    check_agreement(nodes)
