"""Rules of the final prefix: what is counted, whose word counts, and from when on."""

from __future__ import annotations

import dataclasses
from typing import Any

from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import finality, ledger
from distro_node.protocol.chain.finality import Finality
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import WitnessEntry

from ..chain import Chain, identity
from ..keys import RealKeys
from ..oracle import Chains
from .rule import Patch, Rule, edited

# Private here: `_start_over`, `_supporters`: the very lines that are broken on purpose; `_replace`: what
# every named tuple has.


def _two_phases() -> bool:
    chain, found = Chain(4), []
    for _ in range(6):
        chain.grow()
        found.append(chain.ledger.final_round)
    return found == [-1, 0, 0, 2, 2, 4]


def _one_phase() -> list[Patch]:
    class Reached(list):  # type: ignore[type-arg]  # what is supported is final at once
        def __init__(self, first: int) -> None:
            super().__init__()
            self.first = first

        def __getitem__(self, place: Any) -> Any:
            return [] if isinstance(place, slice) else place + self.first

    original = finality.Finality._start_over

    def start_over(self: Any) -> None:
        original(self)
        self._reached = Reached(self._steps[-1].first)

    return [(finality.Finality, "_start_over", start_over)]


def _old_set_is_asked() -> bool:
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
    return chain.ledger.final_round == before


def _the_last_set_alone() -> list[Patch]:
    original = finality.Finality._start_over

    def start_over(self: Any) -> None:
        self._steps[-1] = self._steps[-1]._replace(before=self._steps[-1].members)
        original(self)

    return [(finality.Finality, "_start_over", start_over)]


def _leavers_are_not_asked() -> bool:
    chain = Chain(3)
    for _ in range(4):
        chain.grow()
    chain.grow(departed=[chain.leave(chain.membership.peers[0])])
    for _ in range(6):
        chain.grow()
    return chain.ledger.final_round >= chain.round - 4


def _leavers_are_asked() -> list[Patch]:
    original = finality._supporters
    return [(finality, "_supporters", lambda *known: (*original(*known)[:2], ()))]


def _heirs_take_over() -> bool:
    """The founder, the whole set, leaves before anything is final."""
    chain = Chain(3)
    chain.grow(departed=[chain.leave(chain.manifest.founder)])
    chain.grow_until(chain.round + 6)
    return chain.ledger.final_round >= chain.round - 4


def _heirs_take_over_though_all_have_left_since() -> bool:
    """The record that becomes final as the founder leaves was made when it was alone."""
    chain = Chain(1, fault_model="crash").grow_until(5)
    heir = identity(1).peer
    chain.grow(admitted=[chain.admission(1)])
    chain.grow(updates=[chain.update(heir)], departed=[chain.leave(chain.manifest.founder)])
    assert chain.ledger.final_round == 4
    chain.grow_until(12)
    return chain.ledger.final_round == 8


def _what_a_leaver_had_shown_stays_known() -> bool:
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
    return chain.ledger.final_round == 8


def _the_expelled_are_not_asked() -> bool:
    """Of three, all are a quorum."""
    chain = Chain(3).grow_until(5)
    chain.grow(evidence=(chain.evidence(chain.membership.peers[0]),))
    assert len(chain.membership) == 2
    chain.grow_until(chain.round + 6)
    return chain.ledger.final_round >= chain.round - 4


def _witnesses(chain: Chain, *who: PeerId) -> tuple[WitnessEntry, ...]:
    last = chain.ledger[chain.round - 1].certificate
    return tuple(
        WitnessEntry(signed.peer, last.slot, signed.silent, signed.signature)
        for signed in last.ballots
        if signed.peer in who
    )


def _witnesses_count_for_the_round_before() -> bool:
    """Three of six finalize each round, and their updates are always late: it is as the definitions
    say."""
    chain = Chain(6).grow_until(5)
    oracle = Chains(chain.manifest, RealKeys())
    for round_ in range(chain.round):
        oracle.add(chain.ledger[round_])
    slow = chain.membership.peers[:3]
    for _ in range(8):
        updates = [chain.update(peer) for peer in chain.membership.peers if peer not in slow]
        oracle.add(chain.grow(updates=updates, witnesses=_witnesses(chain, *slow)))
        if chain.ledger.final_round != oracle.finality(chain.ledger.head).final:
            return False
    return chain.ledger.final_round >= chain.round - 5


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


def _witnesses_were_members() -> bool:
    chain, witness, parts = _witness_and_others()
    said = chain.ballot(chain.ledger.head, slot=witness.slot, round=chain.round - 1)
    said = dataclasses.replace(said, parent=chain.ledger.parent(chain.round - 1))
    stranger = WitnessEntry(
        identity(40).peer, said.slot, said.silent, chain.signature(40, "finalize", said)
    )
    return _refused(chain, stranger, **parts)


def _witnesses_have_signed() -> bool:
    """It finalized the record in another slot."""
    chain, witness, parts = _witness_and_others()
    return _refused(chain, dataclasses.replace(witness, slot=witness.slot + 1), **parts)


def _nobody_is_its_own_witness() -> bool:
    """Its update says as much, and records must stay short."""
    chain, witness, _ = _witness_and_others()
    return _refused(chain, witness)


def _nobody_witnesses_twice() -> bool:
    chain, witness, parts = _witness_and_others()
    return _refused(chain, witness, witness, **parts)


def _a_part_has_what_it_had() -> bool:
    chain, had = Chain(4), []
    for _ in range(8):
        chain.grow()
        ours = chain.ledger
        had.append((ours.final_round, ours.justified_round, ours.finality_set))
    parts = [chain.ledger.truncated(length + 2) for length in range(8)]
    return had == [(p.final_round, p.justified_round, p.finality_set) for p in parts]


def _cut_off() -> tuple[Chain, frozenset[PeerId]]:
    """Three of five, of whom one takes leave, long after the others fell silent; and who is left."""
    chain = Chain(5).grow_until(6)
    here, gone = chain.membership.peers[:3], chain.membership.peers[3:]
    silences = [chain.silence(peer) for peer in gone]
    chain.grow(signers=here, silent=gone, departed=silences)
    chain.grow_until(12)
    chain.grow(departed=[chain.leave(here[2])])
    chain.grow_until(15)
    return chain, frozenset(here[:2])


def _a_lease_moves_to_what_it_has_seen() -> bool:
    chain, present = _cut_off()
    chain.ledger.move_finality_on(10, present)
    return chain.ledger.final_round == 10


def _who_left_before_the_lease_was_over_is_not_asked() -> bool:
    chain, present = _cut_off()
    chain.ledger.move_finality_on(10, present)
    return chain.ledger.finality_set == present


RULES = (
    Rule("two phases make a record final", _two_phases, _one_phase),
    Rule("the set before is asked as well", _old_set_is_asked, _the_last_set_alone),
    Rule("who took leave is not asked", _leavers_are_not_asked, _leavers_are_asked),
    Rule(
        "a statement vouches for the record before",
        _two_phases,
        edited(Finality, "_supported", ("max(known, last - 1)", "max(known, last)")),
    ),
    Rule(
        "heirs take over",
        _heirs_take_over,
        edited(Finality, "_count", ("left.without(gone) or heirs", "left.without(gone)")),
    ),
    Rule(
        "heirs take over where all have left since",
        _heirs_take_over_though_all_have_left_since,
        edited(Finality, "_count", (".without(gone_since) or before", ".without(gone_since)")),
    ),
    Rule(
        "what a leaver had shown stays known",
        _what_a_leaver_had_shown_stays_known,
        edited(Finality, "_count", ("[supported, *self._reached[-1:]]", "[supported]")),
    ),
    Rule(
        "who left since the final record is not asked",
        _leavers_are_not_asked,
        edited(Finality, "_count", ("members.without(gone_since) or before", "members")),
    ),
    Rule(
        "the expelled are not asked",
        _the_expelled_are_not_asked,
        edited(finality, "_supporters", ("*(proof.peer for proof in record.evidence)", "")),
    ),
    Rule(
        "witnesses count",
        _witnesses_count_for_the_round_before,
        edited(finality, "_supporters", ("in record.witnesses", "in ()")),
    ),
    Rule(
        "witnesses count for the round before",
        _witnesses_count_for_the_round_before,
        edited(
            Finality,
            "_count",
            ("(round_, round_ - 1)", "(round_, round_)"),
            ("memberships[at].marked", "memberships[round_].marked"),
        ),
    ),
    Rule(
        "a witness was a member",
        _witnesses_were_members,
        edited(
            ledger,
            "_check_witness",
            ("witness.peer not in ledger.membership(record.round - 1)", "False"),
        ),
    ),
    Rule(
        "a witness has signed",
        _witnesses_have_signed,
        edited(ledger, "_check_witness", ("if not signed(", "if None is signed(")),
    ),
    Rule(
        "nobody is its own witness",
        _nobody_is_its_own_witness,
        edited(
            ledger,
            "_check_witness",
            ("witness.peer in {entry.peer for entry in record.updates}", "False"),
        ),
    ),
    Rule(
        "nobody is a witness twice",
        _nobody_witnesses_twice,
        edited(
            ledger,
            "check_record",
            ("_check_sorted([witness.peer for witness in record.witnesses])", ""),
        ),
    ),
    Rule(
        "a part of a chain has what it had",
        _a_part_has_what_it_had,
        edited(Finality, "before", ("step.first <= length", "True")),
    ),
    Rule(
        "a lease moves to what it has seen",
        _a_lease_moves_to_what_it_has_seen,
        edited(Finality, "move_on", ("min(round, *map(", "min(*map(")),
    ),
    Rule(
        "who left before a lease was over is not asked",
        _who_left_before_the_lease_was_over_is_not_asked,
        edited(Finality, "_move_to", (".without(gone)", "")),
    ),
)
