"""Rules of certified contributions, and of the content of a receipt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from distro_node.protocol.audit import merkle
from distro_node.protocol.audit.audit_sums import level_test
from distro_node.protocol.audit.contributions import Contribution, Contributions
from distro_node.protocol.audit.reputation import EPOCH_ROUNDS, Audit, RecordedWork, ReputationTable
from distro_node.protocol.chain import receipts
from distro_node.protocol.chain.ledger import check_record
from distro_node.protocol.chain.receipts import Receipt, write_receipt
from distro_node.protocol.wire.errors import ProtocolError
from simulation.chain import identity
from simulation.checked_chain import VouchedChain

ME, OTHER = identity(0).peer, identity(1).peer
CERTIFIES = 6


@cache
def _chain() -> VouchedChain:
    return VouchedChain(3).grow_until(CERTIFIES + 3)


@cache
def _receipt() -> Receipt:
    found = write_receipt(_chain().ledger, CERTIFIES, ME)
    assert found is not None
    return found


def _refused(why: str, what: Callable[[], Any]) -> bool:
    try:
        what()
    except ProtocolError as error:
        return why in str(error)
    return False


def _record_refused(rounds: int, said: bytes) -> bool:
    chain = VouchedChain(2).grow_until(rounds)
    record = chain.record(contributions=said)
    return _refused("contributions root", lambda: check_record(record, chain.ledger))


def test_a_claim_is_signed() -> None:
    claimed = receipts.with_claim(_receipt(), 5, identity(1).sign)
    assert _refused("did not sign", lambda: receipts.examine(claimed))


def test_a_record_lacks_the_account() -> None:
    assert _record_refused(CERTIFIES, b"")


def test_a_record_has_another_account() -> None:
    assert _record_refused(CERTIFIES, bytes(32))


def test_a_record_has_one_where_none_is_due() -> None:
    assert _record_refused(CERTIFIES + 1, bytes(32))


def test_nobody_vouches_for_who_is_alone() -> None:
    accounts = ReputationTable(ME, level_test(250))
    for round_ in range(EPOCH_ROUNDS):
        accounts.close(RecordedWork(round_, {ME: 4}), {ME})
    assert accounts.contributions[ME] == Contribution(EPOCH_ROUNDS, 4 * EPOCH_ROUNDS, 0)


def test_who_looks_vouches() -> None:
    accounts = ReputationTable(ME, level_test(250))
    accounts.close(RecordedWork(1, {OTHER: 4}), {ME, OTHER})
    accounts.close(RecordedWork(2, {}, (Audit(ME, OTHER, 1, 4, 9000),)), {ME, OTHER})
    assert accounts.contributions[OTHER] == Contribution(1, 4, 4)


def test_what_is_shared_is_not_copied() -> None:
    many = Contributions().after({_peer(number): 1 for number in range(80)}, {})
    later = many.after({_peer(0): 1}, {})
    # The shared part of two values is an implementation detail.
    assert later._settled is many._settled
    assert later[_peer(0)].updates == 2


def _peer(number: int) -> Any:
    return bytes([number]) * 32


def test_a_tree_has_one_size() -> None:
    """The last of three leaves moves up unchanged: in a tree of two it would be a level higher."""
    items = [b"a", b"b", b"c"]
    steps = merkle.path(items, 2)
    tree = merkle.tree_hash(items)
    assert merkle.stands(b"c", 2, 3, steps, tree)
    assert not merkle.stands(b"c", 1, 2, steps, tree)


def test_a_proof_has_no_steps_too_many() -> None:
    tree = merkle.tree_hash([b"a"])
    assert not merkle.stands(b"a", 0, 1, [tree], tree)


def test_a_long_receipt_is_not_read() -> None:
    assert _refused(
        "bytes exceed the limit of", lambda: receipts.decode_receipt(bytes((7 << 20) + 1))
    )


def test_a_receipt_is_of_its_record() -> None:
    more = replace(_receipt(), audited=_receipt().audited + 1)
    assert _refused("does not certify", lambda: receipts.examine(more))


def test_a_certificate_is_of_its_record() -> None:
    other = replace(_receipt().decided, certificate=_chain().ledger[CERTIFIES + 1].certificate)
    assert _refused("another record", lambda: receipts.examine(replace(_receipt(), decided=other)))


def test_each_signer_signs_once() -> None:
    certificate = _receipt().decided.certificate
    twice = replace(certificate, ballots=certificate.ballots[:1] * 3)
    decided = replace(_receipt().decided, certificate=twice)
    assert _refused(
        "sorted and distinct", lambda: receipts.examine(replace(_receipt(), decided=decided))
    )


def test_a_named_record_is_this_one() -> None:
    other = replace(_receipt().anchor, record=_chain().ledger.head)
    swarm = _chain().manifest.swarm
    assert _refused("another record", lambda: receipts.against_checkpoint(_receipt(), swarm, other))


def test_a_link_is_to_this_swarm() -> None:
    elsewhere = VouchedChain(0, seed=9).manifest.swarm
    anchor = _receipt().anchor
    assert _refused(
        "another swarm", lambda: receipts.against_checkpoint(_receipt(), elsewhere, anchor)
    )


def test_a_chain_takes_the_certificate() -> None:
    """A quorum of votes must have signed it, although the record is the chain's."""
    certificate = _receipt().decided.certificate
    few = replace(certificate, ballots=())
    decided = replace(_receipt().decided, certificate=few)
    assert _refused(
        "not a quorum",
        lambda: receipts.against_chain(replace(_receipt(), decided=decided), _chain().ledger),
    )
