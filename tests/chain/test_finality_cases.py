"""Rules of the final prefix: which statements count, and from when on."""

from __future__ import annotations

import dataclasses
from typing import Any

from distro_node.crypto.identity import PeerId
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import WitnessEntry
from simulation.chain import Chain, identity
from simulation.keys import RealKeys
from simulation.oracle import Chains


def test_two_phases() -> None:
    chain, found = Chain(4), []
    for _ in range(6):
        chain.grow()
        found.append(chain.ledger.final_round)
    assert found == [-1, 0, 0, 2, 2, 4]


def test_old_set_is_asked() -> None:
    chain = Chain(6)
    for _ in range(3):
        chain.grow()
    old = chain.membership.peers
    chain.grow(admitted=[chain.admission(who) for who in range(20, 50)])
    while not chain.ledger.finality_set > set(old):
        chain.grow()
    before = chain.ledger.final_round
    new = [peer for peer in chain.membership.peers if peer not in old]
    chain.grow(silent=old, signers=new, departed=[chain.silence(peer) for peer in old])
    for _ in range(12):
        chain.grow()
    assert chain.ledger.final_round == before


def test_leavers_are_not_asked() -> None:
    chain = Chain(3)
    for _ in range(4):
        chain.grow()
    chain.grow(departed=[chain.leave(chain.membership.peers[0])])
    for _ in range(6):
        chain.grow()
    assert chain.ledger.final_round >= chain.round - 4


def test_heirs_take_over() -> None:
    """The founder, the whole set, leaves before any record is final."""
    chain = Chain(3)
    chain.grow(departed=[chain.leave(chain.manifest.founder)])
    chain.grow_until(chain.round + 6)
    assert chain.ledger.final_round >= chain.round - 4


def test_heirs_take_over_though_all_have_left_since() -> None:
    """The record that becomes final as the founder leaves was made when it was alone."""
    chain = Chain(1, fault_model="crash").grow_until(5)
    heir = identity(1).peer
    chain.grow(admitted=[chain.admission(1)])
    chain.grow(updates=[chain.update(heir)], departed=[chain.leave(chain.manifest.founder)])
    assert chain.ledger.final_round == 4
    chain.grow_until(12)
    assert chain.ledger.final_round == 8


def test_what_a_leaver_had_shown_stays_known() -> None:
    chain = Chain(1, fault_model="crash").grow_until(8)
    founder, heir = chain.manifest.founder, identity(1).peer
    chain.grow(admitted=[chain.admission(1)])
    chain.grow(updates=[chain.update(founder)])
    chain.grow(
        updates=[chain.update(heir)],
        departed=[chain.leave(founder)],
        admitted=[chain.admission(2)],
    )
    assert chain.ledger.final_round == 6
    chain.grow()
    assert chain.ledger.final_round == 8


def test_the_expelled_are_not_asked() -> None:
    """Of three members, all would be needed for a quorum."""
    chain = Chain(3).grow_until(5)
    chain.grow(evidence=(chain.evidence(chain.membership.peers[0]),))
    assert len(chain.membership) == 2
    chain.grow_until(chain.round + 6)
    assert chain.ledger.final_round >= chain.round - 4


def _witnesses(chain: Chain, *who: PeerId) -> tuple[WitnessEntry, ...]:
    last = chain.ledger[chain.round - 1].certificate
    return tuple(
        WitnessEntry(signed.peer, last.slot, signed.silent, signed.signature)
        for signed in last.ballots
        if signed.peer in who
    )


def test_witnesses_count_for_the_round_before() -> None:
    """Three of six finalize each round, and their updates are always late: the result equals the
    oracle's."""
    chain = Chain(6).grow_until(5)
    oracle = Chains(chain.manifest, RealKeys())
    for round_ in range(chain.round):
        oracle.add(chain.ledger[round_])
    slow = chain.membership.peers[:3]
    for _ in range(8):
        updates = [chain.update(peer) for peer in chain.membership.peers if peer not in slow]
        oracle.add(chain.grow(updates=updates, witnesses=_witnesses(chain, *slow)))
        assert chain.ledger.final_round == oracle.finality(chain.ledger.head).final
    assert chain.ledger.final_round >= chain.round - 5


def _refused(chain: Chain, *witnesses: WitnessEntry, **parts: Any) -> bool:
    try:
        chain.fork().grow(witnesses=witnesses, **parts)
    except ProtocolError as error:
        return error.reason == "record"
    return False


def _witness_and_others() -> tuple[Chain, WitnessEntry, dict[str, Any]]:
    chain = Chain(4).grow_until(2)
    (witness,) = _witnesses(chain, chain.membership.peers[0])
    others = [chain.update(peer) for peer in chain.membership.peers if peer != witness.peer]
    return chain, witness, {"updates": others}


def test_witnesses_were_members() -> None:
    chain, witness, parts = _witness_and_others()
    said = chain.ballot(chain.ledger.head, slot=witness.slot, round=chain.round - 1)
    said = dataclasses.replace(said, parent=chain.ledger.parent(chain.round - 1))
    stranger = WitnessEntry(
        identity(40).peer, said.slot, said.silent, chain.signature(40, "finalize", said)
    )
    assert _refused(chain, stranger, **parts)


def test_witnesses_have_signed() -> None:
    """It finalized the record in another slot."""
    chain, witness, parts = _witness_and_others()
    assert _refused(chain, dataclasses.replace(witness, slot=witness.slot + 1), **parts)


def test_nobody_is_its_own_witness() -> None:
    """Its update is a statement already, and records must stay short."""
    chain, witness, _ = _witness_and_others()
    assert _refused(chain, witness)


def test_nobody_witnesses_twice() -> None:
    chain, witness, parts = _witness_and_others()
    assert _refused(chain, witness, witness, **parts)


def test_a_part_has_what_it_had() -> None:
    chain, had = Chain(4), []
    for _ in range(8):
        chain.grow()
        ours = chain.ledger
        had.append((ours.final_round, ours.justified_round, ours.finality_set))
    parts = [chain.ledger.truncated(length + 2) for length in range(8)]
    assert had == [(p.final_round, p.justified_round, p.finality_set) for p in parts]


def _cut_off() -> tuple[Chain, frozenset[PeerId]]:
    """Return a chain of three of five, one of which leaves long after the other two fell silent; and
    the remaining members."""
    chain = Chain(5).grow_until(6)
    here, gone = chain.membership.peers[:3], chain.membership.peers[3:]
    silences = [chain.silence(peer) for peer in gone]
    chain.grow(signers=here, silent=gone, departed=silences)
    chain.grow_until(12)
    chain.grow(departed=[chain.leave(here[2])])
    chain.grow_until(15)
    return chain, frozenset(here[:2])


def test_a_lease_moves_to_what_it_has_seen() -> None:
    chain, present = _cut_off()
    chain.ledger.move_finality_on(10, present)
    assert chain.ledger.final_round == 10


def test_who_left_before_the_lease_was_over_is_not_asked() -> None:
    chain, present = _cut_off()
    chain.ledger.move_finality_on(10, present)
    assert chain.ledger.finality_set == present
