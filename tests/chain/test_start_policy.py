"""Start policy: which record the chain must have, and when it suffices to take part."""

from __future__ import annotations

import pytest
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.start_policy import check_point, checkpoint_of, has_begun, may_start
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.errors import ProtocolError
from simulation.chain import Chain
from simulation.keys import identity

ROUNDS = 12


@pytest.fixture(scope="module")
def chain() -> Chain:
    return Chain(4).grow_until(ROUNDS)


@pytest.fixture(scope="module")
def other(chain: Chain) -> Chain:
    """Another chain of the same swarm."""
    return chain.forged(20)


def point(chain: Chain, round_: int) -> Checkpoint:
    return Checkpoint(round_, chain.ledger.parent(round_ + 1))


def test_the_later_of_link_and_disk_counts(chain: Chain) -> None:
    early, late = point(chain, 4), point(chain, 9)
    assert checkpoint_of(None, None, chain.ledger) is None
    assert checkpoint_of(early, None, chain.ledger) == early
    assert checkpoint_of(None, early, chain.ledger) == early
    assert checkpoint_of(early, late, chain.ledger) == late
    assert checkpoint_of(late, early, chain.ledger) == late


@pytest.mark.parametrize("height", [3, ROUNDS])
def test_a_link_that_contradicts_what_is_known_is_refused(
    chain: Chain, other: Chain, height: int
) -> None:
    ledger = chain.ledger.truncated(height)
    with pytest.raises(ProtocolError) as caught:
        checkpoint_of(point(other, 9), point(chain, 9), ledger)
    assert caught.value.reason == "checkpoint"


def test_a_link_that_contradicts_the_ledger_is_refused(chain: Chain, other: Chain) -> None:
    with pytest.raises(ProtocolError, match="round 4"):
        checkpoint_of(point(other, 4), None, chain.ledger)
    with pytest.raises(ProtocolError, match="round 4"):
        check_point(chain.ledger, point(other, 4))
    # A ledger that does not reach the record does not contradict it.
    ahead = point(other, 15)
    assert checkpoint_of(ahead, None, chain.ledger) == ahead
    check_point(chain.ledger, ahead)


def test_who_has_a_chain_or_founds_one_could_start_alone(chain: Chain) -> None:
    founder, stranger = chain.manifest.founder, identity(70).peer
    nothing = Ledger(chain.manifest)
    assert has_begun(nothing, founder)
    assert not has_begun(nothing, stranger)
    assert has_begun(chain.ledger, stranger)
    # Not even the founder, if its checkpoint names a record that it lacks.
    held = Ledger(chain.manifest, checkpoint=point(chain, 4))
    assert not has_begun(held, founder)


@pytest.mark.parametrize("found", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_who_has_nothing_waits_for_somebody_with_the_record(
    chain: Chain, begun: bool, found: bool
) -> None:
    behind = Ledger(chain.manifest, checkpoint=point(chain, 4))
    assert may_start(behind, begun=begun, found=found) == begun
    assert may_start(chain.ledger, begun=begun, found=found) == (begun or found)
