"""Contributions since the founding are never forgotten, and cheap to keep."""

from __future__ import annotations

import random

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.audit_sums import level_test
from distro_node.protocol.audit.contributions import Contribution, Contributions
from distro_node.protocol.audit.merkle import verify_inclusion
from distro_node.protocol.audit.reputation import (
    EPOCH_ROUNDS,
    WINDOW,
    Audit,
    RecordedWork,
    ReputationTable,
)
from distro_node.protocol.audit.sequential_test import LevelTest

LEVELS: LevelTest = level_test(250)


def peer(number: int) -> PeerId:
    return PeerId(content_id(b"peer %d" % number))


ALICE, BOB, CARL = map(peer, range(3))


def test_counted_and_audited_samples_are_added() -> None:
    first = Contributions().after({ALICE: 4, BOB: 2}, {})
    second = first.after({ALICE: 3}, {ALICE: 7, BOB: 1})
    assert second[ALICE] == Contribution(updates=2, sequences=7, audited=7)
    assert second[BOB] == Contribution(updates=1, sequences=2, audited=1)
    assert second[CARL] == Contribution(0, 0, 0)
    # The earlier value is unchanged.
    assert first[ALICE] == Contribution(updates=1, sequences=4, audited=0)
    assert CARL not in second
    assert list(second.peers) == sorted([ALICE, BOB])
    assert second.after({}, {}) is second


def test_it_comes_out_the_same_in_whatever_parts_it_is_kept() -> None:
    """Compared with a plain table, and with a value built at once."""
    chance = random.Random(5)
    plain: dict[PeerId, list[int]] = {}
    grown = Contributions()
    for _ in range(300):
        counted = {peer(chance.randrange(200)): chance.randrange(1, 9) for _ in range(5)}
        known = [*plain.keys() | counted.keys()]
        audited = {chance.choice(known): chance.randrange(1, 4)}
        for who, sequences in counted.items():
            row = plain.setdefault(who, [0, 0, 0])
            row[0] += 1
            row[1] += sequences
        for who, sequences in audited.items():
            plain[who][2] += sequences
        grown = grown.after(counted, audited)
    assert {
        who: [g.updates, g.sequences, g.audited] for who in grown.peers if (g := grown[who])
    } == (plain)
    at_once = Contributions({who: Contribution(*row) for who, row in plain.items()})
    assert at_once.root == grown.root


def test_every_line_has_a_proof() -> None:
    many = Contributions().after({peer(number): number + 1 for number in range(100)}, {})
    for number in range(100):
        proof = many.proof(peer(number))
        leaf = many[peer(number)].leaf(peer(number))
        assert verify_inclusion(leaf, proof.index, proof.size, proof.steps, many.root)
    with pytest.raises(KeyError):
        many.proof(peer(100))


def test_any_change_is_another_root() -> None:
    base = Contributions().after({ALICE: 1, BOB: 1}, {})
    others = [
        Contributions(),
        base.after({ALICE: 1}, {}),
        base.after({}, {ALICE: 1}),
        base.after({CARL: 1}, {}),
        Contributions().after({ALICE: 2, BOB: 1}, {}),
        Contributions().after({ALICE: 1}, {}),
        Contributions().after({ALICE: 1, CARL: 1}, {}),
    ]
    assert len({each.root for each in (base, *others)}) == 8


def test_who_is_here_costs_and_not_who_ever_was() -> None:
    """Of ten thousand past members twenty are at work: an epoch later nearly all data is shared."""
    crowd = Contributions().after({peer(number): 1 for number in range(10_000)}, {})
    before = crowd
    for _ in range(EPOCH_ROUNDS):
        crowd = crowd.after({peer(number): 1 for number in range(20)}, {})
    # Private here: `_main`, `_recent`: what two values share is not part of the interface.
    assert crowd._main is before._main  # see above
    assert len(crowd._recent) == 20  # see above
    assert len(crowd) == 10_000


# In the accounts


def round_of(number: int, who: PeerId, *audits: Audit) -> RecordedWork:
    return RecordedWork(number, {who: 4}, audits)


def test_it_outlasts_the_window_and_departures() -> None:
    accounts = ReputationTable(ALICE, LEVELS)
    accounts.close(round_of(1, BOB), {ALICE, BOB})
    accounts.close(round_of(2, BOB, Audit(ALICE, BOB, 1, 4, 9000)), {ALICE, BOB})
    done = Contribution(updates=2, sequences=8, audited=4)
    assert accounts.contributions[BOB] == done
    for number in range(3, WINDOW + 4 * EPOCH_ROUNDS):
        accounts.close(RecordedWork(number, {}), {ALICE})
    assert accounts[BOB].work == 0
    assert accounts.contributions[BOB] == done


def test_a_lone_member_is_not_audited() -> None:
    """Its work gives votes all the same; otherwise the next newcomer would have more."""
    accounts = ReputationTable(ALICE, LEVELS)
    for number in range(2 * EPOCH_ROUNDS):
        accounts.close(round_of(number, ALICE), {ALICE})
    assert accounts.votes == {ALICE: 4 * 2 * EPOCH_ROUNDS}
    done = Contribution(updates=2 * EPOCH_ROUNDS, sequences=4 * 2 * EPOCH_ROUNDS, audited=0)
    assert accounts.contributions[ALICE] == done


def test_a_copy_goes_another_way() -> None:
    accounts = ReputationTable(ALICE, LEVELS)
    accounts.close(round_of(1, BOB), {ALICE, BOB})
    copy = accounts.copy()
    copy.close(round_of(2, BOB), {ALICE, BOB})
    assert accounts.contributions[BOB].updates == 1
    assert copy.contributions[BOB].updates == 2


def test_nobody_vouches_for_who_is_alone() -> None:
    accounts = ReputationTable(ALICE, LEVELS)
    for round_ in range(EPOCH_ROUNDS):
        accounts.close(RecordedWork(round_, {ALICE: 4}), {ALICE})
    assert accounts.contributions[ALICE] == Contribution(EPOCH_ROUNDS, 4 * EPOCH_ROUNDS, 0)


def test_auditors_vouch() -> None:
    accounts = ReputationTable(ALICE, LEVELS)
    accounts.close(RecordedWork(1, {BOB: 4}), {ALICE, BOB})
    accounts.close(RecordedWork(2, {}, (Audit(ALICE, BOB, 1, 4, 9000),)), {ALICE, BOB})
    assert accounts.contributions[BOB] == Contribution(1, 4, 4)


def test_what_is_shared_is_not_copied() -> None:
    many = Contributions().after({peer(number): 1 for number in range(80)}, {})
    later = many.after({peer(0): 1}, {})
    # The shared part of two values is an implementation detail.
    assert later._main is many._main
    assert later[peer(0)].updates == 2
