"""A member that contradicts itself is expelled by all others, and newcomers know it."""

from __future__ import annotations

import dataclasses

import pytest
from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import content_id
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.messages import Ballot, RecordId, decode_message
from seeds import seeds
from simulation.swarm import Swarm, toy_manifest


@pytest.mark.parametrize("loss", [0.0, 0.2])
@pytest.mark.parametrize("seed", seeds(4))
def test_who_votes_twice_is_out_for_good(seed: int, loss: float) -> None:
    swarm = Swarm(toy_manifest(start_members=5), seed, loss=loss)
    nodes = [swarm.add(index) for index in range(5)]
    liar = nodes[2]
    swarm.watch.liars.add(liar.index)
    swarm.run_until(lambda: all(node.member.view.applied_round >= 3 for node in nodes), 100)
    before = set(liar.disk.said)

    def votes() -> list[Envelope]:
        return [e for e in liar.disk.said if e.kind == "vote" and e not in before]

    honest = [node for node in nodes if node is not liar]

    def is_out() -> bool:
        ledgers = (node.member.view.ledger for node in honest)
        return all(liar.peer in ledger.membership(len(ledger)).expelled for ledger in ledgers)

    # A message when a round is almost over is ignored; but not every time.
    for _ in range(20):
        swarm.run_until(lambda: bool(votes()) or is_out(), 30)
        if is_out():
            break
        vote = decode_message(votes()[0])
        assert isinstance(vote, Ballot)
        other = dataclasses.replace(vote, block=RecordId(content_id(b"another")))
        liar.publish(liar.sign("vote", encode(other)))
        before.update(liar.disk.said)
    swarm.run_until(is_out, 100)
    newcomer = swarm.add(9)
    swarm.run_until(lambda: newcomer.member.view.is_member, 60)
    target = newcomer.member.view.round + 3
    swarm.run_until(
        lambda: all(node.member.view.applied_round >= target for node in [*honest, newcomer]), 100
    )
    for node in [*honest, newcomer]:
        assert liar.peer not in node.member.view.members
        assert liar.peer in node.member.view.ledger.membership(target).expelled
    assert liar.member.view.state == "expelled"
