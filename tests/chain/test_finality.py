"""The final prefix of one chain: what becomes final, by whose statements, and what no member can
cause."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.finality import Finality
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.membership import Membership
from distro_node.protocol.wire.messages import Record, RecordId, UpdateEntry, WitnessEntry
from seeds import seeds
from simulation.chain import Chain
from simulation.keys import RealKeys
from simulation.oracle import Chains
from simulation.still_chain import StillChain
from simulation.swarm import identity


def finals(chain: Chain, rounds: int) -> list[int]:
    found = []
    for _ in range(rounds):
        chain.grow()
        found.append(chain.ledger.final_round)
    return found


def test_the_founder_makes_the_first_records_final_and_all_the_next() -> None:
    chain = Chain(4)
    assert chain.ledger.finality_set == {chain.manifest.founder}
    assert chain.ledger.final is None
    assert finals(chain, 6) == [-1, 0, 0, 2, 2, 4]
    assert chain.ledger.finality_set == set(chain.membership.peers)
    assert chain.ledger.justified_round == 5
    final = chain.ledger.final
    assert final is not None
    assert final.record == chain.ledger[4].record.id


def test_a_minority_decides_and_makes_nothing_final() -> None:
    chain = Chain(6)
    finals(chain, 4)
    before = chain.ledger.final_round
    peers = chain.membership.peers
    chain.grow(
        silent=peers[3:], signers=peers[:3], departed=[chain.silence(peer) for peer in peers[3:]]
    )
    assert len(chain.membership) == 3
    assert finals(chain, 30)[-1] <= before + 2
    assert chain.ledger.finality_set == set(peers)
    # Silent members remain in the finality set: when they return, finality advances.
    returned = [i for i in range(6) if identity(i).peer in peers[3:5]]
    chain.grow(admitted=[chain.admission(i) for i in returned])
    assert finals(chain, 6)[-1] >= chain.round - 4


def test_who_takes_leave_is_not_waited_for() -> None:
    chain = Chain(3)
    finals(chain, 4)
    gone = chain.membership.peers[0]
    chain.grow(departed=[chain.leave(gone)])
    assert gone not in chain.ledger.finality_set
    assert finals(chain, 6)[-1] >= chain.round - 4
    # Nor for a founder that leaves before any record is final.
    alone = Chain(3)
    alone.grow(departed=[alone.leave(alone.manifest.founder)])
    assert finals(alone, 6)[-1] >= alone.round - 4


def test_what_one_who_left_had_shown_is_known_to_those_who_stay() -> None:
    """The heirs support less than it did for a while; records justified before stay justified."""
    chain = Chain(1, fault_model="crash")
    oracle = Chains(chain.manifest, RealKeys())
    founder = chain.manifest.founder
    while chain.round < 8:
        chain.grow()
    chain.grow(admitted=[chain.admission(1)])
    chain.grow(updates=[chain.update(founder)])
    chain.grow(
        updates=[chain.update(identity(1).peer)],
        departed=[chain.leave(founder)],
        admitted=[chain.admission(2)],
    )
    assert chain.ledger.final_round == 6
    chain.grow()
    for round_ in range(chain.round):
        oracle.add(chain.ledger[round_])
    assert chain.ledger.final_round == oracle.finality(chain.ledger.head).final == 8


def test_whose_updates_are_always_late_counts_by_its_finalizes() -> None:
    """A third or more may be too slow for the collect deadline, and still vote."""
    chain = Chain(6)
    finals(chain, 4)
    slow = chain.membership.peers[:3]
    for _ in range(8):
        last = chain.ledger[chain.round - 1].certificate
        witnesses = tuple(
            WitnessEntry(signed.peer, last.slot, signed.silent, signed.signature)
            for signed in last.ballots
            if signed.peer in slow
        )
        updates = [chain.update(peer) for peer in chain.membership.peers if peer not in slow]
        chain.grow(updates=updates, witnesses=witnesses)
    assert chain.ledger.final_round >= chain.round - 5


def test_witnesses_are_checked() -> None:
    chain = Chain(4)
    chain.grow()
    last = chain.ledger[chain.round - 1].certificate
    signed = last.ballots[0]
    others = [chain.update(peer) for peer in chain.membership.peers if peer != signed.peer]
    good = WitnessEntry(signed.peer, last.slot, signed.silent, signed.signature)
    chain.fork().grow(updates=others, witnesses=(good,))
    said = chain.ballot(chain.ledger.head, slot=last.slot, round=chain.round - 1)
    said = replace(said, parent=chain.ledger.parent(chain.round - 1))
    signature = chain.signature(40, "finalize", said)
    stranger = WitnessEntry(identity(40).peer, last.slot, said.silent, signature)
    lying = WitnessEntry(signed.peer, last.slot + 1, signed.silent, signed.signature)
    for witnesses in ((stranger,), (lying,), (good, good)):
        with pytest.raises(ProtocolError) as caught:
            chain.fork().grow(updates=others, witnesses=witnesses)
        assert caught.value.reason == "record"
    with pytest.raises(ProtocolError):
        chain.fork().grow(witnesses=(good,))


def test_a_crowd_of_the_moment_is_not_asked_alone() -> None:
    """The previous set counts as well: otherwise two sides, of which only one knows that a common
    record is final, could each make another one final."""
    chain = Chain(6)
    finals(chain, 3)
    old = chain.membership.peers
    chain.grow(admitted=[chain.admission(i) for i in range(20, 50)])
    while not chain.ledger.finality_set > set(old):
        chain.grow()
    before = chain.ledger.final_round
    new = [peer for peer in chain.membership.peers if peer not in old]
    chain.grow(silent=old, signers=new, departed=[chain.silence(peer) for peer in old])
    assert finals(chain, 20)[-1] == before


def test_after_the_lease_those_who_are_left_move_on() -> None:
    chain = Chain(4)
    finals(chain, 4)
    peers = chain.membership.peers
    chain.grow(silent=peers[2:], signers=peers[:2], departed=[chain.silence(p) for p in peers[2:]])
    still = finals(chain, 10)[-1]
    there = frozenset(peers[:2])
    # A member that is still present counts: of three, two are no quorum.
    assert not chain.ledger.move_finality_on(chain.round - 2, there | {peers[2]})
    assert chain.ledger.move_finality_on(chain.round - 2, there)
    assert chain.ledger.final_round == chain.round - 2 > still
    assert chain.ledger.finality_set == set(peers[:2])
    assert finals(chain, 4)[-1] >= chain.round - 4


@pytest.mark.parametrize("seed", seeds(12, 2))
def test_it_is_what_the_definitions_require(seed: int) -> None:
    """Compared with the oracle's own implementation, with members that join, leave, fall silent and are
    late; a part of the chain has the same finality as when it was the whole."""
    chance = random.Random(seed)
    chain = Chain(chance.randrange(1, 6), fault_model=chance.choice(("byzantine", "crash")))
    oracle = Chains(chain.manifest, RealKeys())
    oracle.add(chain.ledger[0])
    known = [chain.ledger.truncated(0), chain.ledger.truncated(1)]
    for number in range(20):
        members = list(chain.membership.peers)
        busy = [peer for peer in members if chance.random() < 0.8] or members[:1]
        parts: dict = {"updates": [chain.update(peer) for peer in busy]}
        if chance.random() < 0.4 and len(members) > 1:
            gone = chance.choice(members)
            leaves = chance.random() < 0.5 and chain.membership.since[gone] < chain.round
            parts["departed"] = [chain.leave(gone) if leaves else chain.silence(gone)]
            parts["updates"] = [e for e in parts["updates"] if leaves or e.peer != gone]
            signers = [peer for peer in members if peer != gone]
            parts |= {"silent": [gone], "signers": signers}
        if chance.random() < 0.3:
            parts["admitted"] = [chain.admission(10 + number)]
        chain.grow(**parts)
        oracle.add(chain.ledger[chain.round - 1])
        expected = oracle.finality(chain.ledger.head)
        assert chain.ledger.final_round == expected.final
        assert chain.ledger.justified_round == expected.justified
        assert chain.ledger.finality_set == expected.members
        known.append(chain.ledger.truncated(chain.round))
    for length, before in enumerate(known):
        again: Ledger = chain.ledger.truncated(length)
        assert again.final_round == before.final_round
        assert again.justified_round == before.justified_round
        assert again.finality_set == before.finality_set


def test_a_chain_of_which_nothing_is_final_takes_little_memory() -> None:
    """Regression: the supporters of each round took 22 kB with 256 members."""
    peers = [PeerId(content_id(number.to_bytes(4, "big"))) for number in range(256)]
    chain: Any = StillChain(bytes(32), Membership(since=dict.fromkeys(peers, 0)))
    finality = Finality(chain)
    tracemalloc.start()
    try:
        start, _ = tracemalloc.get_traced_memory()
        for round_ in range(1000):
            # Another hundred of 150 in each round, with distinct byte objects as from a decoder.
            said = sorted(PeerId(bytes(bytearray(peers[(round_ + n) % 150]))) for n in range(100))
            update = content_id(b"update")
            entries = tuple(UpdateEntry(peer, update, 1, 1, 0.0, bytes(64)) for peer in said)
            record = Record(round_, RecordId(bytes(32)), 0, entries, (), (), None)
            chain.length += 1
            finality.follow(record)
        end, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert finality.round == -1
    assert end - start < 1 << 20


def test_heirs_take_over_though_all_have_left_since() -> None:
    """The record that becomes final as the founder leaves was made when it was alone."""
    chain = Chain(1, fault_model="crash").grow_until(5)
    heir = identity(1).peer
    chain.grow(admitted=[chain.admission(1)])
    chain.grow(updates=[chain.update(heir)], departed=[chain.leave(chain.manifest.founder)])
    assert chain.ledger.final_round == 4
    chain.grow_until(12)
    assert chain.ledger.final_round == 8


def test_the_expelled_are_not_asked() -> None:
    """Of three members, all would be needed for a quorum."""
    chain = Chain(3).grow_until(5)
    chain.grow(evidence=(chain.evidence(chain.membership.peers[0]),))
    assert len(chain.membership) == 2
    chain.grow_until(chain.round + 6)
    assert chain.ledger.final_round >= chain.round - 4


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


def test_who_left_before_the_lease_was_over_is_not_asked() -> None:
    chain, present = _cut_off()
    chain.ledger.move_finality_on(10, present)
    assert chain.ledger.finality_set == present
