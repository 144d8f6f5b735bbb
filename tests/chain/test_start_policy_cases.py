"""Rules of starting: which record a chain must have, and when a node may begin alone."""

from __future__ import annotations

import pytest
from distro_node.protocol.chain import start_policy
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.errors import ProtocolError
from simulation.chain import Chain
from simulation.known_chains import (
    checkpoint,
    forged_chain,
    true_chain,
)


def _point(chain: Chain, round_: int) -> Checkpoint:
    return Checkpoint(round_, chain.ledger.parent(round_ + 1))


def test_the_later_record_counts() -> None:
    early, late = _point(true_chain(), 4), _point(true_chain(), 8)
    both = [
        start_policy.checkpoint_of(*pair, true_chain().ledger)
        for pair in ((early, late), (late, early))
    ]
    assert both == [late, late]


def test_a_link_of_another_chain_is_refused() -> None:
    """It names the very round that is known, and one that the ledger has."""
    for known, chain in (
        (_point(true_chain(), 9), Ledger(true_chain().manifest)),
        (None, true_chain().ledger),
    ):
        with pytest.raises(ProtocolError):
            start_policy.checkpoint_of(_point(forged_chain(), 9), known, chain)


def test_nobody_starts_without_the_record() -> None:
    behind = Ledger(true_chain().manifest, checkpoint=checkpoint())
    begun = start_policy.has_begun(behind, true_chain().manifest.founder)
    assert not start_policy.may_start(behind, begun=begun, found=True)
