"""Certified contributions, and receipts: an error in any part is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.receipts import (
    MAX_RECEIPT_BYTES,
    Receipt,
    RelayClaim,
    against_chain,
    against_checkpoint,
    certifying_rounds,
    decode_receipt,
    examine,
    with_claim,
    write_receipt,
)
from distro_node.protocol.chain.record_checks import check_record
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import RecordId, SignedBallot
from simulation.audited_chain import VouchedChain
from simulation.chain import Chain
from simulation.swarm import identity

ROUND = 36


@cache
def chain() -> VouchedChain:
    """The last record that certifies contributions is that of round 36."""
    return VouchedChain(4).grow_until(40)


def receipt(who: int = 1) -> Receipt:
    found = write_receipt(chain().ledger, ROUND, identity(who).peer)
    assert found is not None
    return found


def refused(receipt: Receipt) -> str:
    with pytest.raises(ProtocolError) as caught:
        examine(receipt)
    return str(caught.value)


# Records


def test_a_record_beside_a_snapshot_certifies_what_was_done_before() -> None:
    assert certifying_rounds(chain().ledger) == [6, 11, 16, 21, 26, 31, 36]
    for round_ in range(40):
        record = chain().ledger[round_].record
        work = chain().ledger.truncated(round_).find(AuditLedger)
        assert work is not None
        assert record.contributions == (work.contributions.root if record.snapshot else b"")
    done = chain().work.contributions
    assert {done[peer].updates for peer in done.peers} == {39}
    assert all(0 < done[peer].audited <= done[peer].sequences == 39 * 16 for peer in done.peers)


@pytest.mark.parametrize(
    ("rounds", "said", "words"),
    [
        (6, b"", "no contributions"),
        (6, bytes(32), "another contributions root"),
        (6, bytes(31), "another contributions root"),
        (7, bytes(32), "where none is due"),
        (7, b"x", "where none is due"),
    ],
)
def test_a_record_that_states_something_else(rounds: int, said: bytes, words: str) -> None:
    short = VouchedChain(4).grow_until(rounds)
    check_record(short.record(), short.ledger, short.ledger.verify)
    with pytest.raises(ProtocolError, match=words):
        check_record(short.record(contributions=said), short.ledger, short.ledger.verify)


def test_without_audits_a_receipt_has_none_and_its_bytes_stay() -> None:
    plain = Chain(4, snapshot_interval=5).grow_until(6)
    record = plain.record()
    assert record.snapshot is not None
    assert record.contributions == b""
    check_record(record, plain.ledger, plain.ledger.verify)
    with pytest.raises(ProtocolError, match="where none is due"):
        check_record(replace(record, contributions=bytes(32)), plain.ledger, plain.ledger.verify)
    # None of the later fields is encoded.
    assert encode(record)[0] == 0x90 | 9
    decided = plain.decide(record)
    plain.ledger.append(decided)
    with pytest.raises(ProtocolError, match="certifies no contributions"):
        write_receipt(plain.ledger, 6, identity(0).peer)


def test_it_is_the_same_after_truncating_and_replaying() -> None:
    ledger, again = chain().ledger, Ledger(chain().manifest)
    for round_ in range(len(ledger)):
        again.append(ledger[round_])
        cut = ledger.truncated(round_ + 1)
        assert (
            again.index(AuditLedger).contributions.root == cut.index(AuditLedger).contributions.root
        )
    # A diverged chain counts its own contributions.
    other = VouchedChain(4).grow_until(20)
    other.ledger = ledger.truncated(20)
    other.grow(updates=[])
    assert (
        other.work.contributions.root != ledger.truncated(21).index(AuditLedger).contributions.root
    )


# Receipts


@pytest.mark.parametrize("who", range(4))
def test_a_receipt_holds(who: int) -> None:
    written = receipt(who)
    assert decode_receipt(written.encode()) == written
    found = examine(written)
    assert found.signers == set(chain().membership.peers)
    assert found.founder_signed
    assert found.manifest == chain().manifest
    before = chain().ledger.truncated(ROUND).find(AuditLedger)
    assert before is not None
    assert written.contribution == before.contributions[identity(who).peer]
    assert against_chain(written, chain().ledger)
    assert against_checkpoint(written, chain().manifest.swarm, written.anchor)


def test_who_has_done_nothing_gets_none() -> None:
    assert write_receipt(chain().ledger, ROUND, identity(50).peer) is None
    with pytest.raises(ProtocolError, match="certifies no contributions"):
        write_receipt(chain().ledger, ROUND + 1, identity(0).peer)


def other_swarm() -> VouchedChain:
    return VouchedChain(4, seed=9)


TAMPERED: dict[str, Callable[[Receipt], Any]] = {
    "manifest": lambda r: other_swarm().manifest.encode(),
    "peer": lambda r: identity(2).peer,
    "updates": lambda r: r.updates + 1,
    "sequences": lambda r: r.sequences + 1,
    "audited": lambda r: r.audited + 1,
    "index": lambda r: (r.index + 1) % 4,
    "size": lambda r: r.size + 1,
    "steps": lambda r: (content_id(b"x"), *r.steps[1:]),
    "decided": lambda r: chain().ledger[31],
    "claim": lambda r: RelayClaim(1, bytes(64)),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_receipt_with_another_message_in_it(name: str) -> None:
    written = receipt()
    assert refused(replace(written, **{name: TAMPERED[name](written)}))


def test_every_field_is_tampered_with() -> None:
    assert {field.name for field in fields(Receipt)} - {"kind"} == TAMPERED.keys()


def test_a_claim_is_signed_by_its_peer() -> None:
    written, mine = receipt(), identity(1)
    claiming = with_claim(written, 5_000, mine.sign)
    assert decode_receipt(claiming.encode()) == claiming
    assert examine(claiming) == examine(written)
    assert claiming.claim is not None
    forged = [
        with_claim(written, 5_000, identity(2).sign),
        replace(claiming, claim=replace(claiming.claim, bytes=5_001)),
        # For another round, or in another swarm.
        replace(_at(31), claim=claiming.claim),
        replace(written, claim=with_claim(_elsewhere(), 5_000, mine.sign).claim),
    ]
    for each in forged:
        assert "did not sign" in refused(each)


def _at(round_: int) -> Receipt:
    found = write_receipt(chain().ledger, round_, identity(1).peer)
    assert found is not None
    return found


def _elsewhere() -> Receipt:
    found = write_receipt(other_swarm().grow_until(ROUND + 1).ledger, ROUND, identity(1).peer)
    assert found is not None
    return found


def test_every_byte_counts() -> None:
    data = receipt().encode()
    for at in range(0, len(data), 7):
        turned = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(ProtocolError):
            examine(decode_receipt(turned))
    for wrong in (b"", data[:-1], data + b"\0", b"\x90", bytes(MAX_RECEIPT_BYTES + 1)):
        with pytest.raises(ProtocolError):
            decode_receipt(wrong)


def test_a_certificate_of_something_else() -> None:
    written, good = receipt(), receipt().decided.certificate
    for wrong in (
        replace(good, kind="vote"),
        replace(good, round=good.round + 1),
        replace(good, parent=good.block),
        replace(good, block=good.parent),
    ):
        assert "another record" in refused(_with(written, certificate=wrong))
    twice = replace(good, ballots=(good.ballots[0], *good.ballots))
    assert "sorted" in refused(_with(written, certificate=twice))
    first, *rest = good.ballots
    forged = SignedBallot(first.peer, first.silent, rest[0].signature)
    assert "signature" in refused(
        _with(written, certificate=replace(good, ballots=(forged, *rest)))
    )


def test_a_record_without_an_account() -> None:
    written = receipt()
    assert refused(replace(written, decided=chain().ledger[ROUND + 1]))
    plain = Chain(4, snapshot_interval=5).grow_until(7)
    other = replace(written, manifest=plain.manifest.encode(), decided=plain.ledger[6])
    assert "does not audit work" in refused(other)


def _with(written: Receipt, **changes: Any) -> Receipt:
    return replace(written, decided=replace(written.decided, **changes))


# What the file alone does not show


def made_up() -> Receipt:
    """Return a receipt with a forged record of the swarm, signed by strangers' keys."""
    forger = VouchedChain(1).grow_until(ROUND)
    forger.ledger = chain().ledger.truncated(ROUND)
    record = replace(forger.record(), fingerprint=666, audits=())
    decided = forger.decide(record, signers=[identity(number).peer for number in range(40, 44)])
    return replace(receipt(), decided=decided)


def test_made_up_signers_are_found_with_the_chain_or_a_named_record_alone() -> None:
    forged, swarm = made_up(), chain().manifest.swarm
    found = examine(forged)
    assert not found.founder_signed
    assert not found.signers & set(chain().membership.peers)
    with pytest.raises(ProtocolError, match="another record"):
        against_chain(forged, chain().ledger)
    with pytest.raises(ProtocolError, match="another record"):
        against_checkpoint(forged, swarm, receipt().anchor)
    # The chain ends before this round: it shows the members, and that the signers are none.
    with pytest.raises(ProtocolError, match="not a member"):
        against_chain(forged, chain().ledger.truncated(ROUND))


def test_a_certificate_that_is_no_quorum_is_found_with_the_chain() -> None:
    written = receipt()
    ballots = written.decided.certificate.ballots[:1]
    few = _with(written, certificate=replace(written.decided.certificate, ballots=ballots))
    examine(few)
    with pytest.raises(ProtocolError, match="not a quorum"):
        against_chain(few, chain().ledger)


def test_what_says_nothing() -> None:
    written, swarm = receipt(), chain().manifest.swarm
    assert not against_chain(written, chain().ledger.truncated(ROUND - 1))
    assert against_chain(written, chain().ledger.truncated(ROUND))
    assert not against_checkpoint(written, swarm, None)
    later = Checkpoint(ROUND + 1, RecordId(content_id(b"x")))
    assert not against_checkpoint(written, swarm, later)


def test_another_swarm() -> None:
    other = other_swarm()
    with pytest.raises(ProtocolError, match="another swarm"):
        against_chain(receipt(), other.ledger)
    with pytest.raises(ProtocolError, match="another swarm"):
        against_checkpoint(receipt(), other.manifest.swarm, receipt().anchor)
