"""Real nodes with committees: equal parameters, learning, a death and a liar."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distro_node.crypto.identity import PeerId, peer_from_text
from distro_node.protocol.chain.committees import CommitteeChain
from distro_node.protocol.chain.ledger import Ledger
from e2e.program import wait_for
from e2e.support import Place, Swarm, check_agreement, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LYING_AGGREGATOR = Path(__file__).with_name("lying_aggregator.py")
# Two sections at first, for one of which the liar is an aggregator. Members that contradict each
# other in a committee of two are both left out for a while, and then there is one section.
COMMITTEES = "[committees]\nrotation_steps = 2\nmin_members = 2\nepoch_steps = 2\n"


def aggregates(ledger: Ledger) -> Iterator[dict[PeerId, int]]:
    """Yield the update weights of each step."""
    for round_ in range(2, len(ledger), 2):
        yield ledger.index(CommitteeChain).update_weights(ledger[round_].record)


def test_some_aggregate_for_the_others(tmp_path: Path) -> None:
    liar_runs = Place(prefix=(sys.executable, str(LYING_AGGREGATOR)))
    with Swarm(
        tmp_path / "swarm", start_members=4, tables=COMMITTEES, places={"liar": liar_runs}
    ) as swarm:
        swarm.create()
        nodes = swarm.start("founder", "second", "third", "liar")
        founder, _, third, liar = nodes
        wait_for_round(nodes, 12)

        # Killed in the middle of a step, and back with its key: it is an aggregator again from the
        # next epoch on.
        third.program.kill()
        killed = founder.round
        third.start()
        wait_for(
            lambda: any(r % 2 == 0 for r in third.counted(killed)),
            "the restarted node to speak again",
        )

        def learned() -> bool:
            losses = [line["heldout"] for line in founder.history() if "heldout" in line]
            return bool(losses) and losses[-1] < losses[0] - 0.4

        wait_for(learned, "the held-out loss to fall")
        check_agreement(nodes)
        for node in nodes:
            assert not node.events("mismatch")

        lying = peer_from_text(liar.peer)
        steps = [*aggregates(founder.ledger())]
        lied = [counts[lying] for counts in steps if lying in counts]
        honest = [sum(counts.values()) for counts in steps if lying not in counts]
        # Its committee agrees on nothing while it is in it, though the other member is dead by then;
        # and it is not drawn for some epochs.
        assert lied
        assert not any(lied)
        assert len(honest) > 2
        assert sum(honest) > len(honest) / 2
