"""What the lying node says: sound enough to be looked into, and not followed."""

from __future__ import annotations

from chaos.lying_node import solo_chain
from distro_node.protocol.chain.ledger import Ledger
from simulation.chain import Chain, compared
from simulation.swarm import identity

LIAR = 1


def chain_of(rounds: int) -> Chain:
    chain = Chain(4)
    for _ in range(rounds):
        chain.grow()
    return chain


def alone(chain: Chain, start: int, rounds: int) -> Ledger:
    return solo_chain(
        chain.ledger,
        lambda kind, message: chain.envelope(LIAR, kind, message),
        identity(LIAR).peer,
        start,
        rounds,
    )


def test_a_solo_chain_is_as_long_as_its_maker_likes_and_holds() -> None:
    chain = chain_of(6)
    forged = alone(chain, 3, 20)
    assert len(forged) == 23
    assert forged.membership(10).peers == (identity(LIAR).peer,)
    checked = Ledger(chain.manifest)
    for round_ in range(len(forged)):
        checked.append(forged[round_])


def test_from_before_its_maker_was_there_it_begins_when_it_was() -> None:
    chain = chain_of(6)
    assert len(alone(chain, 0, 5)) == 6
    assert alone(chain, 0, 5)[0].record == chain.ledger[0].record


def test_nobody_follows_it() -> None:
    chain = chain_of(6)
    assert compared(chain.ledger, alone(chain, 2, 40)) is None
