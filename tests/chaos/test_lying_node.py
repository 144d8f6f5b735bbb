"""The lying node's messages: valid enough to be examined, and not followed."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from chaos.lying_node import LyingRunner, solo_chain
from chaos.test_audit_liars import kills
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.member.effects import Publish
from distro_node.protocol.member.inputs import MessageReceived, Tick
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import (
    AuditEntry,
    Ballot,
    Evidence,
    RecordId,
    decode_message,
)
from e2e.grinding_leader import ground
from simulation.chain import Chain, compared
from simulation.swarm import identity

# Private here: `_burst`, `_elsewhere`, `_old_goodbye`, `_opposite`, `_tell`: its lies, one by one;
# `_key`, `_manifest`: what a liar reads of the node that it is.

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


def liar_of(chain: Chain) -> Any:
    """Return the runner, with everything that its lies need of a node."""
    runner: Any = LyingRunner.__new__(LyingRunner)
    runner._key = identity(LIAR)
    runner._manifest = chain.manifest
    view = SimpleNamespace(ledger=chain.ledger, me=identity(LIAR).peer, fingerprint=0)
    runner.member = SimpleNamespace(view=view)
    runner._tell = lambda lie: None
    return runner


def test_of_ten_thousand_announcements_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.lying_node._BURST", 200)
    chain = chain_of(6)
    member, refused = chain.member(0), []
    burst = liar_of(chain)._burst()
    assert len({decode_message(envelope) for envelope in burst}) == 200
    for envelope in burst:
        try:
            member.handle(MessageReceived(envelope), 1.0)
        except ProtocolError as error:
            refused.append(error.reason)
    assert len(refused) == 199
    said = member.parts.round.collection.announcements()
    assert [peer for peer, _ in said] == [identity(LIAR).peer]


def test_ballots_of_one_slot_contradict_each_other_and_those_of_two_chains_do_not() -> None:
    chain = chain_of(6)
    liar, round_ = liar_of(chain), chain.round
    mask = chain.membership.mask(())
    block = RecordId(bytes(31) + b"1")
    vote = chain.envelope(LIAR, "vote", Ballot(round_, chain.ledger.head, 1, block, mask))

    def accusations(*envelopes: Any) -> set[Any]:
        member = chain.member(0)
        for envelope in envelopes:
            with contextlib.suppress(ProtocolError):
                member.handle(MessageReceived(envelope), 1.0)
        effects = member.handle(Tick(), 2.0)
        said = [
            decode_message(effect.envelope) for effect in effects if isinstance(effect, Publish)
        ]
        return {message.peer for message in said if isinstance(message, Evidence)}

    elsewhere = liar._elsewhere(RecordId(bytes(32)))
    assert not accusations(vote, *elsewhere)
    assert accusations(vote, liar._opposite(vote)) == {identity(LIAR).peer}


def test_an_old_goodbye_is_refused() -> None:
    chain = chain_of(70)
    member = chain.member(0)
    with pytest.raises(ProtocolError):
        member.handle(MessageReceived(liar_of(chain)._old_goodbye()), 1.0)
    assert identity(LIAR).peer in member.view.members


def test_a_grinding_leader_varies_only_what_no_voter_holds_against_it() -> None:
    chain = chain_of(6)
    record = chain.ledger[5].record
    audits = tuple(AuditEntry(identity(n).peer, 4, bytes(32), n, 1, bytes(64)) for n in (1, 2, 3))
    record = dataclasses.replace(record, audits=audits)
    best = ground(record)
    assert best.id <= min(record.id, dataclasses.replace(record, audits=()).id)
    assert dataclasses.replace(best, audits=audits) == record
    assert set(best.audits) < set(audits)


def test_kills_beside_liars_are_one_at_a_time() -> None:
    names = ["founder", "second", "third", "fourth"]
    for seed in range(20):
        found = kills(seed, names, 600.0)
        assert len(found) > 5
        assert {fault.kind for fault in found} == {"kill"}
        pairs = itertools.pairwise(found)
        assert all(later.start > one.start + one.seconds for one, later in pairs)
