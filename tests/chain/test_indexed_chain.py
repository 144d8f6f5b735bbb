"""A chain's indexes: which there are, and that those of a copy belong to the copy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from chain.committee_chain import AggregatedChain
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.chain.beacon import Beacon
from distro_node.protocol.chain.chain_index import VoteSource
from distro_node.protocol.chain.committees import CommitteeChain
from distro_node.protocol.chain.indexed_chain import IndexedChain
from distro_node.protocol.chain.ledger import Ledger
from simulation.audited_chain import AuditedChain
from simulation.chain import Chain

# Private here: `_chain`, `_indexes`: the chain that a ledger consists of, and its list of indexes.

CHAINS: dict[str, Callable[[], Chain]] = {
    "plain": lambda: Chain(4),
    "audits": AuditedChain,
    "committees": lambda: AggregatedChain(7),
}


def _indexes(chain: IndexedChain) -> list[object]:
    return list(chain._indexes)


@pytest.fixture(params=CHAINS)
def ledger(request: pytest.FixtureRequest) -> Ledger:
    chain = CHAINS[request.param]()
    while chain.round < 12:
        chain.grow()
    return chain.ledger


@pytest.mark.parametrize(
    ("swarm", "features"),
    [("plain", set()), ("audits", {Beacon, AuditLedger}), ("committees", {Beacon, CommitteeChain})],
)
def test_a_swarm_has_the_indexes_of_its_features(swarm: str, features: set[type]) -> None:
    ledger = CHAINS[swarm]().ledger
    optional = {Beacon, AuditLedger, CommitteeChain}
    assert {kind for kind in optional if ledger.find(kind) is not None} == features
    for kind in optional - features:
        with pytest.raises(LookupError, match=kind.__name__):
            ledger.index(kind)
    assert isinstance(ledger.index(VoteSource), VoteSource)


@pytest.mark.parametrize("length", [0, 1, 5, 12])
def test_the_indexes_of_a_copy_refer_to_nothing_of_the_original(
    ledger: Ledger, length: int
) -> None:
    """An index that read the original's would change its mind when the original grows."""
    chain, copy = ledger._chain, ledger._chain.before(length)
    assert [*map(type, _indexes(copy))] == [*map(type, _indexes(chain))]
    foreign = {id(one) for one in (chain, *_indexes(chain))}
    lists = {
        id(value)
        for index in _indexes(chain)
        for value in vars(index).values()
        if isinstance(value, list | dict | set)
    }
    for index in _indexes(copy):
        for name, value in vars(index).items():
            assert id(value) not in foreign | lists, f"{type(index).__name__}.{name}"


@pytest.mark.parametrize("length", [0, 1, 5, 11, 12])
def test_a_ledger_that_is_cut_is_the_copy_of_that_length(ledger: Ledger, length: int) -> None:
    entries = [ledger[round_] for round_ in range(length, len(ledger))]
    copy = ledger.truncated(length)
    ledger.cut(length)
    for one in (copy, ledger):
        assert len(one) == length
        for entry in entries:
            one.append(entry)
    assert ledger.head == copy.head
    assert ledger.final == copy.final
    assert ledger.votes(len(ledger)) == copy.votes(len(copy))
    assert ledger.update_bytes(0, 12) == copy.update_bytes(0, 12)
    assert ledger.assignments.due(12) == copy.assignments.due(12)
