"""The ledger: every check of a record can fail, and old messages neither admit nor remove a member."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.admissions import admission_problem
from distro_node.protocol.chain.departures import leave_is_current
from distro_node.protocol.chain.evidence import EVIDENCE_WINDOW, accuse_of_announcements
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.snapshot_rounds import snapshot_round
from distro_node.protocol.wire.encoding import decode, encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import AdmissionSpec
from distro_node.protocol.wire.membership import LEAVE_WINDOW, REQUEST_WINDOW
from distro_node.protocol.wire.messages import (
    NO_BLOCK,
    AdmissionEntry,
    Certificate,
    Decided,
    DepartureEntry,
    Evidence,
    JoinRequest,
    Record,
    RecordId,
    SignedAnnouncement,
    SnapshotEntry,
)
from simulation.chain import Chain, by_invitation, ticket
from simulation.hostile import mutate_plain
from simulation.swarm import identity


def peer(index: int) -> PeerId:
    return identity(index).peer


def problem(chain: Chain, record: Record) -> str:
    """Return why `record` may not follow `chain`, although a quorum signed it."""
    with pytest.raises(ProtocolError) as caught:
        chain.ledger.append(chain.decide(record))
    assert caught.value.reason == "record"
    return str(caught.value)


@pytest.fixture
def chain() -> Chain:
    """At round 3, with members 0 to 3."""
    chain = Chain(4)
    chain.grow()
    chain.grow()
    return chain


def test_a_ledger_grows(chain: Chain) -> None:
    ledger = chain.ledger
    assert len(ledger) == 3
    assert ledger.parent(0) == chain.manifest.swarm
    assert [ledger.parent(r) for r in (1, 2)] == [ledger[r].record.id for r in (0, 1)]
    assert ledger.head == ledger[2].record.id
    assert len(ledger.membership(0)) == 1
    assert len(ledger.membership(3)) == 4
    with pytest.raises(IndexError):
        ledger.membership(4)


def test_a_ledger_is_rebuilt_from_its_entries_alone(chain: Chain) -> None:
    again = Ledger(chain.manifest)
    for round_ in range(len(chain.ledger)):
        again.append(chain.ledger[round_])
    assert again.head == chain.ledger.head
    assert again.membership(3) == chain.ledger.membership(3)


# The chain


@pytest.mark.parametrize("changes", [{"round": 2}, {"round": 4}, {"parent": RecordId(b"x" * 32)}])
def test_entries_follow_each_other(chain: Chain, changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        chain.ledger.append(chain.decide(chain.record(**changes)))
    assert caught.value.reason == "wrong_parent"


def test_a_record_needs_the_certificate_of_its_finalizes(chain: Chain) -> None:
    record, other = chain.record(), chain.record(updates=[])
    few = chain.membership.peers[:2]
    for certificate in (
        chain.certificate(other.id),
        chain.certificate(record.id, kind="vote"),
        chain.certificate(record.id, signers=few),
        chain.certificate(record.id, round=2),
    ):
        with pytest.raises(ProtocolError) as caught:
            chain.ledger.append(Decided(record, certificate))
        assert caught.value.reason == "certificate"
    chain.ledger.append(chain.decide(record))


def test_the_founder_alone_decides_round_0() -> None:
    chain = Chain(0)
    outsider = Chain(0, founder=peer(1))
    record = chain.record(admitted=[chain.admission(1)])
    with pytest.raises(ProtocolError):
        chain.ledger.append(outsider.decide(outsider.record()))
    chain.ledger.append(chain.decide(record))
    assert set(chain.membership.peers) == {peer(0), peer(1)}


# Updates


def test_updates_are_announced_by_their_members(chain: Chain) -> None:
    entry = chain.update(1)
    for changed in (
        {"update": chain.update(2).update},
        {"size": 1001},
        {"tokens": 501},
        {"loss": 2.4},
        {"signature": bytes(64)},
        {"signature": chain.update(2).signature},
    ):
        record = chain.record(updates=[dataclasses.replace(entry, **changed)])
        assert "did not announce" in problem(chain, record)
    # The fingerprint and the parent are the record's own.
    other = chain.record(updates=[chain.update(1, fingerprint=8)])
    assert "did not announce" in problem(chain, other)
    stale = chain.record(updates=[chain.update(1, round=2)])
    assert "did not announce" in problem(chain, stale)
    elsewhere = chain.record(updates=[chain.update(1, parent=RecordId(bytes(32)))])
    assert "did not announce" in problem(chain, elsewhere)


def test_updates_are_members(chain: Chain) -> None:
    assert "non-member" in problem(chain, chain.record(updates=[chain.update(9)]))


def test_an_update_counts_once(chain: Chain) -> None:
    author, copycat = (chain.update(i) for i in (1, 2))
    copied = chain.update(2, update=author.update)
    assert copied.update != copycat.update
    updates = sorted([author, copied], key=lambda entry: entry.peer)
    assert "two members" in problem(chain, chain.record(updates=updates))
    chain.grow(updates=[copied])


def test_the_silent_have_no_updates(chain: Chain) -> None:
    record = chain.record(updates=[chain.update(1)], departed=[chain.silence(1)])
    assert "non-member" in problem(chain, record)
    # A leaving member may have its last update in the record.
    chain.grow(updates=[chain.update(1)], departed=[chain.leave(1)])


def test_round_0_has_no_updates() -> None:
    chain = Chain(0)
    assert "round 0" in problem(chain, chain.record(updates=[chain.update(0)]))


@pytest.mark.parametrize(
    ("field", "entries"),
    [
        ("updates", lambda chain: [chain.update(1), chain.update(2)]),
        ("admitted", lambda chain: [chain.admission(8), chain.admission(9)]),
        ("departed", lambda chain: [chain.silence(1), chain.silence(2)]),
    ],
)
def test_entries_are_sorted_each_peer_once(
    chain: Chain, field: str, entries: Callable[[Chain], list[Any]]
) -> None:
    first, second = sorted(entries(chain), key=lambda entry: entry.peer)
    for wrong in ((second, first), (first, first)):
        record = dataclasses.replace(chain.record(updates=[]), **{field: wrong})
        assert "not sorted" in problem(chain, record)
    chain.grow(**{"updates": [], field: [first, second]})


# Departures


def test_only_members_depart(chain: Chain) -> None:
    for entry in (chain.silence(9), chain.leave(9)):
        assert "non-member" in problem(chain, chain.record(departed=[entry]))


def test_silence_carries_no_signature(chain: Chain) -> None:
    for entry in (
        DepartureEntry(peer(1), "silent", 0, bytes(64)),
        DepartureEntry(peer(1), "silent", 3, b""),
    ):
        assert "with a signature" in problem(chain, chain.record(departed=[entry]))


def test_a_leave_is_signed_by_who_leaves(chain: Chain) -> None:
    good = chain.leave(1)
    for changed in (
        {"signature": bytes(64)},
        {"signature": b""},
        {"signature": chain.leave(2).signature},
        {"round": 2},
    ):
        record = chain.record(departed=[dataclasses.replace(good, **changed)])
        assert "did not sign" in problem(chain, record)
    chain.grow(departed=[good])


def test_leaves_are_good_for_a_while(chain: Chain) -> None:
    membership = chain.membership
    latest = 100
    for said, current in (
        (latest + 2, False),
        (latest + 1, True),
        (latest - LEAVE_WINDOW, True),
        (latest - LEAVE_WINDOW - 1, False),
    ):
        assert leave_is_current(said, peer(1), latest, membership) == current
    assert not leave_is_current(latest, peer(9), latest, membership)
    assert "too old, or of a future round" in problem(
        chain, chain.record(departed=[chain.leave(1, 5)])
    )


def test_a_leave_is_taken_back_by_the_return() -> None:
    """The member trained again before any record held its leave: the leave can no longer be used."""
    chain = Chain(4)
    chain.grow()
    word = chain.leave(2)
    quiet = chain.fork()
    for _ in range(3):
        chain.grow()
        quiet.grow(updates=[quiet.update(i) for i in (0, 1, 3)])
    with pytest.raises(ProtocolError):
        chain.grow(departed=[word])
    quiet.grow(departed=[word])
    assert len(quiet.membership) == 3


def test_an_old_leave_does_not_end_a_new_membership(chain: Chain) -> None:
    said = chain.leave(1)
    chain.grow(departed=[said])
    chain.grow(admitted=[chain.admission(1)])
    assert peer(1) in chain.membership
    assert "too old" in problem(chain, chain.record(departed=[said]))
    # Even a leave for the round that readmitted it is older than the membership.
    assert "too old" in problem(chain, chain.record(departed=[chain.leave(1, chain.round - 1)]))
    chain.grow(departed=[chain.leave(1)])


# Admissions


def test_an_admission_is_asked_for_by_who_is_admitted(chain: Chain) -> None:
    good = chain.admission(9)
    for entry in (
        dataclasses.replace(good, signature=bytes(64)),
        dataclasses.replace(good, peer=peer(8)),
        dataclasses.replace(good, request=JoinRequest(2, b"")),
        dataclasses.replace(good, request=JoinRequest(3, b"ticket")),
    ):
        assert "signature" in problem(chain, chain.record(admitted=[entry]))
    chain.grow(admitted=[good])


def test_members_are_not_admitted_again(chain: Chain) -> None:
    assert "already a member" in problem(chain, chain.record(admitted=[chain.admission(1)]))
    # Not even in the record in which they depart.
    record = chain.record(admitted=[chain.admission(1)], departed=[chain.leave(1)])
    assert "already a member" in problem(chain, record)


def test_requests_are_good_for_a_while(chain: Chain) -> None:
    now = 100
    for asked, good in (
        (now + 1, False),
        (now, True),
        (now - REQUEST_WINDOW, True),
        (now - REQUEST_WINDOW - 1, False),
    ):
        found = admission_problem(
            peer(9), JoinRequest(asked, b""), now, chain.manifest, chain.membership
        )
        assert (found is None) == good
    assert "too old, or of a future round" in problem(
        chain, chain.record(admitted=[chain.admission(9, 4)])
    )


def test_an_old_request_does_not_bring_back_who_departed(chain: Chain) -> None:
    asked = chain.admission(9)
    chain.grow(admitted=[asked])
    chain.grow(departed=[chain.silence(9)])
    record = chain.record(admitted=[asked])
    assert "from before the peer's departure" in problem(chain, record)
    # Nor a request from the round of its departure, which it did not know yet.
    record = chain.record(admitted=[chain.admission(9, chain.round - 1)])
    assert "from before the peer's departure" in problem(chain, record)
    chain.grow(admitted=[chain.admission(9)])


def test_the_manifest_bounds_the_members() -> None:
    chain = Chain(3, admission=AdmissionSpec(max_members=4))
    chain.grow()
    both = [chain.admission(8), chain.admission(9)]
    assert "more members" in problem(chain, chain.record(admitted=both))
    chain.grow(admitted=both, departed=[chain.leave(1)])


def test_training_begins_with_so_many_members() -> None:
    chain = Chain(0, start_members=3)
    assert "fewer members" in problem(chain, chain.record(admitted=[chain.admission(1)]))
    chain.grow(admitted=[chain.admission(1), chain.admission(2)])
    # Later rounds have no minimum.
    chain.grow(departed=[chain.silence(1), chain.silence(2)], silent=[peer(1), peer(2)])
    assert len(chain.membership) == 1


def test_somebody_stays(chain: Chain) -> None:
    everybody = [chain.silence(p) for p in chain.membership.peers]
    assert "leaves no members" in problem(chain, chain.record(departed=everybody))


def expel(chain: Chain, who: int, **changes: Any) -> Record:
    return chain.record(evidence=(chain.evidence(who, **changes),))


def test_who_contradicted_itself_is_out_for_good(chain: Chain) -> None:
    chain.grow(evidence=(chain.evidence(2),))
    assert peer(2) not in chain.membership
    assert chain.membership.expelled == {peer(2): 3}
    assert "expelled" in problem(chain, chain.record(admitted=[chain.admission(2)]))
    for _ in range(REQUEST_WINDOW + 2):
        chain.grow()
    assert "expelled" in problem(chain, chain.record(admitted=[chain.admission(2)]))
    # A replay of the chain gives the same.
    again = Ledger(chain.manifest)
    for round_ in range(len(chain.ledger)):
        again.append(chain.ledger[round_])
    assert peer(2) in again.membership(len(again)).expelled


def test_evidence_is_good_for_a_while_on_its_own_chain(chain: Chain) -> None:
    old, elsewhere = chain.evidence(1), chain.evidence(2, parent=RecordId(bytes(32)))
    early = chain.evidence(1, round=chain.round + 1)
    assert "another chain" in problem(chain, chain.record(evidence=(elsewhere,)))
    assert "future" in problem(chain, chain.record(evidence=(early,)))
    other = chain.fork()
    for _ in range(EVIDENCE_WINDOW):
        chain.grow()
        other.grow()
    other.grow(evidence=(old,))
    chain.grow()
    assert "too old" in problem(chain, chain.record(evidence=(old,)))


def test_evidence_that_proves_nothing(chain: Chain) -> None:
    proof = chain.evidence(2)
    first, second = proof.first, proof.second
    assert first is not None
    assert second is not None
    vote, skip = chain.testimony(2, "vote", first.block), chain.testimony(2, "skip", NO_BLOCK)
    for wrong in (
        dataclasses.replace(proof, second=first),
        # The same ballot with another mask, and a skip after a vote.
        dataclasses.replace(
            proof, second=chain.testimony(2, "vote", first.block, silent=[peer(1)])
        ),
        dataclasses.replace(proof, first=skip, second=vote),
        dataclasses.replace(proof, first=vote, second=skip),
        # Another order would be a second encoding.
        dataclasses.replace(proof, first=second, second=first),
        dataclasses.replace(proof, first=dataclasses.replace(first, signature=bytes(64))),
        dataclasses.replace(proof, second=dataclasses.replace(second, kind="finalize")),
        dataclasses.replace(proof, peer=peer(1)),
        dataclasses.replace(proof, slot=2),
        chain.evidence(20),
    ):
        assert "expulsion" in problem(chain, chain.record(evidence=(wrong,)))
    finalize = chain.testimony(2, "finalize", first.block)
    chain.grow(evidence=(dataclasses.replace(proof, first=finalize, second=skip),))


def two_announcements(chain: Chain, **changes: object) -> Evidence:
    """Return two announcements of member 2: a usual one, and one with these changes or another
    signature."""
    one, other = chain.announcement(2), chain.announcement(2, **changes)
    said = SignedAnnouncement(one, chain.signature(2, "announcement", one))
    again = SignedAnnouncement(other, chain.signature(2, "announcement", other))
    return accuse_of_announcements(peer(2), said, again)


def test_two_announcements_of_a_round_expel_their_author(chain: Chain) -> None:
    proof = two_announcements(chain, tokens=501)
    chain.grow(evidence=(proof,))
    assert peer(2) in chain.membership.expelled


def test_announcements_that_prove_nothing(chain: Chain) -> None:
    proof = two_announcements(chain, tokens=501)
    one, other = proof.announcements
    ballots = chain.evidence(2)
    elsewhere = two_announcements(chain, tokens=501, parent=RecordId(bytes(32)))
    for wrong in (
        dataclasses.replace(proof, announcements=(one,)),
        dataclasses.replace(proof, announcements=(one, one)),
        # Another order, or another slot, would be a second encoding.
        dataclasses.replace(proof, announcements=(other, one)),
        dataclasses.replace(proof, slot=2),
        dataclasses.replace(proof, first=ballots.first, second=ballots.second),
        dataclasses.replace(proof, announcements=()),
        # Not signed, or by another member; of different rounds or chains.
        dataclasses.replace(
            proof, announcements=(dataclasses.replace(one, signature=bytes(64)), other)
        ),
        dataclasses.replace(proof, peer=peer(1)),
        dataclasses.replace(elsewhere, parent=chain.ledger.head),
        two_announcements(chain, round=chain.round - 1),
    ):
        assert "expulsion" in problem(chain, chain.record(evidence=(wrong,)))


def test_who_is_expelled_is_nothing_else_in_the_record(chain: Chain) -> None:
    proof = chain.evidence(2)
    for departure in (chain.leave(2), chain.silence(2)):
        record = chain.record(evidence=(proof,), departed=[departure])
        assert "expelled" in problem(chain, record)
    assert "sorted" in problem(chain, chain.record(evidence=(proof, proof)))
    everybody = sorted((chain.evidence(i) for i in range(4)), key=lambda each: each.peer)
    assert "no members" in problem(chain, chain.record(evidence=tuple(everybody)))


def test_who_left_in_between_is_kept_out(chain: Chain) -> None:
    proof = chain.evidence(2)
    chain.grow(departed=[chain.leave(2)])
    chain.grow(evidence=(proof,))
    assert "expelled" in problem(chain, chain.record(admitted=[chain.admission(2)]))


def test_invitations() -> None:
    issuer, policy = by_invitation()
    chain = Chain(0, admission=policy)

    def admission(who: int, invitation: bytes) -> AdmissionEntry:
        return chain.admission(who, invitation=invitation)

    good = ticket(chain.manifest, issuer, peer(1))
    for entry in (
        admission(1, b""),
        admission(1, bytes(64)),
        admission(1, ticket(chain.manifest, identity(0), peer(1))),
        admission(1, ticket(Chain(0, name="another").manifest, issuer, peer(1))),
        admission(2, good),
    ):
        assert "ticket is not valid" in problem(chain, chain.record(admitted=[entry]))
    chain.grow(admitted=[admission(1, good)])


# Snapshots


def test_snapshots_are_certified_by_the_record_after() -> None:
    assert [snapshot_round(round_, 3) for round_ in range(8)] == [
        None, None, None, None, 3, None, None, 6,
    ]  # fmt: skip
    assert [snapshot_round(round_, 1) for round_ in range(4)] == [None, None, 1, 2]


def test_snapshots_come_when_they_are_due() -> None:
    chain = Chain(3, snapshot_interval=2)
    chain.grow()
    assert "none is due" in problem(chain, chain.record(snapshot=chain.snapshot(1)))
    chain.grow()
    assert chain.ledger.snapshot is None
    for wrong in (None, chain.snapshot(1), chain.snapshot(3)):
        assert "round 2 is due" in problem(chain, chain.record(snapshot=wrong))
    good = chain.snapshot(2)
    for size in (good.size - 4, good.size + 4):
        wrong_size = SnapshotEntry(2, good.blob, size)
        assert "wrong size" in problem(chain, chain.record(snapshot=wrong_size))
    chain.grow()
    assert chain.ledger.snapshot == good


# Runs of entries, and parts of a ledger


def test_truncated_is_the_ledger_of_before() -> None:
    chain = Chain(3, snapshot_interval=2)
    for _ in range(6):
        chain.grow()
    for length in range(len(chain.ledger) + 1):
        part, again = chain.ledger.truncated(length), Ledger(chain.manifest)
        for round_ in range(length):
            again.append(chain.ledger[round_])
        assert len(part) == length
        assert part.head == again.head
        assert part.membership(length) == again.membership(length)
        assert part.snapshot == again.snapshot
    part = chain.ledger.truncated(2)
    part.append(chain.ledger[2])
    assert len(chain.ledger) == 7


def test_any_record_that_a_quorum_signs(chain: Chain) -> None:
    """A record, changed anywhere and signed by all, is either added or refused with a
    `ProtocolError`."""
    full = chain.record(
        admitted=[chain.admission(8), chain.admission(9)],
        departed=[chain.leave(1), chain.silence(2)],
    )
    plain = msgpack.unpackb(encode(full))
    added = 0
    for number in range(400):
        changed = mutate_plain(plain, random.Random(number))
        try:
            record = decode(Record, bytes(msgpack.Packer().pack(changed)), max_bytes=1 << 20)
        except ProtocolError:
            continue
        ledger = chain.ledger.truncated(len(chain.ledger))
        try:
            ledger.append(chain.decide(record))
            added += 1
        except ProtocolError as error:
            if error.reason not in ("record", "certificate", "wrong_parent"):
                raise
    # A leader may leave out an update, an admission or a departure.
    assert added > 0


def test_any_certificate(chain: Chain) -> None:
    decided = chain.decide(chain.record())
    plain = msgpack.unpackb(encode(decided.certificate))
    decoded = 0
    for number in range(400):
        changed = mutate_plain(plain, random.Random(number))
        if changed == plain:
            continue
        try:
            certificate = decode(
                Certificate, bytes(msgpack.Packer().pack(changed)), max_bytes=1 << 20
            )
        except ProtocolError:
            continue
        decoded += 1
        ledger = chain.ledger.truncated(len(chain.ledger))
        try:
            ledger.append(Decided(decided.record, certificate))
        except ProtocolError as error:
            if error.reason not in ("certificate", "invalid"):
                raise
        else:
            # The only harmless change: three of four signers are still a quorum.
            assert len(certificate.ballots) == 3
    assert decoded > 20


def test_one_members_stated_size_does_not_move_the_estimated_cost_of_a_replay() -> None:
    chain = Chain(4)
    before = chain.ledger.update_bytes(0, chain.round)
    liar, *others = chain.membership.peers
    for size in (1, 1 << 32):
        chain.grow(updates=[chain.update(liar, size=size), *map(chain.update, others)])
    assert chain.ledger.update_bytes(0, chain.round) - before == 2 * 4 * 1000
